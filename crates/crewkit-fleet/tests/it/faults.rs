//! Coder down, slow, lying: what callers are told, and what is not done twice.

use std::time::Duration;

use crewkit_core::Limits;
use crewkit_fleet::ErrorKind;
use crewkit_fleet::model::ListAgents;
use crewkit_testkit::coder::{Fault, Kind, Profile, SimCoder};
use futures_util::future::join_all;

use super::support::{
    CoderFleet, Fixture, detail, fixture, fleet, history, named, names, new_agent, patient, quick, refused,
    start, without_metadata,
};

/// Faults that outlast every retry, and the reason a caller is given.
fn lasting() -> Vec<(Kind, &'static str)> {
    vec![
        (Kind::Status(500), ""),
        (Kind::Status(502), ""),
        (Kind::Status(401), "coder_auth"),
        (Kind::Status(403), "coder_forbidden"),
        (Kind::RateLimit(60), "rate_limited"),
        (Kind::Hang, "timed_out"),
        (Kind::Malformed, "malformed_answer"),
        (Kind::Truncated, "malformed_answer"),
        (Kind::Html, "malformed_answer"),
        (Kind::Null, "malformed_answer"),
        (Kind::Drop, "unreachable"),
        (Kind::Drip(Duration::from_secs(30)), "timed_out"),
        (Kind::Redirect("http://127.0.0.1:1/elsewhere".to_owned()), "redirected"),
        (Kind::Endless, ""),
    ]
}

async fn faulty(kind: &Kind) -> (SimCoder, CoderFleet) {
    let Fixture { sim, fleet: patient } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/api/", kind.clone()));
    let waits = matches!(kind, Kind::Hang | Kind::Drip(_));
    let fleet = if waits { fleet(&sim, |settings| settings.limits = quick()) } else { patient };
    (sim, fleet)
}

#[tokio::test]
async fn every_lasting_fault_becomes_a_503_that_names_its_reason() {
    let check = async |(kind, reason): (Kind, &str)| {
        let (_sim, fleet) = faulty(&kind).await;
        let error = refused(ErrorKind::Unavailable, fleet.list_agents(ListAgents::default()).await);
        if !reason.is_empty() {
            assert_eq!(detail(&error, "reason"), reason, "{kind:?}: {error}");
        }
        let (_sim, fleet) = faulty(&kind).await;
        refused(ErrorKind::Unavailable, fleet.show_agent(named("papi")).await);
        let (_sim, fleet) = faulty(&kind).await;
        refused(ErrorKind::Unavailable, fleet.show_agent_task_history(history("papi")).await);
    };
    join_all(lasting().into_iter().map(check)).await;
}

#[tokio::test]
async fn every_passing_fault_is_outlived_by_reads() {
    let passing = [
        Kind::Status(502),
        Kind::Status(500),
        Kind::RateLimit(0),
        Kind::Malformed,
        Kind::Truncated,
        Kind::Drop,
        Kind::Hang,
    ];
    let check = async |kind: Kind| {
        let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
        let limits = Limits { fleet_coder_request_ms: 2_000, ..patient() };
        let fleet = fleet(&sim, |settings| settings.limits = limits);
        sim.world().add_agent("papi");
        sim.fault(Fault::on("/api/v2/workspaces?", kind.clone()).times(1));
        sim.fault(Fault::on("/api/v2/users/me/workspace/papi", kind.clone()).times(1));
        assert_eq!(names(&fleet, without_metadata()).await, ["papi"], "{kind:?}");
        assert_eq!(fleet.show_agent(named("papi")).await.unwrap().agent.name, "papi", "{kind:?}");
    };
    join_all(passing.into_iter().map(check)).await;
}

