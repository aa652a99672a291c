//! Carries out a prepared transaction: stage, sync, commit, put into place, sync, tidy up.
//!
//! Until everything is in place and durable, any failure takes everything back: staged content changes places with
//! what it replaces, so the old content is still there under the staged name. What somebody else wrote to a place in
//! the meantime is noticed when it comes out of it, and stops the transaction.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use super::prepare::{Item, Prepared, sibling};
use super::recover::{complete, is_exactly, remove_staged};
use super::{Applied, Content, Context, TxnError};
use crate::fs::entry::{EntryKind, observe, read_pieces};
use crate::fs::hash::{Digest, Hasher};
use crate::fs::place::{Anchors, Dirs, Place};
use crate::fs::{Fs, Mode, Rename, write_all};
use crate::parallel;
use crate::state::blobs::{Blobs, PackWriter};
use crate::state::journal::{Action, Journal, Step};

/// Files up to this size pass through memory as a whole.
const SMALL_BYTES: u64 = 1 << 20;

/// Carries out `prepared`.
pub(super) fn run<F: Fs>(
    context: &Context<'_, F>,
    blobs: &Blobs<F>,
    prepared: Prepared<F>,
) -> Result<Applied, TxnError> {
    let (fs, journals) = (context.fs, &context.state.journal);
    let id = prepared.journal.id.clone();
    let journal_path = context.state.path.join("journal");
    let needed = prepared.volumes.iter().map(|volume| volume.needed).sum();
    let sync = || -> Result<(), TxnError> {
        for volume in &prepared.volumes {
            fs.sync_all(&volume.dir).map_err(TxnError::at("sync the file system of", volume.shown()))?;
        }
        Ok(())
    };

    let staged = prepared
        .journal
        .publish(fs, journals)
        .map_err(TxnError::at("write the journal in", &journal_path))
        .and_then(|()| stage(context, blobs, &prepared))
        .and_then(|()| sync());
    if let Err(cause) = staged {
        return Err(give_up(context, &prepared, cause.with_needed(needed), sync));
    }

    let committed = Journal::commit(fs, journals, &id).map_err(TxnError::at("commit in", &journal_path));
    let mut placed = Vec::new();
    let done = committed.and_then(|()| put_into_place(fs, &prepared, &mut placed)).and_then(|()| sync());
    if let Err(cause) = done {
        let cause = cause.with_needed(needed);
        let undone = take_back(fs, &prepared, &placed).and_then(|()| sync()).and_then(|()| {
            Journal::revert(fs, journals, &id).map_err(TxnError::at("revert in", &journal_path))
        });
        return Err(match undone {
            Ok(()) => give_up(context, &prepared, cause, sync),
            Err(undo) => TxnError::Unfinished { cause: Box::new(cause), undo: Box::new(undo) },
        });
    }

    // From here on the new state stands. Tidying up is what recovery does with a committed journal, so a hiccup in
    // it gets a second try now and a third by the next command.
    let end = |removed: bool| -> Result<(), TxnError> {
        if removed {
            sync()?;
        }
        Journal::remove(fs, journals, &id).map_err(TxnError::at("end the journal in", &journal_path))
    };
    let untidy = tidy_fast(fs, &prepared)
        .and_then(end)
        .or_else(|_| complete(fs, &prepared.journal, &prepared.anchors).and_then(|_| end(true)))
        .err()
        .map(|error| error.to_string());
    Ok(Applied { snapshot_id: Some(prepared.snapshot_id), untidy })
}

/// Removes what was staged and the journal; what that leaves behind, the next command removes.
fn give_up<F: Fs>(
    context: &Context<'_, F>,
    prepared: &Prepared<F>,
    cause: TxnError,
    sync: impl Fn() -> Result<(), TxnError>,
) -> TxnError {
    let journals = &context.state.journal;
    // The journal goes last, and durably after what it lists, or a power loss could bring staged files back.
    let packs = &context.state.packs;
    let removed = remove_staged(context.fs, packs, &prepared.journal, &prepared.anchors);
    let removed = removed.and_then(|kept| {
        sync()?;
        Journal::remove(context.fs, journals, &prepared.journal.id)
            .map_err(TxnError::at("end the journal in", &context.state.path))?;
        Ok(kept)
    });
    match removed {
        Ok(kept) if kept.is_empty() => cause,
        Ok(kept) => TxnError::KeptAside { cause: Box::new(cause), kept },
        Err(undo) => TxnError::Unfinished { cause: Box::new(cause), undo: Box::new(undo) },
    }
}

