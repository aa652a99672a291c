//! From parsed arguments to a verb, and from its answer to output and exit code.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::CommandFactory as _;
use crewkit_core::{Code, Limits, Toolset};
use crewkit_pack::PackError;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{
    Add, Consent, Deploy, Explain, ExplainClient, Init, Migrate, Migrated, ModuleScope, OverlayEdit,
    OverlayRef, OverlayScope, Pack, Planned, Prune, Update,
};
use crewkit_pack::envelope::{self, Answer, CommandName};
use crewkit_pack::plan::status::Kind;
use crewkit_server::Services;
use crewkit_server::ops::Selection;
use serde::Serialize;
use serde_json::json;

use super::args::{
    Agentpack, ExplainArgs, ExplainCommand, Globals, KindArg, McpCommand, OverlayCommand, PackArgs,
    PackCommand, ScopeArg, SnapshotsCommand,
};
use super::progress::Bar;
use super::{environment, help, render};
use crate::ask;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::Style;
use crate::{mcp, output};

/// What one invocation works with.
struct Run<'a> {
    pack: Pack,
    select: Select,
    json: bool,
    yes: bool,
    bar: &'a Bar,
    /// How the person started it, for hints.
    program: &'a str,
}

type Outcome<T> = Result<Answer<T>, PackError>;

pub(super) fn run(arguments: PackArgs, json: bool, program: &str, limits: &Limits) -> Exit {
    let PackArgs { globals, command } = arguments;
    match &command {
        PackCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Agentpack::command(), "agentpack", &mut script);
            output::data(&String::from_utf8_lossy(&script));
            return Exit::Ok;
        }
        PackCommand::Mcp(McpCommand::Serve) => return serve_mcp(&globals, json, limits),
        _ => {}
    }
    let bar = Arc::new(Bar::new());
    let pack = match environment::environment(limits.clone(), bar.clone()) {
        Ok(env) => Pack::new(env),
        Err(failure) => return failure.report(json),
    };
    let yes = globals.yes;
    let run = Run { pack, select: globals.select(), json, yes, bar: &bar, program };
    run.command(command)
}

fn serve_mcp(globals: &Globals, json: bool, limits: &Limits) -> Exit {
    let served = (|| {
        if json {
            let message = "`mcp serve` speaks its own protocol on standard output; leave out --json";
            return Err(Failure::new(Code::ConfigInvalid, message));
        }
        let pack = environment::service(limits.clone())?.choosing(globals.choices());
        let services = Services { pack: Some(Arc::new(pack)), ..Services::default() };
        let selection = Selection::of(Toolset::Pack);
        mcp::serve(mcp::catalog()?, Arc::new(services), selection, limits)
    })();
    match served {
        Ok(()) => Exit::Ok,
        // Standard output belongs to the protocol, also when it never came to that.
        Err(failure) => failure.report(false),
    }
}

