//! Ends what a killed command began.
//!
//! Every rule compares what is there with what the journal says was and shall be there, so doing it twice, or being
//! killed in the middle of it, changes nothing. A place that holds neither was changed by somebody else: it stays as
//! it is, and is reported.

use std::io;
use std::path::PathBuf;

use super::TxnError;
use super::engine::{is_elsewhere, remove_empty};
use crate::fs::entry::{Entry, Observed, observe};
use crate::fs::path::RelPath;
use crate::fs::place::{Anchors, Dirs, Place};
use crate::fs::{EXCHANGE_SUFFIX, Fs, Mode, Rename, found};
use crate::state::blobs::Blobs;
use crate::state::home::StateDirs;
use crate::state::journal::{Action, Journal, STAGED_PREFIX, Stage, Step, TreeFile};

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
    pub command: String,
    /// When it began.
    pub started_at: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Places somebody changed in the meantime; they were left alone.
    pub kept: Vec<PathBuf>,
    /// Directories that cannot be reached. What is to be done there is done when they are back.
    pub unreached: Vec<PathBuf>,
}

/// Ends everything unfinished as far as it can be reached, under the lock. A directory that was moved is found again if it
/// is one of `candidates`.
pub(crate) fn recover<F: Fs>(
    fs: &F,
    state: &StateDirs<F>,
    candidates: &[PathBuf],
) -> Result<Vec<Recovered>, TxnError> {
    let journals = state.path.join("journal");
    let list = Journal::list(fs, &state.journal).map_err(TxnError::at("list", &journals))?;
    let mut recovered = Vec::new();
    for (name, ending) in list {
        let shown = journals.join(&name);
        let Some(reached) = ending else {
            fs.remove_file(&state.journal, &name).map_err(TxnError::at("remove", &shown))?;
            continue;
        };
        let journal = Journal::read(fs, &state.journal, &name)
            .map_err(TxnError::at("read", &shown))?
            .map_err(|reason| TxnError::JournalInvalid { path: shown.clone(), reason })?;
        let anchors = Anchors::reopen(fs, &journal.anchors, &journal.anchor_ids, candidates)?;
        normalise(fs, &journal, &anchors)?;
        let (outcome, kept) = match reached {
            Stage::Prepare => (Outcome::Undone, remove_staged(fs, &state.packs, &journal, &anchors)?),
            Stage::Commit => (Outcome::Completed, complete(fs, &journal, &anchors)?),
        };
        sync_volumes(fs, &anchors)?;
        let rest = journal.only(|anchor| anchors.dirs.get(anchor).is_none_or(Option::is_none));
        let unreached = rest.places();
        if unreached.is_empty() {
            Journal::remove(fs, &state.journal, &journal.id).map_err(TxnError::at("remove", &shown))?;
        } else if rest.steps.len() < journal.steps.len() {
            // What is done must not be done again: by then other commands have been there.
            rest.write(fs, &state.journal, reached).map_err(TxnError::at("write", &shown))?;
        }
        let Journal { id, command, started_at, .. } = journal;
        recovered.push(Recovered { id, command, started_at, outcome, kept, unreached });
    }
    // Without a journal, whatever is staged among our own files is a pruning that was cut short.
    for (dir, name) in [(&state.packs, "packs"), (&state.snapshots, "snapshots"), (&state.heads, "heads")] {
        let shown = state.path.join(name);
        for name in fs.list(dir).map_err(TxnError::at("list", &shown))? {
            if name.starts_with(STAGED_PREFIX) {
                found(fs.remove_file(dir, &name)).map_err(TxnError::at("remove", &shown.join(name)))?;
            }
        }
    }
    Ok(recovered)
}

