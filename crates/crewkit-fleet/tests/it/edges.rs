//! Workspaces and templates that are not as one would wish.

use crewkit_fleet::ErrorKind;
use crewkit_fleet::model::{CreateAgent, ListAgents, ListRoles, TaskHistoryQuery, TaskStatus, WaitForAgent};
use crewkit_testkit::coder::{Fault, Kind, Profile, Template};

use super::support::{
    Fixture, checked, detail, fixture, fleet, history, named, names, new_agent, refused, start,
    without_metadata,
};

#[tokio::test]
async fn only_agents_are_agents() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        world.add_template(Template {
            name: "plain".to_owned(),
            display_name: "Plain".to_owned(),
            ai_task: false,
            parameters: Vec::new(),
            ..Template::default()
        });
        world.add_agent("mine");
        world.add_workspace("just-a-box", "fleetbot", "plain");
        world.add_agent("unclaimed").is_prebuild = true;
        world.add_workspace("mine", "alice", "setup-devcontainer");
        world.add_agent("gone").status = "deleted".to_owned();
        let pending = world.add_agent("on-its-way");
        pending.status = "pending".to_owned();
        pending.task_id = None;
        pending.has_ai_task = false;
        let reporting = world.add_workspace("reports", "fleetbot", "plain");
        reporting.app_slug = Some("my-agent".to_owned());
        reporting.report(5, "working", "I am one too", "");
    }
    assert_eq!(names(&fleet, without_metadata()).await, ["mine", "on-its-way", "reports"]);
    for name in ["just-a-box", "unclaimed", "gone"] {
        refused(ErrorKind::NotFound, fleet.show_agent(named(name)).await);
        refused(ErrorKind::NotFound, fleet.delete_agent(named(name)).await);
    }
    assert_eq!(sim.count("POST", "/api/v2/workspaces"), 0, "nothing was deleted");
    let taken = refused(ErrorKind::BadRequest, fleet.create_agent(new_agent("just-a-box")).await);
    assert_eq!(detail(&taken, "reason"), "already_exists");
    assert_eq!(detail(&taken, "coder_status"), 409);
}

/// A template the user lost the right to look into, say.
#[tokio::test]
async fn a_template_that_cannot_be_looked_into_hides_no_agent_of_another() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        world.add_template(Template { name: "lost".to_owned(), ai_task: false, ..Template::default() });
        world.add_agent("papi");
        world.add_workspace("box", "fleetbot", "lost");
    }
    for status in [403, 404] {
        sim.fault(Fault::on("/rich-parameters", Kind::Status(status)));
        assert_eq!(names(&fleet, without_metadata()).await, ["papi"], "{status}");
        sim.heal();
    }
    assert_eq!(names(&fleet, without_metadata()).await, ["box", "papi"], "nothing was concluded for good");
}

#[tokio::test]
async fn a_question_about_templates_that_failed_is_asked_again() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        world.push_version("setup-devcontainer", |template| template.parameters.clear());
        let pending = world.add_agent("on-its-way");
        pending.status = "pending".to_owned();
        pending.task_id = None;
        pending.has_ai_task = false;
    }
    sim.fault(Fault::on("/api/v2/templates?", Kind::Status(403)));
    refused(ErrorKind::Unavailable, fleet.list_agents(without_metadata()).await);
    sim.heal();
    assert_eq!(names(&fleet, without_metadata()).await, ["on-its-way"]);
}

#[tokio::test]
async fn a_busy_agent_that_said_nothing_works_on_its_spec() {
    for profile in [Profile::V2_27, Profile::V2_29, Profile::V2_36] {
        let Fixture { sim, fleet } = fixture(profile).await;
        {
            let mut world = sim.world();
            // A watcher of the screen reports that it works, and no more.
            world.add_agent("silent").report(5, "working", "", "");
            world.add_agent("talks").report(5, "working", "typing", "");
            world.add_agent("rests");
        }
        let list = fleet.list_agents(without_metadata()).await.unwrap();
        let tasks: Vec<_> = list.agents.iter().map(|agent| agent.current_task.as_deref()).collect();
        assert_eq!(tasks, [None, Some("Initial spec of silent"), Some("typing")], "{profile:?}");
    }
}

