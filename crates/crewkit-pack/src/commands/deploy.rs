//! Deploy: the plan that is checked is the plan that is applied.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use crewkit_core::Code;
use serde_json::json;

use super::look::{Computed, planned};
use super::{Consent, Pack, noticing};
use crate::env::timestamp;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::hash::Digest;
use crate::plan::{self, Change};
use crate::session::{Select, Session};
use crate::transaction::{
    FileChange, ManifestChange, Project as RecordedProject, Request, RootChange, SnapshotKind,
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

impl Pack {
    /// What a deploy would do, or the doing of it.
    pub fn deploy(&self, select: &Select, deploy: &Deploy) -> Result<Answer> {
        let apply = deploy.apply.filter(|_| !select.dry_run);
        noticing(|warnings| match apply {
            None => {
                self.notice_pending(warnings);
                let session = self.session(select)?;
                let computed = Computed::new(&session, warnings)?;
                self.remember(select);
                planned(computed.plan, &session, json!({"applied": false}))
            }
            Some(consent) => self.apply(select, deploy, consent, warnings),
        })
    }

    /// What a deploy would do, with a token for exactly that plan.
    pub fn deploy_for_approval(&self, select: &Select) -> Result<Answer> {
        noticing(|warnings| {
            self.notice_pending(warnings);
            let session = self.session(select)?;
            let computed = Computed::new(&session, warnings)?;
            self.remember(select);
            let hash = plan_hash(&session, &computed).to_string();
            let lifetime = Duration::from_secs(self.env.limits.pack_confirm_seconds);
            let expires = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).issue(
                hash.clone(),
                self.env.now(),
                lifetime,
            );
            planned(
                computed.plan,
                &session,
                json!({
                    "applied": false,
                    "confirm_token": hash,
                    "confirm_plan_hash": hash,
                    "confirm_token_expires_at": timestamp(expires),
                }),
            )
        })
    }

    fn apply(
        &self,
        select: &Select,
        deploy: &Deploy,
        consent: Consent,
        warnings: &mut Vec<String>,
    ) -> Result<Answer> {
        let home = self.state();
        let compute = |session: &Session<'_>, warnings: &mut Vec<String>| -> Result<Computed> {
            let computed = Computed::new(session, warnings)?;
            consent.require("deploy --apply")?;
            self.check_age(deploy)?;
            check_token(deploy, session, &computed)?;
            if !deploy.adopt {
                check_adoptions(&computed)?;
            }
            Ok(computed)
        };
        // A first look without the lock: what needs nothing done or is refused must not wait for others or write
        // anything. While a command is at work or was cut short, what is on disk is no basis for either.
        if home.is_quiet() {
            let session = self.session(select)?;
            let mut noticed = Vec::new();
            let first =
                compute(&session, &mut noticed).map_err(|error| error.with_warnings(noticed.clone()))?;
            if is_done(&first) && home.is_quiet() {
                warnings.append(&mut noticed);
                return planned(first.plan, &session, json!({"applied": false, "reason": "no_changes"}));
            }
        } else {
            consent.require("deploy --apply")?;
        }

        let locked = self.lock(&home, "deploy --apply", Some(select), warnings)?;
        // From here on nobody else deploys: this plan is checked, and this plan is applied.
        let session = self.session(select)?;
        let computed = compute(&session, warnings)?;
        let hash = plan_hash(&session, &computed);
        let request = self.request(&session, &computed, hash);
        // The request has what it needs; the rest makes room for what applying it takes.
        let plan = computed.plan;
        drop((computed.desired, computed.states));
        self.env.go_on()?;
        self.env.progress.at("deploy", 0, request.changes.len());
        let applied = locked.apply(&request)?;
        self.env.progress.at("deploy", request.changes.len(), request.changes.len());
        drop(request);
        warnings.extend(applied.untidy);
        self.prune_quietly(&locked, warnings);
        if let Some(token) = &deploy.confirm_token {
            self.tokens.lock().unwrap_or_else(PoisonError::into_inner).0.remove(token);
        }
        self.remember(select);
        let outcome = match applied.snapshot_id {
            Some(id) => json!({"applied": true, "snapshot_id": id}),
            None => json!({"applied": false, "reason": "no_changes"}),
        };
        planned(plan, &session, outcome)
    }

    pub(super) fn request(&self, session: &Session<'_>, computed: &Computed, hash: Digest) -> Request {
        let Computed { desired, states, plan } = computed;
        let changed = |root: usize| plan.changes.iter().any(|change| change.root == root);
        let roots = desired
            .roots
            .iter()
            .zip(states)
            .enumerate()
            .map(|(index, (root, state))| {
                let wanted = state.manifest.is_some() || !root.files.is_empty() || changed(index);
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
        let file_change = |change: &Change| FileChange {
            root: change.root,
            path: change.path.clone(),
            before: change.before,
            after: change
                .after
                .and_then(|(at, _)| Some(desired.roots.get(change.root)?.files.get(at)?.new_file())),
        };
        Request {
            kind: SnapshotKind::Deploy,
            now: self.now(),
            targets: desired_targets(computed),
            project: Some(RecordedProject {
                id: session.project.id(&self.env),
                root: session.project.root.clone(),
            }),
            lockfile_sha256: session.lock.as_ref().map(|(_, hash)| *hash),
            plan_hash: Some(hash.to_string()),
            rolled_back_to: None,
            roots,
            changes: plan.changes.iter().map(file_change).collect(),
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

fn desired_targets(computed: &Computed) -> Vec<String> {
    let mut targets: Vec<String> =
        computed.desired.roots.iter().map(|root| root.target.name().to_owned()).collect();
    targets.dedup();
    targets
}

/// Whether applying would change neither a file nor a manifest.
pub(super) fn is_done(computed: &Computed) -> bool {
    let Computed { desired, states, plan } = computed;
    plan.changes.is_empty()
        && !desired
            .roots
            .iter()
            .zip(states)
            .any(|(root, state)| plan::manifest_is_stale(desired, root, state))
}

/// The hash of a plan, bound to what it was asked for.
pub(super) fn plan_hash(session: &Session<'_>, computed: &Computed) -> Digest {
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

fn check_adoptions(computed: &Computed) -> Result<()> {
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
