//! Deploy: the plan that is checked is the plan that is applied.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use crewkit_core::Code;
use serde_json::json;

use super::answers::Planned;
use super::look::Computed;
use super::{Consent, Pack, collect_warnings};
use crate::commands::session::{Select, Session};
use crate::env::timestamp;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::fs::hash::Digest;
use crate::plan::{self, Change, Plan};
use crate::state::transaction::{
    ManifestChange, Project as RecordedProject, Request, RootChange, SnapshotKind,
};

/// What a deploy is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deploy {
    /// Whether to apply the plan, and whether that was approved. A dry run never applies.
    pub apply: Option<Consent>,
    /// Whether files of the user may be overwritten.
    pub adopt: bool,
    /// The hash of the plan that was approved; another plan is refused.
    pub confirm_token: Option<String>,
}

/// Plans that were shown and may be approved.
#[derive(Debug, Default)]
pub struct Tokens(HashMap<String, SystemTime>);

impl Tokens {
    /// More plans than this wait for nobody.
    const MOST: usize = 1024;

    fn issue(&mut self, token: String, now: SystemTime, lifetime: Duration) -> SystemTime {
        // Kept one lifetime beyond its end, so that a late caller hears "expired" and not "unknown".
        self.0.retain(|_, expires| *expires + lifetime > now);
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        let expires = now + lifetime;
        self.0.insert(token, expires);
        expires
    }
}

/// A plan that was carried out.
pub(super) struct CarriedOut<'s, T> {
    session: Session<'s>,
    pub(super) plan: Plan,
    /// What else the caller wanted to know of the plan.
    pub(super) more: T,
    /// The snapshot that was made; `None` if nothing had to change.
    pub(super) snapshot_id: Option<String>,
}

impl Pack {
    /// What a deploy would do, or the doing of it.
    pub fn deploy(&self, select: &Select, deploy: &Deploy) -> Result<Answer<Planned>> {
        collect_warnings(|warnings| match deploy.apply.filter(|_| !select.dry_run) {
            None => {
                let (session, computed) = self.computed(select, warnings)?;
                Ok(Planned { applied: Some(false), ..Planned::new(computed.plan, &session)? })
            }
            Some(consent) => self.apply(select, deploy, consent, warnings),
        })
    }

