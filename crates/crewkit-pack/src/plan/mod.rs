//! What to do with each place: nothing, create, update, delete, or refuse. No file is touched here.

use std::path::PathBuf;

use crewkit_core::Code;
use serde::{Serialize, Serializer};

use crate::desired::target::TargetKind;
use crate::desired::{Desired, DesiredFile, DesiredRoot};
use crate::error::{PackError, Result};
use crate::fs::entry::{Entry, EntryKind, Observed};
use crate::fs::hash::{Digest, Hasher};
use crate::fs::path::RelPath;
use crate::observe::RootState;
use crate::state::managed::ManagedFile;
use crate::state::transaction::NewFile;

pub mod diff;
pub mod status;
pub(crate) mod text_diff;

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "&str")]
pub enum Op {
    /// It appears.
    Create,
    /// Its content changes.
    Update(Owner),
    /// It goes.
    Delete,
}

impl Op {
    /// The name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update(_) => "update",
            Self::Delete => "delete",
        }
    }

    /// Whose file is updated, by its name in answers; `None` for the others.
    pub const fn update_kind(self) -> Option<&'static str> {
        match self {
            Self::Update(Owner::Us) => Some("managed_update"),
            Self::Update(Owner::User) => Some("adopt_update"),
            Self::Create | Self::Delete => None,
        }
    }
}

impl From<Op> for &str {
    fn from(op: Op) -> Self {
        op.name()
    }
}

/// Whose file is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// One that an earlier deploy wrote.
    Us,
    /// One that was there before; overwriting it takes an explicit wish.
    User,
}

/// What is decided for one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is as it should be.
    Keep,
    Change(Op, &'static str),
    /// Something is there that cannot be replaced by a file.
    Refuse(&'static str),
}

/// Decides what happens at a place: `wanted` by the modules, `found` on disk, `managed` by an earlier deploy.
pub fn decide(wanted: Option<Entry>, found: Observed, managed: bool) -> Decision {
    let Some(wanted) = wanted else {
        return match found {
            Observed::Entry(_) if managed => Decision::Change(Op::Delete, "no longer managed"),
            // A directory in the place of a file we once wrote is the user's.
            _ => Decision::Keep,
        };
    };
    let owner = if managed { Owner::Us } else { Owner::User };
    match found {
        Observed::Absent => Decision::Change(Op::Create, "file missing"),
        Observed::Directory => Decision::Refuse("a directory"),
        Observed::Special => Decision::Refuse("a socket, device or pipe"),
        Observed::Entry(found) if is_satisfied(wanted, found) => Decision::Keep,
        Observed::Entry(_) if owner == Owner::User => {
            Decision::Change(Op::Update(owner), "would overwrite unmanaged existing file")
        }
        Observed::Entry(found) if found.sha256 == wanted.sha256 && found.kind != EntryKind::Symlink => {
            Decision::Change(Op::Update(owner), "not executable")
        }
        Observed::Entry(_) => Decision::Change(Op::Update(owner), "content differs"),
    }
}

/// Same content, and executable if it has to be. That a user made a plain file executable is no difference.
pub fn is_satisfied(wanted: Entry, found: Entry) -> bool {
    found.sha256 == wanted.sha256
        && match found.kind {
            EntryKind::Executable => true,
            EntryKind::Plain => wanted.kind == EntryKind::Plain,
            EntryKind::Symlink => false,
        }
}

/// One file that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index of the root, in the plan or in the request of a transaction.
    pub root: usize,
    /// Where, below the root.
    pub path: RelPath,
    /// What happens.
    pub op: Op,
    /// Why.
    pub reason: &'static str,
    /// What was seen there; `None` for a file to create.
    pub before: Option<Entry>,
    /// What shall be there; `None` for a file to delete.
    pub after: Option<NewFile>,
}

impl Change {
    /// A change that needs no reason: what was managed stays so.
    pub fn new(root: usize, path: RelPath, before: Option<Entry>, after: Option<NewFile>) -> Self {
        let op = match (before, &after) {
            (None, _) => Op::Create,
            (Some(_), Some(_)) => Op::Update(Owner::Us),
            (Some(_), None) => Op::Delete,
        };
        Self { root, path, op, reason: "", before, after }
    }
}

