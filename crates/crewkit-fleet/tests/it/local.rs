//! The fleet on this machine: the same suite as every backend, and what only a local one can show.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crewkit_agent::driver::{Format, ProcessDriver, Stdin};
use crewkit_agent::engine::{Prune, Start};
use crewkit_agent::{DocumentChange, Engine, Options, Pool, RunSettings, RunSpec};
use crewkit_core::Limits;
use crewkit_fleet::backend::local::git::Git;
use crewkit_fleet::backend::local::role::RoleConfig;
use crewkit_fleet::backend::local::{FleetSettings, Local, LocalOptions, ProjectConfig};
use crewkit_fleet::equip::{Choice, EquipOrder};
use crewkit_fleet::kit::{Drift, Equipped, Kit, KitError, KitFile, KitPlace};
use crewkit_fleet::model::{CreateAgent, ListAgents, LogQuery, TaskStatus, WaitForAgent};
use crewkit_fleet::{ErrorKind, Fleet, FleetOptions};
use crewkit_testkit::bins;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::suite::{self, Ground};
use super::support::{detail, history, named, refused, start};

/// A command line that does what its task says: `slowly` takes for ever, `fail` fails, anything else is done at once and
/// leaves a file.
const FAKE: &str = r#"
    text=$(cat)
    task=$(printf '%s' "$text" | head -n 1)
    case "$task" in
        *slowly*) echo "counting"; while :; do sleep 1; done ;;
        *stubborn*) trap '' TERM; setsid sh -c 'trap "" TERM; while :; do sleep 1; done' & echo "mulish"; while :; do sleep 1; done ;;
        *fail*) echo "no" >&2; exit 3 ;;
        *recall*) printf '%s\n' "$text" ;;
        *) echo "$task" >> done.txt; echo "all done: $task" ;;
    esac
"#;

