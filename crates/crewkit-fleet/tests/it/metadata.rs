//! Metadata from every source, and what broken workspaces cost.

use std::path::Path;

use crewkit_core::Limits;
use crewkit_fleet::model::{ListAgents, WaitForAgent};
use crewkit_fleet::{FleetOptions, MetadataStyle};
use crewkit_testkit::coder::{Fault, Kind, MetadataApp, Profile};
use serde_json::{Value, json};

use super::support::{CoderFleet, Fixture, checked, fixture, fleet, json as to_json, named, patient};

fn field(value: Value, include_in_list: bool) -> Value {
    json!({"value": value, "error": null, "schema": {"description": "d", "include_in_list": include_in_list}})
}

fn endpoint(fields: Value) -> MetadataApp {
    MetadataApp::Answers(json!({"data": fields, "meta": {"version": "1.0"}}))
}

async fn shown(fleet: &CoderFleet, name: &str) -> Value {
    to_json(&checked("show_agent", fleet.show_agent(named(name)).await.unwrap()))["agent"].take()
}

#[tokio::test]
async fn the_endpoint_in_the_workspace_is_asked_first() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    let fields = json!({
        "pull_request_number": field(json!(810), true),
        "pull_request_state": field(json!("open"), false),
        "note": {"value": null, "error": "not found", "schema": {"description": "d", "include_in_list": true}},
    });
    {
        let mut world = sim.world();
        let workspace = world.add_agent("papi");
        workspace.metadata = endpoint(fields.clone());
        workspace.agent_metadata.push(("fleet_other".to_owned(), "x".to_owned()));
        let stopped = world.add_agent("stopped");
        stopped.metadata = endpoint(fields.clone());
        stopped.status = "stopped".to_owned();
    }
    let agent = shown(&fleet, "papi").await;
    assert_eq!((&agent["metadata"], &agent["metadata_count"]), (&fields, &json!(3)));
    assert_eq!(agent["fleet_metadata"]["fleet_mcp_pull_request_status"], "open");

    let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["agents"][0]["metadata"], json!({"pull_request_number": 810, "note": null}));
    assert_eq!(list["agents"][0]["metadata_count"], 3);
    assert_eq!(
        (&list["agents"][1]["metadata"], &list["agents"][1]["metadata_count"]),
        (&json!({}), &json!(0))
    );
    let asked = sim.requests().iter().filter(|request| request.path.ends_with("/metadata")).count();
    assert_eq!(asked, 2, "a stopped workspace is not asked");

    sim.forget_requests();
    fleet.list_agents(super::support::without_metadata()).await.unwrap();
    assert!(sim.requests().iter().all(|request| !request.path.ends_with("/metadata")));
}

#[tokio::test]
async fn the_style_of_metadata_can_be_chosen() {
    let Fixture { sim, fleet: ours } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").metadata = endpoint(json!({"pr": field(json!(7), true)}));
    for (style, has_field, has_text) in [
        (MetadataStyle::Taskfile, true, false),
        (MetadataStyle::Merged, true, true),
        (MetadataStyle::Legacy, false, true),
    ] {
        let options = FleetOptions { metadata_style: style, limits: patient(), ..FleetOptions::default() };
        let fleet = CoderFleet::new(ours.backend().clone(), options);
        let metadata = shown(&fleet, "papi").await["metadata"].take();
        assert_eq!(metadata.get("pr").is_some(), has_field, "{style:?}");
        assert_eq!(metadata.get("fleet_mcp_agent_spec").is_some(), has_text, "{style:?}");
    }
}

#[tokio::test]
async fn coders_own_agent_metadata_is_the_second_source() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    let fleet = fleet(&sim, |settings| settings.metadata_keys = vec!["cpu".to_owned()]);
    {
        let mut world = sim.world();
        let workspace = world.add_agent("papi");
        workspace.metadata = MetadataApp::Broken;
        for (key, value) in
            [("fleet_list_pr", "7"), ("fleet_mcp_pull_request_status", "open"), ("cpu", "3%"), ("ram", "x")]
        {
            workspace.agent_metadata.push((key.to_owned(), value.to_owned()));
        }
    }
    let metadata = shown(&fleet, "papi").await["metadata"].take();
    let values: Vec<_> = metadata
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, field)| (name.as_str(), field["value"].clone()))
        .collect();
    assert_eq!(values, [("pr", json!(7)), ("pull_request_status", json!("open")), ("cpu", json!("3%"))]);
    let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["agents"][0]["metadata"], json!({"pr": 7, "cpu": "3%"}));
}