impl Run<'_> {
    /// Under `--json` approval must be explicit; at a terminal, starting the command is approval enough for what only
    /// touches the config repo and the cache.
    fn consent(&self) -> Consent {
        if self.yes || !self.json { Consent::Given } else { Consent::Missing }
    }

    fn command(&self, command: PackCommand) -> Exit {
        let select = &self.select;
        match command {
            PackCommand::Init { git } => {
                let outcome = self.pack.init(select, Init { git }, self.consent());
                self.finish(&name(&["init"]), outcome, |data, _| {
                    format!("Initialized {}\n", data.repo.display())
                })
            }
            PackCommand::Add { module_type, source, id, tags, targets } => {
                let add = Add { kind: module_type, source, id, tags, targets };
                self.finish(&name(&["add"]), self.pack.add(select, &add, self.consent()), |data, _| {
                    format!("Added {} to {}\n", data.module_id, data.manifest.display())
                })
            }
            PackCommand::Migrate { apply, undo, adopt, scope } => {
                let scope = scope.as_deref().and_then(ModuleScope::from_name);
                self.migrate(apply, undo, adopt, scope)
            }
            PackCommand::Remove { module_id } => {
                let outcome = self.pack.remove(select, &module_id, self.consent());
                self.finish(&name(&["remove"]), outcome, |data, _| {
                    format!("Removed {} from {}\n", data.module_id, data.manifest.display())
                })
            }
            PackCommand::Lock => {
                let outcome = self.pack.lock_modules(select, self.consent());
                self.finish(&name(&["lock"]), outcome, |data, _| render::locked(data))
            }
            PackCommand::Fetch => {
                let outcome = self.pack.fetch(select, self.consent());
                self.finish(&name(&["fetch"]), outcome, |data, _| render::fetched(data))
            }
            PackCommand::Update { lock, fetch: _, no_lock, no_fetch } => {
                let update = Update { lock, no_lock, no_fetch };
                let outcome = self.pack.update(select, update, self.consent());
                self.finish(&name(&["update"]), outcome, |data, _| render::updated(data))
            }
            PackCommand::Plan { exit } => {
                let outcome = self.pack.plan(select);
                let differs = outcome.as_ref().is_ok_and(|answer| !answer.data.summary.is_empty());
                let text = |data: &Planned, style| render::planned(data, style, self.program);
                exit_code(self.finish(&name(&["plan"]), outcome, text), exit.exit_code && differs)
            }
            PackCommand::Diff { exit } => self.diff(exit.exit_code),
            PackCommand::Preview { diff } => {
                self.finish(&name(&["preview"]), self.pack.preview(select, diff), render::preview)
            }
            PackCommand::Deploy { apply, adopt } => self.deploy(apply, adopt),
            PackCommand::Status { only, exit } => {
                let only: Vec<Kind> = only.iter().filter_map(|name| Kind::from_name(name)).collect();
                let outcome = self.pack.status(select, &only);
                let differs = outcome.as_ref().is_ok_and(|answer| !answer.data.summary.is_clean());
                exit_code(self.finish(&name(&["status"]), outcome, render::status), exit.exit_code && differs)
            }
            PackCommand::Rollback { to } => self.rollback(&to),
            PackCommand::Snapshots(command) => self.snapshots(&command),
            PackCommand::Doctor { fix } => {
                let command = name(&["doctor"]);
                let command = if fix { command.with_variant("--fix") } else { command };
                self.finish(&command, self.pack.doctor(select, fix.then(|| self.consent())), render::doctor)
            }
            PackCommand::Overlay(command) => self.overlay(command),
            PackCommand::Explain(what) => self.explain(what),
            PackCommand::Help { markdown } => self.help(markdown),
            PackCommand::Schema => self.finish(&name(&["schema"]), Ok(self.pack.schema()), as_json),
            // Answered before the surroundings were looked at.
            PackCommand::Completions { .. } | PackCommand::Mcp(_) => Exit::Ok,
        }
    }

    fn migrate(&self, apply: bool, undo: bool, adopt: bool, scope: Option<ModuleScope>) -> Exit {
        let command = name(&["migrate"]);
        if undo {
            if !self.json && !self.yes && !self.select.dry_run && !ask::yes("Take the migration back?") {
                output::data_line("Aborted");
                return Exit::Ok;
            }
            let outcome = self.pack.undo_migration(&self.select, self.consent());
            let command = command.with_variant("--undo");
            return self.finish(&command, outcome, |data, _| render::rolled_back(data));
        }
        let applies = apply && !self.select.dry_run;
        let migrate = |apply| self.pack.migrate(&self.select, Migrate { apply, adopt, scope });
        let text = |data: &Migrated, style| render::migrated(data, style, self.program);
        if applies && !self.json && !self.yes {
            let shown = migrate(None);
            let can_go_on = shown.as_ref().is_ok_and(|answer| answer.data.config.is_some());
            let exit = self.finish(&command, shown, text);
            if !can_go_on {
                return exit;
            }
            if !ask::yes("Migrate?") {
                output::data_line("Aborted");
                return Exit::Ok;
            }
        }
        let command = if applies { command.with_variant("--apply") } else { command };
        self.finish(&command, migrate(applies.then(|| self.consent())), text)
    }

    fn explain(&self, what: ExplainArgs) -> Exit {
        let (command, explain) = match what.command {
            None => {
                let client = what.client.unwrap_or_default();
                let explain = ExplainClient { client, dir: what.dir };
                let outcome = self.pack.explain_client(&self.select, &explain);
                return self.finish(&name(&["explain"]), outcome, render::client_view);
            }
            Some(ExplainCommand::Plan) => (name(&["explain", "plan"]), Explain::Plan),
            Some(ExplainCommand::Diff) => (name(&["explain", "diff"]), Explain::Plan),
            Some(ExplainCommand::Status) => (name(&["explain", "status"]), Explain::Status),
        };
        let outcome = self.pack.explain(&self.select, explain);
        self.finish(&command, outcome, |data, _| render::explained(data))
    }

    /// Shows the lines that change to people; programs get the same data as from `plan`.
    fn diff(&self, exit: bool) -> Exit {
        let command = name(&["diff"]);
        if self.json {
            let outcome = self.pack.plan(&self.select);
            let differs = outcome.as_ref().is_ok_and(|answer| !answer.data.summary.is_empty());
            return exit_code(self.finish(&command, outcome, render::deployed), exit && differs);
        }
        let outcome = self.pack.preview(&self.select, true);
        let differs = outcome.as_ref().is_ok_and(|answer| !answer.data.plan.summary.is_empty());
        exit_code(self.finish(&command, outcome, render::preview), exit && differs)
    }

    fn deploy(&self, apply: bool, adopt: bool) -> Exit {
        let applies = apply && !self.select.dry_run;
        let command = name(&["deploy"]);
        let command = if applies { command.with_variant("--apply") } else { command };
        let deploy = |consent: Option<Consent>, confirm_token: Option<String>| {
            self.pack.deploy(&self.select, &Deploy { apply: consent, adopt, confirm_token })
        };
        if self.json || !applies {
            let consent = applies.then_some(if self.yes { Consent::Given } else { Consent::Missing });
            let exit = self.finish(&command, deploy(consent, None), render::deployed);
            if !self.json && exit == Exit::Ok {
                self.show_lines();
            }
            return exit;
        }
        if self.yes {
            return self.finish(&command, deploy(Some(Consent::Given), None), render::deployed);
        }
        // What is approved is what was shown: the token makes sure of it.
        let shown = match self.pack.deploy_for_approval(&self.select) {
            Ok(shown) => shown,
            error @ Err(_) => return self.finish(&command, error, render::deployed),
        };
        let Planned { changes: plan, confirm_token: token, .. } = &shown.data;
        let token = token.clone();
        if plan.changes.is_empty() || (!adopt && plan.adoptions().next().is_some()) {
            // Nobody is asked, so nothing but this plan may be carried out.
            return self.finish(&command, deploy(Some(Consent::Given), token), render::deployed);
        }
        self.finish(&name(&["deploy"]), Ok(shown), render::deployed);
        self.show_lines();
        if !ask::yes("Apply changes?") {
            output::data_line("Aborted");
            return Exit::Ok;
        }
        self.finish(&command, deploy(Some(Consent::Given), token), render::deployed)
    }

    /// The lines that change, when they are few enough to be read before answering.
    fn show_lines(&self) {
        if let Ok(preview) = self.pack.preview(&self.select, true) {
            output::coloured(&render::few_lines(&preview.data, Style::of_stdout(), self.program));
        }
    }

    fn rollback(&self, to: &str) -> Exit {
        let command = name(&["rollback"]);
        if !self.json && !self.yes && !self.select.dry_run {
            let dry = Select { dry_run: true, ..self.select.clone() };
            match self.pack.rollback(&dry, to, Consent::Missing) {
                error @ Err(_) => return self.finish(&command, error, |data, _| render::rolled_back(data)),
                Ok(answer) => {
                    let count = answer.data.changes.unwrap_or(0);
                    if count > 0 && !ask::yes(&format!("Roll back {count} files to {to}?")) {
                        output::data_line("Aborted");
                        return Exit::Ok;
                    }
                }
            }
        }
        let outcome = self.pack.rollback(&self.select, to, self.consent());
        self.finish(&command, outcome, |data, _| render::rolled_back(data))
    }

    fn snapshots(&self, command: &SnapshotsCommand) -> Exit {
        match command {
            SnapshotsCommand::List => {
                self.finish(&name(&["snapshots", "list"]), self.pack.snapshots_list(), render::snapshots)
            }
            SnapshotsCommand::Show { id, file: Some(file) } => self.replaced_content(id, file),
            SnapshotsCommand::Show { id, file: None } => {
                self.finish(&name(&["snapshots", "show"]), self.pack.snapshots_show(id), as_json)
            }
            SnapshotsCommand::Prune { keep } => {
                let command = name(&["snapshots", "prune"]);
                let prune = Prune { keep: *keep };
                if !self.json && !self.yes && !self.select.dry_run {
                    let dry = Select { dry_run: true, ..self.select.clone() };
                    let answer = self.pack.snapshots_prune(&dry, prune, Consent::Missing);
                    let count = answer.map_or(0, |answer| answer.data.removed.len());
                    if count > 0 && !ask::yes(&format!("Remove {count} snapshots?")) {
                        output::data_line("Aborted");
                        return Exit::Ok;
                    }
                }
                let outcome = self.pack.snapshots_prune(&self.select, prune, self.consent());
                self.finish(&command, outcome, |data, _| {
                    format!("Removed {} snapshots, kept {}\n", data.removed.len(), data.kept)
                })
            }
        }
    }

    /// Prints a kept content as it is; in an envelope it is text, or nothing when it is not text.
    fn replaced_content(&self, id: &str, file: &Path) -> Exit {
        let command = name(&["snapshots", "show"]);
        let outcome = self.pack.snapshots_file(id, file);
        if let (Ok(bytes), false) = (&outcome, self.json) {
            output::bytes(bytes);
            return Exit::Ok;
        }
        let outcome = outcome.map(|bytes| {
            let content = String::from_utf8(bytes).ok();
            Answer { data: json!({ "content": content, "id": id, "path": file }), warnings: Vec::new() }
        });
        self.finish(&command, outcome, as_json)
    }

    fn overlay(&self, command: OverlayCommand) -> Exit {
        let select = &self.select;
        match command {
            OverlayCommand::Path { module_id, scope } => {
                let which = OverlayRef { module_id, scope: scope_of(scope) };
                let outcome = self.pack.overlay_path(select, &which);
                self.finish(&name(&["overlay", "path"]), outcome, |data, _| {
                    format!("{}\n", data.overlay_dir.display())
                })
            }
            OverlayCommand::Rebase { module_id, scope, sparsify } => {
                let which = OverlayRef { module_id, scope: scope_of(scope) };
                let outcome = self.pack.overlay_rebase(select, &which, sparsify, self.consent());
                self.finish(&name(&["overlay", "rebase"]), outcome, |data, _| render::rebased(data))
            }
            OverlayCommand::Edit { module_id, scope, kind, project, sparse, materialize } => {
                let scope = if project { OverlayScope::Project } else { scope_of(scope) };
                let which = OverlayRef { module_id, scope };
                let how = OverlayEdit { patch: kind.map(|kind| kind == KindArg::Patch), sparse, materialize };
                let command = name(&["overlay", "edit"]);
                let outcome = self.pack.overlay_edit(select, &which, how, self.consent());
                let dir = outcome.as_ref().ok().map(|answer| answer.data.overlay_dir.clone());
                let exit = self.finish(&command, outcome, |data, _| render::overlay_edited(data));
                match dir {
                    Some(dir) if !self.json && !select.dry_run => self.edit(&dir).unwrap_or(exit),
                    _ => exit,
                }
            }
        }
    }

    /// Opens the editor, if one is set; says how the command ends when that fails.
    fn edit(&self, dir: &Path) -> Option<Exit> {
        let editor = std::env::var("EDITOR").ok().filter(|editor| !editor.trim().is_empty())?;
        // Settings such as `code --wait` are common; the words before the directory are the program and its flags.
        let mut words = editor.split_whitespace();
        let program = words.next()?;
        let why = match Command::new(program).args(words).arg(dir).status() {
            Ok(status) if status.success() => return None,
            Ok(status) => format!("the editor `{editor}` ended with {status}"),
            Err(error) => format!("the editor `{editor}` could not be started: {error}"),
        };
        let error = PackError::new(Code::EditorFailed, why).detail("overlay_dir", dir.display().to_string());
        let command = name(&["overlay", "edit"]);
        Some(self.finish(&command, Err(error), |data, _| render::overlay_edited(data)))
    }

    fn help(&self, markdown: bool) -> Exit {
        if markdown {
            output::data(&help::markdown());
            return Exit::Ok;
        }
        if self.json {
            let answer = self.pack.help(help::globals(), help::rows());
            return self.finish(&name(&["help"]), Ok(answer), as_json);
        }
        output::data(&help::text());
        Exit::Ok
    }

    /// Shows the outcome of a command, once: as an envelope, or as the `text` of its answer.
    fn finish<T: Serialize>(
        &self,
        command: &CommandName,
        outcome: Outcome<T>,
        text: impl FnOnce(&T, Style) -> String,
    ) -> Exit {
        self.bar.clear();
        let exit = if outcome.is_ok() { Exit::Ok } else { Exit::Failed };
        if self.json {
            output::written(|out| envelope::write(out, command, &self.pack.env().version, &outcome));
            return exit;
        }
        let talk = Style::of_stderr();
        match outcome {
            Ok(answer) => {
                for warning in &answer.warnings {
                    output::coloured_talk(&format!("{} {warning}", talk.yellow("Warning:")));
                }
                output::coloured(&text(&answer.data, Style::of_stdout()));
            }
            Err(error) => {
                for warning in error.warnings() {
                    output::coloured_talk(&format!("{} {warning}", talk.yellow("Warning:")));
                }
                output::coloured_talk(&render::error(&error, talk));
            }
        }
        exit
    }
}

/// How a command ends that was asked to tell whether anything would change.
fn exit_code(exit: Exit, differs: bool) -> Exit {
    match exit {
        Exit::Ok if differs => Exit::WouldChange,
        exit => exit,
    }
}

/// An answer that has no better form than its data.
fn as_json<T: Serialize>(data: &T, _: Style) -> String {
    serde_json::to_value(data).map(|data| format!("{data:#}\n")).unwrap_or_default()
}

fn name(path: &[&'static str]) -> CommandName {
    CommandName::new(path)
}

fn scope_of(scope: ScopeArg) -> OverlayScope {
    match scope {
        ScopeArg::Global => OverlayScope::Global,
        ScopeArg::Machine => OverlayScope::Machine,
        ScopeArg::Project => OverlayScope::Project,
    }
}
