//! Git sources made available: refs to commits with one question per repository, commits to checkouts in the cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crewkit_core::Code;
use serde::{Deserialize, Serialize};

use super::git::{self, Commit};
use super::{process, refused};
use crate::config::lockfile::{ById, FileRecord};
use crate::config::manifest::{Git, Module, SourceRef};
use crate::env::Env;
use crate::error::{PackError, Result};
use crate::fs::atomic;
use crate::fs::hash::Digest;
use crate::fs::path::RelPath;
use crate::fs::{RealFs, ScanFs as _};
use crate::observe::hash_cache::HashCache;
use crate::parallel;
use crate::source::tree::{self, Links, TreeFile};

/// A git module's checkout, and what its content is checked against before use.
#[derive(Debug, Clone)]
pub(crate) struct Checkout {
    /// Where the whole repository is checked out.
    pub path: PathBuf,
    /// What is used: the manifest's source, or the lockfile's where that differs.
    pub source: Git,
    /// The commit that is checked out.
    pub commit: Commit,
    /// What the module's files must hash to.
    pub expected: Expected,
}

/// What the content of a checkout is checked against.
#[derive(Debug, Clone)]
pub(crate) enum Expected {
    /// The module's hash in the lockfile.
    Locked(Digest),
    /// The record made when it was fetched.
    Recorded(BTreeMap<RelPath, Digest>),
}

/// What getting at checkouts needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access<'a> {
    /// The surroundings.
    pub env: &'a Env,
    /// Hashes of files seen before.
    pub cache: &'a HashCache,
    /// Whether commits that are not in the cache may be fetched into it.
    pub may_fetch: bool,
}

/// Makes the checkouts of all git modules in `modules` available, by module id.
///
/// Locked modules get the locked commit, others what their ref names now.
pub(crate) fn prepare(
    access: Access<'_>,
    modules: &[&Module],
    locked: &ById<'_>,
    warnings: &mut Vec<String>,
) -> Result<HashMap<String, Checkout>> {
    let Access { env, .. } = access;
    let mut pinned: Vec<(&Module, Git, Commit, Digest)> = Vec::new();
    let mut moving: Vec<(&Module, &Git)> = Vec::new();
    for module in modules {
        let Some(SourceRef::Git(source)) = module.source.get() else { continue };
        check(&module.id, source)?;
        match locked
            .get(module.id.as_str())
            .and_then(|entry| Some((*entry, entry.resolved_source.git.as_ref()?)))
        {
            Some((entry, git)) => {
                if git.url != source.url || git.subdir != source.subdir {
                    warnings.push(format!(
                        "module {}: the lockfile names another source than agentpack.yaml and wins; run `agentpack lock` to follow agentpack.yaml",
                        module.id
                    ));
                }
                let used = Git { url: git.url.clone(), subdir: git.subdir.clone(), ..source.clone() };
                pinned.push((module, used, git.commit.clone(), entry.sha256));
            }
            None => moving.push((module, source)),
        }
    }
    let commits = resolve(env, &moving.iter().map(|(_, source)| *source).collect::<Vec<_>>())?;
    let commit_of = |source: &Git| commits.get(&(source.url.clone(), source.reference.clone())).cloned();

    let mut wanted: BTreeMap<(String, Commit), Git> = BTreeMap::new();
    for (_, source, commit, _) in &pinned {
        wanted.entry((source.url.clone(), commit.clone())).or_insert_with(|| source.clone());
    }
    let mut recorded = BTreeSet::new();
    for (_, source) in &moving {
        if let Some(commit) = commit_of(source) {
            recorded.insert((source.url.clone(), commit.clone()));
            wanted.entry((source.url.clone(), commit)).or_insert_with(|| (*source).clone());
        }
    }
    let jobs: Vec<_> = wanted.into_iter().collect();
    let done = AtomicUsize::new(0);
    let threads = usize::try_from(env.limits.pack_git_parallel).unwrap_or(1).max(1);
    let outcomes = parallel::map_on(threads, &jobs, |(key, source)| {
        let outcome =
            env.check_cancelled().and_then(|()| ensure(access, source, &key.1, recorded.contains(key)));
        env.progress.at("fetch", done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        outcome
    });
    let mut available = HashMap::new();
    for ((key, _), outcome) in jobs.iter().zip(outcomes) {
        let (path, record, note) = outcome?;
        warnings.extend(note);
        available.insert(key.clone(), (path, record));
    }

    let mut checkouts = HashMap::new();
    for (module, source, commit, sha256) in pinned {
        if let Some((path, _)) = available.get(&(source.url.clone(), commit.clone())) {
            let expected = Expected::Locked(sha256);
            checkouts.insert(module.id.clone(), Checkout { path: path.clone(), source, commit, expected });
        }
    }
    for (module, source) in moving {
        if let Some(commit) = commit_of(source)
            && let Some((path, Some(record))) = available.get(&(source.url.clone(), commit.clone()))
        {
            let (path, expected) = (path.clone(), Expected::Recorded(record.clone()));
            checkouts.insert(module.id.clone(), Checkout { path, source: source.clone(), commit, expected });
        }
    }
    Ok(checkouts)
}

/// Refuses a git source that could do anything but name a place.
pub(crate) fn check(module_id: &str, source: &Git) -> Result<()> {
    git::check_url(&source.url)
        .and_then(|()| git::check_ref(&source.reference))
        .and_then(|()| super::normalized_subdir(&source.subdir).map(drop))
        .map_err(|why| refused(module_id, &why))
}

/// The commits the refs of `sources` name now; one question per repository.
pub(crate) fn resolve(env: &Env, sources: &[&Git]) -> Result<HashMap<(String, String), Commit>> {
    let mut commits = HashMap::new();
    let mut questions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        match source.reference.parse::<Commit>() {
            Ok(commit) => {
                commits.insert((source.url.clone(), source.reference.clone()), commit);
            }
            Err(_) => {
                questions.entry(&source.url).or_default().insert(&source.reference);
            }
        }
    }
    let questions: Vec<_> = questions.into_iter().collect();
    let threads = usize::try_from(env.limits.pack_git_parallel).unwrap_or(1).max(1);
    let answers = parallel::map_on(threads, &questions, |(url, refs)| {
        let mut args = vec!["ls-remote".to_owned(), "--".to_owned(), (*url).to_owned()];
        for name in refs {
            args.extend([
                format!("refs/heads/{name}"),
                format!("refs/tags/{name}"),
                format!("refs/tags/{name}^{{}}"),
            ]);
        }
        process::require(env, &env.cwd, &format!("ask {} for its refs", git::shown_url(url)), &args)
    });
    for ((url, refs), answer) in questions.into_iter().zip(answers) {
        let answer = answer.map_err(|error| error.detail("url", git::shown_url(url)))?;
        let listing = String::from_utf8_lossy(&answer);
        for name in refs {
            let commit = git::pick(&listing, name).ok_or_else(|| {
                let shown = git::shown_url(url);
                PackError::new(Code::SourceMissing, format!("{shown} has no branch or tag `{name}`"))
                    .detail("url", shown)
                    .detail("ref", name)
            })?;
            commits.insert((url.to_owned(), name.to_owned()), commit);
        }
    }
    Ok(commits)
}

