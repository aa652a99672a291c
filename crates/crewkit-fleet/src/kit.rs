//! The kit of an agent: what a pack profile puts into its workspace.
//!
//! This crate does not know packs. Whoever opens the fleet passes in something that can deploy a profile into a
//! directory, all of it or nothing, and say which files that would be where the directory is elsewhere.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// A kit as it was deployed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KitState {
    /// The profile.
    pub profile: String,
    /// The snapshot the deployment made; none when there was nothing to change.
    #[serde(default)]
    pub snapshot_id: Option<String>,
}

/// A workspace to be equipped or looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KitPlace {
    /// The workspace.
    pub workspace: PathBuf,
    /// Where snapshots and locks of this workspace alone are kept.
    pub state: PathBuf,
    /// The profile.
    pub profile: String,
}

/// A file of a kit, for workspaces that are not on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KitFile {
    /// Where, below the workspace.
    pub path: String,
    /// Whether it is to be executable.
    pub executable: bool,
    /// What is in it.
    pub content: Vec<u8>,
}

/// What a deployment did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Equipped {
    /// The snapshot; none when nothing had to change.
    pub snapshot_id: Option<String>,
    /// Files written or removed.
    pub changed: usize,
    /// Files of the kit that somebody had changed; what they were is in the snapshot.
    pub drifted: Vec<String>,
    /// Places where the project has a file of its own; they were left as they are.
    pub left_alone: Vec<String>,
}

/// How a workspace differs from its kit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// Files that were changed.
    pub modified: Vec<String>,
    /// Files that are gone.
    pub missing: Vec<String>,
    /// Files that are as they should be.
    #[serde(skip)]
    pub unchanged: Vec<String>,
}

impl Drift {
    /// Number of files that differ.
    pub fn count(&self) -> usize {
        self.modified.len() + self.missing.len()
    }
}

/// Why a workspace was not equipped; nothing in it was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct KitError {
    /// A code a program can act on.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Deploys profiles into workspaces.
pub trait Kit: std::fmt::Debug + Send + Sync + 'static {
    /// The profile of agents whose role and project name none; none when there is nothing to deploy.
    fn default_profile(&self) -> Option<String>;

    /// Makes the workspace as the profile says, all of it or nothing.
    fn equip(&self, place: KitPlace) -> BoxFuture<'_, Result<Equipped, KitError>>;

    /// Ends a deployment that was cut short, if there is one. Returns the snapshot of one that was completed.
    fn finish(&self, place: KitPlace) -> BoxFuture<'_, Result<Option<String>, KitError>>;

    /// Takes back the deployment that made `snapshot`.
    fn rollback(&self, place: KitPlace, snapshot: String) -> BoxFuture<'_, Result<Equipped, KitError>>;

    /// The files of a profile, each path once.
    fn contents(&self, profile: String) -> BoxFuture<'_, Result<Vec<KitFile>, KitError>>;

    /// Compares the workspace with what was deployed.
    fn drift(&self, place: KitPlace) -> BoxFuture<'_, Result<Drift, KitError>>;
}
