//! Ends what a killed command began.
//!
//! Every rule compares what is there with what the journal says was and shall be there, so doing it twice, or being
//! killed in the middle of it, changes nothing. A place that holds neither was changed by somebody else: it stays as
//! it is, and is reported.

use std::io;
use std::path::PathBuf;

use super::TxnError;
use super::engine::{is_elsewhere, remove_empty};
use super::places::{Anchors, Dirs};
use crate::entry::{Entry, Observed, observe};
use crate::fs::{EXCHANGE_SUFFIX, Fs, Rename, found};
use crate::home::StateDirs;
use crate::journal::{Action, Journal, Place, STAGED_PREFIX, Stage, Step, TreeFile};
use crate::path::RelPath;

/// How a command that was cut short ended after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As if it had never begun.
    Undone,
    /// As if it had not been cut short.
    Completed,
}

/// A command that was cut short and is dealt with now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The id of its transaction, and of its snapshot if it was completed.
    pub id: String,
    /// What it was.
    pub command: String,
    /// When it began.
    pub started_at: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Places somebody changed in the meantime; they were left alone.
    pub kept: Vec<PathBuf>,
}

/// Ends everything unfinished, under the lock.
pub(crate) fn recover<F: Fs>(fs: &F, state: &StateDirs<F>) -> Result<Vec<Recovered>, TxnError> {
    let journals = state.path.join("journal");
    let list = Journal::list(fs, &state.journal).map_err(TxnError::at("list", &journals))?;
    let mut recovered = Vec::new();
    for (name, stage) in list {
        let shown = journals.join(&name);
        let Some(stage) = stage else {
            fs.remove_file(&state.journal, &name).map_err(TxnError::at("remove", &shown))?;
            continue;
        };
        let journal = Journal::read(fs, &state.journal, &name)
            .map_err(TxnError::at("read", &shown))?
            .map_err(|reason| TxnError::JournalInvalid { path: shown.clone(), reason })?;
        let anchors = Anchors::reopen(fs, &journal.anchors)?;
        normalise(fs, &journal, &anchors)?;
        let (outcome, kept) = match stage {
            Stage::Prepare => {
                remove_staged(fs, &journal, &anchors)?;
                (Outcome::Undone, Vec::new())
            }
            Stage::Commit => {
                let kept = complete(fs, &journal, &anchors)?;
                for dir in anchors.dirs.iter().flatten() {
                    fs.sync_all(dir).map_err(TxnError::at("sync", &journals))?;
                }
                (Outcome::Completed, kept)
            }
        };
        Journal::remove(fs, &state.journal, &journal.id).map_err(TxnError::at("remove", &shown))?;
        let Journal { id, command, started_at, .. } = journal;
        recovered.push(Recovered { id, command, started_at, outcome, kept });
    }
    // Without a journal, whatever is staged among our own files is a pruning that was cut short.
    for (dir, name) in [(&state.packs, "packs"), (&state.snapshots, "snapshots")] {
        let shown = state.path.join(name);
        for name in fs.list(dir).map_err(TxnError::at("list", &shown))? {
            if name.starts_with(STAGED_PREFIX) {
                found(fs.remove_file(dir, &name)).map_err(TxnError::at("remove", &shown.join(name)))?;
            }
        }
    }
    Ok(recovered)
}

/// Whether exactly `entry` is at `name`.
pub(super) fn is_exactly<F: Fs>(fs: &F, dir: &F::Dir, name: &str, entry: Entry) -> io::Result<bool> {
    Ok(observe(fs, dir, name)?.is(Some(entry)))
}

/// Finishes exchanges that were done in steps and cut short.
fn normalise<F: Fs>(fs: &F, journal: &Journal, anchors: &Anchors<F>) -> Result<(), TxnError> {
    let mut dirs = Dirs::new(fs, anchors);
    for step in journal.steps.iter().filter(|step| matches!(step.action, Action::Update { .. })) {
        let shown = anchors.shown(&step.place);
        let Some(dir) = parent(&mut dirs, &step.place, anchors)? else { continue };
        let second = format!("{}{EXCHANGE_SUFFIX}", step.staged);
        let name = step.place.path.name();
        let act = || -> io::Result<()> {
            if fs.stat(&dir, &second)?.is_none() {
                return Ok(());
            }
            if fs.stat(&dir, name)?.is_none() {
                // Moved aside where links are not possible, and not yet replaced.
                return fs.rename(&dir, &second, &dir, name, Rename::NoReplace);
            }
            if fs.stat(&dir, &step.staged)?.is_some() {
                return fs.remove_file(&dir, &second);
            }
            fs.rename(&dir, &second, &dir, &step.staged, Rename::NoReplace)
        };
        act().map_err(TxnError::at("recover", &shown))?;
    }
    Ok(())
}

