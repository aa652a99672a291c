//! The shared suite on every version of Coder, and what differs between versions.

use crewkit_fleet::backend::coder::CoderBackend;
use crewkit_fleet::model::{CreateAgent, StartTask};
use crewkit_fleet::{ErrorKind, Fleet};
use crewkit_testkit::coder::{Parameter, Profile, Template};

use super::suite::{self, Ground};
use super::support::{Fixture, fixture, fleet, named, new_agent, refused, start};

struct Simulated(Fixture);

impl Simulated {
    async fn new(profile: Profile) -> Self {
        Self(fixture(profile).await)
    }
}

impl Ground for Simulated {
    type Backend = CoderBackend;

    fn fleet(&self) -> &Fleet<CoderBackend> {
        &self.0.fleet
    }

    fn project(&self) -> String {
        "Setup".to_owned()
    }

    fn fresh_name(&self, hint: &str) -> String {
        format!("{hint}-1")
    }

    async fn until_idle(&self, _: &str) {
        self.0.sim.world().finish_builds();
    }
}

#[tokio::test]
async fn an_agent_lives_the_same_life_on_every_version() {
    for profile in Profile::ALL {
        let ground = Simulated::new(profile).await;
        Box::pin(suite::life_of_an_agent(&ground)).await;
        assert_eq!(ground.0.sim.count("DELETE", "/"), 0);
    }
}

#[tokio::test]
async fn bad_requests_are_refused_on_every_version() {
    for profile in [Profile::V2_27, Profile::V2_32, Profile::V2_37] {
        suite::bad_requests(&Simulated::new(profile).await).await;
    }
}

/// The routes a creation and a task take, by version and template.
#[tokio::test]
async fn each_version_gets_the_requests_it_understands() {
    let by_parameter = "POST /api/v2/users/me/workspaces";
    let cases = [
        (Profile::V2_27, true, by_parameter, "/api/experimental/tasks/me/"),
        (Profile::V2_28, true, "POST /api/experimental/tasks/me", "/api/experimental/tasks/me/"),
        (Profile::V2_29, true, "POST /api/v2/tasks/me", "/api/v2/tasks/me/"),
        (Profile::V2_30, true, by_parameter, "/apps/ccw/message"),
        (Profile::V2_37, true, by_parameter, "/apps/ccw/message"),
        (Profile::V2_28, false, "POST /api/experimental/tasks/me", "/api/experimental/tasks/me/"),
        (Profile::V2_32, false, "POST /api/v2/tasks/me", "/api/v2/tasks/me/"),
        (Profile::V2_36, false, "POST /api/v2/tasks/me", "/api/v2/tasks/me/"),
        (Profile::V2_37, false, by_parameter, "/apps/ccw/message"),
    ];
    for (profile, has_parameter, creation, sending) in cases {
        let Fixture { sim, fleet } = fixture(profile).await;
        if !has_parameter {
            sim.world().push_version("setup-devcontainer", |template| template.parameters.clear());
        }
        fleet.create_agent(new_agent("papi")).await.unwrap();
        sim.world().finish_builds();
        fleet.backend().settled().await;
        sim.world().workspace_mut("papi").agent.running = false;
        fleet.start_agent_task(start("papi", "go")).await.unwrap();
        let writes: Vec<String> = sim
            .requests()
            .iter()
            .filter(|request| request.method == "POST")
            .map(|request| format!("{} {}", request.method, request.path))
            .collect();
        let case = format!("{profile:?}, parameter {has_parameter}: {writes:?}");
        assert!(writes.iter().any(|write| write == creation), "{case}");
        assert!(writes.last().unwrap().contains(sending), "{case}");
        let told = sim.world().workspace_mut("papi").agent.messages.clone();
        assert_eq!(told.last().unwrap().text, "go", "{case}");
    }
}

/// However the spec gets there, it can be read back.
#[tokio::test]
async fn the_spec_is_found_again_on_every_version() {
    for profile in Profile::ALL {
        let Fixture { sim, fleet: ours } = fixture(profile).await;
        ours.create_agent(new_agent("papi")).await.unwrap();
        sim.world().finish_builds();
        let stranger = fleet(&sim, |_| {});
        let shown = stranger.show_agent(named("papi")).await.unwrap();
        assert_eq!(shown.agent.spec, "Build the thing", "{profile:?}");
    }
}