#[tokio::test]
async fn a_write_is_never_sent_twice() {
    let kinds = [
        Kind::Status(500),
        Kind::Status(502),
        Kind::Drop,
        Kind::Hang,
        Kind::Malformed,
        Kind::Html,
        Kind::Null,
    ];
    let check = async |kind: Kind| {
        let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
        // Only the one that hangs waits this long; the others are answered at once, on any machine.
        let limits = Limits { fleet_coder_deadline_ms: 10_000, ..patient() };
        let fleet = fleet(&sim, |settings| settings.limits = limits);
        sim.fault(Fault::on("/api/v2/users/me/workspaces", kind.clone()).method("POST"));
        let error = refused(ErrorKind::Unavailable, fleet.create_agent(new_agent("papi")).await);
        assert_eq!(detail(&error, "outcome"), "unknown", "{kind:?}: {error}");
        assert_eq!(sim.count("POST", "/api/v2/users/me/workspaces"), 1, "{kind:?}");
        assert_eq!(sim.world().workspace_count(), 0);
    };
    join_all(kinds.into_iter().map(check)).await;
}

#[tokio::test]
async fn a_lost_answer_to_a_create_is_found_by_name() {
    for (profile, route) in
        [(Profile::V2_32, "/api/v2/users/me/workspaces"), (Profile::V2_29, "/api/v2/tasks/me")]
    {
        for kind in [Kind::DropAnswer, Kind::Truncated] {
            let Fixture { sim, fleet } = fixture(profile).await;
            sim.fault(Fault::on(route, kind.clone()).method("POST"));
            let created = fleet.create_agent(new_agent("papi")).await.unwrap();
            assert_eq!(created.agent.name, "papi");
            assert!(created.message.contains("found by its name"), "{}", created.message);
            assert_eq!(sim.world().workspace_count(), 1, "{profile:?} {kind:?}");
            refused(ErrorKind::BadRequest, fleet.create_agent(new_agent("papi")).await);
            assert_eq!(sim.world().workspace_count(), 1);
        }
    }
}

#[tokio::test]
async fn many_creates_of_one_name_make_one_agent() {
    for profile in Profile::ALL {
        let Fixture { sim, fleet } = fixture(profile).await;
        let attempts = (0..8).map(|_| fleet.create_agent(new_agent("papi")));
        let results = join_all(attempts).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{profile:?}");
        for error in results.into_iter().filter_map(Result::err) {
            assert_eq!(
                (error.kind(), detail(&error, "reason").as_str()),
                (ErrorKind::BadRequest, Some("already_exists"))
            );
        }
        assert_eq!(sim.world().workspace_count(), 1, "{profile:?}");
    }
}

#[tokio::test]
async fn a_success_that_cannot_be_found_is_still_a_success_where_coder_described_it() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.fault(Fault::on("/api/v2/users/me/workspaces", Kind::SuccessThen404).method("POST"));
    assert_eq!(fleet.create_agent(new_agent("papi")).await.unwrap().agent.name, "papi");
    refused(ErrorKind::NotFound, fleet.show_agent(named("papi")).await);

    let Fixture { sim, fleet } = fixture(Profile::V2_29).await;
    sim.fault(Fault::on("/api/v2/tasks/me", Kind::SuccessThen404).method("POST"));
    let error = refused(ErrorKind::Unavailable, fleet.create_agent(new_agent("papi")).await);
    assert_eq!(detail(&error, "outcome"), "unknown");
}

#[tokio::test]
async fn an_answer_about_somebody_else_is_not_believed() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/api/v2/users/me/workspace/papi", Kind::WrongName));
    for error in [
        refused(ErrorKind::Unavailable, fleet.show_agent(named("papi")).await),
        refused(ErrorKind::Unavailable, fleet.delete_agent(named("papi")).await),
    ] {
        assert_eq!(detail(&error, "reason"), "malformed_answer");
    }
    assert_eq!(sim.count("POST", "/"), 0);
}

#[tokio::test]
async fn a_delete_with_a_lost_answer_is_looked_up() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/builds", Kind::DropAnswer).method("POST"));
    assert_eq!(fleet.delete_agent(named("papi")).await.unwrap().status.as_str(), "deleting");
    assert_eq!(sim.count("POST", "/api/v2/workspaces/"), 1);
}

