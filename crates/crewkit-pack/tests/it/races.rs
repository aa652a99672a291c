//! Several processes run the real `Pack::deploy` in one home at once: the tree is always what exactly one of them wanted,
//! and the manifests tell the truth.
//!
//! Short here; `CREWKIT_DEPLOY_ROUNDS=200` runs more rounds of eight, `CREWKIT_RACES=all` stops one of two at every call.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crewkit_core::Code;
use crewkit_pack::Env;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Consent, Deploy, Pack};
use rustix::process::{Pid, Signal, kill_process};

const PROCESSES: usize = 8;
const CHILD: &str = "races::deploys_once_as_a_child";

/// Calls that change something, make it durable, or lock.
const CALLS: [&str; 8] =
    ["flock", "mkdirat", "renameat2", "renameat", "unlinkat", "fchmod", "syncfs", "fsync"];

/// A home with one config repo for each generation; all of them want some places alike and one that is their own.
fn scene(base: &Path, generations: usize) {
    fs::create_dir_all(base.join("proj")).unwrap();
    for generation in 0..generations {
        let repo = repo(base, generation);
        let skill = |name: &str| format!("---\nname: {name}\ndescription: d\n---\ngeneration {generation}\n");
        let own = format!("own-{generation}");
        for (path, text) in [
            ("i/AGENTS.md", format!("generation {generation}")),
            ("shared/SKILL.md", skill("shared")),
            ("shared/notes.md", format!("generation {generation}")),
            (&format!("{own}/SKILL.md"), skill(&own)),
        ] {
            let path = repo.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let manifest = format!(
            "version: 1
profiles: {{default: {{include_tags: [base]}}}}
targets:
  codex: {{mode: files, scope: both}}
  claude_code: {{mode: files, scope: both, options: {{write_repo_skills: true, write_user_skills: true}}}}
modules:
  - {{id: 'instructions:i', type: instructions, tags: [base], source: {{local_path: {{path: i}}}}}}
  - {{id: 'skill:shared', type: skill, tags: [base], source: {{local_path: {{path: shared}}}}}}
  - {{id: 'skill:{own}', type: skill, tags: [base], source: {{local_path: {{path: {own}}}}}}}
"
        );
        fs::write(repo.join("agentpack.yaml"), manifest).unwrap();
    }
}

fn repo(base: &Path, generation: usize) -> PathBuf {
    base.join(format!("repo-{generation}"))
}

fn pack(base: &Path, wait: Duration) -> Pack {
    let mut env = Env::at_home(base.join("home"));
    env.cwd = base.join("proj");
    env.limits.pack_lock_wait_seconds = wait.as_secs();
    Pack::new(env)
}

fn select(base: &Path, generation: usize) -> Select {
    Select { repo: Some(repo(base, generation)), ..Select::default() }
}

/// A process that deploys a generation once.
fn child(base: &Path, generation: usize, patient: bool) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"]);
    with_scene(&mut command, base, generation, patient);
    command
}