/// The directory of a place; nothing when it is gone, so that there is nothing to recover.
fn parent<F: Fs>(
    dirs: &mut Dirs<'_, F>,
    place: &Place,
    anchors: &Anchors<F>,
) -> Result<Option<F::Dir>, TxnError> {
    match dirs.parent(place) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if is_elsewhere(&error) => Ok(None),
        Err(error) => Err(TxnError::io("open the directory of", anchors.shown(place), error)),
    }
}

/// Removes everything staged: no place was touched.
pub(super) fn remove_staged<F: Fs>(fs: &F, journal: &Journal, anchors: &Anchors<F>) -> Result<(), TxnError> {
    let mut dirs = Dirs::new(fs, anchors);
    for step in &journal.steps {
        let shown = anchors.shown(&step.place);
        let Some(dir) = parent(&mut dirs, &step.place, anchors)? else { continue };
        let removed = match &step.action {
            Action::Tree { dirs, files } => remove_tree(fs, &dir, step, dirs, files),
            Action::Create { .. } | Action::Update { .. } => {
                found(fs.remove_file(&dir, &step.staged)).map(drop)
            }
            Action::Delete { .. } => Ok(()),
        };
        removed.map_err(TxnError::at("remove what was staged for", &shown))?;
    }
    Ok(())
}

/// Removes the files and directories of a staged tree, and nothing else that may be in it.
fn remove_tree<F: Fs>(
    fs: &F,
    parent: &F::Dir,
    step: &Step,
    dirs: &[RelPath],
    files: &[TreeFile],
) -> io::Result<()> {
    let staged = RelPath::new(step.staged.as_str()).map_err(io::Error::other)?;
    let Some(top) = found(fs.open_dir(parent, &staged))? else { return Ok(()) };
    let below = |path: &RelPath| match path.parent() {
        None => Ok(Some(top.clone())),
        Some(parent) => found(fs.open_dir(&top, &parent)),
    };
    for file in files {
        if let Some(dir) = below(&file.path)? {
            found(fs.remove_file(&dir, file.path.name()))?;
        }
    }
    let tolerant = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => found(other).map(drop),
    };
    for path in dirs.iter().rev() {
        if let Some(dir) = below(path)? {
            tolerant(fs.remove_dir(&dir, path.name()))?;
        }
    }
    match fs.remove_dir(parent, &step.staged) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            // Somebody put something into it while it stood at its place; that goes back there.
            fs.rename(parent, &step.staged, parent, step.place.path.name(), Rename::NoReplace)
        }
        other => found(other).map(drop),
    }
}

/// Completes every step; says which places were left alone.
pub(super) fn complete<F: Fs>(
    fs: &F,
    journal: &Journal,
    anchors: &Anchors<F>,
) -> Result<Vec<PathBuf>, TxnError> {
    let mut dirs = Dirs::new(fs, anchors);
    let mut kept = Vec::new();
    for step in &journal.steps {
        let shown = anchors.shown(&step.place);
        let Some(dir) = parent(&mut dirs, &step.place, anchors)? else { continue };
        let left_alone = match &step.action {
            Action::Tree { dirs, files } => complete_tree(fs, &dir, step, dirs, files),
            Action::Create { new } => {
                complete_create(fs, (&dir, &step.staged), (&dir, step.place.path.name()), *new)
                    .map(|done| names(done, None))
            }
            Action::Update { old, new } => {
                complete_update(fs, &dir, step, *old, *new).map(|done| names(done, None))
            }
            Action::Delete { old } => complete_delete(fs, &dir, step, *old).map(|done| names(done, None)),
        };
        for path in left_alone.map_err(TxnError::at("complete", &shown))? {
            kept.push(path.map_or_else(|| shown.clone(), |path| shown.join(path.as_path())));
        }
    }
    remove_empty(fs, anchors, &journal.remove_dirs)?;
    Ok(kept)
}

/// Whether a place was completed or left to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Completed,
    LeftAlone,
}

fn names(done: Done, path: Option<RelPath>) -> Vec<Option<RelPath>> {
    if done == Done::LeftAlone { vec![path] } else { Vec::new() }
}

fn complete_create<F: Fs>(
    fs: &F,
    (staged_dir, staged): (&F::Dir, &str),
    (dir, name): (&F::Dir, &str),
    new: Option<Entry>,
) -> io::Result<Done> {
    if fs.stat(staged_dir, staged)?.is_none() {
        return Ok(Done::Completed);
    }
    match fs.rename(staged_dir, staged, dir, name, Rename::NoReplace) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done.map(|()| Done::Completed),
    }
    let same = match new {
        Some(new) => is_exactly(fs, dir, name, new)?,
        None => true,
    };
    fs.remove_file(staged_dir, staged)?;
    Ok(if same { Done::Completed } else { Done::LeftAlone })
}

