//! Bringing over what 0.1.0 kept in files of its own.
//!
//! Each file is backed up, marked so that 0.1.0 refuses it from then on, and imported in one transaction that also notes the
//! import. Whatever is interrupted is redone: the backup until the mark is there, the import until its note is.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::schema::{Opened, connect, version_in_header};
use super::{FileFault, StoreError, StoreLock};

/// The layout 0.1.0 wrote.
const OLD_VERSION: u32 = 1;
/// The layout number that makes 0.1.0 refuse a file.
const MARK: u32 = 2;
/// Where backups go, below the home.
const BACKUP: &str = "backup-0.1.0";

/// A file of 0.1.0.
struct OldFile {
    /// Its path below the home.
    path: &'static str,
    /// Copies everything from the attached database `old`.
    import: &'static str,
}

const FILES: &[OldFile] = &[RUNS, FLEET];

const FLEET: OldFile = OldFile {
    path: "fleet/fleet.db",
    import: "
        INSERT INTO documents (kind, id, body) SELECT 'agent', id, body FROM old.agents;
        INSERT INTO documents (kind, id, body) SELECT 'task', id, body FROM old.tasks;
        INSERT INTO documents (kind, id, body) SELECT 'project', id, body FROM old.projects;
        INSERT INTO documents (kind, id, body)
            SELECT 'fleet', 'fleet', json_quote(value) FROM old.meta WHERE key = 'fleet';
        INSERT INTO documents (kind, id, body)
            SELECT 'trusted', substr(key, 9), 'true' FROM old.meta WHERE key LIKE 'trusted %';
    ",
};

const RUNS: OldFile = OldFile {
    path: "state/agents/agents.db",
    import: "
        INSERT INTO runs (id, contract, spec, created_at, idempotency, status, started_at, ended_at, stop_reason,
            attempt, summary, error, payload_upload, payload_size, payload_gzip, payload_etag, turns,
            input_tokens, output_tokens, last_seq)
        SELECT id, contract, spec, created_at, idempotency, status, started_at, ended_at, stop_reason,
            attempt, summary, error, payload_upload, payload_size, payload_gzip, payload_etag, turns,
            input_tokens, output_tokens, last_seq
        FROM old.runs;
        INSERT INTO transcript (run, seq, at, body) SELECT run, seq, at, body FROM old.events;
        INSERT INTO payload_chunks (upload, n, data) SELECT upload, n, data FROM old.payload_chunks;
        INSERT INTO chats (conversation, seq, at, body) SELECT conversation, seq, at, body FROM old.chats;
    ",
};

/// A step of bringing over one file; tests interrupt after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Backup,
    Mark,
    Import,
}

/// Brings over every file of 0.1.0 below `home` that was not yet.
pub(super) fn bring_over(home: &Path, opened: &Opened) -> Result<(), StoreError> {
    bring_over_with(home, opened, &mut |_| Ok(()))
}

pub(super) fn bring_over_with(
    home: &Path,
    opened: &Opened,
    after: &mut dyn FnMut(Step) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for file in FILES {
        let path = home.join(file.path);
        let found = version_in_header(&path).map_err(|source| FileFault::io(&path, source))?;
        let Some(version) = found else { continue };
        if is_imported(opened, file.path)? {
            continue;
        }
        if version > MARK {
            return Err(FileFault::TooNew { path, found: version, known: OLD_VERSION }.into());
        }
        let lock_path = path.with_extension("lock");
        let _lock = StoreLock::take(&lock_path)
            .map_err(|source| FileFault::io(&lock_path, source))?
            .ok_or_else(|| FileFault::Locked { path: path.clone() })?;
        // What is in the log counts: the header alone may tell an older state.
        let old = connect(&path)?;
        let of = |source| StoreError::sqlite(&path, source);
        let version: u32 = old.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(of)?;
        if version < MARK {
            back_up(home, &old, &path)?;
            after(Step::Backup)?;
            mark(&old).map_err(of)?;
            after(Step::Mark)?;
        }
        drop(old);
        import(opened, &path, file)?;
        tracing::info!(file = file.path, "brought over what version 0.1.0 kept");
        after(Step::Import)?;
    }
    Ok(())
}

fn is_imported(opened: &Opened, name: &str) -> Result<bool, StoreError> {
    let found = opened
        .writer
        .query_row("SELECT 1 FROM documents WHERE kind = 'import' AND id = ?1", [name], |_| Ok(()))
        .optional();
    Ok(found.map_err(|source| StoreError::sqlite(&opened.path, source))?.is_some())
}

/// Writes a complete copy next to others of its kind; one that is there is of an interrupted earlier try.
fn back_up(home: &Path, old: &Connection, path: &Path) -> Result<(), StoreError> {
    let directory = home.join(BACKUP);
    crate::sys::create_private_dir(&directory).map_err(|source| FileFault::io(&directory, source))?;
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    let (target, partial) = (directory.join(&name), directory.join(name.with_extension("partial")));
    let written = (|| {
        if partial.exists() {
            std::fs::remove_file(&partial)?;
        }
        crate::sys::create_private_file(&partial)
    })();
    written.map_err(|source| FileFault::io(&partial, source))?;
    old.execute("VACUUM INTO ?1", params![partial.to_string_lossy()])
        .map_err(|source| StoreError::sqlite(path, source))?;
    let kept = (|| {
        std::fs::File::open(&partial)?.sync_all()?;
        std::fs::rename(&partial, &target)?;
        std::fs::File::open(&directory)?.sync_all()
    })();
    kept.map_err(|source| FileFault::io(&target, source).into())
}

/// Makes 0.1.0 refuse the file. It reads the number from the file itself, so it must not stay in the log.
fn mark(old: &Connection) -> rusqlite::Result<()> {
    old.pragma_update(None, "synchronous", "FULL")?;
    old.pragma_update(None, "user_version", MARK)?;
    old.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))
}

fn import(opened: &Opened, path: &Path, file: &OldFile) -> Result<(), StoreError> {
    let new = &opened.writer;
    let of = |source| StoreError::sqlite(path, source);
    new.execute("ATTACH ?1 AS old", params![path.to_string_lossy()]).map_err(of)?;
    let imported = (|| {
        new.execute_batch("BEGIN IMMEDIATE")?;
        new.execute_batch(file.import)?;
        new.execute("INSERT INTO documents (kind, id, body) VALUES ('import', ?1, '{}')", [file.path])?;
        new.execute_batch("COMMIT")
    })();
    if !new.is_autocommit() {
        let _ = new.execute_batch("ROLLBACK");
    }
    let detached = new.execute_batch("DETACH old");
    imported.and(detached).map_err(of)
}

#[cfg(test)]
mod tests;
