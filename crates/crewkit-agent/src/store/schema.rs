//! The tables of the home's database, and opening the file that holds them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_core::Secret;
use rusqlite::{Connection, OpenFlags};

use super::{FileFault, StoreError, StoreLock};

/// The layout this program writes. 0.1.0 wrote layout 1, in two files.
pub(super) const VERSION: u32 = 2;

/// Layout 2. Transcript entries sit by run and position; payloads come in chunks so that a large one never holds up
/// the writer, and belong to a run only once the run's row names their upload. The event log is an index into what the other
/// tables hold, not a second copy.
const LAYOUT: &str = "
CREATE TABLE runs (
    id             TEXT PRIMARY KEY,
    contract       TEXT NOT NULL,
    spec           TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    idempotency    TEXT UNIQUE,
    status         TEXT NOT NULL,
    phase          TEXT,
    queue_order    INTEGER NOT NULL DEFAULT 0,
    started_at     INTEGER,
    ended_at       INTEGER,
    stop_reason    TEXT,
    attempt        INTEGER NOT NULL,
    resumed        INTEGER NOT NULL DEFAULT 0,
    restarts       INTEGER NOT NULL DEFAULT 0,
    settings       TEXT,
    progress       TEXT,
    summary        TEXT,
    error          TEXT,
    payload_upload TEXT,
    payload_size   INTEGER,
    payload_gzip   INTEGER,
    payload_etag   TEXT,
    turns          INTEGER NOT NULL,
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_settings ON runs (settings);
CREATE TABLE transcript (
    run  TEXT NOT NULL,
    seq  INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE payload_chunks (
    upload TEXT NOT NULL,
    n      INTEGER NOT NULL,
    data   BLOB NOT NULL,
    UNIQUE (upload, n)
);
CREATE TABLE chats (
    conversation TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (conversation, seq)
) WITHOUT ROWID;
CREATE TABLE settings (
    id   TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE documents (
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE events (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    subject  TEXT NOT NULL,
    position INTEGER NOT NULL
);
CREATE INDEX events_by_time ON events (at);
";

/// The open file with the lock that makes it ours.
pub(super) struct Opened {
    pub(super) writer: Connection,
    pub(super) path: PathBuf,
    /// The key of fingerprints, made with the database.
    pub(super) fingerprint_key: Secret,
    pub(super) lock: Arc<StoreLock>,
}

/// Opens or creates the database at `path`, whose home is locked; refuses one that a newer program wrote.
pub(super) fn open(path: &Path, lock: Arc<StoreLock>) -> Result<Opened, StoreError> {
    let at = |source| FileFault::io(path, source);
    if let Some(parent) = path.parent() {
        crate::sys::create_private_dir(parent).map_err(at)?;
    }
    if let Some(found) = version_in_header(path).map_err(at)?
        && found > VERSION
    {
        return Err(FileFault::TooNew { path: path.to_owned(), found, known: VERSION }.into());
    }
    crate::sys::create_private_file(path).map_err(at)?;
    let writer = connect(path)?;
    let of = |source| StoreError::sqlite(path, source);
    writer.pragma_update(None, "journal_mode", "WAL").map_err(of)?;
    // FULL makes every commit wait for the disk: an acknowledged change survives a power cut.
    writer.pragma_update(None, "synchronous", "FULL").map_err(of)?;
    // A thread of its own copies the log back, so that no commit has to do it in passing.
    writer.pragma_update(None, "wal_autocheckpoint", 0).map_err(of)?;
    let found: u32 = writer.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(of)?;
    match found {
        VERSION => add_progress(&writer).map_err(of)?,
        0 => {
            let create = format!("BEGIN IMMEDIATE; {LAYOUT} PRAGMA user_version = {VERSION}; COMMIT;");
            writer.execute_batch(&create).map_err(of)?;
        }
        found => return Err(FileFault::TooNew { path: path.to_owned(), found, known: VERSION }.into()),
    }
    let fingerprint_key = fingerprint_key(&writer).map_err(of)?;
    Ok(Opened { writer, path: path.to_owned(), fingerprint_key, lock })
}

/// Returns the random key of the home, under which secrets have their fingerprints. It is in the database, so that both are
/// there or neither.
fn fingerprint_key(connection: &Connection) -> rusqlite::Result<Secret> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.to_string().into()))?;
    let new: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let insert = "INSERT OR IGNORE INTO documents (kind, id, body) VALUES ('key', 'fingerprints', ?1)";
    connection.execute(insert, [new])?;
    let select = "SELECT body FROM documents WHERE kind = 'key' AND id = 'fingerprints'";
    connection.query_row(select, [], |row| Ok(Secret::new(row.get::<_, String>(0)?)))
}

/// Adds the column that the first homes of this layout did not have.
fn add_progress(writer: &Connection) -> rusqlite::Result<()> {
    let has_it = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('runs') WHERE name = 'progress')";
    if !writer.query_row(has_it, [], |row| row.get(0))? {
        writer.execute_batch("ALTER TABLE runs ADD COLUMN progress TEXT")?;
    }
    Ok(())
}

/// Another connection to the same file: for reading, or for copying the log back.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let of = |source| StoreError::sqlite(path, source);
    let connection = Connection::open_with_flags(path, flags).map_err(of)?;
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(of)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// The layout number in the file's first page, read without touching the file: a newer store is refused before
/// SQLite could create its side files next to it.
pub(super) fn version_in_header(path: &Path) -> std::io::Result<Option<u32>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(other) => return Err(other),
    };
    let mut header = [0_u8; 100];
    match file.read_exact(&mut header) {
        Ok(()) => Ok(Some(u32::from_be_bytes([header[60], header[61], header[62], header[63]]))),
        Err(short) if short.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(other) => Err(other),
    }
}