/// The journal may go only after all it lists is durable.
fn sync_volumes<F: Fs>(fs: &F, anchors: &Anchors<F>) -> Result<(), TxnError> {
    let mut done = Vec::new();
    for (path, dir) in anchors.paths.iter().zip(&anchors.dirs) {
        let Some(dir) = dir else { continue };
        let device = fs.identity(dir).map_err(TxnError::at("look at", path))?.device;
        if !done.contains(&device) {
            fs.sync_all(dir).map_err(TxnError::at("sync the file system of", path))?;
            done.push(device);
        }
    }
    Ok(())
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

/// Removes everything staged: no place is touched. Returns where contents were kept that came out of their place, could
/// not go back into it, and are nowhere else.
pub(super) fn remove_staged<F: Fs>(
    fs: &F,
    packs: &F::Dir,
    journal: &Journal,
    anchors: &Anchors<F>,
) -> Result<Vec<PathBuf>, TxnError> {
    let mut dirs = Dirs::new(fs, anchors);
    let mut kept = Vec::new();
    for step in &journal.steps {
        let shown = anchors.shown(&step.place);
        let Some(dir) = parent(&mut dirs, &step.place, anchors)? else { continue };
        let removed = match &step.action {
            Action::Tree { dirs, files } => remove_tree(fs, &dir, step, dirs, files),
            Action::Create { .. } => found(fs.remove_file(&dir, &step.staged)).map(drop),
            Action::Update { old, .. } | Action::Delete { old } => {
                let aside = keep_aside(fs, packs, &dir, step, *old);
                aside.map(|name| kept.extend(name.map(|name| shown.with_file_name(name))))
            }
        };
        removed.map_err(TxnError::at("remove what was staged for", &shown))?;
    }
    Ok(kept)
}

/// Removes the staged file of an update or deletion. If it is the old content, which somebody kept from going back into
/// its place, and the store does not have it, it gets a name of its own instead; returns that.
fn keep_aside<F: Fs>(
    fs: &F,
    packs: &F::Dir,
    dir: &F::Dir,
    step: &Step,
    old: Entry,
) -> io::Result<Option<String>> {
    let name = step.place.path.name();
    if observe(fs, dir, &step.staged)?.is(Some(old))
        && !is_exactly(fs, dir, name, old)?
        && !Blobs::open(fs, Some(packs.clone()))?.contains(&old.sha256)
    {
        let number = step.staged.trim_start_matches(STAGED_PREFIX);
        let shown = name.get(..name.len().min(200)).unwrap_or("file");
        for name in [name.to_owned(), format!("{shown}.kept-{number}")] {
            match fs.rename(dir, &step.staged, dir, &name, Rename::NoReplace) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done.map(|()| Some(name)),
            }
        }
        // Both names are taken; a stray is better than a loss.
        return Ok(Some(step.staged.clone()));
    }
    found(fs.remove_file(dir, &step.staged)).map(|_| None)
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
            match fs.rename(parent, &step.staged, parent, step.place.path.name(), Rename::NoReplace) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            }
        }
        other => found(other).map(drop),
    }
}

/// Completes every step, then removes what was replaced; says which places were left alone.
///
/// Between the two everything is synced: a power loss must not keep the removal of the old content and forget that
/// the new one took its place.
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
        let left_alone = place(fs, &dir, step).map_err(TxnError::at("complete", &shown))?;
        kept.extend(
            left_alone
                .into_iter()
                .map(|below| below.map_or(shown.clone(), |below| shown.join(below.as_path()))),
        );
    }
    sync_volumes(fs, anchors)?;
    for step in &journal.steps {
        let shown = anchors.shown(&step.place);
        let Some(dir) = parent(&mut dirs, &step.place, anchors)? else { continue };
        remove_leftover(fs, &dir, step).map_err(TxnError::at("remove the old content of", &shown))?;
    }
    remove_empty(fs, anchors, &journal.remove_dirs)?;
    Ok(kept)
}

/// Places left to somebody else: below a step's own, or that.
type LeftAlone = Vec<Option<RelPath>>;

/// Puts what is staged into place, unless somebody else was there.
fn place<F: Fs>(fs: &F, dir: &F::Dir, step: &Step) -> io::Result<LeftAlone> {
    let name = step.place.path.name();
    let done = match &step.action {
        Action::Tree { dirs, files } => return place_tree(fs, dir, step, dirs, files),
        Action::Create { new } => place_new(fs, (dir, &step.staged), (dir, name), *new)?,
        Action::Update { old, new } => place_update(fs, dir, step, *old, *new)?,
        Action::Delete { old } => place_delete(fs, dir, step, *old)?,
    };
    Ok(if done { Vec::new() } else { vec![None] })
}

