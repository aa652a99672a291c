//! What is to be done in a workspace so that it has its kit: decisions only.
//!
//! A workspace on Coder keeps a record of its kit itself, since nothing else lasts as long as it does. The record is
//! among the files of an agent, so it is read with distrust: what does not make sense in it is an error.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::kit::{Drift, KitFile};
use crate::metadata::clean_text;

/// How a file is told from another: by its contents, and whether it can be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    sha256: String,
    executable: bool,
}

impl Mark {
    pub(super) fn of(file: &KitFile) -> Self {
        Self { sha256: sha256(&file.content), executable: file.executable }
    }

    fn parse(sha256: &str, mode: &str) -> Option<Self> {
        let executable = match mode {
            "644" => false,
            "755" => true,
            _ => return None,
        };
        let is_hash = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| Self { sha256: sha256.to_owned(), executable })
    }

    fn words(&self) -> String {
        format!("{} {}", self.sha256, if self.executable { "755" } else { "644" })
    }
}

/// The hash of some bytes, as the scripts write it.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What is at a place in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    Absent,
    File(Mark),
    /// A directory, a link, or something below a link.
    Other,
}

/// What a workspace says about the kit in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Record {
    pub(super) profile: String,
    pub(super) snapshot_id: String,
    pub(super) files: BTreeMap<String, Mark>,
}

/// Longest text of a workspace that is passed on.
const LONGEST_COMPLAINT: usize = 300;

const HEADER: &str = "crewkit-kit 1";

impl Record {
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\nprofile {}\nsnapshot {}\n", self.profile, self.snapshot_id);
        for (path, mark) in &self.files {
            let _ = writeln!(text, "file {} {path}", mark.words());
        }
        text
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut record = Self::default();
        for line in lines {
            let (word, rest) = line.split_once(' ')?;
            match word {
                "profile" => rest.clone_into(&mut record.profile),
                "snapshot" => rest.clone_into(&mut record.snapshot_id),
                "file" => {
                    let mut words = rest.splitn(3, ' ');
                    let mark = Mark::parse(words.next()?, words.next()?)?;
                    let path = words.next().filter(|path| is_place(path))?;
                    record.files.insert(path.to_owned(), mark);
                }
                // What a later version adds is not ours to judge.
                _ => {}
            }
        }
        (!record.profile.is_empty()).then_some(record)
    }
}

/// Whether a path is one that scripts can handle and that stays in the workspace.
pub(super) fn is_place(path: &str) -> bool {
    let is_plain = !path.is_empty() && path.trim() == path && !path.chars().any(char::is_control);
    let mut parts = path.split('/');
    let stays = !matches!(path.split('/').next(), Some(".crewkit" | ".git"));
    is_plain && stays && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// What a look into a workspace found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Sight {
    /// Its record; none when it was never equipped.
    pub(super) record: Option<Record>,
    pub(super) seen: HashMap<String, Seen>,
    /// Whether a deployment was ended before it was carried out.
    pub(super) pending: bool,
    /// Whether a process that deploys is still there.
    pub(super) busy: bool,
    /// Whether there is a deployment to take back.
    pub(super) undo: bool,
    /// Places that a rollback left as they are.
    pub(super) kept: Vec<String>,
    /// What came of a change.
    pub(super) outcome: Option<Outcome>,
}

/// What came of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Somebody changed a file after it was looked at.
    Stale,
    /// There was nothing to take back.
    Nothing,
}

impl Sight {
    /// Reads the lines of a script; an error is what the script or the record says is wrong.
    pub(super) fn parse(lines: &[String]) -> Result<Self, String> {
        let mut sight = Self::default();
        for line in lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "error" => return Err(clean_text(rest, LONGEST_COMPLAINT)),
                "pending" => sight.pending = true,
                "busy" => sight.busy = true,
                "undo" => sight.undo = true,
                "done" => sight.outcome = Some(Outcome::Done),
                "stale" => sight.outcome = Some(Outcome::Stale),
                "nothing" => sight.outcome = Some(Outcome::Nothing),
                "kept" if is_place(rest) => sight.kept.push(rest.to_owned()),
                "manifest" => {
                    let text = super::from_base64(rest).and_then(|bytes| String::from_utf8(bytes).ok());
                    let record = text.as_deref().and_then(Record::parse).ok_or(
                        "its record of the kit (.crewkit/kit/manifest) makes no sense; remove .crewkit and equip it again",
                    )?;
                    sight.record = Some(record);
                }
                "at" => {
                    let mut words = rest.splitn(3, ' ');
                    let (first, mode, path) = (words.next(), words.next(), words.next());
                    let (Some(first), Some(mode), Some(path)) = (first, mode, path) else { continue };
                    let seen = match first {
                        "-" => Seen::Absent,
                        "other" => Seen::Other,
                        hash => Mark::parse(hash, mode).map_or(Seen::Other, Seen::File),
                    };
                    sight.seen.insert(path.to_owned(), seen);
                }
                _ => {}
            }
        }
        Ok(sight)
    }

    /// How the workspace differs from its record.
    pub(super) fn drift(&self) -> Drift {
        let mut drift = Drift::default();
        for (path, mark) in self.record.iter().flat_map(|record| &record.files) {
            match self.seen.get(path) {
                Some(Seen::File(found)) if found == mark => drift.unchanged.push(path.clone()),
                Some(Seen::Absent) => drift.missing.push(path.clone()),
                _ => drift.modified.push(path.clone()),
            }
        }
        drift
    }
}

