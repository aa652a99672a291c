//! Remembers who gave tasks through this server and which were interrupted, which Coder does not record: in the home, one
//! document per workspace. Without it nothing but these two facts is missing.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::intents::{Intents, broken};
use crate::conversation::fingerprint;
use crate::error::FleetError;
use crate::history::Intervention;
use crate::model::TaskSource;
use crate::time::Moment;
use crewkit_agent::DocumentChange;

/// The kind of the documents.
pub(super) const KIND: &str = "coder_tasks";
/// Most notes about one workspace.
const MOST: usize = 100;

/// Something that was done to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Note {
    /// A task was given; times are in milliseconds since 1970.
    Started { at_ms: i64, text: String, source: TaskSource, id: Option<String> },
    /// The running task was interrupted.
    Stopped { at_ms: i64 },
}

impl Note {
    pub(super) fn started(at: Moment, text: &str, source: TaskSource) -> Self {
        Self::Started { at_ms: at.unix_ms(), text: fingerprint(text), source, id: None }
    }

    pub(super) fn stopped(at: Moment) -> Self {
        Self::Stopped { at_ms: at.unix_ms() }
    }

    /// The same task with the id that was told to whoever gave it.
    pub(super) fn with_id(self, told: &str) -> Self {
        match self {
            Self::Started { at_ms, text, source, .. } => {
                Self::Started { at_ms, text, source, id: Some(told.to_owned()) }
            }
            stopped @ Self::Stopped { .. } => stopped,
        }
    }

    fn at_ms(&self) -> i64 {
        match self {
            Self::Started { at_ms, .. } | Self::Stopped { at_ms } => *at_ms,
        }
    }

    fn intervention(self) -> Option<Intervention> {
        let at = |ms| jiff::Timestamp::from_millisecond(ms).ok().map(Moment::new);
        Some(match self {
            Self::Started { at_ms, text, source, id } => {
                Intervention::Started { at: at(at_ms)?, text, source, id }
            }
            Self::Stopped { at_ms } => Intervention::Stopped { at: at(at_ms)? },
        })
    }
}

impl Intents {
    /// What was done to a workspace, oldest first.
    pub(super) async fn done_to(&self, workspace: Uuid) -> Vec<Intervention> {
        // What cannot be read costs labels only.
        let _ = self.documents().await;
        let notes = self.notes().get(&workspace.to_string()).cloned().unwrap_or_default();
        notes.into_iter().filter_map(Note::intervention).collect()
    }

    /// Adds a note; the oldest workspaces are forgotten when there are more than `most` notes.
    pub(super) async fn note(&self, workspace: Uuid, note: Note, most: u64) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.change_notes(workspace, |notes| {
            notes.push(note);
            let extra = notes.len().saturating_sub(MOST);
            notes.drain(..extra);
        })
        .await;
        let oldest = {
            let notes = self.notes();
            let is_full = notes.values().map(Vec::len).sum::<usize>() > most;
            let age = |notes: &Vec<Note>| notes.last().map(Note::at_ms);
            let oldest = notes.iter().min_by_key(|(_, notes)| age(notes)).map(|(id, _)| id.clone());
            oldest.filter(|_| is_full).and_then(|id| id.parse().ok())
        };
        if let Some(oldest) = oldest {
            self.forget(oldest).await;
        }
    }

    /// Takes a note back, or puts another in its place.
    pub(super) async fn correct(&self, workspace: Uuid, note: &Note, by: Option<Note>) {
        self.change_notes(workspace, |notes| {
            if let Some(index) = notes.iter().rposition(|one| one == note) {
                notes.splice(index..=index, by);
            }
        })
        .await;
    }

    /// Forgets what was done to a workspace that is gone.
    pub(super) async fn forget(&self, workspace: Uuid) {
        self.change_notes(workspace, Vec::clear).await;
    }

    async fn change_notes(&self, workspace: Uuid, change: impl FnOnce(&mut Vec<Note>)) {
        let documents = self.documents().await;
        let id = workspace.to_string();
        let body = {
            let mut all = self.notes();
            let notes = all.entry(id.clone()).or_default();
            let before = notes.clone();
            change(notes);
            if *notes == before {
                return;
            }
            let body = serde_json::to_string(notes).map_err(|error| broken(&error));
            if notes.is_empty() {
                all.remove(&id);
                Ok(None)
            } else {
                body.map(Some)
            }
        };
        let written = async {
            let Some(documents) = documents? else { return Ok(()) };
            let change = match body? {
                Some(body) => DocumentChange::Put { kind: KIND, id, body },
                None => DocumentChange::Delete { kind: KIND, id },
            };
            documents.write(vec![change], Vec::new()).await.map_err(|error| broken(&error))
        };
        let written: Result<(), FleetError> = written.await;
        if let Err(error) = written {
            tracing::warn!(%workspace, %error, "who gave a task is not recorded");
        }
    }
}
