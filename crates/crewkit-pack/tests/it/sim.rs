//! A disk in memory that fails, dies, or forgets what was not synced, at any chosen call.
//!
//! Two views are kept: what a process sees, and what would be there after a power loss. Changes of names since the
//! last sync form a list; a power loss keeps any subset of it, and of the content of each unsynced file nothing, a
//! torn part, or all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crewkit_pack::fs::path::RelPath;
use crewkit_pack::fs::{DirId, FileKind, Fs, Mode, Rename, Space, Stat};

const ROOT: u64 = 1;
const SYMLINK_HOPS: usize = 16;
const UMASK: u16 = 0o022;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Inode {
    File { data: Vec<u8>, mode: u16 },
    Link(Vec<u8>),
    Dir(BTreeMap<String, u64>),
    Special,
}

/// One atomic change of names: all of it survives a power loss or none.
#[derive(Debug, Clone)]
struct NameChange(Vec<(u64, String, Option<u64>)>);

#[derive(Debug, Clone)]
struct Disk {
    next: u64,
    ticks: i128,
    inodes: BTreeMap<u64, Arc<Inode>>,
    changed: BTreeMap<u64, i128>,
    /// The same after a power loss, were nothing more to survive.
    durable: BTreeMap<u64, Arc<Inode>>,
    unsynced_names: Vec<NameChange>,
    unsynced_data: BTreeSet<u64>,
    capacity: u64,
    read_only: bool,
    /// Whether names that differ by case alone are one.
    case_blind: bool,
}

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Call number `at` fails.
    Once { at: u64, errno: i32 },
    /// Call number `at` and all later ones fail.
    From { at: u64, errno: i32 },
    /// The process is killed in call number `at`; a write may be half done.
    Kill { at: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Faults {
    calls: u64,
    fault: Fault,
    reads_count: bool,
}

/// Somebody else who does something just before a call.
struct Meddler {
    at: u64,
    act: Box<dyn FnOnce(&SimFs) + Send>,
}

/// The simulated file system; clones share the disk.
#[derive(Clone)]
pub(crate) struct SimFs {
    disk: Arc<Mutex<Disk>>,
    faults: Arc<Mutex<Faults>>,
    meddler: Arc<Mutex<Option<Meddler>>>,
}

/// What is in a tree: path to kind and content.
pub(crate) type Tree = BTreeMap<String, Node>;

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Dir,
    File { text: Vec<u8>, mode: u16 },
    Link(Vec<u8>),
    Special,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dir => f.write_str("directory"),
            Self::File { text, mode } => write!(f, "{mode:o} {:?}", String::from_utf8_lossy(text)),
            Self::Link(text) => write!(f, "link to {}", String::from_utf8_lossy(text)),
            Self::Special => f.write_str("special"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct SimFile {
    inode: u64,
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENOTEMPTY: i32 = 39;

impl SimFs {
    pub(crate) fn new() -> Self {
        let inodes = BTreeMap::from([(ROOT, Arc::new(Inode::Dir(BTreeMap::new())))]);
        let disk = Disk {
            next: ROOT + 1,
            ticks: 0,
            durable: inodes.clone(),
            inodes,
            changed: BTreeMap::new(),
            unsynced_names: Vec::new(),
            unsynced_data: BTreeSet::new(),
            capacity: u64::MAX,
            read_only: false,
            case_blind: false,
        };
        let faults = Faults { calls: 0, fault: Fault::None, reads_count: true };
        let meddler = Arc::new(Mutex::new(None));
        Self { disk: Arc::new(Mutex::new(disk)), faults: Arc::new(Mutex::new(faults)), meddler }
    }

    /// A disk of its own with the same content and no faults.
    pub(crate) fn fork(&self) -> Self {
        let disk = self.disk.lock().unwrap().clone();
        let faults = Faults { calls: 0, fault: Fault::None, reads_count: true };
        let meddler = Arc::new(Mutex::new(None));
        Self { disk: Arc::new(Mutex::new(disk)), faults: Arc::new(Mutex::new(faults)), meddler }
    }

    /// From now on this goes wrong; counting starts over.
    pub(crate) fn set_fault(&self, fault: Fault) {
        *self.faults.lock().unwrap() = Faults { calls: 0, fault, reads_count: true };
    }

    /// As [`set_fault`](Self::set_fault), counting only calls that change something.
    pub(crate) fn set_fault_in_changes(&self, fault: Fault) {
        *self.faults.lock().unwrap() = Faults { calls: 0, fault, reads_count: false };
    }

    /// Just before call number `at`, somebody else acts.
    pub(crate) fn meddle(&self, at: u64, act: impl FnOnce(&Self) + Send + 'static) {
        self.set_fault(Fault::None);
        *self.meddler.lock().unwrap() = Some(Meddler { at, act: Box::new(act) });
    }

    /// How many calls were made since the fault was set.
    pub(crate) fn calls(&self) -> u64 {
        self.faults.lock().unwrap().calls
    }

    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.disk.lock().unwrap().capacity = bytes;
    }

    /// From now on names that differ by case alone are one.
    pub(crate) fn ignore_case(&self) {
        self.disk.lock().unwrap().case_blind = true;
    }

    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.disk.lock().unwrap().read_only = read_only;
    }

    /// Everything so far is on the platter.
    pub(crate) fn settle(&self) {
        self.disk.lock().unwrap().settle();
    }

    /// Loses power: `choose(n)` picks a number below `n` wherever the disk had a choice.
    pub(crate) fn lose_power(&self, mut choose: impl FnMut(u64) -> u64) {
        let mut disk = self.disk.lock().unwrap();
        let mut after = disk.durable.clone();
        for change in &disk.unsynced_names {
            if choose(2) == 1 {
                apply(&mut after, change);
            }
        }
        for inode in &disk.unsynced_data {
            let Some(Inode::File { data, mode }) = disk.inodes.get(inode).map(|inode| &**inode) else {
                continue;
            };
            let cut = match choose(3) {
                0 => continue,
                1 => usize::try_from(choose(data.len() as u64 + 1)).unwrap(),
                _ => data.len(),
            };
            after.insert(*inode, Arc::new(Inode::File { data: data[..cut].to_vec(), mode: *mode }));
        }
        disk.inodes = after;
        disk.settle();
        drop(disk);
        self.set_fault(Fault::None);
    }

    /// Counts the call and says whether it fails; `Ok(true)` means "die half way".
    fn call(&self, changes: bool) -> io::Result<bool> {
        let mut faults = self.faults.lock().unwrap();
        if changes || faults.reads_count {
            faults.calls += 1;
        }
        let calls = faults.calls;
        let due = self.meddler.lock().unwrap().take_if(|meddler| meddler.at == calls);
        if let Some(meddler) = due {
            (meddler.act)(self);
        }
        match faults.fault {
            Fault::Once { at, errno: code } if calls == at && (changes || faults.reads_count) => {
                Err(errno(code))
            }
            Fault::From { at, errno: code } if calls >= at => Err(errno(code)),
            Fault::Kill { at } if calls == at && changes => Ok(true),
            Fault::Kill { at } if calls >= at => Err(errno(EIO)),
            _ => Ok(false),
        }
    }

    fn read(&self) -> io::Result<MutexGuard<'_, Disk>> {
        self.call(false)?;
        Ok(self.disk.lock().unwrap())
    }

    fn change(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let dies = self.call(true)?;
        let disk = self.disk.lock().unwrap();
        if disk.read_only {
            return Err(errno(EROFS));
        }
        // Killed on the way in: the change did not happen. Killed on the way out is the next call's kill.
        if dies { Err(errno(EIO)) } else { Ok(disk) }
    }

    // What follows is for setting the scene: no faults, durable at once.

    pub(crate) fn make_dir(&self, path: &str) {
        let mut disk = self.disk.lock().unwrap();
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = match disk.entry(at, name) {
                Some(inode) => inode,
                None => {
                    let inode = disk.add(Inode::Dir(BTreeMap::new()));
                    disk.names(vec![(at, name.to_owned(), Some(inode))]);
                    inode
                }
            };
        }
        disk.settle();
    }

    fn put(&self, path: &str, inode: Inode) {
        let (parent, name) = path.rsplit_once('/').unwrap();
        self.make_dir(parent);
        let mut disk = self.disk.lock().unwrap();
        let parent = disk.resolve(Path::new(if parent.is_empty() { "/" } else { parent })).unwrap();
        let inode = disk.add(inode);
        disk.names(vec![(parent, name.to_owned(), Some(inode))]);
        disk.settle();
    }

    /// Puts a file there, as a user's editor would: a new file in the old one's place.
    pub(crate) fn put_file(&self, path: &str, text: &[u8]) {
        self.put(path, Inode::File { data: text.to_vec(), mode: 0o644 });
    }

    pub(crate) fn put_link(&self, path: &str, text: &str) {
        self.put(path, Inode::Link(text.as_bytes().to_vec()));
    }

    pub(crate) fn put_special(&self, path: &str) {
        self.put(path, Inode::Special);
    }

    /// Changes a file's bytes in place, as another kind of editor would.
    pub(crate) fn overwrite(&self, path: &str, text: &[u8]) {
        let mut disk = self.disk.lock().unwrap();
        let inode = disk.resolve(Path::new(path)).unwrap();
        disk.touch(inode);
        if let Some(Inode::File { data, .. }) = disk.inodes.get_mut(&inode).map(Arc::make_mut) {
            *data = text.to_vec();
        }
        disk.settle();
    }

    /// Gives a file other permissions.
    pub(crate) fn chmod(&self, path: &str, bits: u16) {
        let mut disk = self.disk.lock().unwrap();
        let inode = disk.resolve(Path::new(path)).unwrap();
        disk.touch(inode);
        if let Some(Inode::File { mode, .. }) = disk.inodes.get_mut(&inode).map(Arc::make_mut) {
            *mode = bits;
        }
        disk.settle();
    }

    /// Gives something another name, as a move or an unmount and mount would.
    pub(crate) fn move_to(&self, from: &str, to: &str) {
        let split = |path: &'_ str| {
            let (parent, name) = path.rsplit_once('/').unwrap();
            (PathBuf::from(if parent.is_empty() { "/" } else { parent }), name.to_owned())
        };
        let mut disk = self.disk.lock().unwrap();
        let (from, to) = (split(from), split(to));
        let (from_dir, to_dir) = (disk.resolve(&from.0).unwrap(), disk.resolve(&to.0).unwrap());
        let inode = disk.entry(from_dir, &from.1).unwrap();
        disk.names(vec![(from_dir, from.1, None), (to_dir, to.1, Some(inode))]);
        disk.settle();
    }

    pub(crate) fn remove(&self, path: &str) {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let mut disk = self.disk.lock().unwrap();
        let parent = disk.resolve(Path::new(parent)).unwrap();
        disk.names(vec![(parent, name.to_owned(), None)]);
        disk.settle();
    }

    /// Everything below `path`.
    pub(crate) fn tree(&self, path: &str) -> Tree {
        let disk = self.disk.lock().unwrap();
        let mut tree = Tree::new();
        if let Ok(inode) = disk.resolve(Path::new(path)) {
            disk.walk(inode, "", &mut tree);
        }
        tree
    }
}

