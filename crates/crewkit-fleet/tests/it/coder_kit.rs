//! The kit of agents on Coder: through a real shell on a real terminal, with everything that can go wrong on the way.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crewkit_fleet::AnyFleet;
use crewkit_fleet::backend::coder::Profiles;
use crewkit_fleet::equip::FleetDrift;
use crewkit_fleet::kit::{Drift, Equipped, Kit, KitError, KitFile, KitPlace};
use crewkit_testkit::coder::{Fault, Kind, Profile, SimCoder, Trouble};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::support::{CoderFleet, checked, fleet, json as to_json, named, new_agent, patient};

/// Files by path; a path that ends with `*` is executable.
type Files = BTreeMap<String, String>;

/// A kit whose profiles a test changes.
#[derive(Debug, Default)]
pub(crate) struct Shelf(Mutex<BTreeMap<String, Files>>);

impl Shelf {
    pub(crate) fn set(&self, profile: &str, files: &[(&str, &str)]) {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        self.0.lock().unwrap().insert(profile.to_owned(), files);
    }
}

impl Kit for Shelf {
    fn default_profile(&self) -> Option<String> {
        self.0.lock().unwrap().contains_key("default").then(|| "default".to_owned())
    }

    fn equip(&self, _: KitPlace) -> BoxFuture<'_, Result<Equipped, KitError>> {
        unreachable!("workspaces on Coder are not on this machine")
    }

    fn finish(&self, _: KitPlace) -> BoxFuture<'_, Result<Option<String>, KitError>> {
        unreachable!("workspaces on Coder are not on this machine")
    }

    fn rollback(&self, _: KitPlace, _: String) -> BoxFuture<'_, Result<Equipped, KitError>> {
        unreachable!("workspaces on Coder are not on this machine")
    }

    fn drift(&self, _: KitPlace) -> BoxFuture<'_, Result<Drift, KitError>> {
        unreachable!("workspaces on Coder are not on this machine")
    }

    fn contents(&self, profile: String) -> BoxFuture<'_, Result<Vec<KitFile>, KitError>> {
        let found = self.0.lock().unwrap().get(&profile).map(|files| {
            let file = |(path, text): (&String, &String)| KitFile {
                path: path.trim_end_matches('*').to_owned(),
                executable: path.ends_with('*'),
                content: text.clone().into_bytes(),
            };
            files.iter().map(file).collect()
        });
        let missing = || KitError { code: "E_TEST".to_owned(), message: format!("no profile `{profile}`") };
        let found = found.ok_or_else(missing);
        async { found }.boxed()
    }
}

struct World {
    home: tempfile::TempDir,
    sim: SimCoder,
    kit: Arc<Shelf>,
    fleet: CoderFleet,
}

impl World {
    async fn new(agents: &[&str]) -> Self {
        Self::with(agents, Profiles::default()).await
    }

    async fn with(agents: &[&str], profiles: Profiles) -> Self {
        let home = tempfile::tempdir().unwrap();
        let sim = SimCoder::start(Profile::V2_32).await.unwrap();
        let kit = Arc::new(Shelf::default());
        kit.set(
            "default",
            &[("AGENTS.md", "one\n"), (".claude/commands/a b.md", "two\n"), ("bin/run*", "#!\n")],
        );
        let passed = Arc::clone(&kit);
        let fleet = fleet(&sim, |settings| {
            settings.limits = patient();
            settings.kit = Some(passed);
            settings.profiles = profiles;
        });
        let world = Self { home, sim, kit, fleet };
        for name in agents {
            std::fs::create_dir(world.dir(name)).unwrap();
            world.sim.world().add_agent(name).directory = Some(world.dir(name));
        }
        world
    }

    fn dir(&self, agent: &str) -> PathBuf {
        self.home.path().join(agent)
    }

    fn write(&self, agent: &str, path: &str, text: &str) {
        let path = self.dir(agent).join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let fleet = AnyFleet::Coder(Box::new(self.fleet.clone()));
        let answer = match tool {
            "equip_agents" => {
                let input = serde_json::from_value(arguments).unwrap();
                fleet.equip_agents(input).await.map(|report| to_json(&report))
            }
            "fleet_drift" => {
                let input = serde_json::from_value(arguments).unwrap();
                fleet.fleet_drift(input).await.map(|report| to_json(&report))
            }
            other => panic!("{other} is not called here"),
        };
        answer.unwrap_or_else(|error| to_json(&error.body()))
    }

