//! Snapshots: what each transaction changed, so that it can be undone.
//!
//! A snapshot is the difference a transaction made, not a copy of the whole state: for each place what was there
//! before and after, by hash, and what the target manifest said about it. The contents are in [`crate::state::blobs`].
//! Any earlier state follows from the manifests on disk by walking back through the snapshots made since.
//!
//! The file `snapshots/<id>.jsonl` holds the header in its first line, so that listing reads only that, and one
//! change in each further line.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::ids::ModuleIds;
use crate::fs::Fs;
use crate::fs::entry::{Entry, read_all};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::state::managed::ManagedFile;
use crate::state::transaction::{Project, SnapshotKind};

/// The ending of a snapshot's file name.
pub const ENDING: &str = ".jsonl";
const FORMAT: u32 = 1;
/// A first line longer than this is not one of ours.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// What a snapshot says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub crewkit_snapshot: u32,
    /// Time in nanoseconds since 1970, made unique.
    pub id: String,
    /// What made it.
    pub kind: SnapshotKind,
    /// When.
    pub created_at: String,
    /// The targets it covers.
    pub targets: Vec<String>,
    /// The project it was made in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Project>,
    /// Hash of the lockfile.
    pub lockfile_sha256: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
    /// The snapshot it returned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_to: Option<String>,
    /// The roots it covers.
    pub roots: Vec<SnapshotRoot>,
    /// How many files it changed, and how.
    pub counts: Counts,
}

/// A root a snapshot covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRoot {
    /// The target it belongs to.
    pub target: String,
    /// Where it is, as the target named it.
    pub path: PathBuf,
    /// Whether there was a target manifest before.
    pub had_manifest: bool,
    /// Whether there is one since.
    pub has_manifest: bool,
}

/// How many files a snapshot changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Contents that were not ours and are kept: adopted files and edits made by hand.
    pub backups: u64,
    /// Files that appeared.
    pub create: u64,
    /// Files that disappeared.
    pub delete: u64,
    /// Files whose content or mode changed.
    pub update: u64,
}

/// One place a snapshot is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedChange {
    /// Index into [`Header::roots`].
    pub root: usize,
    /// Where, below it.
    pub path: RelPath,
    /// What was there.
    pub before: Option<Entry>,
    /// What is there since.
    pub after: Option<Entry>,
    /// What the manifest said before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_managed: Option<WasManaged>,
    /// Whether the manifest lists it since.
    pub managed: bool,
}

/// An entry of a target manifest, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WasManaged {
    /// The content as deployed.
    pub sha256: Digest,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
    /// The modules it came from.
    #[serde(default, skip_serializing_if = "ModuleIds::is_empty")]
    pub module_ids: ModuleIds,
}

impl From<&ManagedFile> for WasManaged {
    fn from(file: &ManagedFile) -> Self {
        Self { sha256: file.sha256, executable: file.executable, module_ids: file.module_ids.clone() }
    }
}

impl WasManaged {
    /// The manifest's entry for `path`.
    pub fn at(&self, path: RelPath) -> ManagedFile {
        let Self { sha256, executable, module_ids } = self.clone();
        ManagedFile { path, sha256, executable, module_ids }
    }
}

/// How a place changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// It appeared.
    Create,
    /// It changed.
    Update,
    /// It disappeared.
    Delete,
    /// Only the manifest changed.
    Manage,
}

impl RecordedChange {
    /// How the place changed.
    pub fn op(&self) -> Op {
        match (self.before, self.after) {
            (before, after) if before == after => Op::Manage,
            (None, _) => Op::Create,
            (_, None) => Op::Delete,
            (Some(_), Some(_)) => Op::Update,
        }
    }

    /// Whether what was replaced is something crewkit had not put there: a user's file or edit.
    pub fn is_backup(&self) -> bool {
        let ours = self.was_managed.as_ref().map(|managed| managed.sha256);
        self.op() != Op::Manage && self.before.is_some_and(|before| Some(before.sha256) != ours)
    }
}