/// Where a commit is checked out.
pub(crate) fn checkout_path(env: &Env, url: &str, commit: &Commit) -> PathBuf {
    env.git_cache().join(Digest::of(url.as_bytes()).to_string()).join(commit.as_str())
}

type Record = BTreeMap<RelPath, Digest>;

/// Makes sure a checkout exists. With `needs_record` it must also have the record of its content, and still match it.
fn ensure(
    access: Access<'_>,
    source: &Git,
    commit: &Commit,
    needs_record: bool,
) -> Result<(PathBuf, Option<Record>, Option<String>)> {
    let Access { env, cache, may_fetch } = access;
    let path = checkout_path(env, &source.url, commit);
    let exists = path.is_dir();
    if exists && !needs_record {
        return Ok((path, None, None));
    }
    let mut note = None;
    if exists && let Some(record) = read_record(&path) {
        let actual = list_checkout(env, &path, cache)
            .map(|files| files.into_iter().map(|file| (file.path, file.sha256)).collect::<Record>());
        if actual.is_ok_and(|actual| actual == record) {
            return Ok((path, Some(record), None));
        }
        note = Some(format!("the cached checkout {} had been changed and was fetched anew", path.display()));
    }
    if !may_fetch {
        let shown = git::shown_url(&source.url);
        return Err(PackError::new(
            Code::SourceMissing,
            format!("commit {commit} of {shown} is not in the cache, and a dry run fetches nothing"),
        )
        .detail("url", shown)
        .detail("commit", commit.as_str())
        .hint("run `agentpack fetch` or `agentpack update` first, or repeat without --dry-run"));
    }
    let record = fetch(env, source, commit, cache)?;
    Ok((path, Some(record), note))
}

/// Fetches a commit into the cache, replacing what is there.
pub(crate) fn fetch(env: &Env, source: &Git, commit: &Commit, cache: &HashCache) -> Result<Record> {
    let path = checkout_path(env, &source.url, commit);
    let parent = path.parent().unwrap_or(&path).to_owned();
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| PackError::io("prepare the checkout", &path, error)
    };
    fs::create_dir_all(&parent).map_err(fail(&parent))?;
    let staged = Staged(atomic::staged_name(&path).map_err(fail(&path))?);
    clone(env, source, commit, &staged.0)?;
    let files = list_checkout(env, &staged.0, cache)?;
    let record: Record = files.iter().map(|file| (file.path.clone(), file.sha256)).collect();
    let document = RecordFile { version: 1, files: files.iter().map(FileRecord::from).collect() };
    let bytes = serde_json::to_vec(&document).map_err(|error| PackError::bug(error.to_string()))?;
    if path.exists() {
        let old = Staged(atomic::staged_name(&path).map_err(fail(&path))?);
        fs::rename(&path, &old.0).map_err(fail(&path))?;
    }
    atomic::write(&record_path(&path), &bytes)?;
    match fs::rename(&staged.0, &path) {
        // Another process was faster; the commit is the same.
        Err(_) if path.is_dir() => {}
        renamed => renamed.map_err(fail(&path))?,
    }
    Ok(record)
}

