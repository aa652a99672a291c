//! What each coding client reads: where it looks, in which order, what hides what, and what it cuts.
//!
//! A client is a description, not code: one file each, read by [`view`], which says what the client will see in a
//! directory, and by [`findings`], which says which deployed files it will not see, or not as meant.

use std::path::{Path, PathBuf};

use crewkit_core::Limits;

use crate::desired::target::TargetKind;
use crate::env::Env;

pub(crate) mod findings;
pub(crate) mod view;

mod amp;
mod antigravity;
mod claude_code;
mod cline;
mod codex;
mod copilot_cli;
mod cursor;
mod factory;
mod gemini;
mod goose;
mod junie;
mod kiro;
mod opencode;
mod qwen;
mod vscode;
mod windsurf;
mod zed;

/// A coding client.
#[derive(Debug)]
pub struct Client {
    /// The name in flags and answers; the name of its target, if it has one.
    pub name: &'static str,
    /// The name people know.
    pub title: &'static str,
    /// The version the facts are about, if they belong to one.
    pub version: Option<&'static str>,
    /// How well the facts are known.
    pub evidence: Evidence,
    /// The directory of the user that [`Base::Config`] means.
    pub config: ConfigDir,
    /// The instruction files, in the order in which the client joins them.
    pub instructions: &'static [Step],
    pub skills: Skills,
    /// Files that become commands of the user, one each.
    pub commands: &'static [Place],
    /// Whether the model sees commands without being asked to use one.
    pub shows_commands: bool,
    /// Where files for this client alone are written, from version 2 of the config file on.
    pub writes: &'static [Write],
    /// Reads the settings that change what the client reads.
    pub(crate) settings: fn(&SettingsPlace<'_>) -> ClientSettings,
}

/// A place that a deploy writes for a client.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    pub what: Written,
    pub place: Place,
}

/// What is written at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// All instructions in one file, which the place names.
    Instructions,
    /// One file that imports the shared `AGENTS.md` and holds the instructions that are not in it.
    Importing,
    /// A file per instructions module in the directory that the place names.
    Rules(RuleStyle),
    /// A directory per skill in the directory that the place names.
    Skills,
}

/// How a rule says what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleStyle {
    /// `.mdc` with `description`, `globs`, `alwaysApply`.
    Cursor,
    /// `.md` with a list `paths`.
    Paths,
    /// `.instructions.md` with `applyTo`.
    ApplyTo,
    /// `.md` with `inclusion` and `fileMatchPattern`.
    Inclusion,
    /// `.md` with `trigger` and `globs`.
    Trigger,
}

impl RuleStyle {
    /// The name of the file of the rule `name`.
    pub(crate) fn file_name(self, name: &str) -> String {
        let ending = match self {
            Self::Cursor => "mdc",
            Self::ApplyTo => "instructions.md",
            Self::Paths | Self::Inclusion | Self::Trigger => "md",
        };
        format!("{name}.{ending}")
    }
}

impl Write {
    const fn instructions(place: Place) -> Self {
        Self { what: Written::Instructions, place }
    }

    const fn importing(place: Place) -> Self {
        Self { what: Written::Importing, place }
    }

    const fn rules(style: RuleStyle, place: Place) -> Self {
        Self { what: Written::Rules(style), place }
    }

    const fn skills(place: Place) -> Self {
        Self { what: Written::Skills, place }
    }

    /// Whether it is for the user, in every project.
    pub(crate) fn is_of_user(&self) -> bool {
        self.place.base != Base::Project
    }
}

/// What every client that follows the shared conventions reads.
pub(crate) static SHARED: [Write; 3] = [
    Write::instructions(Place::project("AGENTS.md")),
    Write::skills(Place::project(".agents/skills")),
    Write::skills(Place::home(".agents/skills")),
];

/// How well a fact is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The client was run and its input was looked at.
    Measured,
    /// The vendor's documentation or source says so.
    Documented,
    /// Others say so, or sources disagree.
    Unverified,
}

impl Evidence {
    /// The word in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Documented => "documented",
            Self::Unverified => "not verified",
        }
    }
}

/// A directory of the user that belongs to a client.
#[derive(Debug)]
pub struct ConfigDir {
    /// The environment variable that moves it.
    pub variable: Option<&'static str>,
    /// Where it is otherwise, below the home directory.
    pub below_home: &'static str,
}

