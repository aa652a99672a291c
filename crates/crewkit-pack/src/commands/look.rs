//! The verbs that only look: plan, diff, preview, status, explain, doctor.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Consent, Pack, noticing, selected};
use crate::desired::Desired;
use crate::envelope::Answer;
use crate::error::Result;
use crate::plan::{Plan, PlanRoot, RootState};
use crate::session::{Select, Session};
use crate::status::{self, Extras, Kind, Summary};
use crate::{diff, doctor, view};

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
}

impl Computed {
    pub(super) fn new(session: &Session<'_>, warnings: &mut Vec<String>) -> Result<Self> {
        let desired = session.desired(warnings)?;
        let states = session.survey(&desired, warnings)?;
        let plan = Plan::make(&desired, &states)?;
        Ok(Self { desired, states, plan })
    }
}

/// The answer that shows a plan, with `more` members.
pub(super) fn planned(plan: Plan, session: &Session<'_>, more: Value) -> Result<Answer> {
    let mut data = selected(session)?;
    data.insert("summary".to_owned(), view::summary(plan.summary()));
    data.extend(view::object(more));
    Ok(Answer { roots: root_names(&plan), plan: Some(plan), ..Answer::new(data.into()) })
}

impl Pack {
    /// What a deploy would change. `diff` answers the same.
    pub fn plan(&self, select: &Select) -> Result<Answer> {
        noticing(|warnings| {
            self.notice_pending(warnings);
            let session = self.session(select)?;
            let computed = Computed::new(&session, warnings)?;
            self.remember(select);
            planned(computed.plan, &session, Value::Null)
        })
    }

    /// The plan, and with `with_diff` the unified diff of each file.
    pub fn preview(&self, select: &Select, with_diff: bool) -> Result<Answer> {
        noticing(|warnings| {
            self.notice_pending(warnings);
            let session = self.session(select)?;
            let computed = Computed::new(&session, warnings)?;
            self.remember(select);
            let mut data = selected(&session)?;
            let plan = view::plan(&computed.plan);
            if with_diff {
                let mut shown = plan.clone();
                let files = diff::files(&computed.plan, &computed.desired, &self.env.limits, warnings);
                shown.insert("files".to_owned(), files.into());
                data.insert("diff".to_owned(), shown.into());
            }
            data.insert("plan".to_owned(), plan.into());
            Ok(Answer { roots: root_names(&computed.plan), ..Answer::new(data.into()) })
        })
    }

    /// How what exists differs from what should; `only` restricts what is listed.
    pub fn status(&self, select: &Select, only: &[Kind]) -> Result<Answer> {
        noticing(|warnings| {
            self.notice_pending(warnings);
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
            let mut data = selected(&session)?;
            data.insert(
                "drift".to_owned(),
                drift.iter().map(|item| status::to_json(item, &desired)).collect(),
            );
            data.insert("summary".to_owned(), Summary::of(&drift).to_json());
            data.insert("summary_by_root".to_owned(), status::by_root(&drift, &desired).into());
            if !only.is_empty() {
                data.insert("summary_total".to_owned(), total.to_json());
            }
            let actions = next_actions(select, total, without_manifest);
            if !actions.is_empty() {
                let texts: Vec<&String> = actions.iter().map(|(_, command)| command).collect();
                data.insert("next_actions".to_owned(), json!(texts));
                let detailed: Vec<Value> = actions
                    .iter()
                    .map(|(action, command)| json!({"action": action, "command": command}))
                    .collect();
                data.insert("next_actions_detailed".to_owned(), detailed.into());
            }
            Ok(Value::from(data))
        })
    }

    /// Which modules and layers changes or differences come from.
    pub fn explain(&self, select: &Select, what: Explain) -> Result<Answer> {
        noticing(|warnings| {
            let session = self.session(select)?;
            let computed = Computed::new(&session, warnings)?;
            self.remember(select);
            let Computed { desired, states, plan } = &computed;
            let mut data = selected(&session)?;
            match what {
                Explain::Plan => {
                    let changes = plan.changes.iter().map(|change| {
                        let listed = states.get(change.root).and_then(|state| state.listed(&change.path));
                        let formerly = listed.map(|file| file.module_ids.clone()).unwrap_or_default();
                        view::explained(plan, change, desired, &formerly)
                    });
                    data.insert("changes".to_owned(), changes.collect());
                }
                Explain::Status => {
                    let drift = status::drift(desired, states, Extras::Skip, &self.env.limits, &self.cache)?;
                    let items = drift.iter().map(|item| {
                        let mut map = view::object(status::to_json(item, desired));
                        map.shift_remove("root");
                        map.shift_remove("root_posix");
                        map.insert("modules".to_owned(), json!(item.module_ids));
                        Value::Object(map)
                    });
                    data.insert("drift".to_owned(), items.collect());
                }
            }
            Ok(Value::from(data))
        })
    }

    /// Whether the places to deploy to are usable; with `fix` also keeps target manifests out of commits.
    pub fn doctor(&self, select: &Select, fix: Option<Consent>) -> Result<Answer> {
        if let Some(consent) = fix
            && !select.dry_run
        {
            consent.require("doctor --fix")?;
        }
        noticing(|warnings| {
            self.notice_pending(warnings);
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
                for repair in doctor::plan_fixes(&problems)?.iter().filter(|repair| repair.is_needed()) {
                    if !select.dry_run {
                        repair.apply()?;
                    }
                    fixes.push(repair.to_json(!select.dry_run));
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
            let mut data = view::object(json!({
                "machine_id": session.machine_id,
                "roots": checks.iter().map(doctor::RootCheck::to_json).collect::<Vec<_>>(),
                "gitignore_fixes": fixes,
            }));
            if !actions.is_empty() {
                data.insert("next_actions".to_owned(), json!(actions));
            }
            Ok(Value::from(data))
        })
    }
}

/// The roots, as people see them.
fn root_names(plan: &Plan) -> Vec<(String, String)> {
    let name = |root: &PlanRoot| (root.target.name().to_owned(), root.path.display().to_string());
    plan.roots.iter().map(name).collect()
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
        let _ = write!(text, " --{flag} {}", view::quoted(value));
    };
    if let Some(repo) = &select.repo {
        add("repo", &repo.display().to_string());
    }
    if select.profile != crate::manifest::DEFAULT_PROFILE {
        add("profile", &select.profile);
    }
    if select.target != crate::manifest::ALL_TARGETS {
        add("target", &select.target);
    }
    if let Some(machine) = &select.machine {
        add("machine", machine);
    }
    text
}

fn next_actions(select: &Select, total: Summary, without_manifest: bool) -> Vec<(&'static str, String)> {
    let prefix = prefix(select);
    let preview = ("preview_diff", format!("{prefix} preview --diff --json"));
    let deploy = ("deploy_apply", format!("{prefix} deploy --apply --yes --json"));
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
