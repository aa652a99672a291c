//! The kit of an agent's workspace: a profile deployed into one project, with a state of its own.
//!
//! It differs from a deploy by a person in one thing: where the project itself has a file at a place, that file stays and
//! is reported. Nobody is there to be asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_core::Code;

use super::Pack;
use super::deploy::CarriedOut;
use super::look::Computed;
use crate::commands::session::{Choices, Select, Session};
use crate::desired::Desired;
use crate::error::{PackError, Result};
use crate::fs::entry::{Entry, Observed};
use crate::fs::place::RootDir;
use crate::fs::{Fs as _, RealFs};
use crate::observe::RootState;
use crate::plan::{self, Plan};
use crate::state::home::StateHome;
use crate::state::managed;
use crate::state::transaction::{Outcome, TxnError};

/// What a deployment into a workspace did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KitReport {
    /// The snapshot it made; none when nothing had to change.
    pub snapshot_id: Option<String>,
    /// Files written or removed.
    pub changed: usize,
    /// Files of an earlier deployment that somebody had changed; what they were is in the snapshot.
    pub drifted: Vec<PathBuf>,
    /// Places where the project has a file of its own; they stay as they are.
    pub left_alone: Vec<PathBuf>,
    /// What the caller should know.
    pub warnings: Vec<String>,
}

/// A file of a kit, for a workspace that is not on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KitFile {
    /// Where, below the workspace.
    pub path: String,
    pub executable: bool,
    pub content: Vec<u8>,
}

/// Where a workspace that is elsewhere is taken to be; nothing is there, and nothing is looked for.
const ELSEWHERE: &str = "/crewkit-workspace-elsewhere";

/// How a workspace differs from what was deployed into it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KitDrift {
    /// Files that were changed.
    pub modified: Vec<PathBuf>,
    /// Files that are gone.
    pub missing: Vec<PathBuf>,
    /// Files that are as they were written, manifests included.
    pub unchanged: Vec<PathBuf>,
}

impl Pack {
    /// The same service for the workspace of an agent: deploys into `workspace` alone and keeps its state in `state`.
    #[must_use]
    pub fn in_workspace(&self, workspace: &Path, state: &Path) -> Self {
        let mut env = self.env.clone();
        workspace.clone_into(&mut env.cwd);
        env.workspace_state = Some(state.to_owned());
        Self { manifest: Arc::clone(&self.manifest), ..Self::new(env) }
    }

    /// Ends what was cut short in a workspace. Returns the snapshot of what was completed; nothing when nothing was
    /// pending or all of it was undone.
    pub fn finish_in_workspace(&self, workspace: &Path, state: &Path) -> Result<Option<String>> {
        if StateHome::new(state).pending()?.is_empty() {
            return Ok(None);
        }
        let here = self.in_workspace(workspace, state);
        let home = here.state();
        let locked = here.lock(&home, "equip", None, &mut Vec::new())?;
        if let Some(path) = locked.recovered().iter().find_map(|ended| ended.unreached.first()) {
            return Err(TxnError::Blocked { path: path.clone(), root: workspace.to_owned() }.into());
        }
        let completed = locked.recovered().iter().rfind(|ended| ended.outcome == Outcome::Completed);
        Ok(completed.map(|ended| ended.id.clone()))
    }

