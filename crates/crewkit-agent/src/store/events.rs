//! The event log: an index of everything that happens in the home, in one sequence.

use crewkit_core::Timestamp;
use rusqlite::{Connection, params};
use serde::Serialize;

use super::batch::sql;

/// Something that happened, to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// What happened: `run.ended`, `agent.created`, …
    pub kind: &'static str,
    /// The id of what it happened to.
    pub subject: String,
    /// The position in the subject's transcript, or 0 if it has none.
    pub position: u64,
}

/// An entry of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LoggedEvent {
    /// Its place in the sequence of the home; cursors are made of it.
    pub seq: u64,
    /// When it was recorded.
    pub at: Timestamp,
    /// What happened.
    pub kind: String,
    /// The id of what it happened to.
    pub subject: String,
    /// The position in the subject's transcript.
    pub position: u64,
}

/// A part of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct EventPage {
    /// The entries, oldest first.
    pub events: Vec<LoggedEvent>,
    /// The cursor for the next page: the last entry of this one, or the given cursor if there is none.
    pub next: u64,
    /// The newest entry of the log.
    pub last: u64,
}

/// Records events; returns the number of the last one, or `None` without any.
pub(super) fn write(
    connection: &Connection,
    events: &[NewEvent],
    at: Timestamp,
) -> rusqlite::Result<Option<u64>> {
    if events.is_empty() {
        return Ok(None);
    }
    let mut insert = connection
        .prepare_cached("INSERT INTO events (at, kind, subject, position) VALUES (?1, ?2, ?3, ?4)")?;
    for event in events {
        insert.execute(params![sql(at.millis()), event.kind, event.subject, sql(event.position)])?;
    }
    Ok(Some(connection.last_insert_rowid().unsigned_abs()))
}

/// The number of the newest event there ever was.
pub(super) fn last(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .query_row("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'events'", [], |row| {
            row.get::<_, i64>(0)
        })
        .map(i64::unsigned_abs)
}

/// The entries after `after`; `None` if some of them are no longer kept, or none of them ever was.
///
/// The cursor 0 stands for the oldest entry that is kept.
pub(super) fn page(connection: &Connection, after: u64, limit: usize) -> rusqlite::Result<Option<EventPage>> {
    let last = last(connection)?;
    let first: Option<i64> = connection.query_row("SELECT MIN(seq) FROM events", [], |row| row.get(0))?;
    let first = first.map_or(last + 1, i64::unsigned_abs);
    if after > last || (after > 0 && after + 1 < first) {
        return Ok(None);
    }
    let mut select = connection.prepare_cached(
        "SELECT seq, at, kind, subject, position FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?;
    let rows = select.query_map(params![sql(after), i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
        Ok(LoggedEvent {
            seq: row.get::<_, i64>(0)?.unsigned_abs(),
            at: Timestamp::from_millis(row.get::<_, i64>(1)?.unsigned_abs()),
            kind: row.get(2)?,
            subject: row.get(3)?,
            position: row.get::<_, i64>(4)?.unsigned_abs(),
        })
    })?;
    let events: Vec<LoggedEvent> = rows.collect::<Result<_, _>>()?;
    let next = events.last().map_or(after, |event| event.seq);
    Ok(Some(EventPage { events, next, last }))
}

/// Removes the entries recorded before `before`.
pub(super) fn forget(connection: &Connection, before: Timestamp) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM events WHERE at < ?1")?.execute([sql(before.millis())])?;
    Ok(())
}