#[tokio::test]
async fn who_waits_does_not_ask_without_end() {
    for profile in [Profile::V2_29, Profile::V2_36] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi").report(5, "idle", "done", "");
        let wait = |status: &str, seconds| WaitForAgent {
            agent_name: "papi".to_owned(),
            status: Some(status.to_owned()),
            timeout_seconds: Some(seconds),
        };
        let waited = checked("wait_for_agent", fleet.wait_for_agent(wait("busy", 1)).await.unwrap());
        assert!(!waited.reached);
        let looks = sim.count("GET", "/api/v2/users/me/workspace/papi");
        assert!(looks <= 3, "{profile:?}: {looks} looks in a second in which nothing changed");

        // A change is seen long before the time is over.
        let watches = || sim.requests().iter().filter(|it| it.path.ends_with("/watch")).count();
        let before = watches();
        let (waited, ()) = tokio::join!(fleet.wait_for_agent(wait("busy", 300)), async {
            while watches() == before {
                tokio::task::yield_now().await;
            }
            sim.world().workspace_mut("papi").agent.running = true;
            sim.world().workspace_mut("papi").report(60, "working", "typing", "");
        });
        assert!(waited.unwrap().reached, "{profile:?}");
    }
}

/// An app that is called as no other and has not reported: only its task knows that it is the agent.
#[tokio::test]
async fn an_agent_behind_an_app_of_any_name_can_be_interrupted() {
    for profile in [Profile::V2_27, Profile::V2_28, Profile::V2_32] {
        let Fixture { sim, fleet } = fixture(profile).await;
        {
            let mut world = sim.world();
            let workspace = world.add_agent("papi");
            workspace.app_slug = Some("my-own".to_owned());
            workspace.agent.running = true;
        }
        assert_eq!(fleet.show_agent(named("papi")).await.unwrap().agent.status.as_str(), "busy");
        let stopped = checked("stop_agent_task", fleet.stop_agent_task(named("papi")).await.unwrap());
        assert!(stopped.details.confirmed, "{profile:?}");
    }
}

#[tokio::test]
async fn statuses_are_those_of_the_data_model() {
    let Fixture { sim, fleet } = fixture(Profile::V2_30).await;
    let words = ["pending", "starting", "stopping", "stopped", "failed", "canceling", "canceled", "deleting"];
    {
        let mut world = sim.world();
        for word in words {
            // Stuck `working` reports of workspaces that do not run must not count.
            let workspace = world.add_agent(word);
            workspace.report(5, "working", "stuck", "");
            workspace.status = word.to_owned();
        }
        let set = |world: &mut crewkit_testkit::coder::World, name: &str, status: &str, lifecycle: &str| {
            let workspace = world.add_agent(name);
            workspace.agent_status = status.to_owned();
            workspace.lifecycle = lifecycle.to_owned();
        };
        set(&mut world, "lost", "disconnected", "ready");
        set(&mut world, "never-came", "timeout", "created");
        set(&mut world, "unready", "connected", "starting");
        world.add_agent("works").report(5, "working", "typing", "");
        world.add_agent("rests").report(5, "complete", "done", "");
    }
    let list = fleet.list_agents(without_metadata()).await.unwrap();
    let status = |name: &str| {
        let agent = list.agents.iter().find(|agent| agent.name == name).unwrap();
        (agent.status.as_str().to_owned(), agent.availability.as_str(), agent.needs_attention)
    };
    for word in words {
        assert_eq!(status(word), (word.to_owned(), "offline", word == "failed"));
    }
    assert_eq!(status("lost"), ("failed".to_owned(), "offline", true));
    assert_eq!(status("never-came"), ("failed".to_owned(), "offline", true));
    assert_eq!(status("unready"), ("starting".to_owned(), "offline", false));
    assert_eq!(status("works"), ("busy".to_owned(), "busy", false));
    assert_eq!(status("rests"), ("idle".to_owned(), "idle", false));

    let shown = fleet.show_agent(named("lost")).await.unwrap().agent;
    assert!(shown.health.reason.unwrap().contains("disconnected"));
    let filter = |word: &str| ListAgents { status_filter: Some(word.to_owned()), ..without_metadata() };
    assert_eq!(names(&fleet, filter("busy")).await, ["works"]);
    assert_eq!(names(&fleet, filter("offline")).await.len(), words.len() + 3);

    for word in ["stopped", "lost", "unready"] {
        let error = refused(ErrorKind::BadRequest, fleet.start_agent_task(start(word, "x")).await);
        assert_eq!(detail(&error, "reason"), "offline");
        assert_eq!(error.message().contains("restart_agent"), word == "stopped", "{error}");
        let error = refused(ErrorKind::BadRequest, fleet.stop_agent_task(named(word)).await);
        assert_eq!(detail(&error, "reason"), "no_running_task");
    }
}