fn apply(inodes: &mut BTreeMap<u64, Arc<Inode>>, change: &NameChange) {
    for (dir, name, inode) in &change.0 {
        let Some(Inode::Dir(entries)) = inodes.get_mut(dir).map(Arc::make_mut) else { continue };
        match inode {
            Some(inode) => drop(entries.insert(name.clone(), *inode)),
            None => drop(entries.remove(name)),
        }
    }
}

impl Disk {
    fn settle(&mut self) {
        self.durable = self.inodes.clone();
        self.unsynced_names.clear();
        self.unsynced_data.clear();
    }

    fn add(&mut self, inode: Inode) -> u64 {
        let number = self.next;
        self.next += 1;
        // The content of a new file is durable only when synced; until then a name may lead to an empty file.
        let blank = match &inode {
            Inode::File { mode, .. } => {
                self.unsynced_data.insert(number);
                Inode::File { data: Vec::new(), mode: *mode }
            }
            Inode::Dir(_) => Inode::Dir(BTreeMap::new()),
            other => other.clone(),
        };
        self.durable.insert(number, Arc::new(blank));
        self.inodes.insert(number, Arc::new(inode));
        self.touch(number);
        number
    }

    fn touch(&mut self, inode: u64) {
        self.ticks += 1;
        self.changed.insert(inode, self.ticks);
    }

