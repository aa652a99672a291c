//! Git sources: resolved once, pinned, verified.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crewkit_core::Code;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Consent, Pack, Update};
use serde_json::json;

use super::place::{Place, SKILL, all, apply, code};

const TARGETS: &str = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: user, options: {write_user_skills: true}}}";

fn module(id: &str, url: &str, more: &str) -> String {
    format!("{{id: \"skill:{id}\", type: skill, tags: [base], source: {{git: {{url: \"{url}\"{more}}}}}}}")
}

/// A git that writes down how it is called.
fn counting(place: &mut Place) -> PathBuf {
    let log = place.path("git.log");
    let script =
        place.write("fake-git", &format!("#!/bin/sh\necho \"$@\" >> '{}'\nexec git \"$@\"\n", log.display()));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    place.env.git = script;
    log
}

fn calls(log: &PathBuf, verb: &str) -> usize {
    let text = fs::read_to_string(log).unwrap_or_default();
    fs::write(log, "").unwrap();
    text.lines().filter(|line| line.contains(verb)).count()
}

/// It used to be once per module, and per target.
#[test]
fn a_repository_is_asked_once_whatever_uses_it() {
    let mut place = Place::new();
    place.git_repo("up", &[("a/SKILL.md", SKILL), ("b/SKILL.md", SKILL)]);
    place.git("up", &["branch", "other"]);
    let url = place.path("up").display().to_string();
    let modules = [
        module("a", &url, ", subdir: a"),
        module("b", &url, ", subdir: b"),
        module("c", &url, ", subdir: a, ref: other"),
    ];
    place.manifest(TARGETS, &modules.each_ref().map(String::as_str));
    let log = counting(&mut place);
    place.pack().plan(&all()).unwrap();
    assert_eq!(calls(&log, "ls-remote"), 1);
    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    assert_eq!(calls(&log, "ls-remote"), 1);
    place.pack().plan(&all()).unwrap();
    assert_eq!(calls(&log, "ls-remote"), 0, "locked modules need no network");
}

#[test]
fn locked_content_stays_until_it_is_locked_anew() {
    let place = Place::new();
    let first = place.git_repo("up", &[("SKILL.md", SKILL)]);
    let url = place.path("up").display().to_string();
    place.manifest(TARGETS, &[&module("a", &url, "")]);
    let update = place.pack().update(&all(), Update::default(), Consent::Given).unwrap();
    assert_eq!(update.data.steps[0].name, "lock");
    let second = place.git_repo("up", &[("SKILL.md", &SKILL.replace("body", "new"))]);
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("home/.codex/skills/a/SKILL.md"), SKILL);
    let lock = fs::read_to_string(place.repo("agentpack.lock.json")).unwrap();
    assert!(lock.contains(&first) && !lock.contains(&second));

    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    assert!(fs::read_to_string(place.repo("agentpack.lock.json")).unwrap().contains(&second));
    apply(&place.pack()).unwrap();
    assert!(place.read("home/.codex/skills/a/SKILL.md").contains("new"));
}

#[test]
fn branches_tags_and_commits_resolve() {
    let place = Place::new();
    let first = place.git_repo("up", &[("SKILL.md", SKILL)]);
    place.git("up", &["tag", "-a", "v1", "-m", "v1"]);
    let second = place.git_repo("up", &[("SKILL.md", &SKILL.replace("body", "two"))]);
    let url = place.path("up").display().to_string();
    for (reference, want) in [("main", &second), ("v1", &first), (first.as_str(), &first)] {
        for shallow in ["true", "false"] {
            let url = if shallow == "true" { format!("file://{url}") } else { url.clone() };
            place
                .manifest(TARGETS, &[&module("a", &url, &format!(", ref: {reference}, shallow: {shallow}"))]);
            place.pack().lock_modules(&all(), Consent::Given).unwrap();
            let lock = fs::read_to_string(place.repo("agentpack.lock.json")).unwrap();
            assert!(lock.contains(&format!("\"commit\": \"{want}\"")), "{reference} {shallow}");
            place.pack().plan(&all()).unwrap();
        }
    }
    fs::remove_file(place.repo("agentpack.lock.json")).unwrap();
    place.manifest(TARGETS, &[&module("a", &url, ", ref: no-such")]);
    assert_eq!(code(place.pack().plan(&all())), Code::SourceMissing);
    place.manifest(TARGETS, &[&module("a", &place.path("nothing").display().to_string(), "")]);
    assert_eq!(code(place.pack().plan(&all())), Code::GitFailed);
}