#[tokio::test]
async fn the_role_is_that_of_the_version_the_workspace_was_built_from() {
    let Fixture { sim, fleet } = fixture(Profile::V2_27).await;
    {
        let mut world = sim.world();
        let operator = world.templates[0].active().presets[1].id;
        world.add_agent("old").preset = Some(operator);
        world.push_version("setup-devcontainer", |template| template.presets[1].name = "Renamed".to_owned());
        world.add_agent("no-preset").preset = None;
    }
    let list = fleet.list_agents(without_metadata()).await.unwrap();
    let roles: Vec<_> = list.agents.iter().map(|agent| (agent.name.as_str(), agent.role.as_str())).collect();
    assert_eq!(roles, [("no-preset", "unknown"), ("old", "Operator")]);
    assert_eq!(fleet.show_agent(named("old")).await.unwrap().agent.role, "Operator");
    assert_eq!(
        names(&fleet, ListAgents { role_filter: Some("operator".to_owned()), ..without_metadata() }).await,
        ["old"]
    );
}

#[tokio::test]
async fn many_pages_are_fetched_together_and_nobody_is_listed_twice() {
    let Fixture { sim, .. } = fixture(Profile::V2_32).await;
    let fleet = super::support::fleet(&sim, |settings| settings.limits.fleet_coder_page = 100);
    {
        let mut world = sim.world();
        for number in 0..250 {
            world.add_agent(&format!("agent-{number:03}"));
        }
    }
    let all = fleet.list_agents(without_metadata()).await.unwrap();
    assert_eq!((all.total_count, all.agents.len()), (250, 250));
    assert_eq!(sim.count("GET", "/api/v2/workspaces?"), 3, "the first tells how many more");
    sim.forget_requests();
    fleet.list_agents(without_metadata()).await.unwrap();
    assert_eq!(sim.count("GET", "/api/v2/workspaces?"), 3);
    sim.world().add_agent("agent-250");
    let by_twenties = super::support::fleet(&sim, |settings| settings.limits.fleet_coder_page = 20);
    assert_eq!(by_twenties.list_agents(without_metadata()).await.unwrap().agents.len(), 251);
    for request in sim.requests() {
        assert!(
            !request.path.starts_with("/api/v2/workspaces?") || request.path.contains("owner%3Ame"),
            "{request:?}"
        );
    }
    let some = ListAgents { limit: Some(3), offset: Some(248), ..without_metadata() };
    let page = fleet.list_agents(some).await.unwrap();
    assert_eq!(page.total_count, 251);
    let names: Vec<_> = page.agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["agent-248", "agent-249", "agent-250"]);
}

#[tokio::test]
async fn a_small_fleet_is_one_page() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    for name in ["a", "b", "c", "d"] {
        sim.world().add_agent(name);
    }
    assert_eq!(names(&fleet, without_metadata()).await.len(), 4);
    assert_eq!(sim.count("GET", "/api/v2/workspaces?"), 1);
}

