//! From parsed arguments to a verb, and from its answer to output and exit code.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clap::CommandFactory as _;
use crewkit_core::{Code, Limits, Toolset};
use crewkit_pack::PackError;
use crewkit_pack::commands::{
    Add, Consent, Deploy, Explain, Init, OverlayEdit, OverlayRef, OverlayScope, Pack, Prune, Update,
};
use crewkit_pack::envelope::{self, Answer, CommandName};
use crewkit_pack::session::Select;
use crewkit_pack::status::Kind;
use crewkit_server::Services;
use crewkit_server::ops::Selection;
use serde_json::json;

use super::args::{
    Agentpack, ExplainCommand, Globals, KindArg, McpCommand, OverlayCommand, PackArgs, PackCommand, ScopeArg,
    SnapshotsCommand,
};
use super::progress::Bar;
use super::style::Style;
use super::{ask, environment, help, render};
use crate::exit::Exit;
use crate::failure::Failure;
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

type Outcome = Result<Answer, PackError>;

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
        mcp::serve(mcp::catalog()?, &Arc::new(services), selection, limits)
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
                self.finish(&name(&["init"]), self.pack.init(select, Init { git }, self.consent()))
            }
            PackCommand::Add { module_type, source, id, tags, targets } => {
                let add = Add { kind: module_type, source, id, tags, targets };
                self.finish(&name(&["add"]), self.pack.add(select, &add, self.consent()))
            }
            PackCommand::Remove { module_id } => {
                self.finish(&name(&["remove"]), self.pack.remove(select, &module_id, self.consent()))
            }
            PackCommand::Lock => {
                self.finish(&name(&["lock"]), self.pack.lock_modules(select, self.consent()))
            }
            PackCommand::Fetch => self.finish(&name(&["fetch"]), self.pack.fetch(select, self.consent())),
            PackCommand::Update { lock, fetch: _, no_lock, no_fetch } => {
                let update = Update { lock, no_lock, no_fetch };
                self.finish(&name(&["update"]), self.pack.update(select, update, self.consent()))
            }
            PackCommand::Plan { exit } => {
                let outcome = self.pack.plan(select);
                self.finish_checking(&name(&["plan"]), outcome, exit.exit_code)
            }
            PackCommand::Diff { exit } => {
                // People see the lines; programs get the same data as from `plan`.
                let outcome =
                    if self.json { self.pack.plan(select) } else { self.pack.preview(select, true) };
                self.finish_checking(&name(&["diff"]), outcome, exit.exit_code)
            }
            PackCommand::Preview { diff } => {
                self.finish(&name(&["preview"]), self.pack.preview(select, diff))
            }
            PackCommand::Deploy { apply, adopt } => self.deploy(apply, adopt),
            PackCommand::Status { only, exit } => {
                let only: Vec<Kind> = only.iter().filter_map(|name| Kind::from_name(name)).collect();
                self.finish_checking(&name(&["status"]), self.pack.status(select, &only), exit.exit_code)
            }
            PackCommand::Rollback { to } => self.rollback(&to),
            PackCommand::Snapshots(command) => self.snapshots(&command),
            PackCommand::Doctor { fix } => {
                let command = name(&["doctor"]);
                let command = if fix { command.with_variant("--fix") } else { command };
                self.finish(&command, self.pack.doctor(select, fix.then(|| self.consent())))
            }
            PackCommand::Overlay(command) => self.overlay(command),
            PackCommand::Explain(what) => {
                let (command, what) = match what {
                    ExplainCommand::Plan => (name(&["explain", "plan"]), Explain::Plan),
                    ExplainCommand::Diff => (name(&["explain", "diff"]), Explain::Plan),
                    ExplainCommand::Status => (name(&["explain", "status"]), Explain::Status),
                };
                self.finish(&command, self.pack.explain(select, what))
            }
            PackCommand::Help { markdown } => self.help(markdown),
            PackCommand::Schema => self.finish(&name(&["schema"]), Ok(self.pack.schema())),
            // Answered before the surroundings were looked at.
            PackCommand::Completions { .. } | PackCommand::Mcp(_) => Exit::Ok,
        }
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
            let outcome = deploy(consent, None);
            let exit = self.finish(&command, outcome);
            if !self.json && exit == Exit::Ok {
                self.show_lines();
            }
            return exit;
        }
        if self.yes {
            return self.finish(&command, deploy(Some(Consent::Given), None));
        }
        // What is approved is what was shown: the token makes sure of it.
        let shown = match self.pack.deploy_for_approval(&self.select) {
            Ok(shown) => shown,
            Err(error) => return self.finish(&command, Err(error)),
        };
        let token = shown.data["confirm_token"].as_str().map(ToOwned::to_owned);
        let nothing = shown.plan.as_ref().is_none_or(|plan| plan.changes.is_empty());
        let unadopted = !adopt && shown.plan.as_ref().is_some_and(|plan| plan.adoptions().next().is_some());
        if nothing || unadopted {
            // Nobody is asked, so nothing but this plan may be carried out.
            return self.finish(&command, deploy(Some(Consent::Given), token));
        }
        self.finish(&name(&["deploy"]), Ok(shown));
        self.show_lines();
        if !ask::yes("Apply changes?") {
            output::data_line("Aborted");
            return Exit::Ok;
        }
        self.finish(&command, deploy(Some(Consent::Given), token))
    }

    /// The lines that change, when they are few enough to be read before answering.
    fn show_lines(&self) {
        if let Ok(preview) = self.pack.preview(&self.select, true) {
            output::coloured(&render::few_lines(&preview, Style::of_stdout(), self.program));
        }
    }

    fn rollback(&self, to: &str) -> Exit {
        let command = name(&["rollback"]);
        if !self.json && !self.yes && !self.select.dry_run {
            let dry = Select { dry_run: true, ..self.select.clone() };
            match self.pack.rollback(&dry, to, Consent::Missing) {
                Err(error) => return self.finish(&command, Err(error)),
                Ok(answer) => {
                    let count = answer.data["changes"].as_u64().unwrap_or(0);
                    if count > 0 && !ask::yes(&format!("Roll back {count} files to {to}?")) {
                        output::data_line("Aborted");
                        return Exit::Ok;
                    }
                }
            }
        }
        self.finish(&command, self.pack.rollback(&self.select, to, self.consent()))
    }

    fn snapshots(&self, command: &SnapshotsCommand) -> Exit {
        match command {
            SnapshotsCommand::List => self.finish(&name(&["snapshots", "list"]), self.pack.snapshots_list()),
            SnapshotsCommand::Show { id, file: Some(file) } => self.replaced_content(id, file),
            SnapshotsCommand::Show { id, file: None } => {
                self.finish(&name(&["snapshots", "show"]), self.pack.snapshots_show(id))
            }
            SnapshotsCommand::Prune { keep } => {
                let command = name(&["snapshots", "prune"]);
                let prune = Prune { keep: *keep };
                if !self.json && !self.yes && !self.select.dry_run {
                    let dry = Select { dry_run: true, ..self.select.clone() };
                    let answer = self.pack.snapshots_prune(&dry, prune, Consent::Missing);
                    let count = answer
                        .as_ref()
                        .map_or(0, |answer| answer.data["removed"].as_array().map_or(0, Vec::len));
                    if count > 0 && !ask::yes(&format!("Remove {count} snapshots?")) {
                        output::data_line("Aborted");
                        return Exit::Ok;
                    }
                }
                self.finish(&command, self.pack.snapshots_prune(&self.select, prune, self.consent()))
            }
        }
    }

    /// Prints a kept content as it is; in an envelope it is text, or nothing when it is not text.
    fn replaced_content(&self, id: &str, file: &Path) -> Exit {
        let command = name(&["snapshots", "show"]);
        match self.pack.snapshots_file(id, file) {
            Ok(bytes) if !self.json => {
                output::bytes(&bytes);
                Exit::Ok
            }
            Ok(bytes) => {
                let content = String::from_utf8(bytes).ok();
                let data = json!({ "id": id, "path": file, "content": content });
                self.finish(&command, Ok(Answer::new(data)))
            }
            Err(error) => self.finish(&command, Err(error)),
        }
    }

    fn overlay(&self, command: OverlayCommand) -> Exit {
        let select = &self.select;
        match command {
            OverlayCommand::Path { module_id, scope } => {
                let which = OverlayRef { module_id, scope: scope_of(scope) };
                self.finish(&name(&["overlay", "path"]), self.pack.overlay_path(select, &which))
            }
            OverlayCommand::Rebase { module_id, scope, sparsify } => {
                let which = OverlayRef { module_id, scope: scope_of(scope) };
                let outcome = self.pack.overlay_rebase(select, &which, sparsify, self.consent());
                self.finish(&name(&["overlay", "rebase"]), outcome)
            }
            OverlayCommand::Edit { module_id, scope, kind, project, sparse, materialize } => {
                let scope = if project { OverlayScope::Project } else { scope_of(scope) };
                let which = OverlayRef { module_id, scope };
                let how = OverlayEdit { patch: kind.map(|kind| kind == KindArg::Patch), sparse, materialize };
                let command = name(&["overlay", "edit"]);
                let outcome = self.pack.overlay_edit(select, &which, how, self.consent());
                let dir = outcome
                    .as_ref()
                    .ok()
                    .and_then(|answer| answer.data["overlay_dir"].as_str())
                    .map(ToOwned::to_owned);
                let exit = self.finish(&command, outcome);
                match dir {
                    Some(dir) if !self.json && !select.dry_run => self.edit(Path::new(&dir)).unwrap_or(exit),
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
        Some(self.finish(&name(&["overlay", "edit"]), Err(error)))
    }

    fn help(&self, markdown: bool) -> Exit {
        if markdown {
            output::data(&help::markdown());
            return Exit::Ok;
        }
        if self.json {
            return self.finish(&name(&["help"]), Ok(self.pack.help(&help::globals(), &help::rows())));
        }
        output::data(&help::text());
        Exit::Ok
    }

    /// [`finish`](Self::finish), ending with its own code when something would change and that was asked.
    fn finish_checking(&self, command: &CommandName, outcome: Outcome, exit_code: bool) -> Exit {
        let differs = outcome.as_ref().is_ok_and(|answer| render::differs(&answer.data));
        match self.finish(command, outcome) {
            Exit::Ok if exit_code && differs => Exit::WouldChange,
            exit => exit,
        }
    }

    /// Shows the outcome of a command, once.
    fn finish(&self, command: &CommandName, outcome: Outcome) -> Exit {
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
                output::coloured(&render::answer(command, &answer, Style::of_stdout(), self.program));
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