fn with_scene(command: &mut Command, base: &Path, generation: usize, patient: bool) {
    command
        .env("CREWKIT_TEST_BASE", base)
        .env("CREWKIT_TEST_GENERATION", generation.to_string())
        .env("CREWKIT_TEST_PATIENT", patient.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
}

#[test]
#[ignore = "a child process of the tests here"]
fn deploys_once_as_a_child() {
    let var = |name: &str| std::env::var(name).unwrap();
    let base = PathBuf::from(var("CREWKIT_TEST_BASE"));
    let generation: usize = var("CREWKIT_TEST_GENERATION").parse().unwrap();
    let wait = if var("CREWKIT_TEST_PATIENT") == "true" { Duration::from_mins(5) } else { Duration::ZERO };
    let (pack, select) = (pack(&base, wait), select(&base, generation));
    let adopt = std::env::var("CREWKIT_TEST_ADOPT").is_ok();
    let deploy = Deploy { apply: Some(Consent::Given), adopt, confirm_token: None };
    if std::env::var("CREWKIT_TEST_EQUIP").is_ok() {
        pack.in_workspace(&base.join("proj"), &base.join("state")).equip(&select).unwrap();
        println!("outcome: done");
        return;
    }
    let outcome = match std::env::var("CREWKIT_TEST_ROLLBACK") {
        Ok(to) => pack.rollback(&select, &to, Consent::Given).map(drop),
        Err(_) => pack.deploy(&select, &deploy).map(drop),
    };
    let outcome = match outcome {
        Ok(()) => "done".to_owned(),
        Err(error) => error.code().as_str().to_owned(),
    };
    println!("outcome: {outcome}");
}

/// What a child said it did; `None` when it was killed before it could.
fn outcome(mut child: Child) -> Option<String> {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said.lines().find_map(|line| line.split_once("outcome: ")).map(|(_, outcome)| outcome.to_owned())
}

/// The one generation everything is of, after whatever was cut short was ended. Nothing may be left over.
fn generation(base: &Path, what: &str) -> Option<usize> {
    let pack = pack(base, Duration::from_mins(5));
    let shown = fs::read_to_string(base.join("proj/AGENTS.md")).ok()?;
    let generation: usize = shown.strip_prefix("generation ").unwrap().parse().unwrap();
    let select = select(base, generation);
    let plan = pack.plan(&select).unwrap();
    assert!(plan.data.changes.changes.is_empty(), "{what}: generations are mixed: {plan:?}");
    let status = pack.status(&select, &[]).unwrap();
    assert_eq!(status.data.drift, [], "{what}");
    let listed = listed(base);
    assert_eq!(listed.len(), 2 + 4 * 3, "{what}: {listed:?}");
    for (path, sha256) in listed {
        let bytes =
            fs::read(&path).unwrap_or_else(|error| panic!("{what}: {} is listed: {error}", path.display()));
        assert_eq!(
            crewkit_pack::fs::hash::Digest::of(&bytes).to_string(),
            sha256,
            "{what}: {}",
            path.display()
        );
    }
    Some(generation)
}

/// What the manifests say is there.
fn listed(base: &Path) -> Vec<(PathBuf, String)> {
    let mut listed = Vec::new();
    for root in [
        "proj",
        "proj/.codex/skills",
        "proj/.claude/skills",
        "home/.codex",
        "home/.codex/skills",
        "home/.claude/skills",
    ] {
        for entry in fs::read_dir(base.join(root)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(!name.starts_with(".crewkit-"), "stray {}", path.display());
            if !name.starts_with(".agentpack.manifest") {
                continue;
            }
            let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            for file in manifest["managed_files"].as_array().unwrap() {
                let at = base.join(root).join(file["path"].as_str().unwrap());
                listed.push((at, file["sha256"].as_str().unwrap().to_owned()));
            }
        }
    }
    listed
}

#[test]
fn deploys_of_eight_processes_follow_each_other() {
    let rounds = std::env::var("CREWKIT_DEPLOY_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let temp = tempfile::tempdir().unwrap();
    let base = temp.path();
    scene(base, PROCESSES);
    for round in 0..rounds {
        // The order they start in differs from round to round.
        let order: Vec<usize> = (0..PROCESSES).map(|at| (at * 3 + round * 5) % PROCESSES).collect();
        let mut children: Vec<(usize, Child)> = order
            .iter()
            .map(|process| (*process, child(base, *process, process % 2 == 0).spawn().unwrap()))
            .collect();
        // Wherever it is by then: waiting, planning, in the middle of its deploy, or done.
        let killed = order[round % PROCESSES];
        children[round % PROCESSES].1.kill().unwrap();
        let outcomes: Vec<(usize, Option<String>)> =
            children.drain(..).map(|(process, child)| (process, outcome(child))).collect();
        let done: Vec<usize> = outcomes
            .iter()
            .filter(|(_, outcome)| outcome.as_deref() == Some("done"))
            .map(|(process, _)| *process)
            .collect();
        for (process, outcome) in &outcomes {
            let said = outcome.as_deref();
            let allowed = matches!(said, Some("done" | "E_LOCKED")) || (said.is_none() && *process == killed);
            assert!(allowed, "round {round}: {outcomes:?}");
        }
        assert!(done.len() >= PROCESSES / 2 - 1, "who waits gets its turn: {outcomes:?}");
        // A deploy that changes nothing ends what was cut short.
        let winner: usize = {
            let text = fs::read_to_string(base.join("proj/AGENTS.md")).unwrap();
            text.strip_prefix("generation ").unwrap().parse().unwrap()
        };
        let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
        pack(base, Duration::ZERO).deploy(&select(base, winner), &deploy).unwrap();
        let now = generation(base, &format!("round {round}")).unwrap();
        assert!(done.contains(&now) || now == killed, "round {round}: {now} of {outcomes:?}");
    }
}

/// A process under `strace` that stops itself at one call.
struct Stopped {
    child: Child,
    log: PathBuf,
}

impl Stopped {
    fn start(base: &Path, generation: usize, call: &str, nth: usize) -> Self {
        let log = base.join(format!("strace-{generation}"));
        let _ = fs::remove_file(&log);
        let mut command = Command::new("strace");
        command.args(["-D", "-f", "-qq", "-o"]).arg(&log);
        command.args([
            "-e",
            &format!("trace={call}"),
            "-e",
            &format!("inject={call}:signal=SIGSTOP:when={nth}"),
            "--",
        ]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"]);
        with_scene(&mut command, base, generation, true);
        Self { child: command.spawn().unwrap(), log }
    }

    /// Waits until it has stopped, or has ended without getting there.
    fn wait(&mut self) {
        let began = Instant::now();
        loop {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            if log.contains("stopped by SIGSTOP") || self.child.try_wait().unwrap().is_some() {
                return;
            }
            assert!(began.elapsed() < Duration::from_mins(2), "it neither stopped nor ended: {log}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn go_on(self) -> Option<String> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::CONT);
        outcome(self.child)
    }
}

fn has_strace(what: &str) -> bool {
    let there = Command::new("strace").arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("NOT TRIED: {what}, because there is no `strace` on this machine");
    }
    there
}

/// How often a deploy of generation 1 over generation 0 makes each call.
fn counted(base: &Path) -> Vec<(&'static str, usize)> {
    let log = base.join("strace-count");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&log).args(["-e", &format!("trace={}", CALLS.join(",")), "--"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"]);
    with_scene(&mut command, base, 1, true);
    assert_eq!(outcome(command.spawn().unwrap()).as_deref(), Some("done"));
    let log = fs::read_to_string(log).unwrap();
    let made = |call: &str| log.lines().filter(|line| line.contains(&format!(" {call}("))).count();
    CALLS.into_iter().map(|call| (call, made(call))).collect()
}

/// A home in which generation 0 is deployed.
fn deployed() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    scene(temp.path(), 3);
    assert_eq!(outcome(child(temp.path(), 0, true).spawn().unwrap()).as_deref(), Some("done"));
    temp
}

/// One of two is stopped at a call. Meanwhile the other has planned and waits for the lock, or runs to its end.
#[test]
fn a_deploy_that_is_stopped_anywhere_never_mixes_with_another() {
    if !has_strace("races of two deploys") {
        return;
    }
    let all = std::env::var("CREWKIT_RACES").is_ok_and(|extent| extent == "all");
    let counts = counted(deployed().path());
    assert!(counts.iter().any(|(call, count)| *call == "renameat2" && *count > 10), "{counts:?}");
    let mut runs = 0;
    for (call, count) in counts {
        let step = if all { 1 } else { (count / 3).max(1) };
        for nth in (1..=count).step_by(step) {
            for other_waits in [true, false] {
                let what = format!("stopped at {call} {nth}, the other waits: {other_waits}");
                let temp = deployed();
                let base = temp.path();
                let mut first = Stopped::start(base, 1, call, nth);
                first.wait();
                let (one, other) = if other_waits {
                    let mut second = Stopped::start(base, 2, "flock", 1);
                    second.wait();
                    (first.go_on(), second.go_on())
                } else {
                    let second = child(base, 2, false).spawn().unwrap();
                    let other = outcome(second);
                    (first.go_on(), other)
                };
                assert_eq!(one.as_deref(), Some("done"), "{what}");
                let other = other.unwrap();
                assert!(
                    other == "done" || (!other_waits && other == Code::Locked.as_str()),
                    "{what}: {other}"
                );
                let now = generation(base, &what).unwrap();
                assert!(now == 1 || (now == 2 && other == "done"), "{what}: {now}");
                assert!(!other_waits || now == 2, "{what}: the one that waited came last");
                runs += 1;
            }
        }
    }
    eprintln!("{runs} races of two deploys");
}

/// Everything below the two places a deploy writes to.
fn tree(base: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn collect(dir: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with(".agentpack") {
                collect(&path, all);
            } else if path.is_file() {
                all.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    let mut all = BTreeMap::new();
    collect(&base.join("proj"), &mut all);
    collect(&base.join("home"), &mut all);
    all
}

/// What an adopting deploy or a rollback left half done is ended first; only then is a plain deploy refused, or not.
#[test]
fn a_plain_deploy_first_ends_what_a_killed_one_left() {
    if !has_strace("kills in the middle of an adopting deploy and of a rollback") {
        return;
    }
    let all = std::env::var("CREWKIT_RACES").is_ok_and(|extent| extent == "all");
    let deploy = |adopt| Deploy { apply: Some(Consent::Given), adopt, confirm_token: None };
    for rolls_back in [false, true] {
        let (mut nth, mut ended, mut refused) = (0, 0, 0);
        loop {
            nth += if all { 1 } else { 3 };
            let temp = tempfile::tempdir().unwrap();
            let base = temp.path();
            scene(base, 2);
            let own = [
                "proj/AGENTS.md",
                "home/.codex/skills/shared/SKILL.md",
                "proj/.claude/skills/shared/notes.md",
            ];
            for path in own {
                fs::create_dir_all(base.join(path).parent().unwrap()).unwrap();
                fs::write(base.join(path), "the user's own").unwrap();
            }
            let pack = pack(base, Duration::ZERO);
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2"]);
            command.args(["-e", &format!("inject=renameat2:signal=KILL:when={nth}"), "--"]);
            command.arg(std::env::current_exe().unwrap());
            command
                .args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"])
                .env("CREWKIT_TEST_ADOPT", "1");
            if rolls_back {
                let applied = pack.deploy(&select(base, 1), &deploy(true)).unwrap();
                let id = applied.data.snapshot_id.unwrap();
                command.env("CREWKIT_TEST_ROLLBACK", format!("before:{id}"));
            }
            let before = tree(base);
            with_scene(&mut command, base, 1, true);
            if outcome(command.spawn().unwrap()).is_some() {
                break;
            }
            let what = format!("killed at rename {nth}, a rollback: {rolls_back}");
            match pack.deploy(&select(base, 1), &deploy(false)) {
                Ok(_) => {
                    assert_eq!(generation(base, &what), Some(1), "{what}");
                    ended += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), Code::AdoptConfirmRequired, "{what}: {error}");
                    // Undone as a whole, or rolled back as a whole.
                    let now = tree(base);
                    assert!(own.iter().all(|path| now[&base.join(path)] == b"the user's own"), "{what}");
                    assert!(rolls_back || now == before, "{what}");
                    let strays = now.keys().filter(|path| path.to_string_lossy().contains(".crewkit-"));
                    assert_eq!(strays.count(), 0, "{what}");
                    refused += 1;
                }
            }
        }
        assert!(ended + refused > 3, "rollback: {rolls_back}: {ended} were ended and {refused} refused");
        assert!(rolls_back || ended > 0, "no kill was late enough");
    }
}

/// A deploy that is killed while its project is moved away, deployed elsewhere meanwhile, and brought back, or not.
#[test]
fn a_project_that_is_away_is_reported_and_ended_wherever_it_turns_up() {
    if !has_strace("kills of deploys whose project is moved away") {
        return;
    }
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    let all = std::env::var("CREWKIT_RACES").is_ok_and(|extent| extent == "all");
    for comes_back in [true, false] {
        let (mut nth, mut waited) = (0, 0);
        loop {
            nth += if all { 1 } else { 4 };
            let temp = deployed();
            let base = temp.path();
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2"]);
            command.args(["-e", &format!("inject=renameat2:signal=KILL:when={nth}"), "--"]);
            command.arg(std::env::current_exe().unwrap());
            command.args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"]);
            with_scene(&mut command, base, 1, true);
            if outcome(command.spawn().unwrap()).is_some() {
                break;
            }
            let what = format!("killed at rename {nth}, comes back: {comes_back}");
            let (home, moved) = (base.join("proj"), base.join("moved"));
            fs::rename(&home, &moved).unwrap();

            // Somebody goes on in another project; each command says what is left to do, and where.
            let mut env = Env::at_home(base.join("home"));
            env.cwd = base.join("other");
            fs::create_dir_all(&env.cwd).unwrap();
            let other = Pack::new(env.clone());
            let applied = other.deploy(&select(base, 2), &deploy).unwrap();
            let waits = |warnings: &[String]| {
                let shown = home.display().to_string();
                warnings.iter().any(|warning| warning.contains(&shown) && warning.contains("cannot be ended"))
            };
            if waits(&applied.warnings) {
                waited += 1;
                assert!(waits(&other.status(&select(base, 2), &[]).unwrap().warnings), "{what}");
                assert!(waits(&other.doctor(&select(base, 2), None).unwrap().warnings), "{what}");
                assert!(waits(&other.deploy(&select(base, 2), &deploy).unwrap().warnings), "{what}");
            }
            fs::remove_dir_all(base.join("other")).unwrap();
            env.cwd = if comes_back { home.clone() } else { moved.clone() };
            if comes_back {
                fs::rename(&moved, &home).unwrap();
            }
            Pack::new(env)
                .deploy(&select(base, 1), &deploy)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            if !comes_back {
                fs::rename(&moved, &home).unwrap();
            }
            assert_eq!(generation(base, &what), Some(1), "{what}");
            assert!(tree(base).keys().all(|path| !path.to_string_lossy().contains(".crewkit-")), "{what}");
            let journals = fs::read_dir(base.join("home/.agentpack/state/crewkit/journal")).unwrap();
            assert_eq!(journals.count(), 0, "{what}");
        }
        assert!(waited > 1, "{waited} of the kills left something to do in the project");
    }
}

/// The agent moves a directory of its kit out of the workspace, and links it, before what was cut short is ended.
#[test]
fn what_was_cut_short_in_a_workspace_is_not_ended_outside_of_it() {
    if !has_strace("kills while a workspace is equipped") {
        return;
    }
    let mut refused = 0;
    for nth in (3..).step_by(2) {
        let temp = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(temp.path()).unwrap();
        scene(&base, 2);
        let pack = pack(&base, Duration::ZERO);
        let (workspace, state) = (base.join("proj"), base.join("state"));
        pack.in_workspace(&workspace, &state).equip(&select(&base, 0)).unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2"]);
        command.args(["-e", &format!("inject=renameat2:signal=KILL:when={nth}"), "--"]);
        command.arg(std::env::current_exe().unwrap());
        command
            .args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"])
            .env("CREWKIT_TEST_EQUIP", "1");
        with_scene(&mut command, &base, 1, true);
        if outcome(command.spawn().unwrap()).is_some() {
            break;
        }
        let outside = base.join("outside");
        fs::create_dir(&outside).unwrap();
        for dir in [".codex", ".claude"] {
            fs::rename(workspace.join(dir), outside.join(dir)).unwrap();
            std::os::unix::fs::symlink(outside.join(dir), workspace.join(dir)).unwrap();
        }
        let seen = || {
            let mut all = BTreeMap::new();
            for dir in [".codex/skills", ".claude/skills"] {
                for entry in fs::read_dir(outside.join(dir)).unwrap() {
                    let entry = entry.unwrap();
                    all.insert(entry.path(), entry.metadata().unwrap().modified().unwrap());
                }
            }
            all
        };
        let before = seen();
        let finished = pack.finish_in_workspace(&workspace, &state);
        if let Err(error) = &finished {
            assert_eq!(error.code(), Code::TargetEscape, "killed at {nth}: {error}");
            refused += 1;
        }
        let equipped = pack.in_workspace(&workspace, &state).equip(&select(&base, 1)).unwrap_err();
        assert_eq!(equipped.code(), Code::TargetEscape, "killed at {nth}: {equipped}");
        assert_eq!(seen(), before, "killed at {nth}: something outside was touched: {finished:?}");
    }
    assert!(refused > 1, "{refused} of the kills left something to do");
}
