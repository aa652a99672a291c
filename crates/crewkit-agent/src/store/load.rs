//! Reading all runs at start, and telling the truth about those that were at work when the last process ended.

use std::sync::Arc;

use crewkit_core::Timestamp;
use crewkit_core::run::{Move, RunId, RunState, RunStatus, StopReason};
use rusqlite::Row;

use super::batch::Batch;
use super::schema::Opened;
use super::{Change, FileFault, Memory, PayloadInfo, RunRecord, StoreError};
use crate::event::Usage;

/// Fills the memory; runs found at work are stopped, with the reason, before anybody can see them.
pub(super) fn load(opened: &Opened, memory: &Memory, now: Timestamp) -> Result<Vec<RunId>, StoreError> {
    let of = |source| StoreError::sqlite(&opened.path, source);
    let mut interrupted = Vec::new();
    {
        let mut select = opened
            .writer
            .prepare(
                "SELECT id, contract, spec, created_at, idempotency, status, started_at, ended_at, stop_reason,
                     attempt, summary, error, payload_upload, payload_size, payload_gzip, payload_etag,
                     turns, input_tokens, output_tokens, last_seq
                 FROM runs ORDER BY id",
            )
            .map_err(of)?;
        let mut rows = select.query([]).map_err(of)?;
        while let Some(row) = rows.next().map_err(of)? {
            let record = record_of(row).map_err(|what| match what {
                Unreadable::Sqlite(source) => of(source),
                Unreadable::Word(id, why) => {
                    FileFault::Damaged { path: opened.path.clone(), what: format!("run {id}"), why }.into()
                }
            })?;
            if record.state.status() == RunStatus::Running {
                interrupted.push(record.id.clone());
            }
            memory.load(record);
        }
    }
    let mut batch = Batch::new(memory, now);
    for id in &interrupted {
        let change = Change {
            error: Some("the server ended while the agent was at work; resume it to go on".to_owned()),
            ..Change::to(id, Move::Stop(StopReason::ServerRestarted))
        };
        batch.change(change)?;
    }
    let written = (|| {
        opened.writer.execute_batch("BEGIN IMMEDIATE")?;
        batch.write(&opened.writer)?;
        // Chunks of uploads that were never acknowledged.
        opened.writer.execute_batch(
            "DELETE FROM payload_chunks WHERE upload NOT IN
                 (SELECT payload_upload FROM runs WHERE payload_upload IS NOT NULL);
             COMMIT;",
        )
    })();
    written.map_err(of)?;
    batch.publish();
    Ok(interrupted)
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

fn record_of(row: &Row<'_>) -> Result<RunRecord, Unreadable> {
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
            RunState::Running { started_at: started_at.ok_or_else(|| damaged("its start has no time"))? }
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
    Ok(RunRecord {
        id,
        contract: text(row, 1)?.unwrap_or_default(),
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
    })
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
