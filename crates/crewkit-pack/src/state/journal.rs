//! What a transaction is about to do, on disk before the first byte of it is written.
//!
//! A journal names every place it will touch, with the content before and after, so that whatever a killed process
//! left behind is recognised as ours. Its state is the ending of its file name, which a rename changes atomically:
//!
//! | ending     | meaning                                          | recovery                  |
//! |------------|--------------------------------------------------|---------------------------|
//! | `.new`     | being written; nothing else has happened         | removed                   |
//! | `.prepare` | staged files may exist, no place was touched yet | staged files are removed  |
//! | `.commit`  | everything is staged and durable                 | every change is completed |
//!
//! A journal stays until every directory it names was seen and dealt with; until then it is written anew with the steps
//! that are left.
//!
//! The file is lines of JSON: a head, one step per line, and an end with the hash of all before it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fs::entry::{Entry, read_all};
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::place::Place;
use crate::fs::{DirId, Fs, Mode, Rename, found, write_all};

const FORMAT: u32 = 1;
const NEW: &str = ".new";
const PREPARE: &str = ".prepare";
const COMMIT: &str = ".commit";

/// The prefix of everything staged.
pub const STAGED_PREFIX: &str = ".crewkit-";

/// The plan of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Its id, part of every staged name.
    pub id: String,
    /// The command it belongs to.
    pub command: String,
    /// When it began.
    pub started_at: String,
    /// The directories the steps are relative to: absolute, without links.
    pub anchors: Vec<PathBuf>,
    /// Which directories these are; empty in journals that do not say.
    pub anchor_ids: Vec<DirId>,
    /// What it does, in order.
    pub steps: Vec<Step>,
    /// Directories to remove afterwards if they are empty, deepest first.
    pub remove_dirs: Vec<Place>,
}

/// One change: something staged beside its place, and the place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub place: Place,
    /// The name beside it: of the new content until the change, of the old content after it.
    pub staged: String,
    /// What changes.
    pub action: Action,
}

/// What a step changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A directory that does not exist yet appears with everything in it.
    Tree {
        /// The directories in it, parents first.
        dirs: Vec<RelPath>,
        files: Vec<TreeFile>,
    },
    /// A file appears. The hash is missing where it is not known in advance.
    Create {
        /// What appears.
        new: Option<Entry>,
    },
    /// A file is replaced.
    Update {
        old: Entry,
        /// What it becomes.
        new: Entry,
    },
    /// A file disappears.
    Delete { old: Entry },
}

/// A file in a tree that appears as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeFile {
    /// Where, below the tree's directory.
    pub path: RelPath,
    /// What; the hash is missing where it is not known in advance.
    pub new: Option<Entry>,
}

