//! Whether a store kept its word.
//!
//! Clients note every wish before they send it and every answer they get. After a crash the store is compared with the
//! notes: what was acknowledged is there exactly once, what was not is there once or not at all.

use std::collections::BTreeMap;

/// What a client wished and heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A run was to be created under this key.
    StartSent {
        /// The idempotency key.
        key: String,
    },
    /// It was, with this id.
    StartAcked {
        /// The idempotency key.
        key: String,
        /// The id.
        id: String,
    },
    /// A run was to end this way.
    EndSent {
        /// The run.
        id: String,
        /// `completed` or `stopped`.
        wanted: &'static str,
        /// The summary it would complete with.
        summary: String,
    },
    /// It has ended; this is how.
    EndAcked {
        /// The run.
        id: String,
        /// The state that holds.
        status: String,
        /// When, as the answer said.
        ended_at: String,
    },
}

/// A run as the store has it after the crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: String,
    /// Its idempotency key, found by asking for the key again.
    pub status: String,
    /// When it ended.
    pub ended_at: Option<String>,
    /// What it completed with.
    pub summary: Option<String>,
}

/// Compares notes with what is there; returns every broken promise.
pub fn check(notes: &[Note], found: &[Found]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut by_id: BTreeMap<&str, Vec<&Found>> = BTreeMap::new();
    for run in found {
        by_id.entry(&run.id).or_default().push(run);
    }
    let mut ids_of_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut ends: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for note in notes {
        match note {
            Note::StartAcked { key, id } => {
                let ids = ids_of_key.entry(key).or_default();
                if !ids.contains(&id.as_str()) {
                    ids.push(id);
                }
                match by_id.get(id.as_str()).map_or(0, Vec::len) {
                    1 => {}
                    count => broken.push(format!("run {id} was acknowledged and is there {count} times")),
                }
            }
            Note::EndAcked { id, status, ended_at } => ends.entry(id).or_default().push((status, ended_at)),
            Note::StartSent { .. } | Note::EndSent { .. } => {}
        }
    }
    for (key, ids) in ids_of_key {
        if ids.len() > 1 {
            broken.push(format!("key {key} gave {} runs: {ids:?}", ids.len()));
        }
    }
    for (id, acked) in ends {
        let Some(run) = by_id.get(id).and_then(|runs| runs.first()) else {
            broken.push(format!("run {id} had ended and is gone"));
            continue;
        };
        for (status, ended_at) in acked {
            if run.status != status || run.ended_at.as_deref() != Some(ended_at) {
                broken.push(format!(
                    "run {id} was acknowledged as {status} at {ended_at} and is {} at {:?}",
                    run.status, run.ended_at
                ));
            }
        }
        if run.status == "completed" && !was_offered(notes, id, run.summary.as_deref()) {
            broken.push(format!("run {id} completed with a summary nobody sent: {:?}", run.summary));
        }
    }
    for run in found.iter().filter(|run| run.status == "running") {
        broken.push(format!("run {} is shown as running, but nothing runs it", run.id));
    }
    broken
}

fn was_offered(notes: &[Note], id: &str, summary: Option<&str>) -> bool {
    let Some(found) = summary else { return false };
    // Runs also complete by themselves; those summaries begin with the scripted model's word.
    found.starts_with("scripted")
        || notes.iter().any(|note| {
            matches!(note, Note::EndSent { id: sent, wanted: "completed", summary } if sent == id && summary == found)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, status: &str, ended_at: Option<&str>) -> Found {
        Found {
            id: id.into(),
            status: status.into(),
            ended_at: ended_at.map(Into::into),
            summary: (status == "completed").then(|| "done".to_owned()),
        }
    }

    fn started(key: &str, id: &str) -> Note {
        Note::StartAcked { key: key.into(), id: id.into() }
    }

    fn ended(id: &str, status: &str, at: &str) -> Note {
        Note::EndAcked { id: id.into(), status: status.into(), ended_at: at.into() }
    }

    #[test]
    fn a_store_that_kept_its_word_passes() {
        let sent = Note::EndSent { id: "a".into(), wanted: "completed", summary: "done".into() };
        let notes = [started("k", "a"), started("k", "a"), sent, ended("a", "completed", "t")];
        assert_eq!(
            check(&notes, &[run("a", "completed", Some("t")), run("b", "stopped", Some("t"))]),
            [""; 0]
        );
    }

    #[test]
    fn every_kind_of_broken_promise_is_seen() {
        assert_eq!(check(&[started("k", "a")], &[]).len(), 1, "a lost run");
        assert_eq!(
            check(&[started("k", "a")], &[run("a", "stopped", None), run("a", "stopped", None)]).len(),
            1,
            "twice"
        );
        let both = [run("a", "stopped", None), run("b", "stopped", None)];
        assert_eq!(check(&[started("k", "a"), started("k", "b")], &both).len(), 1, "one key, two runs");
        let stopped = [ended("a", "stopped", "t")];
        assert_eq!(check(&stopped, &[run("a", "stopped", Some("u"))]).len(), 1, "another time");
        assert_eq!(check(&stopped, &[]).len(), 1, "an end that is gone");
        assert_eq!(check(&[], &[run("a", "running", None)]).len(), 1, "a ghost");
        assert_eq!(
            check(&[ended("a", "completed", "t")], &[run("a", "completed", Some("t"))]).len(),
            1,
            "made up"
        );
    }
}
