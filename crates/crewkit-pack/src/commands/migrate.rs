//! From version 1 of the config file to version 2: the file and what was deployed change together, or not at all.

use std::path::{Path, PathBuf};

use crewkit_core::Code;
use serde::Serialize;

use super::answers::{Planned, RolledBack};
use super::deploy::{CarriedOut, check_adoptions};
use super::look::Computed;
use super::{Consent, Pack, collect_warnings};
use crate::commands::session::{Select, Session, repo_of};
use crate::config::manifest::{self, Manifest, ModuleScope};
use crate::config::upgrade::{Upgraded, upgrade};
use crate::desired::DesiredFile;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::fs::RealFs;
use crate::fs::entry::{Entry, EntryKind, Observed};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::RootDir;
use crate::plan::{Change, Op, Owner};
use crate::state::transaction::{Content, ManifestChange, NewFile, RootChange, SnapshotKind};
use std::sync::Arc;

/// What snapshots call the config repo, where they call other roots by their target.
const CONFIG: &str = "config";

/// What `migrate` is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrate {
    /// Whether to do it, and whether that was approved. A dry run never does.
    pub apply: Option<Consent>,
    /// Whether files of the user may be overwritten.
    pub adopt: bool,
    /// For whom modules are that do not say so; nothing means what version 1 said.
    pub scope: Option<ModuleScope>,
}

/// The answer of `migrate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Migrated {
    /// The new text of the config file; nothing when it is of version 2 already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Deployed files that somebody changed: they stay as they are.
    pub left_alone: Vec<PathBuf>,
    /// The config file.
    pub manifest: PathBuf,
    #[serde(flatten)]
    pub planned: Planned,
    /// What takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
}

/// Another file that changes in the transaction of a plan.
pub(super) struct AlsoChanged {
    pub(super) root: RootChange,
    pub(super) change: Change,
}

impl Pack {
    /// What taking the config repo and what was deployed from it to version 2 would do, or the doing of it.
    pub fn migrate(&self, select: &Select, migrate: Migrate) -> Result<Answer<Migrated>> {
        collect_warnings(|warnings| {
            let path = Manifest::path_in(&repo_of(&self.env, select));
            if Manifest::load(&repo_of(&self.env, select), &self.env.limits)?.is_version_2() {
                let session = self.session(select)?;
                let planned = Planned::new(crate::plan::Plan::default(), &session)?;
                let planned = Planned { applied: Some(false), reason: Some("no_changes"), ..planned };
                return Ok(Migrated {
                    config: None,
                    left_alone: Vec::new(),
                    manifest: path,
                    planned,
                    undo: None,
                });
            }
            match migrate.apply.filter(|_| !select.dry_run) {
                None => {
                    self.warn_pending(warnings);
                    let session = self.session(select)?;
                    let (computed, Migrating { text, left_alone, session }) =
                        self.migrating(select, &session, migrate, warnings)?;
                    let planned = Planned { applied: Some(false), ..Planned::new(computed.plan, &session)? };
                    Ok(Migrated { config: Some(text), left_alone, manifest: path, planned, undo: None })
                }
                Some(consent) => {
                    consent.require("migrate --apply")?;
                    let compute = |session: &Session<'_>, warnings: &mut Vec<String>| {
                        let (computed, more) = self.migrating(select, session, migrate, warnings)?;
                        if !migrate.adopt {
                            check_adoptions(&computed)?;
                        }
                        Ok((computed, more))
                    };
                    let CarriedOut { plan, more, snapshot_id, .. } =
                        self.carry_out(select, "migrate --apply", compute, warnings)?;
                    let Migrating { text, left_alone, session } = more;
                    let undo = snapshot_id.as_ref().map(|id| format!("rollback --to before:{id}"));
                    let planned = Planned::new(plan, &session)?;
                    let planned = Planned { applied: Some(snapshot_id.is_some()), snapshot_id, ..planned };
                    self.remember(select);
                    Ok(Migrated { config: Some(text), left_alone, manifest: path, planned, undo })
                }
            }
        })
    }

    /// Takes the newest migration of the config repo back.
    pub fn undo_migration(&self, select: &Select, consent: Consent) -> Result<Answer<RolledBack>> {
        if !select.dry_run {
            consent.require("migrate --undo")?;
        }
        let found = self.state().snapshots()?.snapshots.into_iter().rev().find(|snapshot| {
            snapshot.kind == SnapshotKind::Deploy && snapshot.targets.iter().any(|target| target == CONFIG)
        });
        let repo = repo_of(&self.env, select);
        let found =
            found.filter(|_| Manifest::load(&repo, &self.env.limits).is_ok_and(|now| now.is_version_2()));
        let Some(snapshot) = found else {
            let message = format!("there is no migration of {} to take back", repo.display());
            return Err(PackError::new(Code::SnapshotNotFound, message)
                .hint("`snapshots list` shows what can be taken back"));
        };
        collect_warnings(|warnings| {
            self.roll_back(&format!("before:{}", snapshot.id), select.dry_run, warnings)
        })
    }

    /// The plan for version 2, with the config file among what changes, and without files that people changed.
    fn migrating<'s>(
        &'s self,
        select: &'s Select,
        session: &Session<'_>,
        migrate: Migrate,
        warnings: &mut Vec<String>,
    ) -> Result<(Computed, Migrating<'s>)> {
        let path = Manifest::path_in(&session.repo);
        let text = manifest::read_text(&path, &self.env.limits)?;
        let Upgraded { text: new, manifest, warnings: noticed } =
            upgrade(&text, &path, &self.env.limits, migrate.scope)?;
        warnings.extend(noticed);
        let mut session = self.session(select)?;
        session.manifest = Arc::new(manifest);
        let mut computed = Computed::new(&session, warnings)?;
        let left_alone = leave_alone(&mut computed);
        for path in &left_alone {
            warnings
                .push(format!("{} was changed since it was deployed and is left as it is", path.display()));
        }
        self.warn_unread(&session, &computed, warnings);
        computed.also = Some(config_change(&session.repo, &text, &new)?);
        Ok((computed, Migrating { text: new, left_alone, session }))
    }
}