fn complete_update<F: Fs>(fs: &F, dir: &F::Dir, step: &Step, old: Entry, new: Entry) -> io::Result<Done> {
    let name = step.place.path.name();
    let aside = observe(fs, dir, &step.staged)?;
    let here = observe(fs, dir, name)?;
    if aside == Observed::Absent {
        return Ok(Done::Completed);
    }
    let done = if aside.is(Some(new)) && here.is(Some(old)) {
        fs.rename(dir, &step.staged, dir, name, Rename::Exchange)?;
        if !is_exactly(fs, dir, &step.staged, old)? {
            // Edited in this very moment.
            fs.rename(dir, &step.staged, dir, name, Rename::Exchange)?;
            Done::LeftAlone
        } else {
            Done::Completed
        }
    } else if aside.is(Some(new)) {
        if here.is(Some(new)) { Done::Completed } else { Done::LeftAlone }
    } else if aside.is(Some(old)) {
        // It was in place; what is there now came after.
        Done::Completed
    } else {
        // An edit came out of the place when the new content went in: it goes back.
        if here.is(Some(new)) {
            fs.rename(dir, &step.staged, dir, name, Rename::Exchange)?;
        } else if here == Observed::Absent {
            fs.rename(dir, &step.staged, dir, name, Rename::NoReplace)?;
            return Ok(Done::LeftAlone);
        } else {
            return Ok(Done::LeftAlone);
        }
        Done::LeftAlone
    };
    fs.remove_file(dir, &step.staged)?;
    Ok(done)
}

fn complete_delete<F: Fs>(fs: &F, dir: &F::Dir, step: &Step, old: Entry) -> io::Result<Done> {
    let name = step.place.path.name();
    let mut aside = observe(fs, dir, &step.staged)?;
    if aside == Observed::Absent {
        match observe(fs, dir, name)? {
            Observed::Absent => return Ok(Done::Completed),
            here if here.is(Some(old)) => {
                fs.rename(dir, name, dir, &step.staged, Rename::NoReplace)?;
                aside = observe(fs, dir, &step.staged)?;
            }
            _ => return Ok(Done::LeftAlone),
        }
    }
    if aside.is(Some(old)) {
        fs.remove_file(dir, &step.staged)?;
        return Ok(Done::Completed);
    }
    // An edit came out of the place: it goes back, unless something new is there already.
    match fs.rename(dir, &step.staged, dir, name, Rename::NoReplace) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(Done::LeftAlone),
    }
}

/// Puts a staged tree into place, file by file if something is there by now.
fn complete_tree<F: Fs>(
    fs: &F,
    parent: &F::Dir,
    step: &Step,
    dirs: &[RelPath],
    files: &[TreeFile],
) -> io::Result<Vec<Option<RelPath>>> {
    let (staged, name) = (step.staged.as_str(), step.place.path.name());
    if fs.stat(parent, staged)?.is_none() {
        return Ok(Vec::new());
    }
    match fs.rename(parent, staged, parent, name, Rename::NoReplace) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done.map(|()| Vec::new()),
    }
    let open =
        |top: &str| RelPath::new(top).map_err(io::Error::other).and_then(|top| fs.open_dir(parent, &top));
    let from = open(staged)?;
    let to = match open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            remove_tree(fs, parent, step, dirs, files)?;
            return Ok(vec![None]);
        }
        opened => opened?,
    };
    let below = |top: &F::Dir, path: &RelPath| match path.parent() {
        None => Ok(top.clone()),
        Some(parent) => fs.open_dir(top, &parent),
    };
    for path in dirs {
        let Ok(dir) = below(&to, path) else { continue };
        match fs.create_dir(&dir, path.name(), crate::fs::Mode::Plain) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let mut left_alone = Vec::new();
    for file in files {
        let name = file.path.name();
        let Some(from) = found(below(&from, &file.path))? else { continue };
        match below(&to, &file.path) {
            Ok(to) => {
                let done = complete_create(fs, (&from, name), (&to, name), file.new)?;
                left_alone.append(&mut names(done, Some(file.path.clone())));
            }
            Err(error) if is_elsewhere(&error) => left_alone.push(Some(file.path.clone())),
            Err(error) => return Err(error),
        }
    }
    remove_tree(fs, parent, step, dirs, files)?;
    Ok(left_alone)
}