const TASKFILE: &str = r#"
version: "3"
tasks:
  greeting:
    desc: A greeting
    meta: {include_in_list: true}
    cmds: ["echo \"it's $((40 + 2))\"", "echo noise >&2"]
  number:
    meta: {include_in_list: false}
    cmds: ["echo 42"]
  fails:
    meta: {include_in_list: true}
    cmds: ["echo half; echo broken pipe >&2; exit 3"]
  templated:
    meta: {include_in_list: true}
    cmds: ["echo {{.X}}"]
  plain:
    cmds: ["echo no metadata"]
"#;

/// A stand-in for `task` that, as the real one, ends all fields of a process when one of them fails.
const FAKE_TASK: &str = r#"#!/bin/sh
names=
for word in "$@"; do case "$word" in --*|prefixed) ;; *) names="$names $word" ;; esac; done
case " $names " in *" fails "*) echo broken >&2; exit 201 ;; esac
for name in $names; do
  case "$name" in
    number) echo 42 ;;
    templated) sleep 1000 ;;
    *) echo "from task: $name" ;;
  esac
done
"#;

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// A directory of programs for a terminal: everything of this machine but `task`, and `task` itself if `fake_task`.
fn programs(directory: &Path, fake_task: bool) -> String {
    use std::os::unix::fs::PermissionsExt;
    let bin = directory.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in
        ["sh", "base64", "tr", "head", "cat", "mktemp", "rm", "timeout", "git", "sleep", "mkdir", "rmdir"]
    {
        let path = std::env::var("PATH").unwrap();
        let found = path.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
        if let Some(found) = found {
            std::os::unix::fs::symlink(found, bin.join(name)).unwrap();
        }
    }
    if fake_task {
        write(&bin.join("task"), FAKE_TASK);
        std::fs::set_permissions(bin.join("task"), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_taskfile_is_read_and_run_through_the_terminal() {
    for with_task in [false, true] {
        let Fixture { sim, .. } = fixture(Profile::V2_32).await;
        let fleet = fleet(&sim, |settings| settings.limits.fleet_metadata_field_ms = 3_000);
        let home = tempfile::tempdir().unwrap();
        let work = home.path().join("work");
        std::fs::create_dir(&work).unwrap();
        write(&work.join("Taskfile.yml"), TASKFILE);
        {
            let mut world = sim.world();
            let workspace = world.add_agent("papi");
            workspace.directory = Some(work.clone());
            workspace.terminal_path = Some(programs(home.path(), with_task));
        }
        let metadata = shown(&fleet, "papi").await["metadata"].take();
        let names: Vec<_> = metadata.as_object().unwrap().keys().collect();
        assert_eq!(names, ["greeting", "number", "fails", "templated"], "with task: {with_task}");
        assert_eq!(metadata["number"]["value"], 42);
        assert_eq!(metadata["fails"]["value"], Value::Null);
        if with_task {
            assert_eq!(metadata["greeting"]["value"], "from task: greeting");
            assert_eq!(metadata["fails"]["error"], "broken");
            assert!(metadata["templated"]["error"].as_str().unwrap().contains("too long"), "{metadata}");
        } else {
            assert_eq!(
                metadata["greeting"],
                json!({"value": "it's 42", "error": null,
                "schema": {"description": "A greeting", "include_in_list": true}})
            );
            assert_eq!(metadata["fails"]["error"], "broken pipe");
            assert!(metadata["templated"]["error"].as_str().unwrap().contains("needs `task`"));
        }
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1, "nothing is left behind in the workspace");
    }
}

/// A terminal counts as use of a workspace: lists open none, and a look at one agent opens one a minute.
#[tokio::test]
async fn terminals_are_opened_for_who_looks_at_one_agent_and_not_again_for_a_minute() {
    let Fixture { sim, .. } = fixture(Profile::V2_36).await;
    let home = tempfile::tempdir().unwrap();
    write(&home.path().join("Taskfile.yml"), TASKFILE);
    sim.world().add_agent("papi").directory = Some(home.path().to_owned());
    let terminals = || sim.requests().iter().filter(|request| request.path.contains("/pty?")).count();
    let ours = fleet(&sim, |settings| settings.limits.fleet_metadata_field_ms = 1_000);
    let listed = async |fleet: &CoderFleet| {
        let list = fleet.list_agents(ListAgents::default()).await.unwrap();
        checked("list_agents", list).agents.remove(0)
    };
    let before = listed(&ours).await;
    let wait = WaitForAgent { agent_name: "papi".to_owned(), ..WaitForAgent::default() };
    ours.wait_for_agent(wait).await.unwrap();
    assert_eq!((before.metadata_count, before.metadata_at, terminals()), (0, None, 0), "nobody has looked");

    let first = ours.show_agent(named("papi")).await.unwrap().agent;
    assert!(first.metadata_count > 0 && first.metadata_at.is_some());
    let opened = terminals();
    assert!(opened > 0);
    let (again, after) = (ours.show_agent(named("papi")).await.unwrap().agent, listed(&ours).await);
    assert_eq!((&again.metadata, again.metadata_at), (&first.metadata, first.metadata_at));
    assert_eq!((after.metadata_count, after.metadata_at), (first.metadata_count, first.metadata_at));
    assert_eq!(terminals(), opened, "the last values are shown");

    let eager = fleet(&sim, |settings| (settings.metadata_seconds, settings.list_metadata) = (0, true));
    assert!(listed(&eager).await.metadata_at.is_some());
    let once = terminals();
    assert!(once > opened);
    eager.show_agent(named("papi")).await.unwrap();
    assert!(terminals() > once, "the time between two reads is a setting");
}

#[tokio::test]
async fn without_a_taskfile_git_and_the_reports_speak() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    let home = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let status = std::process::Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
            .args(arguments)
            .current_dir(home.path())
            .env("HOME", home.path())
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "x"]);
    git(&["checkout", "-q", "-b", "feature/it's"]);
    write(&home.path().join("new"), "x");
    {
        let mut world = sim.world();
        let workspace = world.add_agent("papi");
        workspace.directory = Some(home.path().to_owned());
        workspace.report(5, "working", "x", "https://git.example/o/r/pull/7");
        world.add_agent("no-terminal").report(5, "working", "x", "https://git.example/o/r/pull/8");
    }
    let agent = shown(&fleet, "papi").await;
    assert_eq!(agent["git"]["branch"], "feature/it's");
    assert_eq!(agent["git"]["sha"].as_str().unwrap().len(), 40);
    assert_eq!(agent["git"]["dirty"], true);
    assert_eq!(agent["metadata"]["pull_request_url"]["value"], "https://git.example/o/r/pull/7");
    let metadata = shown(&fleet, "no-terminal").await["metadata"].take();
    assert_eq!(metadata.as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn one_hanging_workspace_of_ten_costs_its_own_metadata_only() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    // Long enough for the nine on any machine, and over for the tenth before the test is.
    let limits = Limits { fleet_metadata_agent_ms: 6_000, ..patient() };
    let fleet = fleet(&sim, |settings| settings.limits = limits);
    {
        let mut world = sim.world();
        for number in 0..10 {
            world.add_agent(&format!("agent-{number}")).metadata =
                endpoint(json!({"n": field(json!(number), true)}));
        }
        world.workspace_mut("agent-4").metadata = MetadataApp::Hangs;
    }
    let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["total_count"], 10);
    for (number, agent) in list["agents"].as_array().unwrap().iter().enumerate() {
        let expected = if number == 4 { json!({}) } else { json!({"n": number}) };
        assert_eq!(agent["metadata"], expected, "{number}");
    }
    assert_eq!(shown(&fleet, "agent-4").await["metadata"], json!({}));
}