#[test]
fn a_dry_run_fetches_nothing() {
    let place = Place::new();
    place.git_repo("up", &[("SKILL.md", SKILL)]);
    place.manifest(TARGETS, &[&module("a", &place.path("up").display().to_string(), "")]);
    let select = Select { dry_run: true, ..all() };
    assert_eq!(code(place.pack().plan(&select)), Code::SourceMissing);
    assert!(!place.path("home/.agentpack/cache").exists());
    place.pack().plan(&all()).unwrap();
    place.pack().plan(&select).unwrap();
}

#[test]
fn without_git_local_modules_work_and_git_modules_say_why_not() {
    let mut place = Place::with(
        TARGETS,
        &["{id: \"skill:s\", type: skill, tags: [base], source: {local_path: {path: s}}}"],
    );
    place.source("s/SKILL.md", SKILL);
    place.env.git = PathBuf::from("/nonexistent/git");
    apply(&place.pack()).unwrap();
    place.manifest(TARGETS, &[&module("a", "https://example.invalid/x", "")]);
    assert_eq!(code(place.pack().plan(&all())), Code::GitNotFound);
}

#[test]
fn doctor_names_a_git_that_is_too_old() {
    let mut place = Place::with(TARGETS, &[]);
    for (version, is_old) in [
        ("git version 2.33.8", true),
        ("git version 1.99.0 (vendor build 154)", true),
        ("git version 2.34.0", false),
        ("git version 2.100.1.windows.1", false),
        ("git version 3.0", false),
        ("something else", false),
    ] {
        let script = place.write("old-git", &format!("#!/bin/sh\necho '{version}'\n"));
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        place.env.git = script;
        let answer = place.pack().doctor(&all(), None).unwrap();
        let told: Vec<_> = answer.warnings.iter().filter(|text| text.contains("older than 2.34")).collect();
        assert_eq!(!told.is_empty(), is_old, "{version}: {told:?}");
    }
}

/// Hashes that agentpack 0.9.1 wrote for the same files.
#[test]
fn the_lockfile_is_the_one_earlier_versions_write() {
    let place = Place::with(
        TARGETS,
        &["{id: \"skill:foo\", type: skill, tags: [base], source: {local_path: {path: modules/skills/foo}}}"],
    );
    place.source("modules/skills/foo/SKILL.md", "---\nname: foo\ndescription: d\n---\nhi\n");
    place.source("modules/skills/foo/a/x.txt", "x");
    place.source("modules/skills/foo/a-b/y.txt", "y");
    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    let text = fs::read_to_string(place.repo("agentpack.lock.json")).unwrap();
    let lock: serde_json::Value = serde_json::from_str(&text).unwrap();
    let module = &lock["modules"][0];
    assert_eq!(module["sha256"], SHA256_BY_0_9_1);
    assert_eq!(module["resolved_source"], json!({"local_path": {"path": "modules/skills/foo"}, "git": null}));
    let paths: Vec<_> = module["file_manifest"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["SKILL.md", "a-b/y.txt", "a/x.txt"]);

    let before = place.everything();
    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    assert_eq!(
        before.get("home/.agentpack/repo/agentpack.lock.json"),
        place.everything().get("home/.agentpack/repo/agentpack.lock.json"),
        "a lockfile that says the same is not rewritten"
    );
}