/// Counts the kinds of `changes`.
pub(crate) fn count(changes: &[RecordedChange]) -> Counts {
    let mut counts = Counts::default();
    for change in changes {
        match change.op() {
            Op::Create => counts.create += 1,
            Op::Update => counts.update += 1,
            Op::Delete => counts.delete += 1,
            Op::Manage => {}
        }
        counts.backups += u64::from(change.is_backup());
    }
    counts
}

/// A whole snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// What it says about itself.
    pub header: Header,
    /// What it changed, sorted by root and path.
    pub changes: Vec<RecordedChange>,
}

impl Header {
    /// The version to write.
    pub(crate) const FORMAT: u32 = FORMAT;
}

impl Snapshot {
    /// Writes its file.
    pub fn encode(&self, mut out: &mut dyn io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, &self.header)?;
        out.write_all(b"\n")?;
        for change in &self.changes {
            serde_json::to_writer(&mut out, change)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Reads the bytes of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_suffix(b"\n").ok_or("it does not end with a line")?;
        let mut lines = body.split(|byte| *byte == b'\n');
        let header = decode_header(lines.next().unwrap_or_default())?;
        let mut changes = Vec::new();
        for (number, line) in lines.enumerate() {
            let change: RecordedChange =
                serde_json::from_slice(line).map_err(|error| format!("line {}: {error}", number + 2))?;
            if change.root >= header.roots.len() {
                return Err(format!("line {}: there is no root {}", number + 2, change.root));
            }
            changes.push(change);
        }
        if count(&changes) != header.counts {
            return Err("it is not whole".to_owned());
        }
        Ok(Self { header, changes })
    }
}

fn decode_header(line: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if header.crewkit_snapshot != FORMAT {
        return Err(format!("format {} is not known", header.crewkit_snapshot));
    }
    if !is_id(&header.id) {
        return Err(format!("`{}` is not an id", header.id));
    }
    Ok(header)
}

/// Ids are decimal numbers without leading zeros.
pub(crate) fn is_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 20
        && !text.starts_with('0')
        && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Sorts ids by age: they are numbers.
pub(crate) fn age_key(id: &str) -> (usize, &str) {
    (id.len(), id)
}

/// The ids of the snapshots in `dir`, oldest first.
pub(crate) fn ids<F: Fs>(fs: &F, dir: &F::Dir) -> io::Result<Vec<String>> {
    let mut ids: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter_map(|name| name.strip_suffix(ENDING).filter(|id| is_id(id)).map(str::to_owned))
        .collect();
    ids.sort_by(|a, b| age_key(a).cmp(&age_key(b)));
    Ok(ids)
}

/// Reads the header of the snapshot `id`.
pub(crate) fn read_header<F: Fs>(fs: &F, dir: &F::Dir, id: &str) -> io::Result<Result<Header, String>> {
    let file = fs.open(dir, &format!("{id}{ENDING}"))?;
    let mut bytes = vec![0; 4096];
    let mut length = 0;
    loop {
        let count = fs.read_at(&file, length as u64, &mut bytes[length..])?;
        let end = bytes[length..length + count].iter().position(|byte| *byte == b'\n');
        if let Some(end) = end {
            return Ok(decode_header(&bytes[..length + end]));
        }
        length += count;
        if count == 0 || length > MAX_HEADER_BYTES {
            return Ok(Err("its first line is missing".to_owned()));
        }
        if length == bytes.len() {
            bytes.resize(length * 2, 0);
        }
    }
}

/// Reads the snapshot `id`.
pub(crate) fn read<F: Fs>(fs: &F, dir: &F::Dir, id: &str) -> io::Result<Result<Snapshot, String>> {
    Ok(Snapshot::decode(&read_all(fs, dir, &format!("{id}{ENDING}"))?))
}