#[tokio::test]
async fn a_refused_create_tells_what_to_change() {
    let cases = [
        (403, ErrorKind::BadRequest),
        (409, ErrorKind::BadRequest),
        (400, ErrorKind::BadRequest),
        (404, ErrorKind::BadRequest),
        (406, ErrorKind::Unavailable),
        (401, ErrorKind::Unavailable),
    ];
    for (status, kind) in cases {
        let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
        sim.fault(Fault::on("/api/v2/users/me/workspaces", Kind::Status(status)).method("POST"));
        let error = refused(kind, fleet.create_agent(new_agent("papi")).await);
        assert_eq!(detail(&error, "coder_status"), status, "{error}");
        assert!(detail(&error, "request_id").is_string());
    }
}

#[tokio::test]
async fn a_silent_coder_is_left_alone_and_asked_again_later() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_32).await;
    let limits = Limits { fleet_coder_pause_ms: 4_000, ..patient() };
    let fleet = fleet(&sim, |settings| settings.limits = limits);
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/api/", Kind::Drop));
    refused(ErrorKind::Unavailable, fleet.list_agents(without_metadata()).await);
    let asked = sim.requests().len();
    for _ in 0..20 {
        let error = refused(ErrorKind::Unavailable, fleet.list_agents(without_metadata()).await);
        assert!(detail(&error, "retry_after").is_u64(), "{error}");
    }
    assert_eq!(sim.requests().len(), asked, "it is left alone");
    sim.heal();
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    // The first request after the pause is the only one until it is answered; a list asks two things at once.
    fleet.show_agent_task_history(history("papi")).await.ok();
    assert_eq!(names(&fleet, without_metadata()).await, ["papi"]);
}

#[tokio::test]
async fn a_coder_that_is_not_there_is_named() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    drop(sim);
    let error = refused(ErrorKind::Unavailable, fleet.list_agents(ListAgents::default()).await);
    assert_eq!(detail(&error, "reason"), "unreachable");
    let info = fleet.info().await;
    assert!(!info.reachable && info.facts.contains_key("error"));
}

#[tokio::test]
async fn a_send_that_hangs_is_not_repeated() {
    let Fixture { sim, fleet: _ } = fixture(Profile::V2_37).await;
    let fleet = fleet(&sim, |settings| settings.limits.fleet_coder_send_ms = 1_000);
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/apps/ccw/message", Kind::Hang).method("POST"));
    let error = refused(ErrorKind::Unavailable, fleet.start_agent_task(start("papi", "x")).await);
    assert_eq!(detail(&error, "reason"), "not_confirmed");
    assert_eq!(sim.count("POST", "/@fleetbot/papi.main/apps/ccw/message"), 1);
}

/// A list asks for several things at once; that all of them fail together is still one failure.
#[tokio::test]
async fn a_moment_that_breaks_every_request_of_a_list_is_outlived() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi");
    // The two that are asked first: for a page of workspaces, and for the user.
    sim.fault(Fault::on("/api/v2/", Kind::Drop).times(2));
    assert_eq!(fleet.list_agents(ListAgents::default()).await.unwrap().total_count, 1);
}

/// The status that was looked at may be old by the time a task is sent; Coder looks once more.
#[tokio::test]
async fn an_agent_that_began_to_work_meanwhile_is_a_conflict_on_every_version() {
    for profile in [Profile::V2_27, Profile::V2_30, Profile::V2_32, Profile::V2_37] {
        let Fixture { sim, fleet } = fixture(profile).await;
        sim.world().add_agent("papi").agent.running = true;
        sim.fault(Fault::on("/apps/ccw/status", Kind::Status(404)));
        let error = refused(ErrorKind::Conflict, fleet.start_agent_task(start("papi", "x")).await);
        assert_eq!(detail(&error, "reason"), "busy", "{profile:?}");
        assert!(sim.world().workspace_mut("papi").agent.messages.is_empty());
    }
}

#[tokio::test]
async fn broken_side_questions_do_not_break_a_list() {
    let Fixture { sim, fleet } = fixture(Profile::V2_32).await;
    sim.world().add_agent("papi");
    sim.fault(Fault::on("/presets", Kind::Status(400)));
    let list = fleet.list_agents(without_metadata()).await.unwrap();
    assert_eq!(list.agents[0].role, "unknown");
    sim.heal();
    let list = fleet.list_agents(without_metadata()).await.unwrap();
    assert_eq!(list.agents[0].role, "Coder", "what failed is asked again");
}
