//! What every backend must do, wherever its workspaces live.

use std::future::Future;

use crewkit_fleet::backend::Backend;
use crewkit_fleet::model::{
    CreateAgent, ListAgents, ListRoles, LogQuery, TaskHistoryQuery, TaskStatus, WaitForAgent,
};
use crewkit_fleet::{ErrorKind, Fleet};
use serde_json::Value;

use super::contracts;
use super::support::{checked, detail, history, json, named, refused, start};

/// A backend to be tested, and what the suite needs to know of it.
pub(crate) trait Ground {
    type Backend: Backend;

    fn fleet(&self) -> &Fleet<Self::Backend>;

    /// A project agents can be made for.
    fn project(&self) -> String;

    /// A name no agent has.
    fn fresh_name(&self, hint: &str) -> String;

    /// Returns when the agent is online and idle.
    fn until_idle(&self, name: &str) -> impl Future<Output = ()>;
}

/// The life of an agent, from creation to deletion, through every tool.
pub(crate) async fn life_of_an_agent(ground: &impl Ground) {
    let fleet = ground.fleet();
    let name = ground.fresh_name("Life");
    let project = ground.project();

    let projects = checked("list_agent_projects", fleet.list_agent_projects().await.unwrap());
    contracts::check("list_agent_projects", &json(&projects));
    let roles = fleet.list_agent_roles(ListRoles { project: project.clone() }).await.unwrap();
    contracts::check("list_agent_roles", &json(&checked("list_agent_roles", roles)));

    let wanted = CreateAgent {
        name: name.clone(),
        project: project.clone(),
        spec: Some("Write a haiku about tests and stop".to_owned()),
        ..CreateAgent::default()
    };
    let created = checked("create_agent", fleet.create_agent(wanted.clone()).await.unwrap());
    contracts::check("create_agent", &json(&created));
    assert_eq!(created.agent.name, name);
    assert_eq!(created.agent.spec, "Write a haiku about tests and stop");
    assert_eq!((created.agent.current_task.as_ref(), created.agent.last_task.as_ref()), (None, None));
    assert_eq!(created.agent.metadata["fleet_mcp_agent_spec"], "Write a haiku about tests and stop");

    let twice = refused(ErrorKind::BadRequest, fleet.create_agent(wanted.clone()).await);
    assert!(twice.message().contains("already exists"), "{twice}");
    assert_eq!(detail(&twice, "reason"), "already_exists");
    let other_case = CreateAgent { name: name.to_uppercase(), ..wanted };
    refused(ErrorKind::BadRequest, fleet.create_agent(other_case).await);

    ground.until_idle(&name).await;

    let shown = checked("show_agent", fleet.show_agent(named(&name.to_lowercase())).await.unwrap());
    contracts::check("show_agent", &json(&shown));
    assert_eq!((&shown.agent.name, shown.agent.online), (&name, true));
    assert_eq!(shown.agent.spec, "Write a haiku about tests and stop");

    let all = checked("list_agents", fleet.list_agents(ListAgents::default()).await.unwrap());
    contracts::check("list_agents", &json(&all));
    assert!(all.agents.iter().any(|agent| agent.name == name), "{all:#?}");
    for (filter, expected) in [
        (ListAgents { project_filter: Some(project.to_uppercase()), ..ListAgents::default() }, true),
        (ListAgents { project_filter: Some("no such project".to_owned()), ..ListAgents::default() }, false),
        (ListAgents { status_filter: Some("idle".to_owned()), ..ListAgents::default() }, true),
        (ListAgents { status_filter: Some("offline".to_owned()), ..ListAgents::default() }, false),
        (ListAgents { role_filter: Some("no such role".to_owned()), ..ListAgents::default() }, false),
    ] {
        let found = fleet.list_agents(filter.clone()).await.unwrap();
        assert_eq!(found.agents.iter().any(|agent| agent.name == name), expected, "{filter:?}");
    }

    let idle = refused(ErrorKind::BadRequest, fleet.stop_agent_task(named(&name)).await);
    assert_eq!(detail(&idle, "reason"), "no_running_task");

    let started = fleet.start_agent_task(start(&name, "Count to a million, slowly")).await.unwrap();
    let started = checked("start_agent_task", started);
    contracts::check("start_agent_task", &json(&started));
    assert_eq!((started.agent_status.as_str(), started.task.status), ("busy", TaskStatus::Running));
    refused(ErrorKind::Conflict, fleet.start_agent_task(start(&name, "Something else")).await);

    let busy = fleet
        .wait_for_agent(WaitForAgent {
            agent_name: name.clone(),
            status: Some("busy".to_owned()),
            timeout_seconds: Some(30),
        })
        .await
        .unwrap();
    assert!(checked("wait_for_agent", busy).reached);

    let stopped = checked("stop_agent_task", fleet.stop_agent_task(named(&name)).await.unwrap());
    contracts::check("stop_agent_task", &json(&stopped));
    assert_eq!((stopped.agent_status.as_str(), stopped.task.status), ("idle", TaskStatus::Stopped));

    let tasks = fleet.show_agent_task_history(history(&name)).await.unwrap();
    contracts::check("show_agent_task_history", &json(&checked("show_agent_task_history", tasks)));
    let log = fleet
        .show_agent_log(LogQuery { agent_name: name.clone(), page_size: Some(100), page: None })
        .await
        .unwrap();
    checked("show_agent_log", log);

    let deleted = checked("delete_agent", fleet.delete_agent(named(&name)).await.unwrap());
    contracts::check("delete_agent", &json(&deleted));
    assert_eq!(deleted.deleted_agent.name, name);
}