/// A fleet with a repository and a home, which a test may close and open again.
pub(crate) struct World {
    root: tempfile::TempDir,
    pub(crate) fleet: Fleet<Local>,
    engine: Engine,
    options: LocalOptions,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|options| options.settings.driver = Some("fake".to_owned())).await
    }

    pub(crate) async fn with(adjust: impl FnOnce(&mut LocalOptions)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap();
        let repository = dir.join("Project One");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "-q", "-b", "main"]);
        std::fs::write(repository.join("README.md"), "# One\n").unwrap();
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "-q", "-m", "base"]);
        let path = std::env::var_os("PATH").unwrap();
        let environment = vec![("PATH".into(), path), ("HOME".into(), dir.clone().into_os_string())];
        let command = Git::new("git", environment.clone(), Duration::from_mins(1));
        let mut options = LocalOptions::new(dir.join("home/fleet"), command);
        options.settings.projects = vec![ProjectConfig { path: repository, ..ProjectConfig::default() }];
        let run = Arc::make_mut(&mut options.settings.run);
        run.environment = environment;
        run.drivers.push(ProcessDriver {
            name: "fake".to_owned(),
            command: ["sh", "-c", FAKE].map(Into::into).into(),
            stdin: Stdin::Contract,
            format: Format::Text,
            environment: Vec::new(),
        });
        adjust(&mut options);
        let (fleet, engine) = open(&options, &dir).await;
        Self { root, fleet, engine, options }
    }

    /// Closes the fleet as a server that ends would, and opens it again.
    pub(crate) async fn reopen(self) -> Self {
        let Self { root, fleet, engine, options } = self;
        fleet.backend().shutdown().await;
        drop(fleet);
        engine.shutdown().await;
        engine.closed().await;
        let dir = root.path().canonicalize().unwrap();
        let (fleet, engine) = open(&options, &dir).await;
        Self { root, fleet, engine, options }
    }

    pub(crate) fn settings(&self) -> FleetSettings {
        self.options.settings.clone()
    }

    pub(crate) fn run_settings(&self) -> Arc<RunSettings> {
        Arc::clone(&self.options.settings.run)
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.options.settings.projects[0].path.clone()
    }

    pub(crate) async fn create(&self, name: &str, spec: &str) {
        let new = CreateAgent {
            name: name.to_owned(),
            project: "project one".to_owned(),
            spec: Some(spec.to_owned()),
            ..CreateAgent::default()
        };
        self.fleet.create_agent(new).await.unwrap();
    }

    pub(crate) async fn until(&self, name: &str, status: &str) {
        let wait = WaitForAgent {
            agent_name: name.to_owned(),
            status: Some(status.to_owned()),
            timeout_seconds: Some(120),
        };
        let waited = self.fleet.wait_for_agent(wait).await.unwrap();
        assert!(waited.reached, "{waited:?}");
    }

    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        let workspaces = self.options.home.join("workspaces");
        let entries = std::fs::read_dir(workspaces).unwrap().flatten();
        let mut found = entries.map(|entry| entry.path()).filter(|path| {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            file.strip_prefix(name).is_some_and(|rest| rest.len() == 9)
        });
        found.next().unwrap_or_else(|| panic!("{name} has no workspace"))
    }

    /// Processes that carry the mark of this fleet's tasks.
    pub(crate) fn processes(&self) -> Vec<String> {
        let home = self.options.home.to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if cwd.to_string_lossy().starts_with(&home) && !command.is_empty() {
                found.push(command.replace('\0', " "));
            }
        }
        found
    }

    /// Waits until a process holds the agent's task.
    pub(crate) async fn until_held(&self, name: &str) {
        self.until(name, "busy").await;
        let workspace = self.workspace(name);
        let run = self.engine.records().into_iter().find(|run| run.spec.workdir.as_ref() == Some(&workspace));
        let process = self.process_of(run.unwrap().id.as_str());
        while !process.join("shim.json").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Where server and shim of a run's first attempt meet.
    fn process_of(&self, run: &str) -> PathBuf {
        self.engine.options().processes_of(&run.parse().unwrap()).join("1")
    }

    /// What the agent said of each task, or was told, and how it ended; newest first.
    async fn history(&self, name: &str) -> Vec<(String, TaskStatus)> {
        let tasks = self.fleet.show_agent_task_history(history(name)).await.unwrap().tasks;
        tasks.into_iter().map(|task| (task.message, task.status)).collect()
    }
}

async fn open(options: &LocalOptions, dir: &Path) -> (Fleet<Local>, Engine) {
    let mut engine = Options::new(dir.join("home"));
    engine.limits = Arc::clone(&options.limits);
    engine.helper = vec![bins::example("crewkit-agent", "confined").into()];
    let engine = once_free(|| Engine::open(engine.clone())).await;
    let local = once_free(|| Local::open(options.clone(), engine.clone())).await;
    let limits = options.limits.as_ref().clone();
    (Fleet::new(local, FleetOptions { limits, ..FleetOptions::default() }), engine)
}

