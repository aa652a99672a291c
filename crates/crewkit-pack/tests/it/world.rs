//! A home and some roots, with the smallest planner that can fill them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crewkit_pack::fs::Fs;
use crewkit_pack::fs::entry::{Entry, EntryKind};
use crewkit_pack::fs::hash::Digest;
use crewkit_pack::fs::path::RelPath;
use crewkit_pack::fs::place::RootDir;
use crewkit_pack::plan::Change;
use crewkit_pack::state::home::{Locked, StateHome};
use crewkit_pack::state::managed::{self, ManagedFile};
use crewkit_pack::state::transaction::{
    Applied, Content, ManifestChange, NewFile, Request, RootChange, SnapshotKind, TxnError,
};
use jiff::Timestamp;

/// What a root shall hold: path to text, executable if the text begins with `#!`.
pub(crate) type Want = BTreeMap<String, String>;

pub(crate) struct World<F: Fs> {
    pub(crate) home: StateHome<F>,
    pub(crate) roots: Vec<(String, PathBuf)>,
}

pub(crate) fn want(files: &[(&str, &str)]) -> Want {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

pub(crate) fn rel(path: &str) -> RelPath {
    RelPath::new(path).unwrap()
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn new_file(text: &str) -> NewFile {
    let bytes = text.as_bytes();
    let entry = Entry::new(Digest::of(bytes), EntryKind::file(text.starts_with("#!")));
    NewFile { entry, size: bytes.len() as u64, content: Content::Bytes(bytes.into()) }
}

impl<F: Fs> World<F> {
    pub(crate) fn new(fs: F, home: impl Into<PathBuf>, roots: &[(&str, &Path)]) -> Self {
        let roots = roots.iter().map(|(target, path)| ((*target).to_owned(), (*path).to_owned())).collect();
        Self { home: StateHome::with_fs(fs, home).threads(1), roots }
    }

    /// What it takes to have `wants` in the roots, given what is on disk; replaces whatever is in the way.
    pub(crate) fn request(&self, wants: &[Want], now: Timestamp) -> Result<Request, TxnError> {
        let fs = self.home.fs();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TxnError::Io { doing: "plan", path, source }
        };
        let mut request = Request {
            kind: SnapshotKind::Deploy,
            now,
            targets: self.roots.iter().map(|(target, _)| target.clone()).collect(),
            project: None,
            lockfile_sha256: None,
            plan_hash: None,
            rolled_back_to: None,
            roots: Vec::new(),
            changes: Vec::new(),
        };
        for (index, ((target, path), want)) in self.roots.iter().zip(wants).enumerate() {
            let root = RootDir::open(fs, path, None)?;
            let old = managed::read(fs, root.as_ref(), target).map_err(failed(path))?.manifest;
            let seen = old.clone();
            let old: BTreeSet<RelPath> =
                old.iter().flat_map(|old| old.files.iter().map(|file| file.path.clone())).collect();
            let mut files = Vec::new();
            let wanted: BTreeMap<RelPath, &String> =
                want.iter().map(|(path, text)| (rel(path), text)).collect();
            for place in old.iter().chain(wanted.keys()).collect::<BTreeSet<_>>() {
                let before = match &root {
                    Some(root) => root.observe(fs, place).map_err(failed(path))?.entry(),
                    None => None,
                };
                let after = wanted.get(place).map(|text| new_file(text));
                if let Some(new) = &after {
                    let executable = new.entry.kind == EntryKind::Executable;
                    let module_ids = ["skill:test"].into_iter().collect();
                    files.push(ManagedFile {
                        path: place.clone(),
                        sha256: new.entry.sha256,
                        executable,
                        module_ids,
                    });
                }
                if before != after.as_ref().map(|new| new.entry) {
                    request.changes.push(Change::new(index, place.clone(), before, after));
                }
            }
            let manifest = ManifestChange::Write(files);
            let manifest = if old.is_empty() && want.is_empty() { ManifestChange::Keep } else { manifest };
            request.roots.push(RootChange { target: target.clone(), path: path.clone(), seen, manifest });
        }
        Ok(request)
    }

    /// Plans and applies under a lock that is already held.
    pub(crate) fn deploy_locked(
        &self,
        locked: &Locked<'_, F>,
        wants: &[Want],
        seconds: i64,
    ) -> Result<Applied, TxnError> {
        locked.apply(&self.request(wants, at(seconds))?)
    }

    /// Recovers, plans and applies.
    pub(crate) fn deploy(&self, wants: &[Want], seconds: i64) -> Result<Applied, TxnError> {
        let locked = self.home.lock_alone("deploy")?;
        self.deploy_locked(&locked, wants, seconds)
    }

    /// Only recovers.
    pub(crate) fn recover(&self) -> Result<(), TxnError> {
        self.home.lock_alone("status").map(drop)
    }
}