    fn names(&mut self, mut change: Vec<(u64, String, Option<u64>)>) {
        for (dir, name, _) in &mut change {
            if let Some((known, _)) = self.named(*dir, name) {
                known.clone_into(name);
            }
        }
        let change = NameChange(change);
        apply(&mut self.inodes, &change);
        self.unsynced_names.push(change);
    }

    fn get(&self, inode: u64) -> Option<&Inode> {
        self.inodes.get(&inode).map(|inode| &**inode)
    }

    fn entry(&self, dir: u64, name: &str) -> Option<u64> {
        self.named(dir, name).map(|(_, inode)| inode)
    }

    fn named(&self, dir: u64, name: &str) -> Option<(&String, u64)> {
        let Some(Inode::Dir(entries)) = self.get(dir) else { return None };
        let same = |known: &str| known == name || (self.case_blind && known.eq_ignore_ascii_case(name));
        entries.iter().find(|(known, _)| same(known)).map(|(known, inode)| (known, *inode))
    }

    fn locate(&self, path: &Path) -> io::Result<(u64, PathBuf)> {
        let (mut at, mut real) = (ROOT, PathBuf::from("/"));
        let mut rest: Vec<String> = Vec::new();
        let push = |rest: &mut Vec<String>, path: &Path| {
            let names = path.components().rev().filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_str().unwrap().to_owned()),
                _ => None,
            });
            rest.extend(names);
        };
        push(&mut rest, path);
        let mut hops = 0;
        while let Some(name) = rest.pop() {
            if !matches!(self.get(at), Some(Inode::Dir(_))) {
                return Err(errno(ENOTDIR));
            }
            let next = self.entry(at, &name).ok_or_else(|| errno(ENOENT))?;
            if let Some(Inode::Link(text)) = self.get(next) {
                hops += 1;
                assert!(hops < SYMLINK_HOPS && text.starts_with(b"/"), "only absolute links are simulated");
                push(&mut rest, Path::new(std::str::from_utf8(text).unwrap()));
                (at, real) = (ROOT, PathBuf::from("/"));
                continue;
            }
            at = next;
            real.push(name);
        }
        Ok((at, real))
    }

    fn resolve(&self, path: &Path) -> io::Result<u64> {
        self.locate(path).map(|(inode, _)| inode)
    }

    fn walk(&self, inode: u64, prefix: &str, tree: &mut Tree) {
        let Some(Inode::Dir(entries)) = self.get(inode) else { return };
        for (name, inode) in entries {
            let path = format!("{prefix}{name}");
            let node = match &*self.inodes[inode] {
                Inode::Dir(_) => Node::Dir,
                Inode::File { data, mode } => Node::File { text: data.clone(), mode: *mode },
                Inode::Link(text) => Node::Link(text.clone()),
                Inode::Special => Node::Special,
            };
            tree.insert(path.clone(), node);
            self.walk(*inode, &format!("{path}/"), tree);
        }
    }

    fn used(&self) -> u64 {
        let size = |inode: &Arc<Inode>| match &**inode {
            Inode::File { data, .. } => data.len() as u64,
            _ => 0,
        };
        self.inodes.values().map(size).sum()
    }

    fn is_dir(&self, inode: u64) -> bool {
        matches!(self.get(inode), Some(Inode::Dir(_)))
    }
}

