//! The verbs that only look: plan, diff, preview, status, explain, doctor.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::answers::{
    Explained, ExplainedChange, ExplainedDrift, ExplainedModule, Health, NextAction, Planned, Preview,
    PreviewPlan, Status,
};
use super::migrate::AlsoChanged;
use super::{Consent, Pack, collect_warnings};
use crate::commands::doctor;
use crate::commands::doctor::IgnoreFix;
use crate::commands::session::{Select, Session};
use crate::config::manifest::ModuleType;
use crate::desired::{Content, Desired, DesiredFile};
use crate::envelope::Answer;
use crate::error::Result;
use crate::observe::RootState;
use crate::overlay::OverlayScope;
use crate::plan::diff;
use crate::plan::status::{self, Drift, Extras, Kind, Summary};
use crate::plan::{Change, Plan};
use crate::source::module;

/// What is to be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Explain {
    /// Where each change of the plan comes from.
    Plan,
    /// Where each difference comes from.
    Status,
}

/// A plan with what it was made from.
pub(super) struct Computed {
    pub(super) desired: Desired,
    pub(super) states: Vec<RootState>,
    pub(super) plan: Plan,
    /// What else changes with it.
    pub(super) also: Option<AlsoChanged>,
}

impl Computed {
    pub(super) fn new(session: &Session<'_>, warnings: &mut Vec<String>) -> Result<Self> {
        let desired = session.desired(warnings)?;
        let states = session.survey(&desired, warnings)?;
        let plan = Plan::make(&desired, &states)?;
        Ok(Self { desired, states, plan, also: None })
    }
}

impl Pack {
    /// A plan for readers: computed without the lock, with a warning if a command was cut short.
    pub(super) fn computed<'a>(
        &'a self,
        select: &'a Select,
        warnings: &mut Vec<String>,
    ) -> Result<(Session<'a>, Computed)> {
        self.warn_pending(warnings);
        let session = self.session(select)?;
        let computed = Computed::new(&session, warnings)?;
        self.warn_unread(&session, &computed, warnings);
        self.remember(select);
        Ok((session, computed))
    }

    /// What a deploy would change. `diff` answers the same.
    pub fn plan(&self, select: &Select) -> Result<Answer<Planned>> {
        collect_warnings(|warnings| {
            let (session, computed) = self.computed(select, warnings)?;
            Planned::new(computed.plan, &session)
        })
    }

    /// The plan, and with `with_diff` the unified diff of each file.
    pub fn preview(&self, select: &Select, with_diff: bool) -> Result<Answer<Preview>> {
        collect_warnings(|warnings| {
            let (session, Computed { plan, .. }) = self.computed(select, warnings)?;
            let (profile, targets) = session.selection()?;
            let diff = with_diff.then(|| PreviewPlan {
                changes: plan.clone(),
                files: Some(diff::files(&plan, &self.env.limits, warnings)),
                summary: plan.summary(),
            });
            let plan = PreviewPlan { summary: plan.summary(), changes: plan, files: None };
            Ok(Preview { diff, plan, profile, targets })
        })
    }

    /// How what exists differs from what should; `only` restricts what is listed.
    pub fn status(&self, select: &Select, only: &[Kind]) -> Result<Answer<Status>> {
        collect_warnings(|warnings| {
            self.warn_pending(warnings);
            let session = self.session(select)?;
            let desired = session.desired(warnings)?;
            let states = session.survey(&desired, warnings)?;
            let mut drift = status::drift(&desired, &states, Extras::Scan, &self.env.limits, &self.cache)?;
            self.remember(select);
            let total = Summary::of(&drift);
            if !only.is_empty() {
                drift.retain(|item| only.contains(&item.kind));
            }
            let without_manifest = missing_manifests(&desired, &states, warnings);
            let (profile, targets) = session.selection()?;
            let actions = next_actions(select, total, without_manifest);
            Ok(Status {
                next_actions: actions.iter().map(|action| action.command.clone()).collect(),
                next_actions_detailed: actions,
                profile,
                summary: Summary::of(&drift),
                summary_by_root: status::by_root(&drift, &desired),
                summary_total: (!only.is_empty()).then_some(total),
                targets,
                drift,
            })
        })
    }

    /// Which modules and layers changes or differences come from.
    pub fn explain(&self, select: &Select, what: Explain) -> Result<Answer<Explained>> {
        collect_warnings(|warnings| {
            let session = self.session(select)?;
            let Computed { desired, states, plan, .. } = Computed::new(&session, warnings)?;
            self.remember(select);
            let (profile, targets) = session.selection()?;
            let mut explained = Explained { profile, targets, ..Explained::default() };
            match what {
                Explain::Plan => {
                    let change = |change| explained_change(&plan, change, &desired, &states);
                    explained.changes = Some(plan.changes.iter().map(change).collect());
                }
                Explain::Status => {
                    let drift =
                        status::drift(&desired, &states, Extras::Skip, &self.env.limits, &self.cache)?;
                    let item = |item: Drift| {
                        let Drift { actual, expected, kind, path, target, module_ids: modules, .. } = item;
                        ExplainedDrift { actual, expected, kind, modules, path, target }
                    };
                    explained.drift = Some(drift.into_iter().map(item).collect());
                }
            }
            Ok(explained)
        })
    }

    /// Whether the places to deploy to are usable; with `fix` also keeps target manifests out of commits.
    pub fn doctor(&self, select: &Select, fix: Option<Consent>) -> Result<Answer<Health>> {
        if let Some(consent) = fix
            && !select.dry_run
        {
            consent.require("doctor --fix")?;
        }
        collect_warnings(|warnings| {
            self.warn_pending(warnings);
            let session = self.session(select)?;
            warnings.extend(doctor::old_git(&self.env, &session.repo));
            let layout = session.layout()?;
            let checks: Vec<_> = layout
                .roots()
                .map(|(target, root, scan_extras)| doctor::check_root(target, root, scan_extras))
                .collect();
            let problems = doctor::not_ignored(&self.env, &checks);
            let mut fixes = Vec::new();
            if fix.is_some() {
                for mut repair in doctor::plan_fixes(&problems)?.into_iter().filter(IgnoreFix::is_needed) {
                    if !select.dry_run {
                        repair.apply()?;
                    }
                    fixes.push(repair);
                }
            } else {
                warnings.extend(problems.iter().map(doctor::NotIgnored::warning));
            }
            let mut actions: Vec<String> = Vec::new();
            if fix.is_none() && !problems.is_empty() {
                actions.push(format!("{} doctor --fix --yes --json", prefix(select)));
            }
            let repairs: BTreeSet<&str> = checks
                .iter()
                .filter_map(|check| check.suggestion.as_ref()?.strip_prefix("create directory: "))
                .collect();
            actions.extend(repairs.into_iter().map(ToOwned::to_owned));
            let machine_id = session.machine_id;
            Ok(Health { gitignore_fixes: fixes, machine_id, next_actions: actions, roots: checks })
        })
    }
}

