//! Kills a deploying program, or makes its system calls fail, at every call that changes something.
//!
//! `strace` does it from outside, so nothing in the program can look away. After each run one recovery follows; then
//! the tree must be the old or the new one, byte for byte, with nothing of ours left lying around.

mod scene;
mod subject;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use scene::{Scenario, Scene, Tree};
use subject::{Ending, Injection, Subject};

/// How much is swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// One scenario, for every change: about a minute.
    Fast,
    /// All scenarios, all errors, and kills during recovery.
    Full,
}

/// Calls that change something, or make it durable.
const CHANGING: &[&str] = &[
    "openat",
    "write",
    "pwrite64",
    "mkdirat",
    "renameat",
    "renameat2",
    "linkat",
    "symlinkat",
    "unlinkat",
    "ftruncate",
    "fchmod",
    "fsync",
    "fdatasync",
    "syncfs",
    "flock",
];

/// Errors a disk, a quota, a permission or a busy machine can answer with.
const ERRORS: &[&str] = &["ENOSPC", "EIO", "EDQUOT", "EACCES", "EROFS", "EMFILE"];

const WORKERS: usize = 2;

/// Reads `[--full] [SCENARIO]…`, sweeps and reports; any broken promise is an error that says how to repeat it.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let extent = if words.contains(&"--full") { Extent::Full } else { Extent::Fast };
    let mut scenarios = Vec::new();
    for word in words.iter().filter(|word| **word != "--full") {
        let known = Scenario::ALL.iter().find(|scenario| scenario.name() == *word);
        scenarios.push(*known.with_context(|| format!("there is no scenario `{word}`"))?);
    }
    if scenarios.is_empty() {
        scenarios
            .extend(Scenario::ALL.iter().filter(|scenario| extent == Extent::Full || scenario.is_fast()));
    }
    let subject = Subject::build()?;
    let base = working_directory()?;
    let began = Instant::now();
    let mut total = 0;
    for scenario in scenarios {
        total += sweep(&subject, &base, scenario, extent)?;
    }
    std::fs::remove_dir_all(&base).with_context(|| base.display().to_string())?;
    println!("{total} runs, each ended in the old or the new tree ({:.0?})", began.elapsed());
    Ok(())
}

/// Memory if there is any, so that a sweep measures the program and not the disk.
fn working_directory() -> Result<PathBuf> {
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let base = parent.join(format!("crewkit-crash-sweep-{}", std::process::id()));
    std::fs::create_dir_all(&base).with_context(|| base.display().to_string())?;
    Ok(base)
}

/// What a scenario looks like when nothing goes wrong.
struct Expected {
    old: Tree,
    new: Tree,
    /// How often the command makes each call.
    calls: BTreeMap<&'static str, usize>,
    /// How often a recovery of a committed command makes each call.
    recovery_calls: BTreeMap<&'static str, usize>,
}

fn sweep(subject: &Subject, base: &Path, scenario: Scenario, extent: Extent) -> Result<usize> {
    let scenes: Vec<Scene> = (0..WORKERS)
        .map(|worker| Scene::build(subject, base.join(format!("{}-{worker}", scenario.name())), scenario))
        .collect::<Result<_>>()?;
    let expected: Vec<Expected> = scenes.iter().map(|scene| expect(subject, scene)).collect::<Result<_>>()?;
    let mut jobs = Vec::new();
    for (call, count) in &expected[0].calls {
        for nth in 1..=*count {
            let mut add = |injection| jobs.push(Job { injection, then: None });
            add(Injection::kill(call, nth));
            // Most opens only read; two of the errors, in turn, say enough about each of these.
            let different = match (extent, *call) {
                (Extent::Fast, _) => 1,
                (Extent::Full, "openat") => 2,
                (Extent::Full, _) => ERRORS.len(),
            };
            for error in ERRORS.iter().cycle().skip(nth % ERRORS.len()).take(different) {
                add(Injection::fail(call, nth, error));
            }
            if extent == Extent::Full || nth % 4 == 1 {
                add(Injection::interrupt(call, nth));
                add(Injection::fail_from(call, nth, ERRORS[(nth + 1) % ERRORS.len()]));
            }
        }
    }
    if extent == Extent::Full && scenario == Scenario::Update {
        jobs.extend(double_kills(&expected[0]));
    }
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for (scene, expected) in scenes.iter().zip(&expected) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = check(subject, scene, expected, job)
                        && let Ok(mut failure) = failure.lock()
                    {
                        failure.get_or_insert(error);
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error.context(format!("scenario {}", scenario.name())));
    }
    println!("{}: {} runs", scenario.name(), jobs.len());
    Ok(jobs.len())
}

