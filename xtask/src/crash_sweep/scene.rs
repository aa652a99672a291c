//! The trees a sweep works on: how they begin, what is done to them, and how they are compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::subject::{Ending, Subject};

/// What a command is about to do when something goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scenario {
    /// The first deploy, into roots that do not exist.
    Create,
    /// Changed, new and vanished files, changed modes.
    Update,
    /// Nearly everything goes.
    Delete,
    /// Files of the user are in the way and are taken over.
    Adopt,
    /// Back from the second deploy to the first.
    Rollback,
    /// Changed, new and vanished files in the places of version 2.
    Version2,
    /// The config file and what was deployed from it go to version 2.
    Migrate,
}

impl Scenario {
    pub(super) const ALL: &'static [Self] = &[
        Self::Update,
        Self::Create,
        Self::Delete,
        Self::Adopt,
        Self::Rollback,
        Self::Version2,
        Self::Migrate,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Adopt => "adopt",
            Self::Rollback => "rollback",
            Self::Version2 => "version2",
            Self::Migrate => "migrate",
        }
    }

    pub(super) fn is_fast(self) -> bool {
        matches!(self, Self::Update | Self::Migrate)
    }
}

/// Path to what is there.
pub(super) type Tree = BTreeMap<PathBuf, String>;

/// One place to work in, and a copy of how it begins.
pub(super) struct Scene {
    path: PathBuf,
    pristine: PathBuf,
    command: Vec<String>,
}

const SKILLS: usize = 4;
const FILES: usize = 5;

impl Scene {
    pub(super) fn build(subject: &Subject, path: PathBuf, scenario: Scenario) -> Result<Self> {
        let pristine = path.with_extension("pristine");
        let mut scene = Self { path, pristine, command: Vec::new() };
        let path = scene.path.as_path();
        write(&path.join("project/.codex/skills/mine/SKILL.md"), "the user's own\n")?;
        write(&path.join("dotfiles/own.toml"), "the user's own\n")?;
        fs::create_dir(path.join("user"))?;
        symlink(path.join("dotfiles"), path.join("user/.codex"))?;
        let deploy = scene.words(&["deploy", "--apply", "--adopt", "--yes"]);
        let run = |arguments: &[String]| -> Result<()> {
            let ending = subject.run(&scene, arguments, None)?;
            ensure!(ending == Ending::Done, "setting the scene failed: {ending:?}");
            Ok(())
        };
        write_repo(&path.join("repo"), 0..SKILLS, "first")?;
        let command = match scenario {
            Scenario::Create => deploy,
            Scenario::Adopt => {
                for file in 0..FILES {
                    let place = path.join("project/.codex/skills/skill-1").join(file_name(file));
                    write(&place, &format!("written by hand {file}\n"))?;
                }
                symlink("/nowhere", path.join("project/AGENTS.md"))?;
                deploy
            }
            Scenario::Update => {
                run(&deploy)?;
                write_second(path)?;
                deploy
            }
            Scenario::Delete => {
                run(&deploy)?;
                write_repo(&path.join("repo"), 0..1, "first")?;
                deploy
            }
            Scenario::Rollback => {
                run(&deploy)?;
                let snapshot = newest_snapshot(path)?;
                write_second(path)?;
                run(&deploy)?;
                write(&path.join("project/.codex/skills/skill-2/SKILL.md"), "edited by hand\n")?;
                scene.words(&["rollback", "--to", &snapshot, "--yes"])
            }
            Scenario::Version2 => {
                as_version_2(path)?;
                run(&deploy)?;
                write_second(path)?;
                as_version_2(path)?;
                deploy
            }
            Scenario::Migrate => {
                run(&deploy)?;
                write(&path.join("project/.codex/skills/skill-2/SKILL.md"), "edited by hand\n")?;
                scene.words(&["migrate", "--apply", "--adopt", "--yes"])
            }
        };
        scene.command = command;
        copy(&scene.path, &scene.pristine)?;
        Ok(scene)
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let repo = self.path.join("repo").display().to_string();
        let mut all = vec!["--repo".to_owned(), repo];
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all
    }

    /// Runs in the project, with everything in this directory and nothing from outside.
    pub(super) fn prepare(&self, command: &mut Command) {
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path.join("user"));
        command.env("AGENTPACK_HOME", self.path.join("home"));
        command.env("AGENTPACK_MACHINE_ID", "sweep");
        command.current_dir(self.path.join("project"));
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn command(&self) -> Vec<String> {
        self.command.clone()
    }

    pub(super) fn recovery(&self) -> Vec<String> {
        // The smallest command that takes the lock, and so recovers first.
        self.words(&["snapshots", "prune", "--keep", "1000", "--yes"])
    }

    /// As it was before anything went wrong.
    pub(super) fn reset(&self) -> Result<()> {
        fs::remove_dir_all(&self.path)?;
        copy(&self.pristine, &self.path)
    }