/// What a change has to do with which modules.
fn explained_change(
    plan: &Plan,
    change: &Change,
    desired: &Desired,
    states: &[RootState],
) -> ExplainedChange {
    let modules = match change.after {
        Some(_) => {
            let file = desired.roots.get(change.root).and_then(|root| root.file(&change.path));
            let module = |file: &DesiredFile| {
                file.modules.iter().filter_map(|index| explained_module(desired, *index, file)).collect()
            };
            file.map(module).unwrap_or_default()
        }
        None => {
            let listed = states.get(change.root).and_then(|state| state.listed(&change.path));
            let gone = |id: &str| ExplainedModule {
                layer: "missing",
                module_id: id.to_owned(),
                module_path: None,
                module_type: None,
            };
            listed.map(|file| file.module_ids.iter().map(gone).collect()).unwrap_or_default()
        }
    };
    ExplainedChange { modules, op: change.op, path: plan.place(change), target: plan.target(change) }
}

/// The part of a module that a desired file comes from.
fn explained_module(desired: &Desired, index: usize, file: &DesiredFile) -> Option<ExplainedModule> {
    let material = desired.modules.get(index)?;
    let part = |path: &str| material.files.iter().find(|part| part.path.as_str() == path);
    let own = match &file.content {
        Content::Source(source) => part(source.path.as_str()),
        Content::Made(_) => None,
    };
    let source = own.or_else(|| part(module::INSTRUCTIONS_FILE));
    let kind = match material.module.kind {
        ModuleType::Instructions => "Instructions",
        ModuleType::Skill => "Skill",
        ModuleType::Prompt => "Prompt",
        ModuleType::Command => "Command",
    };
    Some(ExplainedModule {
        layer: source.map_or("missing", |source| source.layer.map_or("upstream", OverlayScope::name)),
        module_id: material.id.clone(),
        module_path: source.map(|source| source.path.to_string()),
        module_type: Some(kind),
    })
}

/// Roots with desired files but no usable manifest; each is told.
fn missing_manifests(desired: &Desired, states: &[RootState], warnings: &mut Vec<String>) -> bool {
    if desired.roots.iter().any(|root| !root.files.is_empty())
        && states.iter().all(|state| state.manifest.is_none())
    {
        warnings.push(
            "no target manifests found; drift may be inaccurate (run deploy --apply to write manifests)"
                .to_owned(),
        );
        return true;
    }
    let mut any = false;
    for (root, state) in desired.roots.iter().zip(states) {
        if state.manifest.is_none() && !root.files.is_empty() {
            any = true;
            warnings.push(format!(
                "no usable target manifest ({}) in {}: compared with the desired files instead; run `agentpack deploy --apply` to write it",
                root.target.name(),
                root.path.display()
            ));
        }
    }
    any
}

/// The command line with the flags that were not left at their default.
fn prefix(select: &Select) -> String {
    let mut text = "agentpack".to_owned();
    let mut add = |flag: &str, value: &str| {
        let _ = write!(text, " --{flag} {}", doctor::quoted(value));
    };
    if let Some(repo) = &select.repo {
        add("repo", &repo.display().to_string());
    }
    if select.profile != crate::config::manifest::DEFAULT_PROFILE {
        add("profile", &select.profile);
    }
    if select.target != crate::config::manifest::ALL_TARGETS {
        add("target", &select.target);
    }
    if let Some(machine) = &select.machine {
        add("machine", machine);
    }
    text
}

fn next_actions(select: &Select, total: Summary, without_manifest: bool) -> Vec<NextAction> {
    let action =
        |action, command: &str| NextAction { action, command: format!("{} {command}", prefix(select)) };
    let preview = action("preview_diff", "preview --diff --json");
    let deploy = action("deploy_apply", "deploy --apply --yes --json");
    if total.modified + total.missing > 0 {
        vec![preview, deploy]
    } else if without_manifest {
        let mut actions = vec![deploy];
        if total.extra > 0 {
            actions.insert(0, preview);
        }
        actions
    } else if total.extra > 0 {
        vec![preview]
    } else {
        Vec::new()
    }
}