#[tokio::test]
async fn a_template_without_a_way_for_the_prompt_gets_it_as_a_message() {
    let Fixture { sim, fleet } = fixture(Profile::V2_37).await;
    sim.world().push_version("setup-devcontainer", |template| template.parameters.clear());
    let created = fleet.create_agent(new_agent("papi")).await.unwrap();
    assert!(created.message.contains("is sent when its start script is done"), "{}", created.message);
    sim.world().finish_builds();
    fleet.backend().settled().await;
    let told = sim.world().workspace_mut("papi").agent.messages.clone();
    assert_eq!(told.iter().map(|said| said.text.as_str()).collect::<Vec<_>>(), ["Build the thing"]);
}

#[tokio::test]
async fn a_preset_that_sets_the_prompt_is_told_to_the_caller() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().push_version("setup-devcontainer", |template| {
        template.presets[0].parameters.push(("AI Prompt".to_owned(), "preset prompt".to_owned()));
    });
    let created = fleet.create_agent(new_agent("papi")).await.unwrap();
    assert!(created.message.contains("replaces the spec"), "{}", created.message);
}

#[tokio::test]
async fn roles_can_come_from_a_parameter_when_there_are_no_presets() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().push_version("setup-devcontainer", |template| {
        template.presets.clear();
        template.parameters.push(Parameter {
            name: "agent_role".to_owned(),
            options: vec![("Writer".to_owned(), "w".to_owned()), ("Coder".to_owned(), "c".to_owned())],
            default_value: "w".to_owned(),
        });
    });
    let created = fleet.create_agent(new_agent("papi")).await.unwrap();
    assert_eq!(created.agent.role, "Coder");
    let set = sim.world().workspace_mut("papi").parameters.clone();
    assert!(set.contains(&("agent_role".to_owned(), "c".to_owned())), "{set:?}");
    assert!(set.contains(&("AI Prompt".to_owned(), "Build the thing".to_owned())), "{set:?}");
}

#[tokio::test]
async fn a_template_without_presets_makes_agents_of_unknown_role() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_template(Template {
        name: "bare".to_owned(),
        display_name: String::new(),
        presets: Vec::new(),
        ..Template::default()
    });
    let bare = |name: &str, role: Option<&str>| CreateAgent {
        project: "bare".to_owned(),
        role: role.map(str::to_owned),
        ..new_agent(name)
    };
    let created = fleet.create_agent(bare("one", None)).await.unwrap();
    assert_eq!((created.agent.role.as_str(), created.agent.project.as_str()), ("unknown", "bare"));
    fleet.create_agent(bare("two", Some("CODER"))).await.unwrap();
    refused(ErrorKind::BadRequest, fleet.create_agent(bare("three", Some("manager"))).await);
    let roles =
        fleet.list_agent_roles(crewkit_fleet::model::ListRoles { project: "bare".to_owned() }).await.unwrap();
    assert_eq!((roles.roles.len(), roles.project_name.as_str()), (0, "bare"));
}

/// A start build wakes a dormant workspace from 2.30 on; before, it has to be woken first.
#[tokio::test]
async fn a_restart_works_on_every_version() {
    for profile in Profile::ALL {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().builds_end_after_reads = Some(1);
        sim.world().add_agent("papi");
        let restarted = fleet.restart_agent(named("papi")).await.unwrap();
        assert_eq!(restarted.status.as_str(), "starting", "{profile:?}");

        sim.world().add_agent("sleepy").dormant_at = Some(jiff::Timestamp::now());
        sim.world().workspace_mut("sleepy").status = "stopped".to_owned();
        let restarted = fleet.restart_agent(named("sleepy")).await.unwrap();
        assert_eq!(restarted.status.as_str(), "starting", "{profile:?}");
        assert_eq!(sim.world().workspace_mut("sleepy").dormant_at, None);
    }
}

#[tokio::test]
async fn the_backend_says_what_it_found() {
    for (profile, tasks, chats) in [
        (Profile::V2_27, "experimental", false),
        (Profile::V2_32, "v2", false),
        (Profile::V2_36, "v2", true),
        (Profile::V2_37, "none", true),
    ] {
        let Fixture { sim: _sim, fleet } = fixture(profile).await;
        let info = fleet.info().await;
        assert!(info.reachable);
        assert_eq!(
            (&info.facts["tasks"], &info.facts["chats"]),
            (&tasks.into(), &chats.into()),
            "{profile:?}"
        );
        assert_eq!(info.facts["version"], format!("2.{}", profile.minor()));
    }
}

#[tokio::test]
async fn an_empty_task_is_refused_before_coder_is_asked() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    let empty = StartTask {
        agent_name: "papi".to_owned(),
        task_description: " \n".to_owned(),
        ..StartTask::default()
    };
    refused(ErrorKind::BadRequest, fleet.start_agent_task(empty).await);
    assert_eq!(sim.requests(), []);
}