/// One run: what goes wrong in the command, and then in the recovery.
struct Job {
    injection: Injection,
    then: Option<Injection>,
}

/// Kills around the commit, followed by a kill at every call of the recovery.
fn double_kills(expected: &Expected) -> Vec<Job> {
    let mut jobs = Vec::new();
    for first in ["renameat2", "unlinkat", "fsync", "syncfs"] {
        let count = expected.calls.get(first).copied().unwrap_or(0);
        for nth in (1..=count).step_by((count / 6).max(1)) {
            for (call, count) in &expected.recovery_calls {
                jobs.extend((1..=*count).map(|again| Job {
                    injection: Injection::kill(first, nth),
                    then: Some(Injection::kill(call, again)),
                }));
            }
        }
    }
    jobs
}

fn expect(subject: &Subject, scene: &Scene) -> Result<Expected> {
    scene.reset()?;
    let old = scene.tree()?;
    let calls = subject.count(scene, &scene.command(), CHANGING)?;
    let new = scene.tree()?;
    ensure!(old != new, "the command changes nothing");
    scene.assert_tidy()?;
    // A recovery that has the most to do: everything is committed, nothing is in place.
    scene.reset()?;
    let renames = calls.get("renameat2").copied().unwrap_or(0);
    subject.run(scene, &scene.command(), Some(&Injection::kill("renameat2", renames / 4 + 3)))?;
    let recovery_calls = subject.count(scene, &scene.recovery(), CHANGING)?;
    Ok(Expected { old, new, calls, recovery_calls })
}

fn check(subject: &Subject, scene: &Scene, expected: &Expected, job: &Job) -> Result<()> {
    let attempt = || -> Result<()> {
        scene.reset()?;
        let ending = subject.run(scene, &scene.command(), Some(&job.injection))?;
        if let Ending::Failed { message } = &ending {
            ensure!(!message.contains("panicked"), "it panicked: {message}");
            ensure!(job.injection.silences() || !message.trim().is_empty(), "it failed without a word");
        }
        if job.injection.is_transparent() {
            ensure!(ending == Ending::Done, "an interrupted call was not repeated: {ending:?}");
        }
        if job.injection.is_single_error() {
            // No recovery needed: the command itself has put things right.
            let wanted = if ending == Ending::Done { &expected.new } else { &expected.old };
            scene.assert_tidy()?;
            return scene::compare(&scene.tree()?, wanted).with_context(|| format!("{ending:?}"));
        }
        if let Some(again) = &job.then {
            subject.run(scene, &scene.recovery(), Some(again))?;
        }
        let recovered = subject.run(scene, &scene.recovery(), None)?;
        ensure!(recovered == Ending::Done, "the recovery failed: {recovered:?}");
        scene.assert_tidy()?;
        let tree = scene.tree()?;
        if ending == Ending::Done {
            return scene::compare(&tree, &expected.new).context("it reported success");
        }
        match (scene::compare(&tree, &expected.old), scene::compare(&tree, &expected.new)) {
            (Err(old), Err(new)) => bail!("neither the old tree ({old:#}) nor the new one ({new:#})"),
            _ => Ok(()),
        }
    };
    attempt().with_context(|| match &job.then {
        Some(again) => format!("{} and then {}", job.injection, again),
        None => job.injection.to_string(),
    })
}