/// Coder calls a script that left a program running a failure; the agent works all the same.
#[tokio::test]
async fn a_start_script_that_left_something_running_asks_for_nobody() {
    let Fixture { sim, fleet } = fixture(Profile::V2_36).await;
    for (health, asks) in [("healthy", false), ("disabled", true)] {
        let name = format!("app-{health}");
        {
            let mut world = sim.world();
            let workspace = world.add_agent(&name);
            "start_error".clone_into(&mut workspace.lifecycle);
            health.clone_into(&mut workspace.app_health);
        }
        let agent = fleet.show_agent(named(&name)).await.unwrap().agent;
        assert_eq!((agent.status.as_str(), agent.needs_attention), ("idle", asks), "{health}");
        assert_eq!(agent.health.healthy, !asks);
        assert!(agent.health.reason.unwrap().contains("start script"), "{health}");
    }
}

#[tokio::test]
async fn names_keep_their_case_and_are_found_in_any() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    let long = "a234567890123456789012345678901z";
    sim.world().add_agent("MixedCase");
    sim.world().add_agent(long);
    assert_eq!(fleet.show_agent(named("mixedCASE")).await.unwrap().agent.name, "MixedCase");
    assert_eq!(fleet.show_agent(named(long)).await.unwrap().agent.name, long);
    refused(ErrorKind::BadRequest, fleet.create_agent(new_agent("mixedcase")).await);
}

#[tokio::test]
async fn a_long_history_is_sorted_joined_and_paged() {
    for profile in [Profile::V2_27, Profile::V2_32] {
        let Fixture { sim, fleet } = fixture(profile).await;
        {
            let mut world = sim.world();
            let workspace = world.add_agent("papi");
            workspace.report(1, "working", "", "");
            // Out of order, as Coder before 2.30 has them.
            for step in (0..125).rev() {
                workspace.report(10 + 2 * step, "working", &format!("step {step}"), "");
                workspace.report(11 + 2 * step, "idle", &format!("step {step}"), "");
            }
        }
        let all = TaskHistoryQuery { page_size: Some(1000), ..history("papi") };
        let first = fleet.show_agent_task_history(all).await.unwrap();
        assert_eq!((first.total_count, first.page_size, first.total_pages), (125, 100, 2), "cut to 100");
        assert_eq!((first.tasks[0].summary.as_str(), first.has_next_page), ("step 124", true));
        assert_eq!(first.tasks[0].status, TaskStatus::Completed);
        let last = TaskHistoryQuery { page: Some(7), ..history("papi") };
        let last = checked("show_agent_task_history", fleet.show_agent_task_history(last).await.unwrap());
        assert_eq!(
            (last.tasks.len(), last.tasks[4].summary.as_str(), last.has_next_page),
            (5, "step 0", false)
        );
        let beyond = TaskHistoryQuery { page: Some(8), ..history("papi") };
        assert_eq!(fleet.show_agent_task_history(beyond).await.unwrap().tasks, []);
        let raw = TaskHistoryQuery { raw: Some(true), page_size: Some(100), ..history("papi") };
        assert_eq!(fleet.show_agent_task_history(raw).await.unwrap().total_count, 251);
        assert_eq!(sim.count("GET", "/api/v2/users/me/workspace/papi"), 4, "one request each");
    }
}

#[tokio::test]
async fn a_history_without_reports_begins_with_the_spec() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    fleet.create_agent(new_agent("papi")).await.unwrap();
    let before = fleet.show_agent_task_history(history("papi")).await.unwrap();
    assert_eq!(
        (before.tasks[0].summary.as_str(), before.tasks[0].status),
        ("Build the thing", TaskStatus::Pending)
    );
    sim.world().finish_builds();
    sim.world().workspace_mut("papi").report(5, "working", "", "");
    let busy = fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(
        (busy.current_task, busy.status.as_str()),
        (None, "idle"),
        "the agent itself says that it rests"
    );
    sim.world().workspace_mut("papi").agent.running = true;
    let busy = fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(busy.current_task.as_deref(), Some("Build the thing"));
}

#[tokio::test]
async fn what_was_reported_before_a_restart_is_not_current() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    {
        let mut world = sim.world();
        let workspace = world.add_agent("papi");
        workspace.report(-600, "working", "from before", "");
        workspace.stale_report = workspace.reports.pop();
    }
    let agent = fleet.list_agents(without_metadata()).await.unwrap().agents.remove(0);
    assert_eq!(
        (agent.status.as_str(), agent.current_task, agent.last_task.as_deref()),
        ("idle", None, Some("from before"))
    );
}