/// Says whether the place holds what it shall; not if it was left to somebody else.
fn place_new<F: Fs>(
    fs: &F,
    (staged_dir, staged): (&F::Dir, &str),
    (dir, name): (&F::Dir, &str),
    new: Option<Entry>,
) -> io::Result<bool> {
    if fs.stat(staged_dir, staged)?.is_none() {
        return Ok(true);
    }
    match fs.rename(staged_dir, staged, dir, name, Rename::NoReplace) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done.map(|()| true),
    }
    new.map_or(Ok(true), |new| is_exactly(fs, dir, name, new))
}

fn place_update<F: Fs>(fs: &F, dir: &F::Dir, step: &Step, old: Entry, new: Entry) -> io::Result<bool> {
    let name = step.place.path.name();
    let aside = observe(fs, dir, &step.staged)?;
    let here = observe(fs, dir, name)?;
    let swap = || fs.rename(dir, &step.staged, dir, name, Rename::Exchange);
    if aside.is(Some(new)) && here.is(Some(old)) {
        swap()?;
        if is_exactly(fs, dir, &step.staged, old)? {
            return Ok(true);
        }
        // Edited in this very moment.
        swap()?;
        return Ok(false);
    }
    if aside.is(Some(new)) {
        return Ok(here.is(Some(new)));
    }
    if aside == Observed::Absent || aside.is(Some(old)) {
        // It was in place; what is there now came after.
        return Ok(true);
    }
    // An edit came out of the place when the new content went in: it goes back.
    if here.is(Some(new)) {
        swap()?;
    } else if here == Observed::Absent {
        fs.rename(dir, &step.staged, dir, name, Rename::NoReplace)?;
    }
    Ok(false)
}

fn place_delete<F: Fs>(fs: &F, dir: &F::Dir, step: &Step, old: Entry) -> io::Result<bool> {
    let name = step.place.path.name();
    let mut aside = observe(fs, dir, &step.staged)?;
    if aside == Observed::Absent {
        match observe(fs, dir, name)? {
            Observed::Absent => return Ok(true),
            here if here.is(Some(old)) => {
                fs.rename(dir, name, dir, &step.staged, Rename::NoReplace)?;
                aside = observe(fs, dir, &step.staged)?;
            }
            _ => return Ok(false),
        }
    }
    if aside.is(Some(old)) {
        return Ok(true);
    }
    // An edit came out of the place: it goes back, unless something new is there already.
    match fs.rename(dir, &step.staged, dir, name, Rename::NoReplace) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(false),
    }
}

/// Puts a staged tree into place, file by file if something is there by now.
fn place_tree<F: Fs>(
    fs: &F,
    parent: &F::Dir,
    step: &Step,
    dirs: &[RelPath],
    files: &[TreeFile],
) -> io::Result<LeftAlone> {
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
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(vec![None]),
        opened => opened?,
    };
    let below = |top: &F::Dir, path: &RelPath| match path.parent() {
        None => Ok(top.clone()),
        Some(parent) => fs.open_dir(top, &parent),
    };
    for path in dirs {
        let Ok(dir) = below(&to, path) else { continue };
        match fs.create_dir(&dir, path.name(), Mode::Plain) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let mut left_alone = Vec::new();
    for file in files {
        let name = file.path.name();
        let Some(from) = found(below(&from, &file.path))? else { continue };
        let placed = match below(&to, &file.path) {
            Ok(to) => place_new(fs, (&from, name), (&to, name), file.new)?,
            Err(error) if is_elsewhere(&error) => false,
            Err(error) => return Err(error),
        };
        if !placed {
            left_alone.push(Some(file.path.clone()));
        }
    }
    Ok(left_alone)
}

/// Removes what is left under the staged name, if it is one of the two contents the journal names.
fn remove_leftover<F: Fs>(fs: &F, dir: &F::Dir, step: &Step) -> io::Result<()> {
    let known = match &step.action {
        Action::Tree { dirs, files } => return remove_tree(fs, dir, step, dirs, files),
        Action::Create { .. } => return found(fs.remove_file(dir, &step.staged)).map(drop),
        Action::Update { old, new } => [Some(*old), Some(*new)],
        Action::Delete { old } => [Some(*old), None],
    };
    let aside = observe(fs, dir, &step.staged)?;
    if aside.entry().is_some_and(|entry| known.contains(&Some(entry))) {
        fs.remove_file(dir, &step.staged)?;
    }
    Ok(())
}