impl Fs for SimFs {
    type Dir = u64;
    type File = SimFile;

    fn open_root(&self, path: &Path) -> io::Result<u64> {
        let disk = self.read()?;
        let (inode, real) = disk.locate(path)?;
        if real == path && disk.is_dir(inode) { Ok(inode) } else { Err(errno(ENOTDIR)) }
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(self.read()?.locate(path)?.1)
    }

    fn open_dir(&self, dir: &u64, path: &RelPath) -> io::Result<u64> {
        let disk = self.read()?;
        let mut at = *dir;
        for name in path.components() {
            at = disk.entry(at, name).ok_or_else(|| errno(ENOENT))?;
            if !disk.is_dir(at) {
                return Err(errno(ENOTDIR));
            }
        }
        Ok(at)
    }

    fn identity(&self, dir: &u64) -> io::Result<DirId> {
        self.read().map(|_| DirId { device: 1, inode: *dir })
    }

    fn stat(&self, dir: &u64, name: &str) -> io::Result<Option<Stat>> {
        let disk = self.read()?;
        let Some(inode) = disk.entry(*dir, name) else { return Ok(None) };
        let (kind, size, mode) = match &*disk.inodes[&inode] {
            Inode::File { data, mode } => (FileKind::File, data.len() as u64, *mode),
            Inode::Link(text) => (FileKind::Symlink, text.len() as u64, 0o777),
            Inode::Dir(_) => (FileKind::Directory, 0, 0o755),
            Inode::Special => (FileKind::Special, 0, 0o600),
        };
        let changed = disk.changed[&inode];
        Ok(Some(Stat { kind, mode, device: 1, inode, size, modified: changed, changed }))
    }