/// One file that is to change: how it is now, and how it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) path: String,
    pub(super) before: Option<Mark>,
    /// None when it is to go.
    pub(super) after: Option<Mark>,
}

/// What is to be done in a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// The record afterwards.
    pub(super) record: Record,
    /// Files of the kit that somebody changed; they stay.
    pub(super) drifted: Vec<String>,
    /// Places where the workspace has something of its own; it stays.
    pub(super) left_alone: Vec<String>,
}

impl Plan {
    /// Compares what should be with what was and what is. A place that was not looked at counts as somebody's own.
    pub(super) fn make(
        profile: &str,
        snapshot_id: &str,
        wanted: &BTreeMap<String, Mark>,
        sight: &Sight,
    ) -> Self {
        let mut plan = Self::default();
        profile.clone_into(&mut plan.record.profile);
        snapshot_id.clone_into(&mut plan.record.snapshot_id);
        let had = sight.record.as_ref().map(|record| &record.files);
        for (path, after) in wanted {
            let old = had.and_then(|files| files.get(path));
            let before = match (sight.seen.get(path), old) {
                (Some(Seen::File(found)), _) if found == after => {
                    plan.record.files.insert(path.clone(), after.clone());
                    continue;
                }
                (Some(Seen::Absent), _) => None,
                (Some(Seen::File(found)), Some(old)) if found == old => Some(found.clone()),
                (_, Some(old)) => {
                    plan.record.files.insert(path.clone(), old.clone());
                    plan.drifted.push(path.clone());
                    continue;
                }
                (_, None) => {
                    plan.left_alone.push(path.clone());
                    continue;
                }
            };
            plan.record.files.insert(path.clone(), after.clone());
            plan.changes.push(Change { path: path.clone(), before, after: Some(after.clone()) });
        }
        for (path, old) in had.into_iter().flatten().filter(|(path, _)| !wanted.contains_key(*path)) {
            match sight.seen.get(path) {
                Some(Seen::Absent) => {}
                Some(Seen::File(found)) if found == old => {
                    let before = Some(old.clone());
                    plan.changes.push(Change { path: path.clone(), before, after: None });
                }
                // It is no longer of the kit, and it is no longer what the kit had put there: it is theirs now.
                _ => plan.drifted.push(path.clone()),
            }
        }
        plan
    }

    /// Whether the workspace is as it should be, and says so.
    pub(super) fn is_done(&self, sight: &Sight) -> bool {
        self.changes.is_empty()
            && sight.record.as_ref().is_some_and(|record| {
                record.files == self.record.files && record.profile == self.record.profile
            })
    }

    /// The changes as the scripts read them, and the contents they need, in the same order.
    pub(super) fn payload(&self, files: &BTreeMap<&str, &KitFile>) -> Payload {
        let (mut plan, mut contents) = (String::new(), Vec::new());
        let mark = |mark: &Option<Mark>| mark.as_ref().map_or_else(|| "- -".to_owned(), Mark::words);
        for (number, change) in self.changes.iter().enumerate() {
            let content = change.after.as_ref().and_then(|_| files.get(change.path.as_str()));
            let content = content.map_or(&[][..], |file| &file.content);
            let _ = writeln!(
                plan,
                "{} {} {} {} {}",
                number + 1,
                content.len(),
                mark(&change.before),
                mark(&change.after),
                change.path
            );
            contents.extend_from_slice(content);
        }
        let record = self.record.to_text();
        let bytes = [plan.as_bytes(), record.as_bytes(), &contents].concat();
        Payload { plan: plan.len(), record: record.len(), bytes }
    }
}

