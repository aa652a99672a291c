//! A token that may see and do everything still only touches what is its own.

use crewkit_core::Secret;
use crewkit_fleet::ErrorKind;
use crewkit_testkit::coder::{ADMIN_TOKEN, Profile};

use super::support::{Fixture, fixture, fleet, named, names, new_agent, refused, start, without_metadata};

#[tokio::test]
async fn an_admin_token_never_touches_the_workspaces_of_others() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    let admin = fleet(&sim, |settings| settings.token = Secret::new(ADMIN_TOKEN));
    {
        let mut world = sim.world();
        world.add_workspace("of-alice", "alice", "setup-devcontainer");
        world.add_workspace("shared-name", "alice", "setup-devcontainer");
        world.add_workspace("own", "root", "setup-devcontainer");
    }
    assert_eq!(names(&admin, without_metadata()).await, ["own"]);
    for name in ["of-alice", "shared-name"] {
        refused(ErrorKind::NotFound, admin.show_agent(named(name)).await);
        refused(ErrorKind::NotFound, admin.delete_agent(named(name)).await);
        refused(ErrorKind::NotFound, admin.stop_agent_task(named(name)).await);
        refused(ErrorKind::NotFound, admin.restart_agent(named(name)).await);
        refused(ErrorKind::NotFound, admin.start_agent_task(start(name, "x")).await);
    }
    assert_eq!(sim.requests().iter().filter(|request| request.method != "GET").count(), 0);

    admin.create_agent(new_agent("shared-name")).await.unwrap();
    sim.world().finish_builds();
    admin.delete_agent(named("shared-name")).await.unwrap();
    let alices = sim.world().workspace_mut("shared-name").status.clone();
    assert_eq!(alices, "running", "the workspace of the same name is left alone");
}

#[tokio::test]
async fn workspaces_of_others_are_dropped_even_when_coder_lists_them() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    // `owner:alice` as the token of an admin lists her workspaces; the fleet of `root` must not take them for its own.
    let admin = fleet(&sim, |settings| {
        settings.token = Secret::new(ADMIN_TOKEN);
        settings.owner = "alice".to_owned();
    });
    sim.world().add_workspace("hers", "alice", "setup-devcontainer");
    sim.world().add_workspace("own", "root", "setup-devcontainer");
    assert_eq!(names(&admin, without_metadata()).await, ["hers"], "only when she is configured as the owner");
}