/// What a migration found out beside its plan.
struct Migrating<'s> {
    text: String,
    left_alone: Vec<PathBuf>,
    session: Session<'s>,
}

/// Takes files out of the plan that are not as they were deployed; returns them. From then on they are the user's.
fn leave_alone(computed: &mut Computed) -> Vec<PathBuf> {
    let Computed { desired, states, plan, .. } = computed;
    // A place can be in the manifests of several roots.
    let manifests: Vec<_> = desired
        .roots
        .iter()
        .zip(&*states)
        .map(|(root, state)| (root.path.clone(), state.manifest.clone()))
        .collect();
    let deployed = |place: &Path, sha256: Digest| {
        manifests.iter().any(|(root, manifest)| {
            let below = place.strip_prefix(root).ok().and_then(|below| RelPath::from_path(below).ok());
            let listed = below.and_then(|below| manifest.as_ref()?.file(&below).map(|file| file.sha256));
            listed == Some(sha256)
        })
    };
    let mut left_alone = Vec::new();
    let (roots, all) = (plan.roots.clone(), std::mem::take(&mut plan.changes));
    for change in all {
        let place =
            roots.get(change.root).map_or_else(PathBuf::new, |root| root.path.join(change.path.as_path()));
        let is_ours = matches!(change.op, Op::Delete | Op::Update(Owner::Us));
        let changed = change.before.is_some_and(|before| !deployed(&place, before.sha256));
        if !(is_ours && changed) {
            plan.changes.push(change);
            continue;
        }
        left_alone.push(place);
        let at = |files: &[DesiredFile]| files.binary_search_by(|file| file.path.cmp(&change.path)).ok();
        if let Some(root) = desired.roots.get_mut(change.root)
            && let Some(at) = at(&root.files)
        {
            root.files.remove(at);
            states[change.root].found.remove(at);
        }
    }
    left_alone
}

/// The change of the config file from `old` to `new`.
fn config_change(repo: &Path, old: &str, new: &str) -> Result<AlsoChanged> {
    let file = Manifest::path_in(repo);
    let name = RelPath::new(manifest::FILE_NAME).map_err(|error| PackError::bug(error.to_string()))?;
    let fs = RealFs::default();
    let root = RootDir::open(&fs, repo, None)?;
    let found = match &root {
        Some(root) => root.observe(&fs, &name).map_err(|error| PackError::io("read", &file, error))?,
        None => Observed::Absent,
    };
    let before = match found {
        Observed::Entry(entry) if entry.kind != EntryKind::Symlink => entry,
        _ => {
            let message = format!("{} is not a file of its own", file.display());
            return Err(PackError::new(Code::TargetNotAFile, message)
                .hint("replace the link by the file it leads to, or migrate where that file is"));
        }
    };
    if before.sha256 != Digest::of(old.as_bytes()) {
        let message = format!("{} changed while it was read", file.display());
        return Err(PackError::new(Code::ConfigInvalid, message).hint("try again"));
    }
    let bytes: Arc<[u8]> = new.as_bytes().into();
    let entry = Entry::new(Digest::of(&bytes), before.kind);
    let after = NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes) };
    let root = RootChange {
        target: CONFIG.to_owned(),
        path: repo.to_owned(),
        seen: None,
        manifest: ManifestChange::Keep,
    };
    Ok(AlsoChanged { root, change: Change::new(0, name, Some(before), Some(after)) })
}