/// What a place is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The project.
    Project,
    /// The home directory of the user.
    Home,
    /// The client's own directory.
    Config,
}

/// A place where a client looks.
///
/// The path of instructions and commands is a file, or files below a directory: `dir/*.md` directly, `dir/**/*.md` at any
/// depth. The path of skills is the directory that holds one directory per skill.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub base: Base,
    pub path: &'static str,
}

impl Place {
    const fn project(path: &'static str) -> Self {
        Self { base: Base::Project, path }
    }

    const fn home(path: &'static str) -> Self {
        Self { base: Base::Home, path }
    }

    const fn config(path: &'static str) -> Self {
        Self { base: Base::Config, path }
    }
}

/// One block of the instructions a client joins.
#[derive(Debug)]
pub struct Step {
    pub places: &'static [Place],
    pub take: Take,
    /// Which directories of the project are looked at.
    pub dirs: Dirs,
    /// Files whose presence in the same directory switches this step off.
    pub unless: &'static [&'static str],
    /// Bytes of the whole step that the client reads; the rest is dropped without a word.
    pub limit: Option<u64>,
    /// Whether `@path` in a file is replaced by that file.
    pub imports: bool,
    /// Whether the step is skipped in a project the user marked as not trusted.
    pub needs_trust: bool,
}

impl Step {
    /// All of `places`, each once, without limits.
    const fn all(places: &'static [Place]) -> Self {
        Self {
            places,
            take: Take::All,
            dirs: Dirs::Root,
            unless: &[],
            limit: None,
            imports: false,
            needs_trust: false,
        }
    }

    /// The first of `places` that exists.
    const fn first(places: &'static [Place]) -> Self {
        Self { take: Take::First, ..Self::all(places) }
    }

    /// Looks in every directory from the root of the project down to the working directory.
    const fn nested(self) -> Self {
        Self { dirs: Dirs::RootToWorkingDirectory, ..self }
    }

    const fn unless(self, unless: &'static [&'static str]) -> Self {
        Self { unless, ..self }
    }

    const fn importing(self) -> Self {
        Self { imports: true, ..self }
    }
}

/// Which of several places counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// The first that exists; it hides the others.
    First,
    /// Each that exists.
    All,
}

/// Which directories of a project are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dirs {
    /// The root of the project.
    Root,
    /// The root and every directory below it down to the working directory.
    RootToWorkingDirectory,
}

/// How a client reads skills.
#[derive(Debug)]
pub struct Skills {
    /// The directories of skills; where names clash, the first wins.
    pub roots: &'static [Place],
    pub same_name: SameName,
    pub only_called: OnlyCalled,
    /// Whether project roots are looked for in every directory down to the working directory.
    pub dirs: Dirs,
}

/// How a skill says that the model must not choose it by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlyCalled {
    /// Nothing is known that the client heeds: the model sees every skill.
    Unknown,
    /// `disable-model-invocation: true` in its frontmatter.
    Frontmatter,
    /// `policy.allow_implicit_invocation: false` in `agents/openai.yaml` beside it.
    Policy,
}

/// What happens to two skills of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameName {
    /// Both are listed.
    ListedTwice,
    /// The one in the earlier root is used.
    FirstWins,
}

/// Where settings that change what a client reads are looked for.
#[derive(Debug)]
pub(crate) struct SettingsPlace<'a> {
    /// The client's directory of the user.
    pub(crate) config: &'a Path,
    pub(crate) project: &'a Path,
    pub(crate) limits: &'a Limits,
}

/// Settings of the user that change what a client reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientSettings {
    /// Replaces the limit of a step that has one.
    pub(crate) limit: Option<u64>,
    /// Further names for the project's instruction file, after the client's own.
    pub(crate) fallback_names: Vec<String>,
    /// Whether the user marked the project as not trusted, and where.
    pub(crate) untrusted: Option<PathBuf>,
}

/// No settings change what the client reads.
fn no_settings(_: &SettingsPlace<'_>) -> ClientSettings {
    ClientSettings::default()
}