/// Writes everything new beside its place.
fn stage<F: Fs>(context: &Context<'_, F>, blobs: &Blobs<F>, prepared: &Prepared<F>) -> Result<(), TxnError> {
    let fs = context.fs;
    make_trees(fs, prepared)?;
    let pack = match &prepared.pack {
        Some(place) => {
            let shown = prepared.anchors.shown(place);
            let dir = Dirs::new(fs, &prepared.anchors).parent(place).map_err(TxnError::at("open", &shown))?;
            let file =
                fs.create(&dir, place.path.name(), Mode::Private).map_err(TxnError::at("create", &shown))?;
            Some((Mutex::new(PackWriter::<F>::new(file)), shown))
        }
        None => None,
    };
    let stager = Stager {
        fs,
        blobs,
        anchors: &prepared.anchors,
        pack: pack.as_ref().map(|(pack, at)| (pack, at.as_path())),
    };
    let threads = context.threads.clamp(1, prepared.items.len().div_ceil(64).max(1));
    let chunks: Vec<_> = prepared.items.chunks(prepared.items.len().div_ceil(threads).max(1)).collect();
    parallel::map_on(threads, &chunks, |items| stager.stage_all(items))
        .into_iter()
        .collect::<Result<(), _>>()?;
    let Some((pack, shown)) = pack else { return Ok(()) };
    let mut pack = pack.into_inner().map_err(|_| TxnError::Bug("a staging thread died".to_owned()))?;
    let mut dirs = Dirs::new(fs, &prepared.anchors);
    for kept in &prepared.keep {
        keep(fs, &mut dirs, &prepared.anchors, kept, &mut pack, &shown)?;
    }
    pack.finish(fs).map(drop).map_err(TxnError::at("write", &shown))
}

/// Copies a content that is about to be replaced into the pack.
fn keep<F: Fs>(
    fs: &F,
    dirs: &mut Dirs<'_, F>,
    anchors: &Anchors<F>,
    kept: &super::prepare::Keep,
    pack: &mut PackWriter<F>,
    pack_shown: &Path,
) -> Result<(), TxnError> {
    let shown = anchors.shown(&kept.at);
    let name = kept.at.path.name();
    let dir = dirs.parent(&kept.at).map_err(TxnError::at("open", &shown))?;
    let digest = if kept.entry.kind == EntryKind::Symlink {
        let text = fs.read_link(&dir, name).map_err(TxnError::at("read", &shown))?;
        let digest = Digest::of(&text);
        pack.add(fs, digest, &text).map_err(TxnError::at("write", pack_shown))?;
        digest
    } else {
        let size = fs.stat(&dir, name).map_err(TxnError::at("look at", &shown))?.map_or(0, |stat| stat.size);
        let file = fs.open(&dir, name).map_err(TxnError::at("open", &shown))?;
        pack.add_file(fs, &file, size).map_err(TxnError::at("copy", &shown))?
    };
    if digest == kept.entry.sha256 {
        Ok(())
    } else {
        Err(TxnError::Changed { path: shown, found: "it has other content" })
    }
}

/// Makes the directories of the trees that will appear.
fn make_trees<F: Fs>(fs: &F, prepared: &Prepared<F>) -> Result<(), TxnError> {
    let mut open = Dirs::new(fs, &prepared.anchors);
    let mut make = |place: &Place, shown: &Path| -> Result<(), TxnError> {
        let dir = open.parent(place).map_err(TxnError::at("open the directory of", shown))?;
        fs.create_dir(&dir, place.path.name(), Mode::Plain)
            .map_err(TxnError::at("create the directory", shown))
    };
    for step in &prepared.journal.steps {
        let Action::Tree { dirs, .. } = &step.action else { continue };
        let shown = prepared.anchors.shown(&step.place);
        let top = sibling(&step.place, &step.staged)?;
        make(&top, &shown)?;
        for dir in dirs {
            let shown = shown.join(dir.as_path());
            let path = top.path.join(dir).map_err(|error| TxnError::bad_path(&shown, &error))?;
            make(&Place { anchor: top.anchor, path }, &shown)?;
        }
    }
    Ok(())
}

/// What staging threads share.
struct Stager<'a, F: Fs> {
    fs: &'a F,
    blobs: &'a Blobs<F>,
    anchors: &'a Anchors<F>,
    pack: Option<(&'a Mutex<PackWriter<F>>, &'a Path)>,
}

