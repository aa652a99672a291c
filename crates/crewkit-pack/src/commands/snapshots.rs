//! Rollback, and looking after snapshots.

use std::path::Path;

use crewkit_core::Code;

use super::answers::{RolledBack, Snapshots};
use super::{Consent, Pack, collect_warnings};
use crate::commands::session::Select;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::state::history::{PruneMode, Pruned, SnapshotDetails, SnapshotList};
use crate::state::home::Locked;
use crate::state::rollback::RollbackTo;

/// What `snapshots prune` is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prune {
    /// How many of the newest snapshots stay; the limit `pack_snapshots_kept` when nothing is said.
    pub keep: Option<u64>,
}

impl Pack {
    /// Returns to the state a snapshot left (`<id>`) or found (`before:<id>`).
    pub fn rollback(&self, select: &Select, to: &str, consent: Consent) -> Result<Answer<RolledBack>> {
        if !select.dry_run {
            consent.require("rollback")?;
        }
        collect_warnings(|warnings| self.roll_back(to, select.dry_run, warnings))
    }

    pub(super) fn roll_back(
        &self,
        to: &str,
        dry_run: bool,
        warnings: &mut Vec<String>,
    ) -> Result<RolledBack> {
        let target = RollbackTo::parse(to);
        let home = self.state();
        let rolled_back_to = to.to_owned();
        if dry_run {
            self.warn_pending(warnings);
            let mut plan = home.plan_rollback(&target, self.now())?;
            warnings.append(&mut plan.warnings);
            let changes = Some(plan.request.changes.len());
            return Ok(RolledBack { rolled_back_to, event_snapshot_id: None, changes, reason: None });
        }
        // Looked at first without the lock: an unknown snapshot must not create anything.
        if home.is_quiet() {
            home.plan_rollback(&target, self.now())?;
        }
        let locked = self.lock(&home, "rollback", None, warnings)?;
        let (mut plan, applied) = locked.rollback(&target, self.now())?;
        warnings.append(&mut plan.warnings);
        warnings.extend(applied.untidy);
        self.prune_quietly(&locked, warnings);
        let id = applied.snapshot_id.as_deref().unwrap_or_default();
        for path in plan.backups.iter().map(|path| path.display()) {
            warnings.push(format!(
                "{path} had been changed by hand; see that content with `snapshots show {id} --file {path}`"
            ));
        }
        let reason = applied.snapshot_id.is_none().then_some("no_changes");
        Ok(RolledBack { rolled_back_to, event_snapshot_id: applied.snapshot_id, changes: None, reason })
    }

    /// All snapshots, newest first.
    pub fn snapshots_list(&self) -> Result<Answer<Snapshots>> {
        let SnapshotList { mut snapshots, warnings } = self.state().snapshots()?;
        snapshots.reverse();
        Ok(Answer { data: Snapshots { snapshots }, warnings })
    }

    /// One snapshot with what it changed.
    pub fn snapshots_show(&self, id: &str) -> Result<Answer<SnapshotDetails>> {
        Ok(Answer { data: self.state().snapshot(id)?, warnings: Vec::new() })
    }

    /// The content a snapshot found at `file` and replaced.
    pub fn snapshots_file(&self, id: &str, file: &Path) -> Result<Vec<u8>> {
        let file = self.env.cwd.join(file);
        self.state().replaced(id, &file)?.ok_or_else(|| {
            let message = format!("the snapshot `{id}` replaced no content at {}", file.display());
            PackError::new(Code::SnapshotNotFound, message)
                .detail("snapshot_id", id)
                .hint(format!("`snapshots show {id}` lists what it changed"))
        })
    }

    /// Removes all but the newest snapshots, and the contents only they had.
    pub fn snapshots_prune(&self, select: &Select, prune: Prune, consent: Consent) -> Result<Answer<Pruned>> {
        if !select.dry_run {
            consent.require("snapshots prune")?;
        }
        let keep = prune.keep.unwrap_or(self.env.limits.pack_snapshots_kept);
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        collect_warnings(|warnings| {
            let home = self.state();
            if select.dry_run {
                let mut ids: Vec<String> =
                    home.snapshots()?.snapshots.into_iter().map(|info| info.id).collect();
                let kept = ids.len().min(keep);
                ids.truncate(ids.len() - kept);
                return Ok(Pruned { removed: ids, kept });
            }
            let locked = self.lock(&home, "snapshots prune", None, warnings)?;
            Ok(locked.prune(keep, PruneMode::Remove)?)
        })
    }

    /// Removes what is older than the newest `pack_snapshots_kept` snapshots, after a command that made one.
    pub(super) fn prune_quietly(&self, locked: &Locked<'_>, warnings: &mut Vec<String>) {
        let keep = usize::try_from(self.env.limits.pack_snapshots_kept).unwrap_or(usize::MAX);
        if let Err(error) = locked.prune(keep, PruneMode::Lazily) {
            warnings.push(format!("older snapshots could not be removed: {error}"));
        }
    }
}
