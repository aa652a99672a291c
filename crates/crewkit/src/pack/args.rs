//! The arguments of the pack commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use crewkit_pack::commands::{Choices, Select};

/// Deploys agent assets declaratively: AGENTS.md, skills, prompts and commands for coding agents.
#[derive(Debug, Parser)]
#[command(
    name = "agentpack",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub struct Agentpack {
    /// Answer in JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub pack: PackArgs,
}

/// A pack command with the flags all of them take.
#[derive(Debug, Args)]
pub struct PackArgs {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: PackCommand,
}

/// The flags every pack command takes.
#[derive(Debug, Clone, Args)]
pub struct Globals {
    /// Path to the config repo (default: `$AGENTPACK_HOME/repo`).
    #[arg(long, global = true, value_name = "DIR")]
    pub repo: Option<PathBuf>,
    /// Profile of agentpack.yaml.
    #[arg(long, global = true, default_value = "default")]
    pub profile: String,
    /// Target of agentpack.yaml, or all.
    #[arg(long, global = true, default_value = "all")]
    pub target: String,
    /// Machine id for machine overlays (default: detected).
    #[arg(long, global = true, value_name = "ID")]
    pub machine: Option<String>,
    /// Do not ask before changing something.
    #[arg(long, global = true)]
    pub yes: bool,
    /// Write nothing, whatever the command.
    #[arg(long, global = true)]
    pub dry_run: bool,
}

impl Globals {
    /// What was chosen for a whole session.
    pub fn choices(&self) -> Choices {
        Choices {
            repo: self.repo.clone(),
            profile: Some(self.profile.clone()),
            target: Some(self.target.clone()),
            machine: self.machine.clone(),
            dry_run: self.dry_run,
        }
    }

    /// What the command is about.
    pub fn select(&self) -> Select {
        Select {
            repo: self.repo.clone(),
            profile: self.profile.clone(),
            target: self.target.clone(),
            machine: self.machine.clone(),
            dry_run: self.dry_run,
        }
    }
}

/// The pack commands.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub enum PackCommand {
    /// Create a config repo.
    Init {
        /// Also make it a git repository.
        #[arg(long)]
        git: bool,
    },
    /// Add a module to agentpack.yaml, keeping its comments and order.
    Add {
        /// instructions, skill, prompt or command.
        #[arg(value_parser = ["instructions", "skill", "prompt", "command"])]
        module_type: String,
        /// local:<path> or git:<url>[#ref=…&subdir=…&shallow=…].
        source: String,
        /// Id of the module (default: from type and source).
        #[arg(long)]
        id: Option<String>,
        /// Tags that profiles select by, separated by commas.
        #[arg(long, value_delimiter = ',')]
        tags: Vec<String>,
        /// Targets it is for, separated by commas (default: all).
        #[arg(long, value_delimiter = ',')]
        targets: Vec<String>,
    },
    /// Take agentpack.yaml and what was deployed from it to version 2; without --apply only show what would change.
    Migrate {
        /// Do it: the config file and all deployed files, or nothing.
        #[arg(long, conflicts_with = "undo")]
        apply: bool,
        /// Take the newest migration back.
        #[arg(long)]
        undo: bool,
        /// Allow overwriting existing files that are not managed yet; a backup is kept.
        #[arg(long, conflicts_with = "undo")]
        adopt: bool,
        /// Whom modules are for that do not say so (default: the project, unless every target was for the user alone).
        #[arg(long, value_parser = ["user", "project"], conflicts_with = "undo")]
        scope: Option<String>,
    },
    /// Remove a module from agentpack.yaml, keeping its comments and order.
    Remove {
        /// Id of the module.
        module_id: String,
    },
    /// Write agentpack.lock.json: the commits and contents of all modules.
    Lock,
    /// Fetch what the lockfile names into the cache, and verify it.
    Fetch,
    /// Lock if there is no lockfile, then fetch.
    Update {
        /// Lock even though there is a lockfile.
        #[arg(long, conflicts_with = "no_lock")]
        lock: bool,
        /// Fetch; this is what happens anyway.
        #[arg(long, conflicts_with = "no_fetch")]
        fetch: bool,
        /// Do not lock.
        #[arg(long)]
        no_lock: bool,
        /// Do not fetch.
        #[arg(long)]
        no_fetch: bool,
    },
    /// Show what a deploy would change.
    Plan {
        #[command(flatten)]
        exit: ExitCodeFlag,
    },
    /// Show what a deploy would change, line by line.
    Diff {
        #[command(flatten)]
        exit: ExitCodeFlag,
    },
    /// Show the plan, and with --diff also the lines.
    Preview {
        /// Also show the lines.
        #[arg(long)]
        diff: bool,
    },
    /// Show what would change, and with --apply change it: all of it or nothing.
    Deploy {
        /// Apply the plan.
        #[arg(long)]
        apply: bool,
        /// Allow overwriting existing files that are not managed yet; a backup is kept.
        #[arg(long)]
        adopt: bool,
    },
    /// Compare what exists with what should.
    Status {
        /// Show only these kinds, separated by commas.
        #[arg(long, value_delimiter = ',', value_parser = ["missing", "modified", "extra"])]
        only: Vec<String>,
        #[command(flatten)]
        exit: ExitCodeFlag,
    },
    /// Return to the state a snapshot left, or found (before:<id>).
    Rollback {
        /// Id of the snapshot, from `snapshots list`.
        #[arg(long, value_name = "ID")]
        to: String,
    },
    /// Look at, and clean up, the snapshots deploys leave behind.
    #[command(subcommand)]
    Snapshots(SnapshotsCommand),
    /// Check the places to deploy to.
    Doctor {
        /// Keep target manifests out of commits by adding them to .gitignore.
        #[arg(long)]
        fix: bool,
    },
    /// Local changes laid over modules.
    #[command(subcommand)]
    Overlay(OverlayCommand),
    /// Say which modules a plan or a difference comes from, or what a client will see.
    Explain(ExplainArgs),
    /// Describe the commands (with --json as data).
    Help {
        /// As Markdown.
        #[arg(long)]
        markdown: bool,
    },
    /// Describe the form of JSON answers.
    Schema,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Serve the pack operations over MCP.
    #[command(subcommand)]
    Mcp(McpCommand),
}