/// How far a transaction got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No place was touched: it is undone.
    Prepare,
    /// It is completed.
    Commit,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    Head {
        crewkit_journal: u32,
        id: Cow<'a, str>,
        command: Cow<'a, str>,
        started_at: Cow<'a, str>,
        anchors: Cow<'a, [PathBuf]>,
        #[serde(default)]
        anchor_ids: Cow<'a, [DirId]>,
    },
    Step(Cow<'a, Step>),
    RemoveDir(Cow<'a, Place>),
    End {
        sha256: Digest,
    },
}

impl Journal {
    /// The name of the `index`-th staged file or directory.
    pub fn staged_name(id: &str, index: usize) -> String {
        format!("{STAGED_PREFIX}{id}-{index}")
    }

    /// The bytes of the file.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut push = |line: &Line<'_>| -> io::Result<()> {
            serde_json::to_writer(&mut bytes, line)?;
            bytes.push(b'\n');
            Ok(())
        };
        push(&Line::Head {
            crewkit_journal: FORMAT,
            id: self.id.as_str().into(),
            command: self.command.as_str().into(),
            started_at: self.started_at.as_str().into(),
            anchors: self.anchors.as_slice().into(),
            anchor_ids: self.anchor_ids.as_slice().into(),
        })?;
        self.steps.iter().try_for_each(|step| push(&Line::Step(Cow::Borrowed(step))))?;
        self.remove_dirs.iter().try_for_each(|place| push(&Line::RemoveDir(Cow::Borrowed(place))))?;
        let sha256 = Digest::of(&bytes);
        serde_json::to_writer(&mut bytes, &Line::End { sha256 })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads the bytes of the file.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let body = bytes.strip_suffix(b"\n").ok_or("it does not end with a line")?;
        let end_at = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let parse = |line: &[u8]| serde_json::from_slice::<Line<'_>>(line).map_err(|error| error.to_string());
        match parse(&body[end_at..])? {
            Line::End { sha256 } if sha256 == Digest::of(&bytes[..end_at]) => {}
            Line::End { .. } => return Err("its checksum does not match".to_owned()),
            _ => return Err("its last line is missing".to_owned()),
        }
        let mut lines = body[..end_at].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut journal = match parse(lines.next().unwrap_or_default())? {
            Line::Head { crewkit_journal: FORMAT, id, command, started_at, anchors, anchor_ids } => {
                let (id, command, started_at) =
                    (id.into_owned(), command.into_owned(), started_at.into_owned());
                let (anchors, anchor_ids) = (anchors.into_owned(), anchor_ids.into_owned());
                let (steps, remove_dirs) = (Vec::new(), Vec::new());
                Self { id, command, started_at, anchors, anchor_ids, steps, remove_dirs }
            }
            Line::Head { crewkit_journal, .. } => {
                return Err(format!("format {crewkit_journal} is not known"));
            }
            _ => return Err("its first line is missing".to_owned()),
        };
        for line in lines {
            match parse(line)? {
                Line::Step(step) => journal.steps.push(step.into_owned()),
                Line::RemoveDir(place) => journal.remove_dirs.push(place.into_owned()),
                Line::Head { .. } | Line::End { .. } => return Err("a line is out of place".to_owned()),
            }
        }
        journal.check()?;
        Ok(journal)
    }

    /// What the rest of the code relies on.
    fn check(&self) -> Result<(), String> {
        if !is_id(&self.id) {
            return Err("its id is not a number".to_owned());
        }
        let places = self.steps.iter().map(|step| &step.place).chain(&self.remove_dirs);
        if places.into_iter().any(|place| place.anchor >= self.anchors.len()) {
            return Err("a step names an anchor that is not listed".to_owned());
        }
        if self.anchors.iter().any(|anchor| !anchor.is_absolute()) {
            return Err("an anchor is not absolute".to_owned());
        }
        if !self.anchor_ids.is_empty() && self.anchor_ids.len() != self.anchors.len() {
            return Err("it does not say of each anchor which directory it is".to_owned());
        }
        let prefix = format!("{STAGED_PREFIX}{}-", self.id);
        // Steps that are done may be missing, so the numbers grow but need not be without gaps.
        let numbers = self.steps.iter().map(|step| step.staged.strip_prefix(&prefix)?.parse::<usize>().ok());
        let mut next = 0;
        for (index, number) in numbers.enumerate() {
            match number {
                Some(number) if number >= next && number < usize::MAX => next = number + 1,
                _ => return Err(format!("step {index} has a staged name that is not its own")),
            }
        }
        Ok(())
    }

    /// The steps at the anchors that `counts`, and nothing else.
    pub(crate) fn only(&self, counts: impl Fn(usize) -> bool) -> Self {
        let steps = self.steps.iter().filter(|step| counts(step.place.anchor)).cloned().collect();
        let remove_dirs = self.remove_dirs.iter().filter(|place| counts(place.anchor)).cloned().collect();
        Self { steps, remove_dirs, ..self.clone() }
    }

    /// The anchors that steps are at.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let places = self.steps.iter().map(|step| &step.place).chain(&self.remove_dirs);
        let used: BTreeSet<usize> = places.map(|place| place.anchor).collect();
        used.into_iter().filter_map(|anchor| self.anchors.get(anchor).cloned()).collect()
    }

    /// Makes the journal durable, in state [`Stage::Prepare`].
    pub fn publish<F: Fs>(&self, fs: &F, dir: &F::Dir) -> io::Result<()> {
        self.write(fs, dir, Stage::Prepare)
    }

    /// Makes the journal durable in the given state, in the place of one that is there.
    pub(crate) fn write<F: Fs>(&self, fs: &F, dir: &F::Dir, stage: Stage) -> io::Result<()> {
        let id = &self.id;
        let ending = match stage {
            Stage::Prepare => PREPARE,
            Stage::Commit => COMMIT,
        };
        let new = format!("{id}{NEW}");
        let mut file = fs.create(dir, &new, Mode::Private)?;
        write_all(fs, &mut file, &self.encode()?)?;
        fs.sync_file(&file)?;
        drop(file);
        fs.rename(dir, &new, dir, &format!("{id}{ending}"), Rename::Replace)?;
        fs.sync_dir(dir)
    }

    /// Declares that everything is staged and durable.
    pub fn commit<F: Fs>(fs: &F, dir: &F::Dir, id: &str) -> io::Result<()> {
        fs.rename(dir, &format!("{id}{PREPARE}"), dir, &format!("{id}{COMMIT}"), Rename::Replace)?;
        fs.sync_dir(dir)
    }

    /// Takes [`commit`](Self::commit) back, after every place was.
    pub fn revert<F: Fs>(fs: &F, dir: &F::Dir, id: &str) -> io::Result<()> {
        found(fs.rename(dir, &format!("{id}{COMMIT}"), dir, &format!("{id}{PREPARE}"), Rename::Replace))?;
        fs.sync_dir(dir)
    }

    /// Ends the transaction.
    pub fn remove<F: Fs>(fs: &F, dir: &F::Dir, id: &str) -> io::Result<()> {
        for ending in [NEW, PREPARE, COMMIT] {
            found(fs.remove_file(dir, &format!("{id}{ending}")))?;
        }
        fs.sync_dir(dir)
    }

    /// The journals in `dir`, oldest first: file name, and its stage if it has one.
    pub fn list<F: Fs>(fs: &F, dir: &F::Dir) -> io::Result<Vec<(String, Option<Stage>)>> {
        let mut journals: Vec<_> = fs
            .list(dir)?
            .into_iter()
            .filter_map(|name| {
                let (id, ending) = name.split_at(name.find('.')?);
                let stage = match ending {
                    PREPARE => Some(Stage::Prepare),
                    COMMIT => Some(Stage::Commit),
                    NEW => None,
                    _ => return None,
                };
                is_id(id).then(|| (name.clone(), stage))
            })
            .collect();
        journals.sort();
        Ok(journals)
    }

    /// Reads the journal called `name`.
    pub fn read<F: Fs>(fs: &F, dir: &F::Dir, name: &str) -> io::Result<Result<Self, String>> {
        Ok(Self::decode(&read_all(fs, dir, name)?))
    }
}

/// Ids are decimal numbers, so that they are safe in file names and sort by age.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}