/// How many files appear, change and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Files that appear.
    pub create: usize,
    /// Files that go.
    pub delete: usize,
    /// Files that change.
    pub update: usize,
}

impl Summary {
    /// Whether nothing changes.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// All changes, by target and path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The roots that changes lie below.
    pub roots: Vec<PlanRoot>,
    pub changes: Vec<Change>,
}

/// A root of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRoot {
    /// The target it belongs to.
    pub target: TargetKind,
    /// Where it is.
    pub path: PathBuf,
}

impl Plan {
    /// Decides for every place.
    pub(crate) fn make(desired: &Desired, states: &[RootState]) -> Result<Self> {
        let mut changes = Vec::new();
        for (index, (root, state)) in desired.roots.iter().zip(states).enumerate() {
            for (file, found) in root.files.iter().zip(&state.found) {
                // Most places are as they should be; whether they are managed matters only for the others.
                let found = found.observed;
                if found.entry().is_some_and(|found| is_satisfied(file.entry(), found)) {
                    continue;
                }
                let decision = decide(Some(file.entry()), found, state.manages(&file.path));
                let change = change(index, root, &file.path, decision, found)?;
                changes.extend(change.map(|change| Change { after: Some(file.new_file()), ..change }));
            }
            for (path, found) in &state.undesired {
                let found = found.observed;
                changes.extend(change(index, root, path, decide(None, found, true), found)?);
            }
        }
        changes.shrink_to_fit();
        let root = |root: &DesiredRoot| PlanRoot { target: root.target, path: root.path.clone() };
        let roots: Vec<PlanRoot> = desired.roots.iter().map(root).collect();
        // By what people see, which interleaves roots that lie in each other.
        let starts: Vec<String> = roots.iter().map(|root| format!("{}/", root.path.display())).collect();
        changes.sort_by(|a, b| {
            if a.root == b.root {
                return a.path.cmp(&b.path);
            }
            let target = |change: &Change| roots.get(change.root).map(|root| root.target.name());
            let (one, other) = (&starts[a.root], &starts[b.root]);
            target(a).cmp(&target(b)).then_with(|| {
                if one.starts_with(other.as_str()) || other.starts_with(one.as_str()) {
                    place(&roots, a).as_os_str().cmp(place(&roots, b).as_os_str())
                } else {
                    one.cmp(other)
                }
            })
        });
        Ok(Self { roots, changes })
    }

    /// The target a change belongs to.
    pub fn target(&self, change: &Change) -> &'static str {
        self.roots.get(change.root).map_or("", |root| root.target.name())
    }

    /// Where a change happens, absolute.
    pub fn place(&self, change: &Change) -> PathBuf {
        place(&self.roots, change)
    }

    /// How many files appear, change and go.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for change in &self.changes {
            match change.op {
                Op::Create => summary.create += 1,
                Op::Update(_) => summary.update += 1,
                Op::Delete => summary.delete += 1,
            }
        }
        summary
    }

    /// The files of the user that would be overwritten.
    pub fn adoptions(&self) -> impl Iterator<Item = PathBuf> {
        let adopted = self.changes.iter().filter(|change| change.op == Op::Update(Owner::User));
        adopted.map(|change| self.place(change))
    }

    /// A hash of everything that applying the plan would do; `binding` is what it was asked for.
    pub fn hash(&self, binding: &str, desired: &Desired) -> Digest {
        let mut hasher = Hasher::default();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(binding);
        for change in &self.changes {
            add(self.target(change));
            add(&self.place(change).to_string_lossy());
            add(change.op.name());
            add(change.reason);
            add(&change
                .before
                .map_or_else(String::new, |entry| format!("{:?} {}", entry.kind, entry.sha256)));
        }
        for root in &desired.roots {
            add(root.target.name());
            add(&root.path.to_string_lossy());
            for file in &root.files {
                add(file.path.as_str());
                add(&file.sha256.to_string());
                add(if file.executable { "x" } else { "" });
                for id in desired.module_ids(file).iter() {
                    add(id);
                }
            }
        }
        hasher.finish()
    }
}

/// A plan is written as the list of its changes, row by row.
impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.changes.iter().map(|change| {
            let path = self.place(change).display().to_string();
            Row {
                after_sha256: change.after.as_ref().map(|new| new.entry.sha256),
                before_sha256: change.before.map(|entry| entry.sha256),
                op: change.op,
                path_posix: path.replace('\\', "/"),
                path,
                reason: change.reason,
                target: self.target(change),
                update_kind: change.op.update_kind(),
            }
        }))
    }
}