impl<F: Fs> Stager<'_, F> {
    fn stage_all(&self, items: &[Item]) -> Result<(), TxnError> {
        let mut dirs = Dirs::new(self.fs, self.anchors);
        items.iter().try_for_each(|item| self.stage(&mut dirs, item))
    }

    fn stage(&self, dirs: &mut Dirs<'_, F>, item: &Item) -> Result<(), TxnError> {
        let failed = |doing| move |error| TxnError::io(doing, self.anchors.shown(&item.place), error);
        let dir = dirs.parent(&item.at).map_err(failed("open the directory of"))?;
        let name = item.at.path.name();
        let (size, is_link) = (item.new.size, item.new.entry.kind == EntryKind::Symlink);
        if size > SMALL_BYTES && !is_link {
            let mut file = self.fs.create(&dir, name, item.mode).map_err(failed("create"))?;
            return self.stream(item, &mut file);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size.min(SMALL_BYTES)).unwrap_or(0));
        self.read(item, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        if is_link {
            self.fs.symlink(&dir, name, &bytes).map_err(failed("create"))?;
        } else {
            let mut file = self.fs.create(&dir, name, item.mode).map_err(failed("create"))?;
            write_all(self.fs, &mut file, &bytes).map_err(failed("write"))?;
        }
        self.store(item, &bytes)
    }

    fn store(&self, item: &Item, bytes: &[u8]) -> Result<(), TxnError> {
        let (true, Some((pack, shown))) = (item.store, self.pack) else { return Ok(()) };
        let mut pack = pack.lock().map_err(|_| TxnError::Bug("a staging thread died".to_owned()))?;
        pack.add(self.fs, item.new.entry.sha256, bytes).map_err(TxnError::at("write", shown))
    }

    /// Passes the content of an item on in pieces, and verifies it.
    fn read(&self, item: &Item, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), TxnError> {
        let (new, shown) = (&item.new, self.anchors.shown(&item.place));
        let sha256 = new.entry.sha256;
        let path = match &new.content {
            Content::Bytes(bytes) => return take(bytes).map_err(TxnError::at("write", &shown)),
            Content::Stored => {
                let there =
                    self.blobs.read(self.fs, &sha256, take).map_err(TxnError::at("restore", &shown))?;
                let missing = || TxnError::NotStored { path: shown, sha256: sha256.to_string() };
                return if there { Ok(()) } else { Err(missing()) };
            }
            Content::File(path) => path,
        };
        let source = self.fs.open_source(path).map_err(TxnError::at("open", path))?;
        let mut hasher = Hasher::default();
        let (mut count, most) = (0, 2 * new.size.max(SMALL_BYTES));
        let copied = read_pieces(self.fs, &source, new.size, |piece| {
            count += piece.len() as u64;
            // It grew since it was planned, so it is not what was planned.
            if count > most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            hasher.update(piece);
            take(piece)
        });
        if count > most || (copied.is_ok() && hasher.finish() != sha256) {
            return Err(TxnError::SourceChanged { path: shown });
        }
        copied.map_err(TxnError::at("copy", &shown))
    }

    /// Copies a large content piece by piece into the file and, if wanted, the pack.
    fn stream(&self, item: &Item, file: &mut F::File) -> Result<(), TxnError> {
        let mut pack = match self.pack {
            Some((pack, _)) if item.store => {
                Some(pack.lock().map_err(|_| TxnError::Bug("a staging thread died".to_owned()))?)
            }
            _ => None,
        };
        let offset = pack.as_ref().map(|pack| pack.begin());
        self.read(item, |piece| {
            write_all(self.fs, file, piece)?;
            pack.as_mut().map_or(Ok(()), |pack| pack.piece(self.fs, piece))
        })?;
        if let (Some(mut pack), Some(offset)) = (pack, offset) {
            pack.end(item.new.entry.sha256, offset);
        }
        Ok(())
    }
}