    /// What a deploy would do, with a token for exactly that plan.
    pub fn deploy_for_approval(&self, select: &Select) -> Result<Answer<Planned>> {
        collect_warnings(|warnings| {
            let (session, computed) = self.computed(select, warnings)?;
            let hash = plan_hash(&session, &computed).to_string();
            let lifetime = Duration::from_secs(self.env.limits.pack_confirm_seconds);
            let expires = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).issue(
                hash.clone(),
                self.env.now(),
                lifetime,
            );
            Ok(Planned {
                applied: Some(false),
                confirm_plan_hash: Some(hash.clone()),
                confirm_token: Some(hash),
                confirm_token_expires_at: Some(timestamp(expires)),
                ..Planned::new(computed.plan, &session)?
            })
        })
    }

    fn apply(
        &self,
        select: &Select,
        deploy: &Deploy,
        consent: Consent,
        warnings: &mut Vec<String>,
    ) -> Result<Planned> {
        if consent == Consent::Missing && self.state().is_quiet() {
            // What is wrong with the plan is told first.
            Computed::new(&self.session(select)?, warnings)?;
        }
        consent.require("deploy --apply")?;
        let compute = |session: &Session<'_>, warnings: &mut Vec<String>| -> Result<(Computed, ())> {
            let computed = Computed::new(session, warnings)?;
            self.warn_unread(session, &computed, warnings);
            self.check_age(deploy)?;
            check_token(deploy, session, &computed)?;
            if !deploy.adopt {
                check_adoptions(&computed)?;
            }
            Ok((computed, ()))
        };
        let CarriedOut { session, plan, snapshot_id, .. } =
            self.carry_out(select, "deploy --apply", compute, warnings)?;
        if snapshot_id.is_some() {
            if let Some(token) = &deploy.confirm_token {
                self.tokens.lock().unwrap_or_else(PoisonError::into_inner).0.remove(token);
            }
            self.remember(select);
        }
        let reason = snapshot_id.is_none().then_some("no_changes");
        let applied = Some(snapshot_id.is_some());
        Ok(Planned { applied, reason, snapshot_id, ..Planned::new(plan, &session)? })
    }

    /// Makes a plan under the lock and applies it. `compute` makes the plan, with whatever else the caller wants to know
    /// of it, or refuses it.
    pub(super) fn carry_out<'s, T>(
        &'s self,
        select: &'s Select,
        command: &str,
        compute: impl Fn(&Session<'s>, &mut Vec<String>) -> Result<(Computed, T)>,
        warnings: &mut Vec<String>,
    ) -> Result<CarriedOut<'s, T>> {
        let home = self.state();
        let is_quiet = home.is_quiet();
        let free = if is_quiet { self.try_lock(&home, command, warnings)? } else { None };
        let locked = match free {
            Some(locked) => locked,
            None => {
                if is_quiet {
                    // A first look without the lock: what needs nothing done or is refused must neither wait for others
                    // nor make anything. While a command is at work or was cut short, what is on disk is no basis for
                    // either.
                    let session = self.session(select)?;
                    let mut noticed = Vec::new();
                    let (first, more) = compute(&session, &mut noticed)
                        .map_err(|error| error.with_warnings(noticed.clone()))?;
                    if is_done(&first) && home.is_quiet() {
                        warnings.append(&mut noticed);
                        return Ok(CarriedOut { session, plan: first.plan, more, snapshot_id: None });
                    }
                }
                self.lock(&home, command, Some(select), warnings)?
            }
        };
        // From here on nobody else deploys: this plan is checked, and this plan is applied.
        let session = self.session(select)?;
        let (mut computed, more) = compute(&session, warnings)?;
        if is_done(&computed) {
            return Ok(CarriedOut { session, plan: computed.plan, more, snapshot_id: None });
        }
        let request = self.request(&session, &mut computed);
        // The request has what it needs; the rest makes room for what applying it takes.
        let Computed { plan: Plan { roots, .. }, also, .. } = computed;
        let planned = request.changes.len() - usize::from(also.is_some());
        self.env.check_cancelled()?;
        self.env.progress.at("deploy", 0, request.changes.len());
        let applied = locked.apply(&request)?;
        let mut plan = Plan { roots, changes: request.changes };
        plan.changes.truncate(planned);
        self.env.progress.at("deploy", plan.changes.len(), plan.changes.len());
        warnings.extend(applied.untidy);
        self.prune_quietly(&locked, warnings);
        Ok(CarriedOut { session, plan, more, snapshot_id: applied.snapshot_id })
    }

    /// The transaction that carries out a plan, whose changes move into it.
    fn request(&self, session: &Session<'_>, computed: &mut Computed) -> Request {
        let hash = plan_hash(session, computed);
        let Computed { desired, states, plan, also } = computed;
        let is_changed = |root: usize| plan.changes.iter().any(|change| change.root == root);
        let mut roots: Vec<RootChange> = desired
            .roots
            .iter()
            .zip(states)
            .enumerate()
            .map(|(index, (root, state))| {
                let wanted = state.manifest.is_some() || !root.files.is_empty() || is_changed(index);
                let manifest = if wanted {
                    let mut files = desired.managed_files(root);
                    files.extend(state.foreign.iter().cloned());
                    files.sort_by(|a, b| a.path.cmp(&b.path));
                    ManifestChange::Write(files)
                } else {
                    ManifestChange::Keep
                };
                let (target, path) = (root.target.name().to_owned(), root.path.clone());
                RootChange { target, path, seen: state.manifest.clone(), manifest }
            })
            .collect();
        let mut targets: Vec<String> =
            desired.roots.iter().map(|root| root.target.name().to_owned()).collect();
        targets.dedup();
        let mut changes = std::mem::take(&mut plan.changes);
        if let Some(also) = also {
            targets.push(also.root.target.clone());
            changes.push(Change { root: roots.len(), ..also.change.clone() });
            roots.push(also.root.clone());
        }
        Request {
            kind: SnapshotKind::Deploy,
            now: self.now(),
            targets,
            project: Some(RecordedProject {
                id: session.project.id(&self.env),
                root: session.project.root.clone(),
            }),
            lockfile_sha256: session.lock.as_ref().map(|(_, hash)| *hash),
            plan_hash: Some(hash.to_string()),
            rolled_back_to: None,
            roots,
            changes,
        }
    }

    /// Refuses a token that this service never issued, or issued too long ago.
    fn check_age(&self, deploy: &Deploy) -> Result<()> {
        let Some(token) = &deploy.confirm_token else { return Ok(()) };
        let expires = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).0.get(token).copied();
        match expires {
            None => Err(PackError::new(
                Code::ConfirmTokenMismatch,
                "the confirm_token does not belong to a plan that was shown here",
            )
            .hint("call `deploy` and apply with the confirm_token of its answer")),
            Some(expires) if expires < self.env.now() => Err(PackError::new(
                Code::ConfirmTokenExpired,
                format!("the confirm_token expired at {}", timestamp(expires)),
            )
            .hint("call `deploy` again and apply with the new confirm_token")),
            Some(_) => Ok(()),
        }
    }
}

/// Whether applying would change neither a file nor a manifest.
fn is_done(computed: &Computed) -> bool {
    let Computed { desired, states, plan, also, .. } = computed;
    plan.changes.is_empty()
        && also.is_none()
        && !desired
            .roots
            .iter()
            .zip(states)
            .any(|(root, state)| plan::manifest_is_stale(desired, root, state))
}

/// The hash of a plan, bound to what it was asked for.
fn plan_hash(session: &Session<'_>, computed: &Computed) -> Digest {
    let select = session.select;
    let binding = json!([
        session.repo.to_string_lossy(),
        select.profile,
        select.target,
        session.machine_id,
        session.project.root.to_string_lossy(),
    ]);
    computed.plan.hash(&binding.to_string(), &computed.desired)
}

fn check_token(deploy: &Deploy, session: &Session<'_>, computed: &Computed) -> Result<()> {
    let Some(token) = &deploy.confirm_token else { return Ok(()) };
    let hash = plan_hash(session, computed).to_string();
    if *token == hash {
        return Ok(());
    }
    Err(PackError::new(
        Code::ConfirmTokenMismatch,
        "the plan has changed since it was approved, or was made for other arguments",
    )
    .detail("confirm_plan_hash", hash)
    .detail("expected_confirm_plan_hash", token.as_str())
    .hint("call `deploy` again, look at the new plan, and apply with its confirm_token"))
}

pub(super) fn check_adoptions(computed: &Computed) -> Result<()> {
    let mut paths: Vec<String> = computed.plan.adoptions().map(|path| path.display().to_string()).collect();
    if paths.is_empty() {
        return Ok(());
    }
    paths.sort();
    let count = paths.len();
    paths.truncate(20);
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    Err(PackError::new(
        Code::AdoptConfirmRequired,
        format!(
            "refusing to overwrite existing files that are not managed: {}{more}",
            paths.first().map_or("", String::as_str)
        ),
    )
    .detail("flag", "--adopt")
    .detail("adopt_updates", count)
    .detail("sample_paths_posix", paths.iter().map(|path| path.replace('\\', "/")).collect::<Vec<_>>())
    .detail("sample_paths", paths))
}