    /// Makes the workspace as the profile says, all of it or nothing.
    pub fn equip(&self, select: &Select) -> Result<KitReport> {
        let mut warnings = Vec::new();
        let compute = |session: &Session<'_>, warnings: &mut Vec<String>| {
            let (computed, left_alone) = computed(session, warnings)?;
            let drifted = drift(&computed.desired, &computed.states).modified;
            Ok((computed, (left_alone, drifted)))
        };
        let CarriedOut { plan, more: (left_alone, drifted), snapshot_id, .. } =
            self.carry_out(select, "equip", compute, &mut warnings)?;
        let drifted = if snapshot_id.is_some() { drifted } else { Vec::new() };
        Ok(KitReport { changed: plan.changes.len(), snapshot_id, drifted, left_alone, warnings })
    }

    /// The files of a profile for a workspace that is not on this machine, by path. Overlays of a project do not apply:
    /// which project it is would have to be read there.
    pub fn kit_files(&self, select: &Select) -> Result<Vec<KitFile>> {
        let mut env = self.env.clone();
        env.cwd = PathBuf::from(ELSEWHERE);
        // Only the project is meant; there is no state to keep, and hashes are remembered with the user's own.
        env.workspace_state = Some(env.agentpack_home.clone());
        let here = Self { env, session: Choices::default(), ..self.clone() };
        let session = here.session(select)?;
        let desired = session.desired(&mut Vec::new())?;
        let limit = here.env.limits.pack_text_bytes;
        let mut files: BTreeMap<String, KitFile> = BTreeMap::new();
        for root in &desired.roots {
            // A root with a place of its own is one of this machine.
            let Ok(below) = root.path.strip_prefix(&session.project.root) else { continue };
            for file in &root.files {
                let path = below.join(file.path.as_path()).to_string_lossy().into_owned();
                let content = file.read(limit)?;
                let new = KitFile { path: path.clone(), executable: file.executable, content };
                if let Some(old) = files.insert(path.clone(), new.clone())
                    && old != new
                {
                    let message = format!("two targets want {path} to be different files");
                    return Err(PackError::new(Code::DesiredStateConflict, message).detail("path", path));
                }
            }
        }
        here.remember(select);
        Ok(files.into_values().collect())
    }

    /// Compares the workspace with what was deployed into it.
    pub fn kit_drift(&self, select: &Select) -> Result<KitDrift> {
        let session = self.session(select)?;
        let mut warnings = Vec::new();
        let desired = session.desired(&mut warnings)?;
        let states = session.survey(&desired, &mut warnings)?;
        let mut found = drift(&desired, &states);
        for (root, state) in desired.roots.iter().zip(&states) {
            let name = managed::file_name(root.target.name());
            let is_there = |dir: &RootDir<RealFs>| {
                RealFs::default().stat(dir.handle(), &name).is_ok_and(|stat| stat.is_some())
            };
            if state.manifest.is_some() && state.at.dir().is_some_and(is_there) {
                found.unchanged.push(root.path.join(name));
            }
        }
        Ok(found)
    }

    /// Takes back the newest deployment into the workspace; returns the snapshot that made.
    pub fn unequip(&self, snapshot_id: &str) -> Result<Option<String>> {
        Ok(self.roll_back(&format!("before:{snapshot_id}"), false, &mut Vec::new())?.event_snapshot_id)
    }
}

/// The plan without the places where the project has something of its own, and those places.
fn computed(session: &Session<'_>, warnings: &mut Vec<String>) -> Result<(Computed, Vec<PathBuf>)> {
    let mut desired = session.desired(warnings)?;
    let mut states = session.survey(&desired, warnings)?;
    let mut left_alone = Vec::new();
    for (root, state) in desired.roots.iter_mut().zip(&mut states) {
        let files = std::mem::take(&mut root.files);
        let found = std::mem::take(&mut state.found);
        for (file, found) in files.into_iter().zip(found) {
            if is_theirs(file.entry(), found.observed, state.manages(&file.path)) {
                left_alone.push(root.path.join(file.path.as_path()));
            } else {
                root.files.push(file);
                state.found.push(found);
            }
        }
    }
    let plan = Plan::make(&desired, &states)?;
    Ok((Computed { desired, states, plan, also: None }, left_alone))
}

/// Whether what is at a place belongs to the project and is not what we would write.
fn is_theirs(wanted: Entry, found: Observed, managed: bool) -> bool {
    match found {
        Observed::Absent => false,
        Observed::Directory | Observed::Special => true,
        Observed::Entry(found) => !managed && !plan::is_satisfied(wanted, found),
    }
}

/// How the files of the manifests differ from what the manifests say.
fn drift(desired: &Desired, states: &[RootState]) -> KitDrift {
    let mut drift = KitDrift::default();
    for (root, state) in desired.roots.iter().zip(states) {
        for file in state.manifest.iter().flat_map(|manifest| &manifest.files) {
            let place = root.path.join(file.path.as_path());
            match state.found(root, &file.path) {
                Some(Observed::Entry(found)) if plan::is_satisfied(file.entry(), found) => {
                    drift.unchanged.push(place);
                }
                Some(Observed::Absent) => drift.missing.push(place),
                Some(_) => drift.modified.push(place),
                // A file that is foreign to this repo was not looked at.
                None => {}
            }
        }
    }
    drift
}
