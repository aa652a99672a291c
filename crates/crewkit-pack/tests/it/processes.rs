//! Several processes deploy into one home at once: the tree is always what exactly one of them wanted.
//!
//! Three rounds here; `CREWKIT_DEPLOY_ROUNDS=200` runs more.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crewkit_pack::fs::RealFs;
use crewkit_pack::state_lock::LockRequest;
use crewkit_pack::transaction::TxnError;

use crate::world::{Want, World, at};

const PROCESSES: usize = 8;
const FILES: [&str; 4] = ["AGENTS.md", "skills/a/SKILL.md", "skills/a/run.sh", "skills/b/SKILL.md"];
const CHILD: &str = "processes::deploys_once_as_a_child";

fn world(base: &Path) -> World<RealFs> {
    let roots = [("codex", base.join("one")), ("claude_code", base.join("two"))];
    let roots = roots.each_ref().map(|(target, path)| (*target, path.as_path()));
    World::new(RealFs::default(), base.join("home"), &roots)
}

fn request(command: &str, wait: Duration) -> LockRequest {
    LockRequest { command: command.to_owned(), since: at(1), wait }
}

fn start(base: &Path, generation: &str, patient: bool) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--quiet"])
        .env("CREWKIT_TEST_BASE", base)
        .env("CREWKIT_TEST_GENERATION", generation)
        .env("CREWKIT_TEST_PATIENT", patient.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child said it did; nothing when it was killed before it could.
fn outcome(mut child: Child) -> Option<String> {
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said.lines().find_map(|line| line.split_once("outcome: ")).map(|(_, outcome)| outcome.to_owned())
}

/// The one generation the tree holds; nothing when it is empty.
fn generation(base: &Path) -> Option<String> {
    let texts: Vec<Option<String>> = ["one", "two"]
        .iter()
        .flat_map(|root| FILES.map(|file| std::fs::read_to_string(base.join(root).join(file)).ok()))
        .collect();
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "generations are mixed: {texts:?}");
    texts.into_iter().next().flatten()
}

#[test]
fn deploys_of_several_processes_follow_each_other() {
    let rounds = std::env::var("CREWKIT_DEPLOY_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let temp = tempfile::tempdir().unwrap();
    let base = temp.path();
    let mut before = None;
    for round in 0..rounds {
        let name = |process: usize| format!("round {round} process {process}");
        let mut children: Vec<Child> =
            (0..PROCESSES).map(|process| start(base, &name(process), process % 2 == 0)).collect();
        // Wherever it is by then: waiting, planning, in the middle of its deploy, or done.
        children[round % PROCESSES].kill().unwrap();
        let outcomes: Vec<Option<String>> = children.into_iter().map(outcome).collect();

        let mut applied = Vec::new();
        for (process, outcome) in outcomes.iter().enumerate() {
            match outcome.as_deref() {
                Some("applied") => applied.push(name(process)),
                Some(text) => assert!(text.starts_with("locked by `deploy of round"), "{text}"),
                None => assert_eq!(process, round % PROCESSES, "only the killed one may say nothing"),
            }
        }
        assert!(applied.len() >= PROCESSES / 2 - 1, "who waits gets its turn: {outcomes:?}");
        // All are gone, so the lock is free at once, whoever was killed with it.
        drop(world(base).home.lock(&request("look", Duration::ZERO)).unwrap());
        let now = generation(base);
        let killed = name(round % PROCESSES);
        let submitted = |name: &String| applied.contains(name) || *name == killed;
        assert!(now.as_ref().is_some_and(submitted), "{now:?} of {outcomes:?}");
        assert_ne!(now, before);
        before = now;
    }
}

#[test]
#[ignore = "a child process of the test above"]
fn deploys_once_as_a_child() {
    let var = |name: &str| std::env::var(name).unwrap();
    let (base, generation) = (var("CREWKIT_TEST_BASE"), var("CREWKIT_TEST_GENERATION"));
    let world = world(Path::new(&base));
    let wait = if var("CREWKIT_TEST_PATIENT") == "true" { Duration::from_mins(5) } else { Duration::ZERO };
    let outcome = match world.home.lock(&request(&format!("deploy of {generation}"), wait)) {
        Ok(locked) => {
            let files: Want = FILES.map(|file| (file.to_owned(), generation.clone())).into();
            let applied = world.deploy_locked(&locked, &[files.clone(), files], 1).unwrap();
            assert!(applied.snapshot_id.is_some());
            "applied".to_owned()
        }
        Err(TxnError::Locked { holder, .. }) => format!("locked by {holder}"),
        Err(error) => panic!("{error}"),
    };
    println!("outcome: {outcome}");
}
