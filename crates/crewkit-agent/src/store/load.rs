//! Reading all runs at start.

use std::collections::HashMap;
use std::sync::Arc;

use crewkit_core::Timestamp;
use crewkit_core::run::{Phase, RunId, RunState, RunStatus, StopReason};
use rusqlite::Row;

use super::documents::forget_settings;
use super::memory::CONTRACT_START_CHARS;
use super::schema::Opened;
use super::{FileFault, Memory, PayloadInfo, RunRecord, StoreError};
use crate::event::Usage;
use crate::settings::RecordedSettings;

/// Fills the memory; returns the runs that were not ended when the last process did.
pub(super) fn load(opened: &Opened, memory: &Memory) -> Result<Vec<RunId>, StoreError> {
    let of = |source| StoreError::sqlite(&opened.path, source);
    let mut running = Vec::new();
    let settings = settings_by_id(opened)?;
    let mut select = opened
        .writer
        .prepare(
            "SELECT id, substr(contract, 1, ?1), spec, created_at, idempotency, status, started_at, ended_at, stop_reason,
                 attempt, summary, error, payload_upload, payload_size, payload_gzip, payload_etag,
                 turns, input_tokens, output_tokens, last_seq, phase, queue_order, resumed, restarts, settings,
                 progress
             FROM runs ORDER BY id",
        )
        .map_err(of)?;
    let mut rows = select.query([CONTRACT_START_CHARS]).map_err(of)?;
    while let Some(row) = rows.next().map_err(of)? {
        let record = record_of(row, &settings).map_err(|what| match what {
            Unreadable::Sqlite(source) => of(source),
            Unreadable::Word(id, why) => {
                FileFault::Damaged { path: opened.path.clone(), what: format!("run {id}"), why }.into()
            }
        })?;
        if record.state.status() == RunStatus::Running {
            running.push(record.id.clone());
        }
        memory.load(record);
    }
    // Chunks of uploads that no run names. On a full disk they stay until there is room for the deletion.
    let swept = opened.writer.execute(
        "DELETE FROM payload_chunks WHERE upload NOT IN
             (SELECT payload_upload FROM runs WHERE payload_upload IS NOT NULL)",
        [],
    );
    if let Err(error) = swept {
        tracing::warn!(%error, "chunks of unfinished uploads could not be removed");
    }
    Ok(running)
}

enum Unreadable {
    Sqlite(rusqlite::Error),
    Word(String, String),
}

impl From<rusqlite::Error> for Unreadable {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn record_of(row: &Row<'_>, known: &SettingsById) -> Result<RunRecord, Unreadable> {
    let id_text: String = row.get(0)?;
    let damaged = |what: &str| Unreadable::Word(id_text.clone(), what.to_owned());
    let id: RunId = id_text.parse().map_err(|_| damaged("its id"))?;
    let spec_text: String = row.get(2)?;
    let spec = serde_json::from_str(&spec_text).map_err(|_| damaged("its spec"))?;
    let status: String = row.get(5)?;
    let status = RunStatus::from_word(&status).ok_or_else(|| damaged("its status"))?;
    let (started_at, ended_at) = (time(row, 6)?, time(row, 7)?);
    let ended = || ended_at.ok_or_else(|| damaged("its end has no time"));
    let state = match status {
        RunStatus::Ready => RunState::Ready,
        RunStatus::Running => {
            let started_at = started_at.ok_or_else(|| damaged("its start has no time"))?;
            let phase: Option<String> = row.get(20)?;
            RunState::Running {
                started_at,
                phase: phase_of(phase.as_deref()).ok_or_else(|| damaged("its phase"))?,
            }
        }
        RunStatus::Completed => RunState::Completed { started_at, completed_at: ended()? },
        RunStatus::Stopped => {
            let reason: Option<String> = row.get(8)?;
            let reason = reason.as_deref().and_then(StopReason::from_word);
            RunState::Stopped {
                started_at,
                stopped_at: ended()?,
                reason: reason.ok_or_else(|| damaged("its stop reason"))?,
            }
        }
    };
    let upload: Option<String> = row.get(12)?;
    let payload = match upload {
        None => None,
        Some(upload) => Some(PayloadInfo {
            size: count(row, 13)?,
            gzip_size: count(row, 14)?,
            etag: row.get::<_, String>(15)?.into(),
            upload: upload.into(),
        }),
    };
    let settings: Option<String> = row.get(24)?;
    Ok(RunRecord {
        id,
        contract_start: text(row, 1)?.unwrap_or_default(),
        spec: Arc::new(spec),
        created_at: Timestamp::from_millis(count(row, 3)?),
        idempotency: text(row, 4)?,
        state,
        attempt: row.get(9)?,
        summary: text(row, 10)?,
        error: text(row, 11)?,
        payload,
        turns: count(row, 16)?,
        usage: Usage { input_tokens: count(row, 17)?, output_tokens: count(row, 18)? },
        last_seq: count(row, 19)?,
        queue_order: count(row, 21)?,
        resumed: row.get(22)?,
        restarts: row.get(23)?,
        settings: settings.and_then(|id| known.get(&id).cloned()),
        progress: text(row, 25)?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
    })
}

type SettingsById = HashMap<String, Arc<RecordedSettings>>;

/// Reads the settings of all runs, and removes those that nothing names.
fn settings_by_id(opened: &Opened) -> Result<SettingsById, StoreError> {
    let of = |source| StoreError::sqlite(&opened.path, source);
    if let Err(error) = forget_settings(&opened.writer) {
        tracing::warn!(%error, "settings that nothing names could not be removed");
    }
    let mut select = opened.writer.prepare("SELECT id, body FROM settings").map_err(of)?;
    let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).map_err(of)?;
    let read = |row: rusqlite::Result<(String, String)>| {
        let (id, body) = row.map_err(of)?;
        let damaged = |error: serde_json::Error| FileFault::Damaged {
            path: opened.path.clone(),
            what: format!("settings {id}"),
            why: error.to_string(),
        };
        let settings = RecordedSettings::parse(body).map_err(damaged)?;
        Ok((id, Arc::new(settings)))
    };
    rows.map(read).collect()
}

/// Reads the phase of a running run; 0.1.0 knew only runs at work.
fn phase_of(text: Option<&str>) -> Option<Phase> {
    match text {
        Some("queued") => Some(Phase::Queued),
        None | Some("working") => Some(Phase::Working),
        Some(reason) => serde_json::from_str(reason).ok().map(Phase::Waiting),
    }
}

/// The text of a phase that [`phase_of`] reads.
pub(super) fn phase_text(phase: &Phase) -> Option<String> {
    match phase {
        Phase::Queued | Phase::Working => Some(phase.as_str().to_owned()),
        Phase::Waiting(reason) => serde_json::to_string(reason).ok(),
    }
}

fn text(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Arc<str>>> {
    Ok(row.get::<_, Option<String>>(index)?.map(Into::into))
}

fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(index)?.unsigned_abs())
}

fn time(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(index)?.map(|millis| Timestamp::from_millis(millis.unsigned_abs())))
}
