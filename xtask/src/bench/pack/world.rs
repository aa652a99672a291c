//! The generated config repo and the home it is deployed into.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

const FILES_PER_SKILL: usize = 5;
const FILE_BYTES: usize = 2048;
const INSTRUCTIONS: usize = 5;

/// A config repo, a project and a home, all below one directory.
pub(super) struct World {
    path: PathBuf,
}

impl World {
    pub(super) fn build(path: &Path, skills: usize) -> Result<Self> {
        let world = Self { path: path.to_owned() };
        for dir in ["home", "project", "tmp"] {
            fs::create_dir_all(path.join(dir))?;
        }
        let mut modules = String::new();
        let mut module = |kind: &str, folder: &str, name: &str| {
            modules.push_str(&manifest_entry(kind, folder, name));
        };
        for n in 0..INSTRUCTIONS {
            let name = format!("base-{n}");
            world.write(&format!("instructions/{name}/AGENTS.md"), &text(&name, ""))?;
            module("instructions", "instructions", &name);
        }
        for n in 0..skills {
            let name = format!("skill-{n}");
            for file in 0..FILES_PER_SKILL {
                let (file, head) = match file {
                    0 => {
                        ("SKILL.md".to_owned(), format!("---\nname: {name}\ndescription: Number {n}\n---\n"))
                    }
                    1 => ("scripts/run.sh".to_owned(), "#!/bin/sh\n".to_owned()),
                    _ => (format!("references/part-{file}.md"), String::new()),
                };
                world.write(&format!("skills/{name}/{file}"), &text(&format!("{name} {file}"), &head))?;
            }
            module("skill", "skills", &name);
        }
        for n in 0..skills / 10 {
            let name = format!("prompt-{n}");
            world.write(&format!("prompts/{name}/{name}.md"), &text(&name, ""))?;
            module("prompt", "prompts", &name);
            let name = format!("command-{n}");
            let head = format!("---\ndescription: Number {n}\n---\n");
            world.write(&format!("commands/{name}/{name}.md"), &text(&name, &head))?;
            module("command", "commands", &name);
        }
        let manifest = format!(
            "version: 1\nprofiles:\n  default: {{include_tags: [base]}}\ntargets:\n  \
             codex: {{mode: files, scope: both}}\n  claude_code: {{mode: files, scope: both}}\n  \
             cursor: {{mode: files, scope: project}}\n  vscode: {{mode: files, scope: project}}\nmodules:\n{modules}"
        );
        fs::write(world.repo().join("agentpack.yaml"), manifest)?;
        Ok(world)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.repo().join("modules").join(path);
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Edits one file of one skill.
    pub(super) fn change_one_file(&self, round: usize) -> Result<()> {
        let name = "skill-7";
        self.write(&format!("skills/{name}/references/part-3.md"), &text(&format!("changed {round}"), ""))
    }

    /// Takes all skills out of the manifest.
    pub(super) fn remove_skills(&self) -> Result<()> {
        let path = self.repo().join("agentpack.yaml");
        let text = fs::read_to_string(&path)?;
        let (head, modules) = text.split_once("modules:\n").context("a manifest has modules")?;
        let modules: Vec<&str> =
            modules.split("  - id: ").filter(|module| !module.starts_with("skill:")).collect();
        fs::write(&path, format!("{head}modules:\n{}", modules.join("  - id: ")))?;
        Ok(())
    }

    /// The same modules for 8 targets of version 2, each of which writes skills of its own or reads the shared ones.
    pub(super) fn use_version_2(&self) -> Result<()> {
        let path = self.repo().join("agentpack.yaml");
        let text = fs::read_to_string(&path)?;
        let (_, modules) = text.split_once("modules:\n").context("a manifest has modules")?;
        let names = ["agents", "claude_code", "codex", "cursor", "vscode", "opencode", "kiro", "junie"];
        let targets: String = names.iter().map(|name| format!("  {name}: {{}}\n")).collect();
        let head = format!("version: 2\nprofiles:\n  default: {{include_tags: [base]}}\ntargets:\n{targets}");
        Ok(fs::write(&path, format!("{head}modules:\n{modules}"))?)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn repo(&self) -> PathBuf {
        self.path.join("repo")
    }

    /// Runs in the project, with everything in this directory and nothing from outside.
    pub(super) fn prepare(&self, command: &mut Command) {
        command.env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path.join("home"));
        command.env("AGENTPACK_HOME", self.path.join("home/.agentpack"));
        command.env("AGENTPACK_MACHINE_ID", "bench");
        command.env("TMPDIR", self.path.join("tmp"));
        command.current_dir(self.path.join("project"));
    }
}

fn manifest_entry(kind: &str, folder: &str, name: &str) -> String {
    format!(
        "  - id: {kind}:{name}\n    type: {kind}\n    tags: [base]\n    \
         source: {{local_path: {{path: modules/{folder}/{name}}}}}\n"
    )
}

/// Text of the usual length that differs from file to file.
fn text(seed: &str, head: &str) -> String {
    let line = format!("{seed}: a line of text such as people write for their agents.\n");
    let mut text = head.to_owned();
    while text.len() < FILE_BYTES {
        text.push_str(&line);
    }
    text.truncate(FILE_BYTES);
    text
}
