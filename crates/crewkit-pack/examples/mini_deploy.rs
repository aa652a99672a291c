//! The smallest tool that deploys through this crate: copies source directories into roots, all or nothing.
//!
//! The crash sweep kills it at every system call; it also shows how the pieces are put together.
//!
//! ```text
//! mini_deploy HOME deploy SOURCE ROOT [SOURCE ROOT]…
//! mini_deploy HOME rollback SNAPSHOT
//! mini_deploy HOME recover
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crewkit_pack::entry::{EntryKind, observe};
use crewkit_pack::fs::{FileKind, Fs as _, RealFs};
use crewkit_pack::home::StateHome;
use crewkit_pack::managed::{self, ManagedFile};
use crewkit_pack::path::{RelPath, RootDir};
use crewkit_pack::rollback::RollbackTo;
use crewkit_pack::state_lock::LockRequest;
use crewkit_pack::transaction::{
    Content, FileChange, ManifestChange, NewFile, Request, RootChange, SnapshotKind, TxnError,
};
use jiff::Timestamp;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(answer) => {
            // Whoever reads may have gone; the work is done all the same.
            let _ = writeln!(std::io::stdout(), "{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let code = error.downcast_ref::<TxnError>().map_or("E_UNEXPECTED", |error| error.code().as_str());
            let _ = writeln!(std::io::stderr(), "{code}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<String, Box<dyn Error>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [home, command, rest @ ..] = words.as_slice() else {
        return Err("HOME and a command, please".into());
    };
    let home = StateHome::new(*home);
    let now = Timestamp::now();
    let lock = LockRequest { command: (*command).to_owned(), since: now, wait: Duration::from_secs(5) };
    let locked = home.lock(&lock)?;
    let applied = match (*command, rest) {
        ("recover", []) => return Ok(format!("{} recovered", locked.recovered().len())),
        ("rollback", [to]) => locked.rollback(&RollbackTo::parse(to), now)?.1,
        ("deploy", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            locked.apply(&plan(&home, pairs, now)?)?
        }
        _ => return Err("deploy SOURCE ROOT…, rollback SNAPSHOT, or recover".into()),
    };
    Ok(applied.snapshot_id.unwrap_or_else(|| "no changes".to_owned()))
}

fn plan(home: &StateHome, pairs: &[&str], now: Timestamp) -> Result<Request, Box<dyn Error>> {
    let mut request = Request {
        kind: SnapshotKind::Deploy,
        now,
        targets: vec!["codex".to_owned()],
        project: None,
        lockfile_sha256: None,
        plan_hash: None,
        rolled_back_to: None,
        roots: Vec::new(),
        changes: Vec::new(),
    };
    for (index, pair) in pairs.chunks_exact(2).enumerate() {
        let (source, path) = (Path::new(pair[0]), PathBuf::from(pair[1]));
        let mut wanted = BTreeMap::new();
        collect(home.fs(), source, source, &mut wanted)?;
        let root = RootDir::open(home.fs(), &path)?;
        let old = managed::read(home.fs(), root.as_ref(), "codex")?.manifest;
        let mut places: Vec<RelPath> = wanted.keys().cloned().collect();
        places.extend(old.iter().flat_map(|old| old.files.iter().map(|file| file.path.clone())));
        places.sort();
        places.dedup();
        let mut files = Vec::new();
        for place in places {
            let before = match &root {
                Some(root) => root.observe(&place)?.entry(),
                None => None,
            };
            let after = wanted.remove(&place);
            if let Some(NewFile { entry, .. }) = &after {
                let executable = entry.kind == EntryKind::Executable;
                let module_ids = vec!["skill:example".to_owned()];
                files.push(ManagedFile { path: place.clone(), sha256: entry.sha256, executable, module_ids });
            }
            if before != after.as_ref().map(|new| new.entry) {
                request.changes.push(FileChange { root: index, path: place, before, after });
            }
        }
        let manifest = ManifestChange::Write(files);
        request.roots.push(RootChange { target: "codex".to_owned(), path, manifest });
    }
    Ok(request)
}

fn collect(
    fs: &RealFs,
    top: &Path,
    dir: &Path,
    files: &mut BTreeMap<RelPath, NewFile>,
) -> Result<(), Box<dyn Error>> {
    let handle = fs.open_root(dir)?;
    for name in fs.list(&handle)? {
        let path = dir.join(&name);
        let Some(stat) = fs.stat(&handle, &name)? else { continue };
        if stat.kind == FileKind::Directory {
            collect(fs, top, &path, files)?;
        } else if let Some(entry) = observe(fs, &handle, &name)?.entry() {
            let place = RelPath::from_path(path.strip_prefix(top)?)?;
            files.insert(place, NewFile { entry, size: stat.size, content: Content::File(path) });
        }
    }
    Ok(())
}
