//! Changing trees, all or nothing.
//!
//! # How to call
//!
//! ```text
//! let home = StateHome::new(agentpack_home);          // reads nothing yet
//! if let Some(pending) = home.pending()? { … }        // readers: say that a command was cut short
//!
//! let locked = home.lock(&LockRequest { … })?;        // waits, then TxnError::Locked; recovers what was cut short
//! for recovered in locked.recovered() { … }           // say so
//! // plan again here, under the lock, then:
//! let applied = locked.apply(request)?;               // all roots or none; snapshot id inside
//! ```
//!
//! A [`Request`] lists roots and the [`Change`]s below them. Each change says what the plan saw at the place
//! (`before`) and what shall be there (`after`). `before` must still be true when the transaction looks, otherwise
//! nothing at all is written. For each root the request also says what its target manifest shall list; manifests
//! change in the same transaction as the files. A request that would change nothing writes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fs::Fs;
use crate::fs::entry::Entry;
use crate::fs::hash::Digest;
use crate::plan::Change;
use crate::state::blobs::Blobs;
use crate::state::home::{StateDirs, StateHome};
use crate::state::managed::{ManagedFile, TargetManifest};

mod engine;
mod error;
mod prepare;
mod recover;
mod roots;
mod survey;

pub use error::TxnError;
pub(crate) use recover::recover;
pub use recover::{Outcome, Recovered};
pub(crate) use survey::file_at;

/// What made a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// `deploy --apply`.
    Deploy,
    /// `bootstrap`, an older command whose snapshots are still read.
    Bootstrap,
    Rollback,
}

impl SnapshotKind {
    /// The name in files and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deploy => "deploy",
            Self::Bootstrap => "bootstrap",
            Self::Rollback => "rollback",
        }
    }
}

/// The project a deploy was made in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its stable id.
    pub id: String,
    /// Its directory.
    pub root: PathBuf,
}

/// Everything one transaction does.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it is recorded as.
    pub kind: SnapshotKind,
    /// When; becomes the time and the id of the snapshot.
    pub now: Timestamp,
    /// The targets it covers, also those without a change.
    pub targets: Vec<String>,
    /// The project it was made in.
    pub project: Option<Project>,
    /// Hash of the lockfile it was computed from.
    pub lockfile_sha256: Option<Digest>,
    /// Hash of the plan it carries out.
    pub plan_hash: Option<String>,
    /// The snapshot a rollback returns to.
    pub rolled_back_to: Option<String>,
    /// The roots it covers, also those without a change.
    pub roots: Vec<RootChange>,
    /// The files to change, in any order.
    pub changes: Vec<Change>,
}

/// A root and what its target manifest shall say.
#[derive(Debug, Clone)]
pub struct RootChange {
    /// The target the root belongs to.
    pub target: String,
    /// Where it is, absolute; it may be a symbolic link, and need not exist.
    pub path: PathBuf,
    /// The manifest the plan was made from; another one makes the plan void.
    pub seen: Option<Arc<TargetManifest>>,
    /// The manifest afterwards.
    pub manifest: ManifestChange,
}

/// What becomes of a root's target manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestChange {
    /// It stays as it is, or absent.
    Keep,
    /// It lists exactly these files afterwards. An existing one that already does is not rewritten.
    Write(Vec<ManagedFile>),
    /// It is removed.
    Remove,
}

/// Content to be put into place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Its hash and kind.
    pub entry: Entry,
    /// Its length, for the estimate of the room needed.
    pub size: u64,
    /// Where the bytes come from.
    pub content: Content,
}

/// Where bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// From memory; the caller vouches for the hash.
    Bytes(Arc<[u8]>),
    /// From a file, read while it is staged; the hash is verified.
    File(Arc<Path>),
    /// From the store of contents that snapshots share; the hash is verified.
    Stored,
}

/// What a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The snapshot that records it; nothing when there was nothing to do.
    pub snapshot_id: Option<String>,
    /// Set when everything is in place but something could not be tidied up; the next command does it.
    pub untidy: Option<String>,
}

/// The parts of a home a transaction works with.
#[derive(Debug)]
pub(crate) struct Context<'a, F: Fs> {
    pub(crate) home: &'a StateHome<F>,
    pub(crate) fs: &'a F,
    pub(crate) state: &'a StateDirs<F>,
    pub(crate) command: &'a str,
    pub(crate) threads: usize,
}

/// Carries out a request, under the lock and after recovery.
pub(crate) fn apply<F: Fs>(context: &Context<'_, F>, request: &Request) -> Result<Applied, TxnError> {
    let state = context.state;
    let blobs = Blobs::open(context.fs, Some(state.packs.clone()))
        .map_err(TxnError::at("read", &state.path.join("packs")))?;
    let store = prepare::Store {
        fs: context.fs,
        boundary: context.home.boundary()?,
        heads: &state.heads,
        base: state.base.clone(),
        base_path: state.path.clone(),
        blobs: &blobs,
        next_id: next_id(context, request.now)?,
        command: context.command.to_owned(),
    };
    match prepare::prepare(&store, request)? {
        Some(prepared) => engine::run(context, &blobs, prepared),
        None => Ok(Applied { snapshot_id: None, untidy: None }),
    }
}

/// The time in nanoseconds, or one more than the newest id if the clock went back.
fn next_id<F: Fs>(context: &Context<'_, F>, now: Timestamp) -> Result<String, TxnError> {
    let state = context.state;
    let newest = state.newest_id(context.fs)?;
    let now = u64::try_from(now.as_nanosecond()).unwrap_or(1).max(1);
    Ok(now.max(newest.saturating_add(1)).to_string())
}