/// The writers of the server before close their files in their own time.
async fn once_free<T, E: std::fmt::Display + std::fmt::Debug>(open: impl AsyncFn() -> Result<T, E>) -> T {
    for _ in 0..1000 {
        match open().await {
            Err(error) if error.to_string().contains("in use") => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("the files stay in use");
}

pub(crate) fn git(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Ground for World {
    type Backend = Local;

    fn fleet(&self) -> &Fleet<Local> {
        &self.fleet
    }

    fn project(&self) -> String {
        "Project One".to_owned()
    }

    fn fresh_name(&self, hint: &str) -> String {
        hint.to_owned()
    }

    async fn until_idle(&self, name: &str) {
        self.until(name, "idle").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_every_backend() {
    let world = World::new().await;
    suite::life_of_an_agent(&world).await;
    suite::bad_requests(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_set_up_an_agent_rehearses_and_leaves_history_log_and_metadata() {
    let world = World::with(|_| ()).await;
    world.create("papi", "Describe the project").await;
    world.until("papi", "idle").await;
    let shown = world.fleet.show_agent(named("papi")).await.unwrap().agent;
    let git = shown.git.unwrap();
    assert_eq!((git.branch.as_deref(), git.dirty), (Some("crewkit/papi"), Some(false)));
    assert!(
        shown.metadata.is_empty() && shown.metadata_count == 0,
        "without a Taskfile there is no metadata"
    );
    assert!(world.workspace("papi").join("README.md").exists());
    let tasks = world.history("papi").await;
    assert_eq!((tasks.len(), tasks[0].1), (1, TaskStatus::Completed), "{tasks:?}");
    let log = LogQuery { agent_name: "papi".to_owned(), page: None, page_size: Some(100) };
    let log = world.fleet.show_agent_log(log).await.unwrap().logs;
    assert!(log.len() > 1 && log.last().unwrap().content == "Describe the project", "{log:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_task_knows_of_the_one_before_and_failures_are_told() {
    let world = World::new().await;
    world.create("papi", "first thing").await;
    world.until("papi", "idle").await;
    assert_eq!(std::fs::read_to_string(world.workspace("papi").join("done.txt")).unwrap(), "first thing\n");
    world.fleet.start_agent_task(start("papi", "recall everything")).await.unwrap();
    world.until("papi", "idle").await;
    let recalled = world.history("papi").await.remove(0).0;
    assert!(recalled.contains("first thing (done): "), "{recalled}");
    world.fleet.start_agent_task(start("papi", "fail please")).await.unwrap();
    world.until("papi", "idle").await;
    let shown = world.fleet.show_agent(named("papi")).await.unwrap().agent;
    assert!(shown.needs_attention && !shown.health.healthy, "{:?}", shown.health);
    let failed = world.history("papi").await.remove(0);
    assert_eq!(failed.1, TaskStatus::Failed);
    assert!(failed.0.contains("exit code 3") && failed.0.contains("no"), "{}", failed.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_ends_with_the_time_of_its_role_and_leaves_nothing() {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        let role = RoleConfig { name: "coder".into(), max_seconds: Some(1), ..RoleConfig::default() };
        options.settings.roles = vec![role];
    })
    .await;
    world.create("papi", "slowly count").await;
    world.until("papi", "idle").await;
    assert_eq!(world.history("papi").await[0].1, TaskStatus::Failed);
    let log = LogQuery { agent_name: "papi".to_owned(), page: None, page_size: Some(100) };
    let log = world.fleet.show_agent_log(log).await.unwrap().logs;
    assert!(log.iter().any(|entry| entry.content == "the cap of 1 seconds is reached"), "{log:#?}");
    assert_eq!(world.processes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_keeps_the_work_and_says_where() {
    let world = World::new().await;
    world.create("papi", "something").await;
    world.until("papi", "idle").await;
    let deleted = world.fleet.delete_agent(named("papi")).await.unwrap();
    assert!(deleted.message.contains("on branch crewkit/papi of"), "{}", deleted.message);
    assert_eq!(git(&world.repository(), &["show", "crewkit/papi:done.txt"]), "something");
    refused(ErrorKind::NotFound, world.fleet.show_agent(named("papi")).await);
    world.create("papi", "again").await;
    world.until("papi", "idle").await;
    let branch = world.fleet.show_agent(named("papi")).await.unwrap().agent.git.unwrap().branch;
    assert_eq!(branch.as_deref(), Some("crewkit/papi-2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_agents_outlive_the_server_and_a_stop_leaves_nothing() {
    let world = World::new().await;
    world.create("papi", "work slowly").await;
    world.create("sony", "be stubborn").await;
    world.create("ann", "be quick").await;
    for name in ["papi", "sony"] {
        world.until_held(name).await;
    }
    world.until("ann", "idle").await;
    let world = world.reopen().await;
    let all = world.fleet.list_agents(ListAgents::default()).await.unwrap().agents;
    let statuses: Vec<_> = all.iter().map(|agent| (agent.name.as_str(), agent.status.as_str())).collect();
    assert_eq!(statuses, [("papi", "busy"), ("sony", "busy"), ("ann", "idle")]);
    for name in ["papi", "sony"] {
        let stopped = world.fleet.stop_agent_task(named(name)).await.unwrap();
        assert_eq!((stopped.agent_status.as_str(), stopped.task.status), ("idle", TaskStatus::Stopped));
    }
    assert_eq!(world.processes(), Vec::<String>::new());
    assert_eq!(world.history("papi").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_while_no_server_ran_is_told_when_one_does() {
    let world = World::new().await;
    world.create("papi", "work slowly").await;
    world.until_held("papi").await;
    let run = world.engine.records().remove(0);
    let dir = world.process_of(run.id.as_str());
    let World { root, fleet, engine, options } = world;
    fleet.backend().shutdown().await;
    drop(fleet);
    engine.shutdown().await;
    engine.closed().await;
    // Somebody ends the agent's own process while nobody is there to see it.
    let identity: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("shim.json")).unwrap()).unwrap();
    let child = identity["child"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
    Command::new("kill").args(["-KILL", &child.to_string()]).status().unwrap();
    while !dir.join("exit.json").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let path = root.path().canonicalize().unwrap();
    let (fleet, engine) = open(&options, &path).await;
    let world = World { root, fleet, engine, options };
    world.until("papi", "idle").await;
    let (summary, status) = world.history("papi").await.remove(0);
    assert_eq!(status, TaskStatus::Failed);
    assert!(summary.contains("killed by signal 9"), "{summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runs_of_an_agent_go_with_it_and_no_earlier() {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        options.limits = Arc::new(Limits { fleet_tasks_kept: 2, ..Limits::default() });
    })
    .await;
    let of_fleet = |world: &World| world.engine.records().len();
    world.create("papi", "be quick").await;
    world.create("sony", "be quick").await;
    for task in ["second", "third"] {
        world.until("papi", "idle").await;
        world.fleet.start_agent_task(start("papi", task)).await.unwrap();
    }
    world.until("papi", "idle").await;
    world.until("sony", "idle").await;
    assert_eq!((world.history("papi").await.len(), of_fleet(&world)), (2, 3), "the oldest task is forgotten");
    let everything = Prune { older_than: Duration::ZERO, keep: 0 };
    assert_eq!(world.engine.prune(everything).await.unwrap().len(), 0);
    // A server that ends right after an agent was forgotten leaves its runs to the next one.
    let lost = world.engine.start(Start {
        contract: "x".to_owned(),
        spec: RunSpec { model: Some("rehearsal".to_owned()), pool: Pool::Fleet, ..RunSpec::default() },
        key: Some("task-forgotten".to_owned()),
        settings: None,
    });
    lost.await.unwrap();
    let world = world.reopen().await;
    assert_eq!(of_fleet(&world), 3);
    world.fleet.delete_agent(named("papi")).await.unwrap();
    assert_eq!(of_fleet(&world), 1);
}

/// What a server before tasks were runs has left: a process, and a task that is recorded as at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_was_no_run_is_ended_by_the_upgrade_and_what_it_said_is_kept() {
    let world = World::new().await;
    world.create("papi", "be quick").await;
    world.until("papi", "idle").await;
    let agent = world.fleet.show_agent(named("papi")).await.unwrap().agent.workspace_id;
    let id = format!("task-{agent}");
    let dir = world.options.home.join("tasks").join(&agent).join(&id);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("order.json"), "{}").unwrap();
    std::fs::write(dir.join("stdout"), "counting\nstill counting\n").unwrap();
    let row = serde_json::json!({
        "id": id, "agent": agent, "number": 2, "text": "work slowly", "source": "human", "driver": "fake",
        "state": "starting", "created_ms": 1,
    });
    let change = DocumentChange::Put { kind: "task", id: id.clone(), body: row.to_string() };
    world.engine.documents().write(vec![change], Vec::new()).await.unwrap();
    let mut process = Command::new("sleep").arg("86399").env("CREWKIT_TASK", &id).spawn().unwrap();
    let world = world.reopen().await;
    assert!(!process.wait().unwrap().success(), "its process was killed");
    let told = world.fleet.show_agent_task_history(history("papi")).await.unwrap().tasks.remove(0);
    assert_eq!((told.id, told.status), (id, TaskStatus::Stopped));
    let shown = world.fleet.show_agent(named("papi")).await.unwrap().agent;
    assert!(shown.status.as_str() == "idle" && shown.needs_attention, "{shown:?}");
    let log = LogQuery { agent_name: "papi".to_owned(), page: None, page_size: Some(100) };
    let log = world.fleet.show_agent_log(log).await.unwrap().logs;
    let said: Vec<&str> = log.iter().map(|entry| entry.content.as_str()).collect();
    assert!(said.iter().any(|text| text.contains("still counting")), "{said:?}");
    world.fleet.start_agent_task(start("papi", "be quick")).await.unwrap();
    world.until("papi", "idle").await;
}

/// Git that does not come back from a worktree while `hang` is there, and cannot make or remove one while `busy` has lines
/// left: what a server that was killed leaves behind is a git that still writes.
const SLOW_GIT: &str = r#"#!/bin/sh
    dir=$(dirname "$0")
    case " $* " in *" worktree "*)
        while [ -e "$dir/hang" ]; do touch "$dir/hung"; sleep 0.02; done
        if [ -s "$dir/busy" ]; then sed -i 1d "$dir/busy"; echo "locked" >&2; exit 128; fi ;;
    esac
    exec git "$@"
"#;

#[test]
fn a_workspace_that_was_half_made_is_made_once_the_git_of_the_dead_server_has_ended() {
    let (server, next_server) = (runtime(), runtime());
    let world = server.block_on(async {
        let world = World::with(|options| {
            let script = options.home.join("../slow-git");
            std::fs::create_dir_all(&options.home).unwrap();
            std::fs::write(&script, SLOW_GIT).unwrap();
            std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            options.git = Git::new(script, options.settings.run.environment.clone(), Duration::from_mins(1));
            options.settings.driver = Some("fake".to_owned());
        })
        .await;
        let beside = world.options.home.join("..");
        std::fs::write(beside.join("hang"), "").unwrap();
        let hung = async {
            while !beside.join("hung").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = world.create("papi", "help") => panic!("made although git hangs"),
            () = hung => world,
        }
    });
    // Everything the server was at is dropped where it stands.
    let World { root, fleet, engine, options } = world;
    server.shutdown_background();
    drop((fleet, engine));
    let beside = options.home.join("..");
    std::fs::write(beside.join("busy"), "1\n2\n3\n").unwrap();
    std::fs::remove_file(beside.join("hang")).unwrap();

    next_server.block_on(async {
        let (fleet, engine) = open(&options, &root.path().canonicalize().unwrap()).await;
        let world = World { root, fleet, engine, options };
        world.until("papi", "idle").await;
        assert_eq!(std::fs::read_to_string(beside.join("busy")).unwrap(), "");
        assert_eq!(world.history("papi").await, [("all done: help".to_owned(), TaskStatus::Completed)]);
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_beyond_the_limit_wait_and_get_their_turn() {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        options.limits = Arc::new(Limits { fleet_tasks_active: 1, ..Limits::default() });
    })
    .await;
    world.create("first", "work slowly").await;
    world.until("first", "busy").await;
    world.create("second", "be quick").await;
    let waiting = world.fleet.show_agent(named("second")).await.unwrap().agent;
    assert_eq!(waiting.status.as_str(), "busy");
    assert_eq!(world.history("second").await[0].1, TaskStatus::Pending);
    world.fleet.stop_agent_task(named("first")).await.unwrap();
    world.until("second", "idle").await;
    assert_eq!(world.history("second").await[0].1, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_used_up_its_tokens_gets_no_more_tasks() {
    let world = World::with(|options| {
        options.limits = Arc::new(Limits { fleet_agent_tokens: 1, ..Limits::default() });
    })
    .await;
    world.create("papi", "Describe the project").await;
    world.until("papi", "idle").await;
    let error = refused(ErrorKind::BadRequest, world.fleet.start_agent_task(start("papi", "more")).await);
    assert_eq!(detail(&error, "reason"), "budget");
}

/// A kit that writes one file, remembers what it was asked, and fails where it is told to.
#[derive(Debug, Default)]
pub(crate) struct OneFile {
    content: Mutex<String>,
    fails_in: Mutex<Option<String>>,
    /// The snapshot of a deployment that is to be completed.
    cut_short: Mutex<Option<String>>,
}

impl Kit for OneFile {
    fn default_profile(&self) -> Option<String> {
        Some("base".to_owned())
    }

    fn equip(&self, place: KitPlace) -> BoxFuture<'_, Result<Equipped, KitError>> {
        async move {
            let fails = self.fails_in.lock().unwrap().clone();
            if fails.is_some_and(|name| place.workspace.to_string_lossy().contains(&name)) {
                return Err(KitError { code: "E_TEST".to_owned(), message: "told to fail".to_owned() });
            }
            let content = self.content.lock().unwrap().clone();
            let file = place.workspace.join("AGENTS.md");
            let changed = std::fs::read_to_string(&file).unwrap_or_default() != content;
            std::fs::write(file, &content).unwrap();
            let snapshot_id = changed.then(|| format!("snapshot of {}", place.profile));
            Ok(Equipped { snapshot_id, changed: usize::from(changed), ..Equipped::default() })
        }
        .boxed()
    }

    fn finish(&self, _: KitPlace) -> BoxFuture<'_, Result<Option<String>, KitError>> {
        async { Ok(self.cut_short.lock().unwrap().take()) }.boxed()
    }

    fn rollback(&self, place: KitPlace, _: String) -> BoxFuture<'_, Result<Equipped, KitError>> {
        async move {
            std::fs::remove_file(place.workspace.join("AGENTS.md")).unwrap();
            Ok(Equipped { snapshot_id: Some("taken back".to_owned()), changed: 1, ..Equipped::default() })
        }
        .boxed()
    }

    fn contents(&self, _: String) -> BoxFuture<'_, Result<Vec<KitFile>, KitError>> {
        let content = self.content.lock().unwrap().clone().into_bytes();
        async { Ok(vec![KitFile { path: "AGENTS.md".to_owned(), executable: false, content }]) }.boxed()
    }

    fn drift(&self, place: KitPlace) -> BoxFuture<'_, Result<Drift, KitError>> {
        async move {
            let here = std::fs::read_to_string(place.workspace.join("AGENTS.md")).unwrap_or_default();
            let same = here == *self.content.lock().unwrap();
            let file = vec!["AGENTS.md".to_owned()];
            Ok(if same {
                Drift { unchanged: file, ..Drift::default() }
            } else {
                Drift { modified: file, ..Drift::default() }
            })
        }
        .boxed()
    }
}

async fn equipped_world() -> (World, Arc<OneFile>) {
    let kit = Arc::new(OneFile::default());
    "one".clone_into(&mut kit.content.lock().unwrap());
    let passed: Arc<dyn Kit> = Arc::clone(&kit) as Arc<dyn Kit>;
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        options.settings.kit = Some(passed);
        options.settings.roles = vec![RoleConfig {
            name: "tester".into(),
            profile: Some("tests".into()),
            ..RoleConfig::default()
        }];
    })
    .await;
    (world, kit)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_come_equipped_and_the_kit_is_no_work() {
    let (world, _kit) = equipped_world().await;
    let new = CreateAgent {
        name: "papi".to_owned(),
        project: "Project One".to_owned(),
        spec: Some("fail at once".to_owned()),
        role: Some("Tester".to_owned()),
        ..CreateAgent::default()
    };
    let created = world.fleet.create_agent(new).await.unwrap().agent;
    assert_eq!(created.kit.unwrap().profile.as_deref(), Some("tests"));
    world.until("papi", "idle").await;
    let kit = world.fleet.show_agent(named("papi")).await.unwrap().agent.kit.unwrap();
    assert_eq!((kit.snapshot_id.as_deref(), kit.drift_count), (Some("snapshot of tests"), Some(0)));
    let deleted = world.fleet.delete_agent(named("papi")).await.unwrap();
    assert!(deleted.message.ends_with("it left no changes"), "{}", deleted.message);
    assert_eq!(git(&world.repository(), &["branch", "--list", "crewkit/*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kit_that_was_cut_short_is_finished_when_the_next_server_opens() {
    let (world, kit) = equipped_world().await;
    world.create("papi", "help").await;
    world.until("papi", "idle").await;
    *kit.cut_short.lock().unwrap() = Some("the next snapshot".to_owned());
    let world = world.reopen().await;
    let shown = world.fleet.show_agent(named("papi")).await.unwrap();
    let shown = serde_json::to_value(shown).unwrap();
    assert_eq!(shown["agent"]["kit"]["snapshot_id"], "the next snapshot", "{shown}");
    assert_eq!(*kit.cut_short.lock().unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_workspace_is_reported_and_the_others_are_done() {
    let (world, kit) = equipped_world().await;
    for name in ["a", "b", "c"] {
        world.create(name, "be quick").await;
        world.until(name, "idle").await;
    }
    *kit.content.lock().unwrap() = "two".to_owned();
    *kit.fails_in.lock().unwrap() = Some("/b-".to_owned());
    let local = world.fleet.backend();
    let all = |canary| EquipOrder { choice: Choice::All, profile: None, canary, rollback: false };
    let rows = |report: crewkit_fleet::equip::EquipReport| {
        report.agents.into_iter().map(|row| (row.agent_name, row.outcome)).collect::<Vec<_>>()
    };
    let expected =
        |rows: [(&str, &'static str); 3]| rows.map(|(name, outcome)| (name.to_owned(), outcome)).to_vec();
    let drift = local.drift(&Choice::All).await.unwrap();
    assert_eq!((drift.drifted, drift.total_count), (3, 3));
    let careful = local.equip(all(Some(2))).await.unwrap();
    assert_eq!(rows(careful), expected([("a", "equipped"), ("b", "failed"), ("c", "left_out")]));
    let report = local.equip(all(None)).await.unwrap();
    assert_eq!(report.message, "1 equipped, 1 unchanged, 1 failed, 0 left out");
    assert_eq!(rows(report), expected([("a", "unchanged"), ("b", "failed"), ("c", "equipped")]));
    assert_eq!(std::fs::read_to_string(world.workspace("b").join("AGENTS.md")).unwrap(), "one");
    let back = EquipOrder { choice: Choice::Agent("C".to_owned()), rollback: true, ..all(None) };
    assert_eq!(local.equip(back).await.unwrap().equipped, 1);
    assert!(!world.workspace("c").join("AGENTS.md").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kit_that_cannot_be_deployed_means_no_agent_and_no_trace() {
    let (world, kit) = equipped_world().await;
    *kit.fails_in.lock().unwrap() = Some("papi".to_owned());
    let new = CreateAgent {
        name: "papi".to_owned(),
        project: "Project One".to_owned(),
        spec: Some("x".to_owned()),
        ..CreateAgent::default()
    };
    let error = refused(ErrorKind::Unavailable, world.fleet.create_agent(new.clone()).await);
    assert!(error.message().contains("told to fail"), "{error}");
    assert_eq!(world.fleet.list_agents(ListAgents::default()).await.unwrap().total_count, 0);
    assert_eq!(git(&world.repository(), &["branch", "--list", "crewkit/*"]), "");
    *kit.fails_in.lock().unwrap() = None;
    world.fleet.create_agent(new).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_vanished_is_told_and_can_be_made_anew() {
    let world = World::new().await;
    world.create("papi", "something").await;
    world.until("papi", "idle").await;
    std::fs::remove_dir_all(world.workspace("papi")).unwrap();
    let shown = world.fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(shown.status.as_str(), "failed");
    assert!(shown.health.reason.unwrap().ends_with("is gone"));
    world.fleet.restart_agent(named("papi")).await.unwrap();
    world.until("papi", "idle").await;
    assert!(world.workspace("papi").join("README.md").exists());
}