/// A directory that is removed when it is not needed any more.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Puts exactly `commit` into the new directory `into`: alone when that is allowed and enough, else with history.
fn clone(env: &Env, source: &Git, commit: &Commit, into: &Path) -> Result<()> {
    let doing = format!("fetch {} from {}", commit, git::shown_url(&source.url));
    let located =
        |error: PackError| error.detail("url", git::shown_url(&source.url)).detail("commit", commit.as_str());
    fs::create_dir_all(into).map_err(|error| PackError::io("create", into, error))?;
    process::require(env, into, &doing, &["init", "--quiet", "."])?;
    let url = absolute_url(env, &source.url);
    let alone = source.shallow
        && process::run(
            env,
            into,
            &["fetch", "--quiet", "--depth", "1", "--no-tags", "--", url.as_str(), commit.as_str()],
        )?
        .ok;
    if !alone {
        let everything = [
            "fetch",
            "--quiet",
            "--",
            url.as_str(),
            "+refs/heads/*:refs/remotes/origin/*",
            "+refs/tags/*:refs/tags/*",
        ];
        process::require(env, into, &doing, &everything).map_err(located)?;
    }
    process::require(env, into, &doing, &["checkout", "--quiet", "--detach", commit.as_str(), "--"])
        .map_err(located)?;
    Ok(())
}

/// A relative local path means the same from every directory git is run in.
fn absolute_url(env: &Env, url: &str) -> String {
    let is_path = !url.contains("://") && !url.split('/').next().unwrap_or_default().contains(':');
    if is_path { env.cwd.join(url).display().to_string() } else { url.to_owned() }
}

#[derive(Serialize, Deserialize)]
struct RecordFile {
    version: u32,
    files: Vec<FileRecord>,
}

fn record_path(checkout: &Path) -> PathBuf {
    let name = checkout.file_name().unwrap_or_default().to_string_lossy();
    checkout.with_file_name(format!("{name}.files.json"))
}

fn read_record(checkout: &Path) -> Option<Record> {
    let bytes = fs::read(record_path(checkout)).ok()?;
    let document: RecordFile = serde_json::from_slice(&bytes).ok()?;
    (document.version == 1).then(|| document.files.into_iter().map(|file| (file.path, file.sha256)).collect())
}

/// Everything in a checkout. Links that leave it are refused only where a module has them, so here they are skipped.
fn list_checkout(env: &Env, path: &Path, cache: &HashCache) -> Result<Vec<TreeFile>> {
    let opened = RealFs::default().open_any(path).map_err(|error| PackError::io("open", path, error))?;
    tree::list(opened, path, None, Links::Ignore, &env.limits, cache)
}

/// Checks the files of a module against what its checkout must contain.
pub(crate) fn verify(module: &Module, checkout: &Checkout, files: &[TreeFile]) -> Result<()> {
    let mismatch = |what: String| {
        PackError::new(
            Code::SourceMismatch,
            format!("module {}: {what} in {}", module.id, checkout.path.display()),
        )
        .detail("module_id", module.id.as_str())
        .detail("path", checkout.path.display().to_string())
        .detail("commit", checkout.commit.as_str())
    };
    match &checkout.expected {
        Expected::Locked(expected) => {
            let actual = tree::digest_of(files);
            if actual == *expected {
                return Ok(());
            }
            Err(mismatch("the cached content is not what the lockfile records".to_owned())
                .detail("expected_sha256", expected.to_string())
                .detail("actual_sha256", actual.to_string()))
        }
        Expected::Recorded(record) => {
            let subdir = super::normalized_subdir(&checkout.source.subdir).unwrap_or_default();
            for file in files {
                let whole = match &file.place {
                    tree::Place::Disk(path) => path.strip_prefix(&checkout.path).ok().map(Path::to_owned),
                    tree::Place::Memory(_) => None,
                };
                let known = whole
                    .and_then(|path| RelPath::from_path(&path).ok())
                    .is_some_and(|path| record.get(&path) == Some(&file.sha256));
                if !known {
                    return Err(mismatch(format!("`{subdir}/{}` is not what was fetched", file.path)));
                }
            }
            Ok(())
        }
    }
}
