//! Coder over TLS: with an authority of its own, over HTTP/2, and the terminal besides.

use std::sync::Arc;

use crewkit_fleet::ErrorKind;
use crewkit_fleet::equip::{Choice, EquipOrder};
use crewkit_fleet::model::ListAgents;
use crewkit_testkit::coder::{CA, MetadataApp, Profile, SimCoder};
use serde_json::json;

use super::coder_kit::Shelf;
use super::support::{detail, fleet, json as to_json, named, quick, refused, start};

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_named_and_not_otherwise() {
    let sim = SimCoder::start_tls(Profile::V2_32).await.unwrap();
    let field = json!({"value": 7, "error": null, "schema": {"description": "", "include_in_list": true}});
    sim.world().add_agent("papi").metadata = MetadataApp::Answers(json!({"data": {"n": field}}));
    let stranger = fleet(&sim, |settings| settings.limits = quick());
    let error = refused(ErrorKind::Unavailable, stranger.list_agents(ListAgents::default()).await);
    assert_eq!(detail(&error, "reason"), "unreachable");
    assert!(error.message().contains("certificate"), "{}", error.message());
    assert_eq!(sim.requests(), [], "nothing is sent to who is not trusted");

    let friend = fleet(&sim, |settings| settings.ca = Some(CA.as_bytes().to_vec()));
    let list = to_json(&friend.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["agents"][0]["metadata"], json!({"n": 7}));
    friend.show_agent(named("papi")).await.unwrap();
    friend.start_agent_task(start("papi", "x")).await.unwrap();
    let requests = sim.requests();
    assert!(requests.len() > 5 && requests.iter().all(|request| request.http2), "{requests:?}");
}

#[tokio::test]
async fn the_terminal_works_over_tls() {
    let sim = SimCoder::start_tls(Profile::V2_32).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    sim.world().add_agent("papi").directory = Some(home.path().to_owned());
    let kit = Arc::new(Shelf::default());
    kit.set("default", &[("AGENTS.md", "one\n")]);
    let fleet = fleet(&sim, |settings| {
        settings.ca = Some(CA.as_bytes().to_vec());
        settings.kit = Some(kit);
    });
    let order = EquipOrder { choice: Choice::All, profile: None, canary: None, rollback: false };
    let report = fleet.backend().equip(order).await.unwrap();
    assert_eq!(report.equipped, 1, "{report:?}");
    assert_eq!(std::fs::read_to_string(home.path().join("AGENTS.md")).unwrap(), "one\n");
}