    /// The row of one agent after it was equipped.
    async fn equip(&self, agent: &str) -> Value {
        self.call("equip_agents", json!({"agent_name": agent})).await["agents"][0].take()
    }

    async fn drift(&self, agent: &str) -> Value {
        self.call("fleet_drift", json!({"agent_name": agent})).await["agents"][0].take()
    }

    async fn shown(&self, agent: &str) -> Value {
        let shown = checked("show_agent", self.fleet.show_agent(named(agent)).await.unwrap());
        to_json(&shown)["agent"]["kit"].take()
    }

    /// The files of a workspace but the record of its kit.
    fn tree(&self, agent: &str) -> Files {
        let mut files = Files::new();
        collect(&self.dir(agent), "", &mut files);
        files
    }
}

fn collect(dir: &Path, below: &str, files: &mut Files) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        if path == ".crewkit" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{path}/"), files);
        } else {
            let mode = entry.metadata().unwrap().permissions().mode();
            let mark = if mode & 0o100 == 0 { "" } else { "*" };
            files.insert(path + mark, std::fs::read_to_string(entry.path()).unwrap_or_default());
        }
    }
}

fn files(files: &[(&str, &str)]) -> Files {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn a_kit_goes_in_changes_and_goes_out_again() {
    let world = World::new(&["papi"]).await;
    assert_eq!(world.shown("papi").await, Value::Null);
    assert_eq!(world.drift("papi").await["error"], "it was never equipped");

    let first = world.equip("papi").await;
    assert_eq!(
        (&first["outcome"], &first["changed"], &first["profile"]),
        (&json!("equipped"), &json!(3), &json!("default"))
    );
    let whole = [("AGENTS.md", "one\n"), (".claude/commands/a b.md", "two\n"), ("bin/run*", "#!\n")];
    assert_eq!(world.tree("papi"), files(&whole));
    let shown = world.shown("papi").await;
    assert_eq!(shown, json!({"profile": "default", "snapshot_id": first["snapshot_id"], "drift_count": 0}));

    let again = world.equip("papi").await;
    assert_eq!(
        (&again["outcome"], &again["changed"], &again["snapshot_id"]),
        (&json!("unchanged"), &json!(0), &Value::Null)
    );

    world.kit.set("default", &[("AGENTS.md", "one and more\n"), ("docs/new.md", "")]);
    let second = world.equip("papi").await;
    assert_eq!((&second["outcome"], &second["changed"]), (&json!("equipped"), &json!(4)), "{second}");
    assert_eq!(world.tree("papi"), files(&[("AGENTS.md", "one and more\n"), ("docs/new.md", "")]));
    assert!(!world.dir("papi").join("bin").exists(), "a directory that held nothing but the kit is left");

    let back =
        world.call("equip_agents", json!({"agent_name": "papi", "rollback": true})).await["agents"][0].take();
    assert_eq!(
        (&back["outcome"], &back["snapshot_id"]),
        (&json!("equipped"), &first["snapshot_id"]),
        "{back}"
    );
    assert_eq!(world.tree("papi"), files(&whole));
    assert_eq!(world.drift("papi").await["drift_count"], 0);
    let forth =
        world.call("equip_agents", json!({"agent_name": "papi", "rollback": true})).await["agents"][0].take();
    assert_eq!(forth["snapshot_id"], second["snapshot_id"]);
    assert_eq!(world.tree("papi").len(), 2);
}

#[tokio::test]
async fn what_people_wrote_stays() {
    let world = World::new(&["papi"]).await;
    world.write("papi", "AGENTS.md", "theirs\n");
    let first = world.equip("papi").await;
    assert_eq!((&first["changed"], &first["left_alone"]), (&json!(2), &json!(["AGENTS.md"])), "{first}");

    world.write("papi", ".claude/commands/a b.md", "edited\n");
    std::fs::remove_file(world.dir("papi").join("bin/run")).unwrap();
    let drift = world.drift("papi").await;
    assert_eq!(
        (&drift["drift_count"], &drift["modified"], &drift["missing"]),
        (&json!(2), &json!([".claude/commands/a b.md"]), &json!(["bin/run"]))
    );
    assert_eq!(world.shown("papi").await["drift_count"], 2);

    world
        .kit
        .set("default", &[("AGENTS.md", "1\n"), (".claude/commands/a b.md", "2\n"), ("bin/run*", "#3\n")]);
    let second = world.equip("papi").await;
    assert_eq!(
        (&second["changed"], &second["drifted"], &second["left_alone"]),
        (&json!(1), &json!([".claude/commands/a b.md"]), &json!(["AGENTS.md"]))
    );
    let now =
        files(&[("AGENTS.md", "theirs\n"), (".claude/commands/a b.md", "edited\n"), ("bin/run*", "#3\n")]);
    assert_eq!(world.tree("papi"), now);

    // A file that was edited after the deployment is not taken back either.
    world.write("papi", "bin/run", "#mine\n");
    let back =
        world.call("equip_agents", json!({"agent_name": "papi", "rollback": true})).await["agents"][0].take();
    assert_eq!(back["drifted"], json!(["bin/run"]), "{back}");
    assert_eq!(world.tree("papi")["bin/run*"], "#mine\n");
}

#[tokio::test]
async fn nothing_is_written_outside_of_the_workspace_or_into_git() {
    let world = World::new(&["papi"]).await;
    let outside = world.home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, world.dir("papi").join(".claude")).unwrap();
    symlink("nowhere", world.dir("papi").join("AGENTS.md")).unwrap();
    let row = world.equip("papi").await;
    assert_eq!(row["left_alone"], json!([".claude/commands/a b.md", "AGENTS.md"]), "{row}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);

    let git = |arguments: &[&str]| {
        let output =
            std::process::Command::new("git").args(arguments).current_dir(world.dir("papi")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    git(&["init", "-q"]);
    assert!(!git(&["status", "--porcelain", "--untracked-files=all"]).contains(".crewkit"));

    for path in ["../x", "/x", ".git/config", "a\nb", ".crewkit/kit/manifest"] {
        world.kit.set("default", &[(path, "x")]);
        let row = world.equip("papi").await;
        assert!(row["error"].as_str().unwrap().contains("no script can place"), "{path}: {row}");
    }
    std::fs::write(
        world.dir("papi").join(".crewkit/kit/manifest"),
        "crewkit-kit 1\nprofile x\nfile 0 644 ../../x\n",
    )
    .unwrap();
    let row = world.equip("papi").await;
    assert!(row["error"].as_str().unwrap().contains("makes no sense"), "{row}");
}

#[tokio::test]
async fn roles_and_projects_choose_the_profile_and_what_is_asked_for_wins() {
    let profiles = Profiles {
        roles: vec![("operator".to_owned(), None, "ops".to_owned())],
        projects: vec![("setup-devcontainer".to_owned(), "project".to_owned())],
    };
    let world = World::with(&["papi", "sony"], profiles).await;
    for profile in ["ops", "project", "asked"] {
        world.kit.set(profile, &[("AGENTS.md", profile)]);
    }
    let operator = world.sim.world().templates[0].active().presets[1].id;
    world.sim.world().workspace_mut("sony").preset = Some(operator);
    let report = world.call("equip_agents", json!({"project": "Setup"})).await;
    let profiles: Vec<_> =
        report["agents"].as_array().unwrap().iter().map(|row| row["profile"].clone()).collect();
    assert_eq!(profiles, ["project", "ops"], "{report}");
    let report = world.call("equip_agents", json!({"all": true, "profile": "asked"})).await;
    assert_eq!(report["equipped"], 2, "{report}");
    assert_eq!(world.equip("sony").await["profile"], "asked", "an agent keeps its profile");
    let report = world.call("equip_agents", json!({"all": true, "profile": "missing"})).await;
    assert_eq!(
        (&report["failed"], &report["agents"][0]["error"]),
        (&json!(2), &json!("no profile `missing`"))
    );
    let report = world.call("equip_agents", json!({"project": "nothing"})).await;
    assert_eq!(report["details"]["status"], 404);
}

#[tokio::test]
async fn a_workspace_that_cannot_be_reached_is_reported_and_the_others_are_done() {
    let world = World::new(&["a-off", "b-refused", "c-none", "d-good"]).await;
    {
        let mut sim = world.sim.world();
        "stopped".clone_into(&mut sim.workspace_mut("a-off").status);
        sim.workspace_mut("c-none").directory = None;
    }
    let process = world.sim.world().workspace_mut("b-refused").process_id();
    world.sim.fault(Fault::on(format!("{process}/pty"), Kind::Status(403)));
    let report = world.call("equip_agents", json!({"all": true})).await;
    let outcomes: Vec<_> =
        report["agents"].as_array().unwrap().iter().map(|row| row["outcome"].clone()).collect();
    assert_eq!(outcomes, ["left_out", "failed", "failed", "equipped"], "{report}");
    assert!(
        report["agents"][1]["error"].as_str().unwrap().contains("web terminal could not be used"),
        "{report}"
    );
    assert_eq!(world.tree("d-good").len(), 3);
    let shown = world.shown("b-refused").await;
    assert!(shown["error"].as_str().unwrap().contains("web terminal could not be used"), "{shown}");

    world.kit.set("default", &[("AGENTS.md", "changed\n")]);
    let report = world.call("equip_agents", json!({"all": true, "canary": 2})).await;
    let outcomes: Vec<_> =
        report["agents"].as_array().unwrap().iter().map(|row| row["outcome"].clone()).collect();
    assert_eq!(outcomes, ["left_out", "failed", "left_out", "left_out"], "{report}");
    assert_eq!(world.tree("d-good").len(), 3);

    let none = fleet(&world.sim, |_| {});
    let error = AnyFleet::Coder(Box::new(none)).fleet_drift(FleetDrift::default()).await.unwrap_err();
    assert_eq!(error.detail("reason"), Some(&json!("no_kit")));
}

#[tokio::test]
async fn a_terminal_that_hangs_costs_its_own_time_only() {
    let world = World::new(&["good", "hangs"]).await;
    let process = world.sim.world().workspace_mut("hangs").process_id();
    world.sim.fault(Fault::on(format!("{process}/pty"), Kind::Terminal(Trouble::Silent)));
    let passed = Arc::clone(&world.kit);
    let hasty = fleet(&world.sim, |settings| {
        settings.limits = patient();
        settings.limits.fleet_kit_ms = 3_000;
        settings.kit = Some(passed);
    });
    let world = World { fleet: hasty, ..world };
    let report = world.call("equip_agents", json!({"all": true})).await;
    assert_eq!((&report["equipped"], &report["failed"]), (&json!(1), &json!(1)), "{report}");
    assert!(report["agents"][1]["error"].as_str().unwrap().contains("did not answer within"), "{report}");
    assert!(world.tree("hangs").is_empty());
}

const OLD: [(&str, &str); 3] = [("AGENTS.md", "old\n"), ("gone/soon.md", "old\n"), ("run", "old\n")];
const NEW: [(&str, &str); 3] = [("AGENTS.md", "new\n"), ("fresh/file.md", "new\n"), ("run*", "new\n")];

/// What is there after something went wrong: the old kit or the new one, or, when a deployment was begun, a part of each
/// until the next one finishes it.
async fn assert_whole(world: &World, agent: &str, new: &[(&str, &str)], context: &str) {
    let tree = world.tree(agent);
    let drift = world.drift(agent).await;
    let is_pending = drift["error"].as_str().is_some_and(|error| error.contains("interrupted"));
    let is_whole = tree == files(&OLD) || tree == files(new);
    assert!(is_whole || is_pending, "{context}: {:?} {drift}", tree.keys());
    if !is_pending {
        assert_eq!((&drift["drift_count"], &drift["error"]), (&json!(0), &Value::Null), "{context}: {drift}");
    }
    let row = world.equip(agent).await;
    assert_eq!(row["error"], Value::Null, "{context}: {row}");
    assert!(world.tree(agent) == files(new), "{context}: {:?}", world.tree(agent).keys());
    let drift = world.drift(agent).await;
    assert_eq!((&drift["drift_count"], &drift["error"]), (&json!(0), &Value::Null), "{context}: {drift}");
    let left: Vec<_> = std::fs::read_dir(world.dir(agent).join(".crewkit/kit"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("in."))
        .collect();
    let left: std::collections::BTreeSet<&str> = left.iter().map(String::as_str).collect();
    assert_eq!(left, ["manifest", "undo"].into(), "{context}");
}

#[tokio::test]
async fn a_connection_that_breaks_anywhere_leaves_the_old_kit_or_the_new_one() {
    let world = World::new(&[]).await;
    // Sends one frame each for the look, the places and the deployment; the deployment of a large file has several.
    let large = "x".repeat(40_000);
    let new = [NEW[0], NEW[1], NEW[2], ("large.md", &large)];
    for (number, after) in [0, 6_000, 9_000, 20_000, 40_000, 60_000].into_iter().enumerate() {
        for trouble in [Trouble::EndsAfter(after), Trouble::LosesConnectionAfter(after)] {
            let agent = format!("agent-{number}-{}", u8::from(matches!(trouble, Trouble::EndsAfter(_))));
            std::fs::create_dir(world.dir(&agent)).unwrap();
            world.sim.world().add_agent(&agent).directory = Some(world.dir(&agent));
            world.kit.set("default", &OLD);
            assert_eq!(world.equip(&agent).await["outcome"], "equipped");
            world.kit.set("default", &new);
            world.sim.fault(Fault::on("/pty", Kind::Terminal(trouble)).times(1));
            let row = world.equip(&agent).await;
            let tree = world.tree(&agent);
            let is_new = tree == files(&new);
            assert!(is_new || tree == files(&OLD), "{trouble:?}: {row} {:?}", tree.keys());
            assert_eq!(row["error"].is_null(), is_new, "{trouble:?}: {row}");
            assert_whole(&world, &agent, &new, &format!("{trouble:?}")).await;
        }
    }
}

/// Programs that count their calls and, at the one they are told, kill the shell that called them instead.
fn deadly_programs(dir: &Path) -> String {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let path = std::env::var("PATH").unwrap();
    for name in ["mv", "cp", "rm", "mkdir", "rmdir", "chmod", "ln", "dd"] {
        let real = path.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.exists()).unwrap();
        let script = format!(
            "#!/bin/sh\nread -r n <'{0}/calls'; n=$((n + 1)); echo $n >'{0}/calls'; read -r at <'{0}/at'\n\
             if [ $n -eq $at ]; then kill -9 $PPID; exit 1; fi\nexec '{1}' \"$@\"\n",
            dir.display(),
            real.display()
        );
        std::fs::write(bin.join(name), script).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{path}", bin.display())
}

#[tokio::test]
async fn killed_before_any_command_of_its_scripts_a_workspace_is_old_or_new() {
    let world = World::new(&[]).await;
    let deadly = world.home.path().join("deadly");
    std::fs::create_dir(&deadly).unwrap();
    let set = |at: usize| {
        std::fs::write(deadly.join("calls"), "0\n").unwrap();
        std::fs::write(deadly.join("at"), format!("{at}\n")).unwrap();
    };
    let programs = deadly_programs(&deadly);
    let mut begun = 0;
    for at in 1.. {
        assert!(at < 200, "it never came through");
        let agent = format!("agent-{at}");
        std::fs::create_dir(world.dir(&agent)).unwrap();
        {
            let mut sim = world.sim.world();
            let workspace = sim.add_agent(&agent);
            workspace.directory = Some(world.dir(&agent));
            workspace.terminal_path = Some(programs.clone());
        }
        set(0);
        world.kit.set("default", &OLD);
        assert_eq!(world.equip(&agent).await["outcome"], "equipped");
        world.kit.set("default", &NEW);
        set(at);
        let row = world.equip(&agent).await;
        let calls: usize = std::fs::read_to_string(deadly.join("calls")).unwrap().trim().parse().unwrap();
        begun += usize::from(row["error"].as_str().is_some_and(|error| error.contains("it was begun")));
        set(0);
        assert_whole(&world, &agent, &NEW, &format!("killed before call {at}: {row}")).await;
        if calls < at {
            assert_eq!(row["outcome"], "equipped");
            break;
        }
    }
    assert!(begun > 3, "it was killed while it moved files {begun} times");
}

#[tokio::test]
async fn a_kit_of_a_megabyte_and_of_many_files_arrives_whole() {
    let world = World::new(&["papi"]).await;
    let large: String = (0..250_000)
        .map(|number| format!("{number:03x}\n").chars().rev().take(4).collect::<String>())
        .collect();
    let many: Vec<(String, String)> =
        (0..60).map(|n| (format!("skills/s{n}/SKILL.md"), format!("skill {n}\n").repeat(n))).collect();
    let mut all: Vec<(&str, &str)> = many.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    all.push(("large.txt", &large));
    world.kit.set("default", &all);
    let row = world.equip("papi").await;
    assert_eq!((&row["outcome"], &row["changed"]), (&json!("equipped"), &json!(61)), "{row}");
    assert_eq!(world.tree("papi"), files(&all));
    let bound = "x".repeat(5 << 20);
    world.kit.set("default", &[("large.txt", &bound)]);
    assert!(world.equip("papi").await["error"].as_str().unwrap().contains("limits.fleet_kit_bytes"));
}

/// A start script that clones: before it is done, a terminal opens in the wrong directory.
#[tokio::test]
async fn a_new_agent_gets_its_kit_in_its_directory_when_its_start_script_is_done() {
    let world = World::new(&[]).await;
    world.sim.world().slow_scripts = true;
    let created = world.fleet.create_agent(new_agent("papi")).await.unwrap();
    assert!(created.message.contains("when its start script is done"), "{}", created.message);
    world.sim.world().workspace_mut("papi").directory = Some(world.dir("papi"));
    world.sim.world().finish_builds();
    let shown = world.shown("papi").await;
    assert!(shown["error"].as_str().unwrap().contains("start script"), "{shown}");
    let looks = || world.sim.count("GET", "/api/v2/users/me/workspace/papi");
    let before = looks();
    while looks() < before + 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(std::fs::read_dir(world.home.path()).unwrap().count(), 0, "nothing lands elsewhere");

    world.sim.world().finish_scripts();
    world.fleet.backend().settled().await;
    assert_eq!(world.tree("papi").len(), 3);
    assert_eq!(world.shown("papi").await["drift_count"], 0);
}

#[tokio::test]
async fn an_agent_whose_kit_is_still_to_come_can_be_deleted_and_restarted() {
    let world = World::new(&[]).await;
    world.sim.world().slow_scripts = true;
    for name in ["papi", "sony"] {
        world.fleet.create_agent(new_agent(name)).await.unwrap();
    }
    world.sim.world().finish_builds();
    // The task that waits for the start script carries out what is asked for next, and answers.
    let deleted = world.fleet.delete_agent(named("papi")).await.unwrap();
    assert_eq!(deleted.status.as_str(), "deleting", "{}", deleted.message);
    world.sim.world().builds_end_after_reads = Some(1);
    let restarted = world.fleet.restart_agent(named("sony")).await.unwrap();
    assert_eq!(restarted.status.as_str(), "starting", "{}", restarted.message);
}

#[tokio::test]
async fn a_kit_does_not_show_in_the_status_of_the_repository_unless_it_is_tracked() {
    let world = World::new(&["papi"]).await;
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
        let mut command = std::process::Command::new("git");
        let output = command.args(identity).args(arguments).current_dir(world.dir("papi")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q"]);
    world.write("papi", "mine.txt", "x");
    world.kit.set("default", &[("AGENTS.md", "one\n"), ("docs/[a] b*.md", "two\n")]);
    assert_eq!(world.equip("papi").await["changed"], 2);
    assert_eq!(git(&["status", "--porcelain", "--untracked-files=all"]), "?? mine.txt\n");
    git(&["add", "-f", "AGENTS.md"]);
    git(&["commit", "-q", "-m", "x"]);
    world.kit.set("default", &[("AGENTS.md", "changed\n"), ("new.md", "")]);
    world.equip("papi").await;
    assert_eq!(git(&["status", "--porcelain", "--untracked-files=all"]), " M AGENTS.md\n?? mine.txt\n");
    let exclude = std::fs::read_to_string(world.dir("papi").join(".git/info/exclude")).unwrap();
    assert_eq!(exclude.matches("# crewkit kit begin").count(), 1, "{exclude}");
    assert!(!exclude.contains("docs/"), "{exclude}");
}

#[tokio::test]
async fn no_shell_is_left_in_a_workspace() {
    let world = World::new(&["papi"]).await;
    world.equip("papi").await;
    for _ in 0..3 {
        world.shown("papi").await;
        world.drift("papi").await;
    }
    while world.sim.shells() > 0 {
        tokio::task::yield_now().await;
    }
}