/// Takes every step; `placed` grows with what must be taken back should a later one fail.
fn put_into_place<F: Fs>(fs: &F, prepared: &Prepared<F>, placed: &mut Vec<usize>) -> Result<(), TxnError> {
    let mut dirs = Dirs::new(fs, &prepared.anchors);
    for (index, step) in prepared.journal.steps.iter().enumerate() {
        let shown = prepared.anchors.shown(&step.place);
        let dir = dirs.parent(&step.place).map_err(TxnError::at("open the directory of", &shown))?;
        let name = step.place.path.name();
        let swap = |from: &str, to: &str, how| fs.rename(&dir, from, &dir, to, how);
        let (from, to, how, old) = match &step.action {
            Action::Tree { .. } | Action::Create { .. } => {
                (step.staged.as_str(), name, Rename::NoReplace, None)
            }
            Action::Update { old, .. } => (step.staged.as_str(), name, Rename::Exchange, Some(*old)),
            Action::Delete { old } => (name, step.staged.as_str(), Rename::NoReplace, Some(*old)),
        };
        match swap(from, to, how) {
            Ok(()) => placed.push(index),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(TxnError::Changed { path: shown, found: "something is there now" });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && old.is_some() => {
                return Err(TxnError::Changed { path: shown, found: "it is gone" });
            }
            Err(error) => return Err(TxnError::io("put into place", shown, error)),
        }
        let Some(old) = old else { continue };
        let out = observe(fs, &dir, &step.staged).map_err(TxnError::at("read", &shown))?;
        if !out.is(Some(old)) {
            return Err(TxnError::Changed { path: shown, found: "it has other content" });
        }
    }
    Ok(())
}

/// Takes back what [`put_into_place`] did, last first.
fn take_back<F: Fs>(fs: &F, prepared: &Prepared<F>, placed: &[usize]) -> Result<(), TxnError> {
    let mut dirs = Dirs::new(fs, &prepared.anchors);
    for step in placed.iter().rev().map(|index| &prepared.journal.steps[*index]) {
        let shown = prepared.anchors.shown(&step.place);
        let dir = dirs.parent(&step.place).map_err(TxnError::at("open the directory of", &shown))?;
        take_back_step(fs, &dir, step).map_err(TxnError::at("take back", &shown))?;
    }
    Ok(())
}

fn take_back_step<F: Fs>(fs: &F, dir: &F::Dir, step: &Step) -> io::Result<()> {
    let name = step.place.path.name();
    let ours = |new: Option<_>| match new {
        Some(new) => is_exactly(fs, dir, name, new),
        None => Ok(true),
    };
    match &step.action {
        // Edited within this blink: it is the user's now.
        Action::Create { new } if !ours(*new)? => Ok(()),
        Action::Update { new, .. } if !ours(Some(*new))? => Ok(()),
        Action::Tree { .. } | Action::Create { .. } => {
            fs.rename(dir, name, dir, &step.staged, Rename::NoReplace)
        }
        Action::Update { .. } => fs.rename(dir, &step.staged, dir, name, Rename::Exchange),
        Action::Delete { .. } => {
            match fs.rename(dir, &step.staged, dir, name, Rename::NoReplace) {
                // Somebody made a new file there; the old one stays in the store.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            }
        }
    }
}

/// Removes what was replaced; says whether there was anything. It was verified when it came out of its place.
fn tidy_fast<F: Fs>(fs: &F, prepared: &Prepared<F>) -> Result<bool, TxnError> {
    let mut dirs = Dirs::new(fs, &prepared.anchors);
    let mut removed = !prepared.journal.remove_dirs.is_empty();
    for step in &prepared.journal.steps {
        if matches!(step.action, Action::Update { .. } | Action::Delete { .. }) {
            let shown = prepared.anchors.shown(&step.place);
            let dir = dirs.parent(&step.place).map_err(TxnError::at("open the directory of", &shown))?;
            fs.remove_file(&dir, &step.staged).map_err(TxnError::at("remove the old content of", &shown))?;
            removed = true;
        }
    }
    remove_empty(fs, &prepared.anchors, &prepared.journal.remove_dirs)?;
    Ok(removed)
}

/// Removes directories that are empty now.
pub(super) fn remove_empty<F: Fs>(fs: &F, anchors: &Anchors<F>, places: &[Place]) -> Result<(), TxnError> {
    let mut dirs = Dirs::new(fs, anchors);
    for place in places {
        let shown = anchors.shown(place);
        let parent = match dirs.parent(place) {
            Ok(parent) => parent,
            Err(error) if is_elsewhere(&error) => continue,
            Err(error) => return Err(TxnError::io("open the directory of", shown, error)),
        };
        match fs.remove_dir(&parent, place.path.name()) {
            Err(error) if !is_elsewhere(&error) && error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                return Err(TxnError::io("remove the empty directory", shown, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The directory is not there any more, or is something else now.
pub(super) fn is_elsewhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