/// What is wrong with a request is said before anything is done.
pub(crate) async fn bad_requests(ground: &impl Ground) {
    let fleet = ground.fleet();
    let project = ground.project();
    let ok = CreateAgent {
        name: ground.fresh_name("bad"),
        project: project.clone(),
        spec: Some("x".to_owned()),
        ..CreateAgent::default()
    };
    let creations = [
        ("name", CreateAgent { name: String::new(), ..ok.clone() }),
        ("name", CreateAgent { name: "a".repeat(21), ..ok.clone() }),
        ("name", CreateAgent { name: "a--b".to_owned(), ..ok.clone() }),
        ("name", CreateAgent { name: "../x".to_owned(), ..ok.clone() }),
        ("name", CreateAgent { name: "create".to_owned(), ..ok.clone() }),
        ("spec", CreateAgent { spec: Some("  \n".to_owned()), ..ok.clone() }),
        ("spec", CreateAgent { spec: None, ..ok.clone() }),
        ("spec", CreateAgent { task: Some("y".to_owned()), ..ok.clone() }),
        ("project", CreateAgent { project: String::new(), ..ok.clone() }),
        ("project", CreateAgent { project: "No such project".to_owned(), ..ok.clone() }),
        ("role", CreateAgent { role: Some("no such role".to_owned()), ..ok.clone() }),
    ];
    for (field, creation) in creations {
        let error = refused(ErrorKind::BadRequest, fleet.create_agent(creation).await);
        assert_eq!(detail(&error, "field"), field, "{error}");
        assert_eq!(detail(&error, "operation"), "create_agent");
    }

    let missing = "no-such-agent-anywhere";
    let lookups: Vec<(&str, Value)> = vec![
        ("show_agent", json(&refused(ErrorKind::NotFound, fleet.show_agent(named(missing)).await).body())),
        (
            "delete_agent",
            json(&refused(ErrorKind::NotFound, fleet.delete_agent(named(missing)).await).body()),
        ),
        (
            "stop_agent_task",
            json(&refused(ErrorKind::NotFound, fleet.stop_agent_task(named(missing)).await).body()),
        ),
        (
            "restart_agent",
            json(&refused(ErrorKind::NotFound, fleet.restart_agent(named(missing)).await).body()),
        ),
        (
            "start_agent_task",
            json(&refused(ErrorKind::NotFound, fleet.start_agent_task(start(missing, "x")).await).body()),
        ),
        (
            "show_agent_task_history",
            json(&refused(ErrorKind::NotFound, fleet.show_agent_task_history(history(missing)).await).body()),
        ),
    ];
    for (operation, body) in lookups {
        assert_eq!(body["details"]["operation"], operation);
        assert_eq!(body["details"]["agent_name"], missing);
    }
    let roles = fleet.list_agent_roles(ListRoles { project: "No such project".to_owned() }).await;
    refused(ErrorKind::NotFound, roles);

    for name in ["", "a b", "x/../y", &"a".repeat(33)] {
        let error = refused(ErrorKind::BadRequest, fleet.show_agent(named(name)).await);
        assert_eq!(detail(&error, "field"), "agent_name");
    }
    for (page, page_size) in [(Some(0), None), (Some(-1), None), (None, Some(0)), (None, Some(-5))] {
        let query = TaskHistoryQuery { page, page_size, ..history("any") };
        refused(ErrorKind::BadRequest, fleet.show_agent_task_history(query).await);
    }
    for filter in ["online", "", "bu sy"] {
        let query = ListAgents { status_filter: Some(filter.to_owned()), ..ListAgents::default() };
        let error = refused(ErrorKind::BadRequest, fleet.list_agents(query).await);
        assert_eq!(detail(&error, "field"), "status_filter");
    }
    let negative = ListAgents { limit: Some(-1), ..ListAgents::default() };
    refused(ErrorKind::BadRequest, fleet.list_agents(negative).await);
    let wait = WaitForAgent { agent_name: "any".to_owned(), status: None, timeout_seconds: Some(0) };
    refused(ErrorKind::BadRequest, fleet.wait_for_agent(wait).await);
}