const SHA256_BY_0_9_1: &str = "cf2d9ea916bed0b33a37b037f582705bc07839ccaec1e783d82504379768f4b8";

#[test]
fn the_service_survives_a_repository_that_vanishes() {
    let place = Place::new();
    place.git_repo("up", &[("SKILL.md", SKILL)]);
    place.manifest(TARGETS, &[&module("a", &place.path("up").display().to_string(), "")]);
    let pack: Pack = place.pack();
    pack.lock_modules(&all(), Consent::Given).unwrap();
    fs::remove_dir_all(place.path("up")).unwrap();
    pack.plan(&all()).unwrap();
    assert_eq!(code(pack.lock_modules(&all(), Consent::Given)), Code::GitFailed);
}

/// A program in the place of git.
fn fake_git(place: &mut Place, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = place.write("fake-git", &format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.env.git = path;
}

/// Runs `work`, which must end.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    ended.recv_timeout(std::time::Duration::from_mins(1)).unwrap_or_else(|_| panic!("{what} never ended"))
}

fn git_module(place: &Place) {
    place.manifest(
        "{codex: {mode: files, scope: user}}",
        &["{id: 'skill:a', type: skill, tags: [base], source: {git: {url: 'https://localhost/a.git'}}}"],
    );
}

#[test]
fn what_git_leaves_behind_keeps_nobody_waiting() {
    let mut place = Place::new();
    git_module(&place);
    // A helper such as a connection kept open for later holds the pipes.
    fake_git(&mut place, "sleep 600 & echo $! > \"$0.pid\"; echo told >&2; exit 3");
    let pack = place.pack();
    let error = ends("a git whose helper lives on", move || pack.plan(&all()).unwrap_err());
    assert_eq!(error.code(), Code::GitFailed);
    assert!(error.message().contains("told"), "what git said before it ended is told: {error}");
    let helper: i32 = place.read("fake-git.pid").trim().parse().unwrap();
    let helper = rustix::process::Pid::from_raw(helper).unwrap();
    rustix::process::kill_process(helper, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_git_that_takes_too_long_is_ended_with_all_it_started() {
    let mut place = Place::new();
    git_module(&place);
    place.env.limits.pack_git_seconds = 1;
    fake_git(&mut place, "sleep 600 & echo $! > \"$0.pid\"; wait");
    let pack = place.pack();
    let error = ends("a git that hangs", move || pack.plan(&all()).unwrap_err());
    assert_eq!(error.code(), Code::GitFailed);
    assert!(error.message().contains("pack_git_seconds"), "{error}");
    let helper = place.read("fake-git.pid").trim().to_owned();
    // Gone, or only waiting for somebody to take note of its end; the kernel may take a moment.
    ends("what a git that was ended had started", move || {
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{helper}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().unwrap_or_default();
            if state.is_empty() || state.starts_with(['Z', 'X']) {
                return;
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn update_tells_where_things_are_even_when_there_is_nothing_to_do() {
    let place = Place::with("{codex: {mode: files, scope: user}}", &[]);
    let pack = place.pack();
    for update in [
        Update::default(),
        Update { no_lock: true, no_fetch: true, ..Update::default() },
        Update::default(),
        Update { no_fetch: true, ..Update::default() },
    ] {
        let data = pack.update(&all(), update, Consent::Given).unwrap().json();
        let repo = place.repo("agentpack.lock.json").display().to_string();
        let store = place.path("home/.agentpack/cache").display().to_string();
        assert_eq!(
            (&data["lockfile"], &data["lockfile_posix"]),
            (&repo.as_str().into(), &repo.as_str().into()),
            "{data}"
        );
        assert_eq!(
            (&data["store"], &data["git_modules_fetched"]),
            (&store.as_str().into(), &0.into()),
            "{data}"
        );
    }
}