/// What is sent into a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    /// Length of the plan, which comes first.
    pub(super) plan: usize,
    /// Length of the record, which comes next.
    pub(super) record: usize,
    pub(super) bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(letter: char) -> Mark {
        Mark { sha256: letter.to_string().repeat(64), executable: false }
    }

    fn record(files: &[(&str, char)]) -> Record {
        Record {
            profile: "base".to_owned(),
            snapshot_id: "s1".to_owned(),
            files: files.iter().map(|(path, letter)| ((*path).to_owned(), mark(*letter))).collect(),
        }
    }

    /// One place: what is wanted, recorded and there (`-` nothing, `/` something else), and what comes of it.
    #[test]
    fn every_place_is_decided_by_what_is_wanted_recorded_and_there() {
        let cases = [
            // wanted, recorded, there: change (before, after), recorded afterwards, drifted, left alone
            ("b", "-", "-", "-b", "b", false, false),
            ("b", "-", "b", "", "b", false, false),
            ("b", "-", "x", "", "-", false, true),
            ("b", "-", "/", "", "-", false, true),
            ("b", "a", "a", "ab", "b", false, false),
            ("b", "a", "b", "", "b", false, false),
            ("b", "a", "-", "-b", "b", false, false),
            ("b", "a", "x", "", "a", true, false),
            ("b", "a", "/", "", "a", true, false),
            ("b", "b", "b", "", "b", false, false),
            ("b", "b", "x", "", "b", true, false),
            ("-", "a", "a", "a-", "-", false, false),
            ("-", "a", "-", "", "-", false, false),
            ("-", "a", "x", "", "-", true, false),
            ("-", "a", "/", "", "-", true, false),
        ];
        let one = |word: &str| word.chars().next().filter(|letter| *letter != '-');
        for case in cases {
            let (wanted, recorded, there, change, after, drifted, left_alone) = case;
            let wanted = one(wanted).map(|letter| ("p".to_owned(), mark(letter))).into_iter().collect();
            let files: Vec<_> = one(recorded).map(|letter| ("p", letter)).into_iter().collect();
            let seen = match there {
                "-" => Seen::Absent,
                "/" => Seen::Other,
                word => Seen::File(mark(one(word).unwrap())),
            };
            let sight = Sight {
                record: Some(record(&files)),
                seen: [("p".to_owned(), seen)].into(),
                ..Sight::default()
            };
            let plan = Plan::make("base", "s2", &wanted, &sight);
            let letter = |mark: &Option<Mark>| mark.as_ref().map_or("-", |mark| &mark.sha256[..1]).to_owned();
            let changes: Vec<String> =
                plan.changes.iter().map(|change| letter(&change.before) + &letter(&change.after)).collect();
            assert_eq!(changes.concat(), change, "{case:?}");
            assert_eq!(letter(&plan.record.files.get("p").cloned()), after, "{case:?}");
            assert_eq!(
                (!plan.drifted.is_empty(), !plan.left_alone.is_empty()),
                (drifted, left_alone),
                "{case:?}"
            );
        }
    }

    #[test]
    fn a_record_is_read_back_and_a_strange_one_is_not_believed() {
        let whole = record(&[("AGENTS.md", 'a'), (".claude/skills/a b/SKILL.md", 'b')]);
        assert_eq!(Record::parse(&whole.to_text()), Some(whole.clone()));
        let strange = [
            "",
            "crewkit-kit 2\nprofile x\n",
            "crewkit-kit 1\n",
            "crewkit-kit 1\nprofile x\nfile abc 644 p\n",
            &whole.to_text().replace("AGENTS.md", "../AGENTS.md"),
            &whole.to_text().replace("AGENTS.md", "/etc/passwd"),
            &whole.to_text().replace("AGENTS.md", ".git/config"),
            &whole.to_text().replace(" 644 ", " 777 "),
        ];
        for text in strange {
            assert_eq!(Record::parse(text), None, "{text}");
        }
    }

    #[test]
    fn places_that_scripts_cannot_handle_are_none() {
        for path in ["AGENTS.md", ".claude/commands/it's $HOME.md", "ä/-rf"] {
            assert!(is_place(path), "{path}");
        }
        for path in
            ["", "/x", "a//b", "a/../b", "./a", "a\nb", "a\tb", " a", "a ", ".git/x", ".crewkit/x", "a/"]
        {
            assert!(!is_place(path), "{path}");
        }
    }
}