    /// The user's side: everything outside the home.
    pub(super) fn tree(&self) -> Result<Tree> {
        let mut tree = Tree::new();
        for part in ["project", "user", "dotfiles", "repo"] {
            walk(&self.path, &self.path.join(part), &mut tree)?;
        }
        Ok(tree)
    }

    /// Nothing staged and no journal anywhere.
    pub(super) fn assert_tidy(&self) -> Result<()> {
        let mut all = Tree::new();
        walk(&self.path, &self.path, &mut all)?;
        for path in all.keys() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            ensure!(!name.starts_with(".crewkit-"), "{} was left behind", path.display());
            let is_journal = path.parent().is_some_and(|parent| parent.ends_with("crewkit/journal"));
            ensure!(!is_journal, "the journal {} was left behind", path.display());
        }
        Ok(())
    }
}

fn newest_snapshot(path: &Path) -> Result<String> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(path.join("home/state/crewkit/snapshots"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ids.extend(name.strip_suffix(".jsonl").map(str::to_owned));
    }
    ids.sort();
    ids.pop().context("the first deploy left no snapshot")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file has a directory")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn file_name(file: usize) -> String {
    match file {
        0 => "SKILL.md".to_owned(),
        4 => "dir/file-4.md".to_owned(),
        _ => format!("file-{file}.md"),
    }
}

/// The config file says version 2, for two clients.
fn as_version_2(path: &Path) -> Result<()> {
    let file = path.join("repo/agentpack.yaml");
    let text = fs::read_to_string(&file)?.replace("version: 1", "version: 2");
    let text = text.replace("codex: {mode: files, scope: both}", "agents: {}\n  claude_code: {}");
    write(&file, &text)
}

/// Changed, new and vanished files, and a changed mode.
fn write_second(path: &Path) -> Result<()> {
    write_repo(&path.join("repo"), 1..SKILLS + 1, "second")?;
    let file = path.join("repo/modules/skills/skill-2/file-3.md");
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

/// A config repo with one module of instructions and some skills, for the user and the project.
fn write_repo(repo: &Path, skills: std::ops::Range<usize>, text: &str) -> Result<()> {
    if repo.exists() {
        fs::remove_dir_all(repo)?;
    }
    write(&repo.join("modules/instructions/base/AGENTS.md"), &format!("{text} instructions\n"))?;
    let mut manifest = String::from(
        "version: 1\nprofiles:\n  default: {include_tags: [base]}\ntargets:\n  \
         codex: {mode: files, scope: both}\nmodules:\n  - id: instructions:base\n    type: instructions\n    \
         tags: [base]\n    source: {local_path: {path: modules/instructions/base}}\n",
    );
    for skill in skills {
        let name = format!("skill-{skill}");
        for file in 0..FILES {
            let path = repo.join("modules/skills").join(&name).join(file_name(file));
            let head = format!("---\nname: {name}\ndescription: Number {skill}\n---\n");
            // Some files stay the same from one generation to the next.
            let text = if file == 1 { "always" } else { text };
            let body = format!("{text} {skill} {file}\n").repeat(20);
            write(&path, &if file == 0 { head + &body } else { body })?;
            if file == 2 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
        manifest += &format!(
            "  - id: skill:{name}\n    type: skill\n    tags: [base]\n    \
             source: {{local_path: {{path: modules/skills/{name}}}}}\n"
        );
    }
    write(&repo.join("agentpack.yaml"), &manifest)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

fn walk(top: &Path, dir: &Path, tree: &mut Tree) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        let shown = path.strip_prefix(top)?.to_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            tree.insert(shown, "directory".to_owned());
            walk(top, &path, tree)?;
        } else if kind.is_symlink() {
            tree.insert(shown, format!("link to {}", fs::read_link(&path)?.display()));
        } else {
            let mode = entry.metadata()?.permissions().mode() & 0o777;
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            let is_manifest = shown.to_string_lossy().contains(".agentpack.manifest");
            let text = if is_manifest { without_time(&text)? } else { text };
            tree.insert(shown, format!("{mode:o} {text}"));
        }
    }
    Ok(())
}

/// A manifest without what differs from run to run.
fn without_time(text: &str) -> Result<String> {
    let mut json: serde_json::Value = serde_json::from_str(text).context("a manifest is not JSON")?;
    json["generated_at"].take();
    json["snapshot_id"].take();
    Ok(json.to_string())
}

/// Says where two trees differ.
pub(super) fn compare(tree: &Tree, wanted: &Tree) -> Result<()> {
    let paths: std::collections::BTreeSet<_> = tree.keys().chain(wanted.keys()).collect();
    let shorten = |text: Option<&String>| match text {
        Some(text) => text.chars().take(60).collect(),
        None => "nothing".to_owned(),
    };
    for path in paths {
        let (found, wanted) = (tree.get(path), wanted.get(path));
        if found != wanted {
            bail!("{}: {:?} instead of {:?}", path.display(), shorten(found), shorten(wanted));
        }
    }
    Ok(())
}