/// For CI.
#[derive(Debug, Clone, Copy, Args)]
pub struct ExitCodeFlag {
    /// End with 3 when something would change.
    #[arg(long)]
    pub exit_code: bool,
}

/// `snapshots …`.
#[derive(Debug, Subcommand)]
pub enum SnapshotsCommand {
    /// List all, newest first.
    List,
    /// Show one with what it changed.
    Show {
        /// Its id.
        id: String,
        /// Print the content it found at this place instead: what a deploy or rollback replaced.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Remove all but the newest.
    Prune {
        /// How many stay (default: the limit `pack_snapshots_kept`).
        #[arg(long, value_name = "N")]
        keep: Option<u64>,
    },
}

/// `overlay …`.
#[derive(Debug, Subcommand)]
pub enum OverlayCommand {
    /// Create an overlay and open it in $EDITOR.
    Edit {
        /// Id of the module.
        module_id: String,
        /// Whom the overlay is for.
        #[arg(long, default_value = "global")]
        scope: ScopeArg,
        /// Whether it holds whole files or patches (default: dir, or what it is already).
        #[arg(long)]
        kind: Option<KindArg>,
        /// The same as --scope project.
        #[arg(long, hide = true)]
        project: bool,
        /// Start without copies of the upstream files.
        #[arg(long)]
        sparse: bool,
        /// Copy the upstream files it lacks.
        #[arg(long, conflicts_with = "sparse")]
        materialize: bool,
    },
    /// Carry an overlay over to the present upstream.
    Rebase {
        /// Id of the module.
        module_id: String,
        /// Whom the overlay is for.
        #[arg(long, default_value = "global")]
        scope: ScopeArg,
        /// Drop files that say what the upstream says.
        #[arg(long)]
        sparsify: bool,
    },
    /// Print where an overlay is or would be.
    Path {
        /// Id of the module.
        module_id: String,
        /// Whom the overlay is for.
        #[arg(long, default_value = "global")]
        scope: ScopeArg,
    },
}

/// Whom an overlay is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// Every machine and project.
    Global,
    /// This machine.
    Machine,
    /// This project.
    Project,
}

/// What an overlay holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// Whole files.
    Dir,
    /// Patches.
    Patch,
}

/// `explain --client …`, or one of its commands.
#[derive(Debug, Clone, Args)]
#[command(
    subcommand_required = false,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true
)]
pub struct ExplainArgs {
    /// Show what this client will see once the plan is applied, in its order.
    #[arg(long, value_name = "NAME", required = true)]
    pub client: Option<String>,
    /// Directory the client is started in (default: the working directory).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<ExplainCommand>,
}

/// `explain …`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ExplainCommand {
    /// The plan.
    Plan,
    /// The same as plan.
    Diff,
    /// The differences.
    Status,
}

/// `mcp …`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum McpCommand {
    /// Serve on standard input and output.
    Serve,
}