    fn list(&self, dir: &u64) -> io::Result<Vec<String>> {
        let disk = self.read()?;
        match disk.get(*dir) {
            Some(Inode::Dir(entries)) => Ok(entries.keys().cloned().collect()),
            _ => Err(errno(ENOENT)),
        }
    }

    fn read_link(&self, dir: &u64, name: &str) -> io::Result<Vec<u8>> {
        let disk = self.read()?;
        match disk.entry(*dir, name).and_then(|inode| disk.get(inode)) {
            Some(Inode::Link(text)) => Ok(text.clone()),
            _ => Err(errno(ENOENT)),
        }
    }

    fn open(&self, dir: &u64, name: &str) -> io::Result<SimFile> {
        let disk = self.read()?;
        let inode = disk.entry(*dir, name).ok_or_else(|| errno(ENOENT))?;
        match &*disk.inodes[&inode] {
            Inode::File { .. } => Ok(SimFile { inode }),
            _ => Err(io::Error::other("not a regular file")),
        }
    }

    fn open_source(&self, path: &Path) -> io::Result<SimFile> {
        let disk = self.read()?;
        Ok(SimFile { inode: disk.resolve(path)? })
    }

    fn read_at(&self, file: &SimFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let disk = self.read()?;
        let Some(Inode::File { data, .. }) = disk.get(file.inode) else { return Err(errno(EIO)) };
        let rest = &data[usize::try_from(offset).unwrap().min(data.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn create(&self, dir: &u64, name: &str, mode: Mode) -> io::Result<SimFile> {
        let mut disk = self.change()?;
        if disk.entry(*dir, name).is_some() {
            return Err(errno(EEXIST));
        }
        let mode = match mode {
            Mode::Exact(bits) => bits,
            asked => asked.bits() & !UMASK,
        };
        let inode = disk.add(Inode::File { data: Vec::new(), mode });
        disk.names(vec![(*dir, name.to_owned(), Some(inode))]);
        Ok(SimFile { inode })
    }

    fn write(&self, file: &mut SimFile, bytes: &[u8]) -> io::Result<usize> {
        let dies = self.call(true)?;
        let mut disk = self.disk.lock().unwrap();
        if disk.used() + bytes.len() as u64 > disk.capacity {
            return Err(errno(ENOSPC));
        }
        disk.touch(file.inode);
        disk.unsynced_data.insert(file.inode);
        let Some(Inode::File { data, .. }) = disk.inodes.get_mut(&file.inode).map(Arc::make_mut) else {
            return Err(errno(EIO));
        };
        // Short writes are legal, so they happen.
        let count = if dies { bytes.len() / 2 } else { bytes.len().min(3000) };
        data.extend_from_slice(&bytes[..count]);
        if dies { Err(errno(EIO)) } else { Ok(count) }
    }

    fn symlink(&self, dir: &u64, name: &str, text: &[u8]) -> io::Result<()> {
        let mut disk = self.change()?;
        if disk.entry(*dir, name).is_some() {
            return Err(errno(EEXIST));
        }
        let inode = disk.add(Inode::Link(text.to_vec()));
        disk.names(vec![(*dir, name.to_owned(), Some(inode))]);
        Ok(())
    }

    fn create_dir(&self, dir: &u64, name: &str, _mode: Mode) -> io::Result<()> {
        let mut disk = self.change()?;
        if disk.entry(*dir, name).is_some() {
            return Err(errno(EEXIST));
        }
        let inode = disk.add(Inode::Dir(BTreeMap::new()));
        disk.names(vec![(*dir, name.to_owned(), Some(inode))]);
        Ok(())
    }

    fn rename(&self, from_dir: &u64, from: &str, to_dir: &u64, to: &str, how: Rename) -> io::Result<()> {
        let mut disk = self.change()?;
        let source = disk.entry(*from_dir, from).ok_or_else(|| errno(ENOENT))?;
        let target = disk.entry(*to_dir, to);
        let there = match how {
            Rename::NoReplace if target.is_some() => return Err(errno(EEXIST)),
            Rename::NoReplace | Rename::Replace => None,
            Rename::Exchange => Some(target.ok_or_else(|| errno(ENOENT))?),
        };
        let change = vec![(*from_dir, from.to_owned(), there), (*to_dir, to.to_owned(), Some(source))];
        disk.names(change);
        Ok(())
    }

    fn remove_file(&self, dir: &u64, name: &str) -> io::Result<()> {
        let mut disk = self.change()?;
        let inode = disk.entry(*dir, name).ok_or_else(|| errno(ENOENT))?;
        if disk.is_dir(inode) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        disk.names(vec![(*dir, name.to_owned(), None)]);
        Ok(())
    }

    fn remove_dir(&self, dir: &u64, name: &str) -> io::Result<()> {
        let mut disk = self.change()?;
        let inode = disk.entry(*dir, name).ok_or_else(|| errno(ENOENT))?;
        match disk.get(inode) {
            Some(Inode::Dir(entries)) if entries.is_empty() => {}
            Some(Inode::Dir(_)) => return Err(errno(ENOTEMPTY)),
            _ => return Err(errno(ENOTDIR)),
        }
        disk.names(vec![(*dir, name.to_owned(), None)]);
        Ok(())
    }

    fn sync_file(&self, file: &SimFile) -> io::Result<()> {
        let mut disk = self.change()?;
        let inode = disk.inodes[&file.inode].clone();
        disk.durable.insert(file.inode, inode);
        disk.unsynced_data.remove(&file.inode);
        Ok(())
    }

    fn sync_dir(&self, dir: &u64) -> io::Result<()> {
        let mut disk = self.change()?;
        let touches = |change: &NameChange| change.0.iter().any(|(at, ..)| at == dir);
        let (now, later) = std::mem::take(&mut disk.unsynced_names).into_iter().partition(touches);
        disk.unsynced_names = later;
        let now: Vec<NameChange> = now;
        for change in &now {
            apply(&mut disk.durable, change);
        }
        Ok(())
    }

    fn sync_all(&self, _dir: &u64) -> io::Result<()> {
        self.change()?.settle();
        Ok(())
    }

    fn space(&self, _dir: &u64) -> io::Result<Space> {
        let disk = self.read()?;
        let available = disk.capacity.saturating_sub(disk.used());
        Ok(Space { available, block: 1, read_only: disk.read_only })
    }
}