/// A change as it is written; the members are in alphabetical order, as everywhere in answers.
#[derive(Serialize)]
struct Row {
    after_sha256: Option<Digest>,
    before_sha256: Option<Digest>,
    op: Op,
    path: String,
    path_posix: String,
    reason: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    update_kind: Option<&'static str>,
}

fn place(roots: &[PlanRoot], change: &Change) -> PathBuf {
    roots.get(change.root).map_or_else(PathBuf::new, |root| root.path.join(change.path.as_path()))
}

fn change(
    index: usize,
    root: &DesiredRoot,
    path: &RelPath,
    decision: Decision,
    found: Observed,
) -> Result<Option<Change>> {
    match decision {
        Decision::Keep => Ok(None),
        Decision::Change(op, reason) => Ok(Some(Change {
            root: index,
            path: path.clone(),
            op,
            reason,
            before: found.entry(),
            after: None,
        })),
        Decision::Refuse(what) => {
            let (place, target) = (root.path.join(path.as_path()), root.target.name());
            let shown = place.display();
            let message = format!("{what} is at {shown}, where a file of target {target} is to be written");
            Err(PackError::new(Code::TargetNotAFile, message).detail("target", target).paths(&place))
        }
    }
}

/// Whether the manifest of a root must be written because it would not list what is desired.
pub(crate) fn manifest_is_stale(desired: &Desired, root: &DesiredRoot, state: &RootState) -> bool {
    let same = |listed: &ManagedFile, file: &DesiredFile| {
        listed.path == file.path
            && listed.sha256 == file.sha256
            && listed.executable == file.executable
            && listed.module_ids.len() == file.modules.len()
            && listed
                .module_ids
                .iter()
                .zip(&*file.modules)
                .all(|(id, index)| desired.modules.get(*index).is_some_and(|module| module.id == id))
    };
    match &state.manifest {
        None => !root.files.is_empty(),
        Some(manifest) => {
            // Both are sorted by path.
            let mut foreign = state.foreign.iter().peekable();
            let listed = manifest.files.iter().filter(|file| foreign.next_if_eq(file).is_none());
            manifest.files.len() != root.files.len() + state.foreign.len()
                || !listed.zip(&root.files).all(|(listed, file)| same(listed, file))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_situation_has_one_decision() {
        let entry = |text: &str, kind| Entry::new(Digest::of(text.as_bytes()), kind);
        let new = entry("new", EntryKind::Plain);
        let script = entry("new", EntryKind::Executable);
        let old = Observed::Entry(entry("old", EntryKind::Plain));
        let link = Observed::Entry(entry("new", EntryKind::Symlink));
        let update = |owner, reason| Decision::Change(Op::Update(owner), reason);
        let unmanaged = update(Owner::User, "would overwrite unmanaged existing file");
        for (wanted, found, managed, want) in [
            (Some(new), Observed::Absent, false, Decision::Change(Op::Create, "file missing")),
            (Some(new), Observed::Absent, true, Decision::Change(Op::Create, "file missing")),
            (Some(new), Observed::Entry(new), false, Decision::Keep),
            (Some(new), Observed::Entry(new), true, Decision::Keep),
            (Some(new), Observed::Entry(script), true, Decision::Keep),
            (Some(script), Observed::Entry(new), true, update(Owner::Us, "not executable")),
            (Some(script), Observed::Entry(new), false, unmanaged),
            (Some(new), old, true, update(Owner::Us, "content differs")),
            (Some(new), old, false, unmanaged),
            (Some(new), link, true, update(Owner::Us, "content differs")),
            (Some(new), link, false, unmanaged),
            (Some(new), Observed::Directory, true, Decision::Refuse("a directory")),
            (Some(new), Observed::Special, false, Decision::Refuse("a socket, device or pipe")),
            (None, old, true, Decision::Change(Op::Delete, "no longer managed")),
            (None, old, false, Decision::Keep),
            (None, Observed::Absent, true, Decision::Keep),
            (None, Observed::Directory, true, Decision::Keep),
        ] {
            assert_eq!(decide(wanted, found, managed), want, "{wanted:?} {found:?} {managed}");
        }
    }
}