#[tokio::test]
async fn projects_are_found_by_any_name_and_told_apart_by_organization() {
    let Fixture { sim, fleet: ours } = fixture(Profile::V2_32).await;
    let template = |name: &str, display: &str, organization: &str| Template {
        name: name.to_owned(),
        display_name: display.to_owned(),
        organization: organization.to_owned(),
        ..Template::default()
    };
    {
        let mut world = sim.world();
        world.add_template(template("shared", "Shared", "acme"));
        world.add_template(template("shared", "Shared", "coder"));
        world.add_template(template("nameless", "", "acme"));
        world.add_organization("third");
        world.add_template(Template { deprecated: true, ..template("old", "Old", "coder") });
    }
    let projects = ours.list_agent_projects().await.unwrap();
    let shown: Vec<_> =
        projects.projects.iter().map(|it| format!("{}/{}", it.organization, it.name)).collect();
    assert_eq!(shown, ["acme/nameless", "coder/Setup", "acme/Shared", "coder/Shared"]);

    let organization = |fleet: super::support::CoderFleet, project: &str, name: &str| {
        let wanted = CreateAgent { project: project.to_owned(), ..new_agent(name) };
        async move { fleet.create_agent(wanted).await.map(|created| created.agent.organization) }
    };
    // The default organization wins, then the configured one, then the one that is named.
    assert_eq!(organization(ours.clone(), "shared", "a").await.unwrap(), "coder");
    let in_acme = fleet(&sim, |settings| settings.organization = Some("acme".to_owned()));
    assert_eq!(organization(in_acme, "SHARED", "b").await.unwrap(), "acme");
    assert_eq!(organization(ours.clone(), "acme/shared", "c").await.unwrap(), "acme");
    // Where the configured organization has none of that name, the default one wins as before.
    sim.world()
        .template_mut("shared")
        .versions
        .values_mut()
        .for_each(|it| it.organization = "third".to_owned());
    let in_acme = fleet(&sim, |settings| settings.organization = Some("acme".to_owned()));
    assert_eq!(organization(in_acme, "shared", "e").await.unwrap(), "coder");
    sim.world()
        .template_mut("shared")
        .versions
        .values_mut()
        .for_each(|it| it.organization = "acme".to_owned());
    refused(ErrorKind::BadRequest, organization(ours.clone(), "Old", "d").await);
    refused(ErrorKind::NotFound, ours.list_agent_roles(ListRoles { project: "Old".to_owned() }).await);

    let only = fleet(&sim, |settings| settings.projects = vec!["acme/shared".to_owned()]);
    assert_eq!(names(&only, without_metadata()).await, ["b", "c"]);
    refused(ErrorKind::NotFound, only.show_agent(named("a")).await);
    assert_eq!(only.list_agent_projects().await.unwrap().total_count, 1);
    let by_display_name = fleet(&sim, |settings| settings.projects = vec!["coder/SETUP".to_owned()]);
    assert_eq!(by_display_name.list_agent_projects().await.unwrap().total_count, 1);
}

#[tokio::test]
async fn pull_requests_become_metadata_of_the_fleet() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").report(5, "working", "PR is up", "https://git.example/o/r/pull/7");
    let agent = fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(agent.fleet_metadata["fleet_mcp_pull_request_url"], "https://git.example/o/r/pull/7");
    assert_eq!(agent.fleet_metadata["fleet_mcp_role"], "Coder");
}

#[tokio::test]
async fn a_state_that_goes_backwards_is_shown_as_it_is() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi").report(5, "working", "x", "");
    for (word, expected) in
        [("running", "busy"), ("pending", "pending"), ("deleting", "deleting"), ("running", "busy")]
    {
        sim.world().workspace_mut("papi").status = word.to_owned();
        let list = fleet.list_agents(without_metadata()).await.unwrap();
        assert_eq!(list.agents[0].status.as_str(), expected);
    }
}
