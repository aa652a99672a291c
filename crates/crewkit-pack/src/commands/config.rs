//! Init, add, remove: the config repo itself.

use std::fs;
use std::path::Path;

use crewkit_core::Code;

use super::answers::{GitInitialized, Initialized, ManifestEdited};
use super::{Consent, Pack};
use crate::commands::doctor::{self, IGNORE_LINE};
use crate::commands::session::{Select, repo_of};
use crate::config::edit;
use crate::config::manifest::{self, Manifest, Module, ModuleType};
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::source::{process, refused, spec};

/// What `init` is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Init {
    /// Also make the repo a git repository.
    pub git: bool,
}

/// A module to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// Its type.
    pub kind: String,
    /// Its source, as `local:…` or `git:…`.
    pub source: String,
    /// Its id; derived when nothing is said.
    pub id: Option<String>,
    pub tags: Vec<String>,
    /// The targets it is for; empty means all.
    pub targets: Vec<String>,
}

/// The files of a new repo. An empty list of modules makes the first plan empty, not surprising.
const SKELETON: [(&str, &str); 4] = [
    (
        manifest::FILE_NAME,
        r#"# What to give to coding agents, and where. `plan` shows what a deploy would write, `deploy --apply` writes it, and
# `explain --client codex` shows what a client will then see.
version: 2

# A profile is a choice of modules by their tags. `default` is used unless another is named with --profile.
profiles:
  default:
    include_tags: ["base"]

# The clients to write for. Each gets every module exactly once; what it can read from `agents` is not written again.
targets:
  agents: {}       # AGENTS.md and .agents/skills: what Codex, Cursor, Copilot, opencode, Zed and others read
  claude_code: {}  # CLAUDE.md, which imports AGENTS.md, and .claude/skills
  codex: {}        # ~/.codex/AGENTS.md, for instructions of `scope: user`

# What to give to them, one entry per module. `add` writes entries like these:
#
#   - id: instructions:base          # `instructions:`, `skill:`, `prompt:` or `command:`, and a name
#     type: instructions             # prompts and commands become skills that run only when you call them
#     scope: project                 # for the project you are in, or `user`: for you, in every project
#     tags: ["base"]
#     source:
#       local_path:
#         path: modules/instructions/base
modules: []
"#,
    ),
    (
        "modules/instructions/base/AGENTS.md",
        "# Instructions for agents\n\nAdd what every agent should know, then list this directory as a module:\n\n- how to build and test\n- what to leave alone\n",
    ),
    (
        "modules/prompts/draftpr.md",
        "# Draft a pull request\n\nDescribe the change on this branch: what it does, why, how it was tested, and what could go wrong.\n",
    ),
    (
        "modules/commands/ap-plan.md",
        "---\ndescription: \"agentpack: show the plan\"\n---\n\nRun `agentpack plan --json` and say in a few sentences what would change.\n",
    ),
];

impl Pack {
    /// Creates the config repo; what is there already stays.
    pub fn init(&self, select: &Select, init: Init, consent: Consent) -> Result<Answer<Initialized>> {
        self.change(select, "init", consent, |_| {
            let repo = repo_of(&self.env, select);
            if !select.dry_run && !Manifest::path_in(&repo).exists() {
                for (path, text) in SKELETON {
                    let path = repo.join(path);
                    if !path.exists() {
                        atomic::write(&path, text.as_bytes())?;
                    }
                }
            }
            let git = init.git.then(|| self.init_git(&repo, select.dry_run)).transpose()?;
            Ok(Initialized { git, repo })
        })
    }

    fn init_git(&self, repo: &Path, dry_run: bool) -> Result<GitInitialized> {
        let initialized = !repo.join(".git").exists();
        if initialized && !dry_run {
            process::require(&self.env, repo, "make the config repo a git repository", &["init", "--quiet"])?;
        }
        let mut ignore = doctor::plan_ignore_lines(repo, &[IGNORE_LINE, ".DS_Store"])?;
        if !dry_run {
            ignore.apply()?;
        }
        Ok(GitInitialized {
            gitignore_path: ignore.gitignore_path,
            gitignore_updated: ignore.updated,
            initialized: initialized && !dry_run,
        })
    }

    /// Adds a module to the manifest.
    pub fn add(&self, select: &Select, add: &Add, consent: Consent) -> Result<Answer<ManifestEdited>> {
        let module = module_to_add(add)?;
        self.change(select, "add", consent, |warnings| {
            let repo = repo_of(&self.env, select);
            if let Some(local) = &module.source.local_path
                && !repo.join(&local.path).exists()
            {
                let missing = repo.join(&local.path);
                warnings.push(format!("module {}: {} does not exist yet", module.id, missing.display()));
            }
            self.edit_manifest(&repo, select.dry_run, &module.id, |text, path| {
                edit::add(text, &module, path, &self.env.limits)
            })
        })
    }

    /// Removes a module from the manifest.
    pub fn remove(
        &self,
        select: &Select,
        module_id: &str,
        consent: Consent,
    ) -> Result<Answer<ManifestEdited>> {
        self.change(select, "remove", consent, |_| {
            let repo = repo_of(&self.env, select);
            self.edit_manifest(&repo, select.dry_run, module_id, |text, path| {
                edit::remove(text, module_id, path, &self.env.limits)
            })
        })
    }

    fn edit_manifest(
        &self,
        repo: &Path,
        dry_run: bool,
        module_id: &str,
        change: impl FnOnce(&str, &Path) -> Result<String>,
    ) -> Result<ManifestEdited> {
        let path = Manifest::path_in(repo);
        let text = manifest::read_text(&path, &self.env.limits)?;
        let edited = change(&text, &path)?;
        if !dry_run {
            atomic::write(&path, edited.as_bytes())?;
        }
        Ok(ManifestEdited { manifest: path, module_id: module_id.to_owned() })
    }

    /// Whether the config repo exists, for those who ask before they write.
    pub fn has_config(&self, select: &Select) -> bool {
        fs::exists(Manifest::path_in(&repo_of(&self.env, select))).unwrap_or(false)
    }
}

fn module_to_add(add: &Add) -> Result<Module> {
    let wrong = |message: String, argument: &str| {
        PackError::new(Code::ArgumentInvalid, message).detail("argument", argument)
    };
    let kind = ModuleType::from_name(&add.kind).ok_or_else(|| {
        wrong(format!("`{}` is none of {}", add.kind, ModuleType::NAMES.join(", ")), "module_type")
    })?;
    let source = spec::parse(&add.source).map_err(|why| {
        let id = add.id.as_deref().unwrap_or(&add.source);
        refused(id, &why)
    })?;
    let id = match &add.id {
        Some(id) if id.trim().is_empty() => return Err(wrong("the id is empty".to_owned(), "id")),
        Some(id) => id.clone(),
        None => spec::derived_id(kind, &source)
            .ok_or_else(|| wrong("no id follows from the source; give one with --id".to_owned(), "id"))?,
    };
    if kind == ModuleType::Skill {
        let name = crate::config::ids::module_name(&id);
        crate::fs::path::RelPath::new(name.as_str()).map_err(|error| {
            PackError::new(Code::ModuleInvalid, format!("module {id} cannot become a path: {error}"))
                .detail("module_id", id.as_str())
        })?;
    }
    Ok(Module { tags: add.tags.clone(), targets: add.targets.clone(), ..Module::new(id, kind, source) })
}