#[tokio::test]
async fn agents_that_are_known_are_asked_while_others_are_still_listed() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    let fleet = fleet(&sim, |settings| {
        settings.limits = Limits { fleet_coder_page: 1, fleet_coder_request_ms: 2_000, ..patient() };
    });
    for number in 0..2 {
        sim.world().add_agent(&format!("agent-{number}")).metadata =
            endpoint(json!({"n": field(json!(number), true)}));
    }
    // The second page comes when it is asked for a second time.
    sim.fault(Fault::on("offset=1", Kind::Hang).times(1));
    let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
    let listed: Vec<_> = list["agents"].as_array().unwrap().iter().map(|agent| &agent["metadata"]).collect();
    assert_eq!(listed, [&json!({"n": 0}), &json!({"n": 1})]);
    let order: Vec<String> = sim.requests().into_iter().map(|request| request.path).collect();
    let first_metadata = order.iter().position(|path| path.ends_with("/metadata")).unwrap();
    let second_page = order.iter().rposition(|path| path.contains("offset=1")).unwrap();
    assert!(first_metadata < second_page, "{order:#?}");
    assert_eq!(order.iter().filter(|path| path.ends_with("/metadata")).count(), 2, "each is asked once");
}

/// More than one thread is used for, and more than come in one piece.
#[tokio::test]
async fn each_of_many_has_its_own_although_a_page_breaks_off_and_comes_again() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    let fleet = fleet(&sim, |settings| settings.limits = patient());
    for number in 0..90 {
        sim.world().add_agent(&format!("agent-{number:02}")).metadata =
            endpoint(json!({"n": field(json!(number), true)}));
    }
    sim.fault(Fault::on("/api/v2/workspaces?", Kind::Truncated).times(1));
    for round in 0..2 {
        sim.forget_requests();
        let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
        let numbers: Vec<_> =
            list["agents"].as_array().unwrap().iter().map(|agent| &agent["metadata"]["n"]).collect();
        assert_eq!(
            numbers,
            (0..90).map(|number| json!(number)).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
        let asked = sim.requests().iter().filter(|request| request.path.ends_with("/metadata")).count();
        assert_eq!(asked, 90, "round {round}");
    }
}