/// Every client, in the order help lists them.
pub static CLIENTS: [&Client; 17] = [
    &codex::CLIENT,
    &claude_code::CLIENT,
    &cursor::CLIENT,
    &vscode::CLIENT,
    &copilot_cli::CLIENT,
    &opencode::CLIENT,
    &gemini::CLIENT,
    &antigravity::CLIENT,
    &zed::CLIENT,
    &junie::CLIENT,
    &windsurf::CLIENT,
    &amp::CLIENT,
    &goose::CLIENT,
    &kiro::CLIENT,
    &cline::CLIENT,
    &qwen::CLIENT,
    &factory::CLIENT,
];

/// The environment variables that move the directory of a client.
pub fn variables() -> impl Iterator<Item = &'static str> {
    CLIENTS.iter().filter_map(|client| client.config.variable)
}

impl Client {
    /// The client of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        CLIENTS.into_iter().find(|client| client.name == name)
    }

    /// The client that a target is for; `None` for a plain directory.
    pub(crate) fn of(target: TargetKind) -> Option<&'static Self> {
        match target {
            TargetKind::Jetbrains => Some(&junie::CLIENT),
            other => Self::from_name(other.name()),
        }
    }

    /// Where a place is.
    pub(crate) fn path(&self, env: &Env, project: &Path, place: &Place) -> PathBuf {
        let base = match place.base {
            Base::Project => project.to_owned(),
            Base::Home => env.home.clone(),
            Base::Config => self.config_dir(env),
        };
        base.join(place.path)
    }

    /// Whether it reads skills in the directory `dir`.
    pub(crate) fn reads_skills_in(&self, env: &Env, project: &Path, dir: &Path) -> bool {
        self.skills.roots.iter().any(|place| self.path(env, project, place) == dir)
    }

    /// Whether it reads the file `path` as instructions, whatever else is there.
    pub(crate) fn reads_instructions_at(&self, env: &Env, project: &Path, path: &Path) -> bool {
        let steps = self.instructions.iter().filter(|step| step.unless.is_empty());
        steps.flat_map(|step| step.places).any(|place| {
            let pattern = self.path(env, project, place);
            let Some(pattern) = pattern.to_str() else { return false };
            let (dir, suffix, deep) = match (pattern.split_once("/**/*"), pattern.split_once("/*")) {
                (Some((dir, suffix)), _) => (dir, suffix, true),
                (None, Some((dir, suffix))) => (dir, suffix, false),
                (None, None) => return path == Path::new(pattern),
            };
            let inside = if deep { path.starts_with(dir) } else { path.parent() == Some(Path::new(dir)) };
            inside && path.to_string_lossy().ends_with(suffix)
        })
    }

    /// The client's directory of the user.
    pub(crate) fn config_dir(&self, env: &Env) -> PathBuf {
        let moved = self.config.variable.and_then(|name| env.client_dirs.get(name));
        moved.cloned().unwrap_or_else(|| env.home.join(self.config.below_home))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_client_reads_something() {
        for (index, client) in CLIENTS.iter().enumerate() {
            assert!(CLIENTS[..index].iter().all(|other| other.name != client.name), "{}", client.name);
            assert!(!client.instructions.is_empty() && !client.skills.roots.is_empty(), "{}", client.name);
            assert_eq!(client.version.is_some(), client.evidence == Evidence::Measured, "{}", client.name);
        }
        for target in TargetKind::ALL {
            let plain = matches!(target, TargetKind::ExportDir | TargetKind::Agents);
            assert_eq!(Client::of(target).is_none(), plain, "{}", target.name());
        }
        for client in CLIENTS {
            assert!(
                TargetKind::VERSION_2.iter().any(|target| target.name() == client.name),
                "{}",
                client.name
            );
        }
    }

    /// What is written for a client is read by it: the two halves of a description agree.
    #[test]
    fn every_place_that_is_written_is_read() {
        let (env, project) = (Env::at_home("/home/u"), Path::new("/p"));
        for client in CLIENTS {
            for write in client.writes {
                let path = client.path(&env, project, &write.place);
                let read = match write.what {
                    Written::Skills => client.reads_skills_in(&env, project, &path),
                    Written::Instructions | Written::Importing => {
                        client.reads_instructions_at(&env, project, &path)
                    }
                    Written::Rules(style) => {
                        client.reads_instructions_at(&env, project, &path.join(style.file_name("x")))
                    }
                };
                assert!(read, "{} does not read {}", client.name, path.display());
            }
        }
    }
}