#[tokio::test]
async fn filters_and_pages_decide_who_is_asked() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    for number in 0..4 {
        sim.world().add_agent(&format!("agent-{number}")).metadata =
            endpoint(json!({"n": field(json!(number), true)}));
    }
    sim.world().workspace_mut("agent-3").report(5, "working", "typing", "");
    let cases = [
        (ListAgents { limit: Some(1), offset: Some(1), ..ListAgents::default() }, vec!["agent-1"]),
        (ListAgents { status_filter: Some("busy".to_owned()), ..ListAgents::default() }, vec!["agent-3"]),
        (ListAgents { role_filter: Some("manager".to_owned()), ..ListAgents::default() }, vec![]),
        (ListAgents { project_filter: Some("other".to_owned()), ..ListAgents::default() }, vec![]),
    ];
    for (query, asked) in cases {
        sim.forget_requests();
        let list = fleet.list_agents(query).await.unwrap();
        let names: Vec<_> = list.agents.iter().map(|agent| agent.name.as_str()).collect();
        assert_eq!(names, asked);
        assert!(list.agents.iter().all(|agent| agent.metadata_count == 1));
        let count = sim.requests().iter().filter(|request| request.path.ends_with("/metadata")).count();
        assert_eq!(count, asked.len());
    }
}

/// Apps are reached by path when Coder cannot say where their subdomains are; it is not asked for each.
#[tokio::test]
async fn without_the_host_of_subdomains_every_app_is_asked_by_path() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    for number in 0..20 {
        let mut world = sim.world();
        let workspace = world.add_agent(&format!("agent-{number:02}"));
        workspace.subdomain = true;
        workspace.metadata = endpoint(json!({"n": field(json!(number), true)}));
    }
    sim.fault(Fault::on("/applications/host", Kind::Status(500)));
    let list = fleet.list_agents(ListAgents::default()).await.unwrap();
    assert!(list.agents.iter().all(|agent| agent.metadata_count == 1));
    let asked = sim.count("GET", "/api/v2/applications/host");
    assert!(asked <= 3, "{asked}: the attempts of one question");
}

#[tokio::test]
async fn broken_metadata_is_no_metadata() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    let broken = [
        ("html", MetadataApp::Broken),
        ("text", MetadataApp::AnswersText("{\"data\": {\"a\": ".to_owned())),
        ("null", MetadataApp::AnswersText("null".to_owned())),
        ("list", MetadataApp::AnswersText("[1, 2]".to_owned())),
        ("wrong", MetadataApp::AnswersText("{\"data\": {\"a\": 7}}".to_owned())),
        ("huge", MetadataApp::Answers(json!({"data": {"a": field(json!("x".repeat(300_000)), true)}}))),
    ];
    for (name, app) in broken {
        sim.world().add_agent(name).metadata = app;
    }
    let list = to_json(&fleet.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["total_count"], 6);
    for agent in list["agents"].as_array().unwrap() {
        assert_eq!(
            (&agent["metadata"], &agent["metadata_count"]),
            (&json!({}), &json!(0)),
            "{}",
            agent["name"]
        );
    }
}

#[tokio::test]
async fn values_are_cut_and_cleaned() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").metadata = endpoint(json!({
        "long": field(json!("y".repeat(20_000)), true),
        "escape": field(json!("a\u{1b}[2Jb\u{0}c"), true),
        "bad name!": field(json!(1), true),
    }));
    let metadata = shown(&fleet, "papi").await["metadata"].take();
    assert_eq!(metadata["long"]["value"].as_str().unwrap().len(), 8 * 1024);
    assert!(
        metadata["long"]["error"].as_str().unwrap().starts_with("cut from 20000 to 8192 bytes"),
        "{metadata}"
    );
    assert_eq!(metadata["escape"]["value"], "a[2Jbc");
    assert!(metadata["dropped_fields"]["error"].as_str().unwrap().contains("`bad name!`"), "{metadata}");
    assert_eq!(metadata.as_object().unwrap().len(), 3);
}
