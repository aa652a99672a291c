//! Canaries: the token, the environment of workspaces and pages of the proxy appear nowhere.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crewkit_core::Secret;
use crewkit_fleet::AnyFleet;
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings, SettingsError};
use crewkit_fleet::equip::{EquipAgents, FleetDrift};
use crewkit_fleet::model::{ListAgents, ListRoles, LogQuery};
use crewkit_fleet::time::Clock;
use crewkit_testkit::coder::{Fault, Kind, Profile, Trouble};
use tracing_subscriber::fmt::MakeWriter;

use super::coder_kit::Shelf;
use super::support::{Fixture, fixture, fleet, history, json as to_json, named, new_agent, start};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Everything the tools answer, good or bad, as one text.
async fn everything(fixture: &Fixture) -> String {
    let fleet = &fixture.fleet;
    let mut said = String::new();
    let mut note = |text: String| said.push_str(&text);
    macro_rules! say {
        ($call:expr) => {
            match $call.await {
                Ok(answer) => note(to_json(&answer).to_string() + &format!("{answer:?}")),
                Err(error) => note(to_json(&error.body()).to_string() + &format!("{error:?} {error}")),
            }
        };
    }
    say!(fleet.create_agent(new_agent("fresh")));
    say!(fleet.list_agents(ListAgents::default()));
    say!(fleet.show_agent(named("papi")));
    say!(fleet.show_agent_task_history(history("papi")));
    say!(fleet.show_agent_log(LogQuery { agent_name: "papi".to_owned(), ..LogQuery::default() }));
    say!(fleet.start_agent_task(start("papi", "x")));
    say!(fleet.stop_agent_task(named("papi")));
    let any = AnyFleet::Coder(Box::new(fleet.clone()));
    let papi = || EquipAgents { agent_name: Some("papi".to_owned()), ..EquipAgents::default() };
    say!(any.equip_agents(papi()));
    say!(any.fleet_drift(FleetDrift { agent_name: Some("papi".to_owned()), project: None }));
    say!(any.equip_agents(EquipAgents { profile: Some("no such profile".to_owned()), ..papi() }));
    say!(any.equip_agents(EquipAgents { rollback: Some(true), ..papi() }));
    say!(any.fleet_drift(FleetDrift::default()));
    say!(fleet.show_agent(named("papi")));
    say!(fleet.restart_agent(named("papi")));
    say!(fleet.list_agent_projects());
    say!(fleet.list_agent_roles(ListRoles { project: "Setup".to_owned() }));
    say!(fleet.delete_agent(named("papi")));
    note(format!("{:?}", fleet.info().await));
    said
}

#[tokio::test]
async fn no_answer_no_error_and_no_log_holds_a_secret() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let faults = [
        None,
        Some(Kind::Status(500)),
        Some(Kind::Echo(400)),
        Some(Kind::Echo(401)),
        Some(Kind::Echo(403)),
        Some(Kind::Echo(409)),
        Some(Kind::Echo(500)),
        Some(Kind::Html),
        Some(Kind::Malformed),
        Some(Kind::Truncated),
        Some(Kind::Drop),
        Some(Kind::Redirect("http://127.0.0.1:1/CANARY-redirect".to_owned())),
        Some(Kind::Terminal(Trouble::Silent)),
        Some(Kind::Terminal(Trouble::EndsAfter(2_000))),
        Some(Kind::Terminal(Trouble::LosesConnectionAfter(2_000))),
    ];
    for profile in [Profile::V2_27, Profile::V2_32, Profile::V2_37] {
        for fault in &faults {
            let home = tempfile::tempdir().unwrap();
            let kit = Arc::new(Shelf::default());
            kit.set("default", &[("AGENTS.md", "one\n")]);
            let Fixture { sim, .. } = fixture(profile).await;
            {
                let mut world = sim.world();
                world.builds_end_after_reads = Some(1);
                world.padding = 60_000;
                let papi = world.add_agent("papi");
                papi.agent.running = true;
                papi.directory = Some(home.path().to_owned());
            }
            let fleet = fleet(&sim, |settings| {
                settings.kit = Some(kit);
                // Nothing succeeds with a fault, so nothing is lost by not trying long.
                match fault {
                    None => {}
                    Some(Kind::Terminal(_)) => settings.limits.fleet_kit_ms = 300,
                    Some(_) => settings.limits.fleet_coder_deadline_ms = 90,
                }
                if fault.is_some() {
                    settings.limits.fleet_coder_request_ms = 300;
                    settings.limits.fleet_metadata_agent_ms = 300;
                }
            });
            match fault {
                None => {}
                Some(kind @ Kind::Terminal(_)) => sim.fault(Fault::on("/pty", kind.clone())),
                Some(kind) => sim.fault(Fault::on("/", kind.clone())),
            }
            let said = everything(&Fixture { sim, fleet }).await;
            assert!(!said.contains("CANARY"), "{profile:?} {fault:?}: {said}");
            if fault.is_none() {
                assert!(said.contains("\"drift_count\":0"), "the kit went in: {said}");
            }
        }
    }
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!logged.contains("CANARY"), "{logged}");
}

#[tokio::test]
async fn the_token_follows_no_redirect() {
    let elsewhere = fixture(Profile::V2_32).await;
    let fixture = fixture(Profile::V2_32).await;
    let target = format!("{}/api/v2/users/me", elsewhere.sim.url());
    fixture.sim.fault(Fault::on("/", Kind::Redirect(target)));
    let said = everything(&fixture).await;
    assert!(said.contains("redirect"));
    assert_eq!(elsewhere.sim.requests(), []);
}

#[test]
fn settings_that_cannot_be_used_are_refused_without_quoting_them() {
    let with = |url: &str, token: &str| {
        CoderBackend::new(CoderSettings::new(url, Secret::new(token)), Clock::system())
            .map(|_| ())
            .unwrap_err()
    };
    for url in
        ["", "coder.example", "ftp://coder.example", "https://user:CANARY@coder.example", "file:///CANARY"]
    {
        let error = with(url, "token");
        assert_eq!(error, SettingsError::Url, "{url}");
        assert!(!error.to_string().contains("CANARY"));
    }
    for token in ["", "  ", "CANARY\nx: y", "CANARY\u{0}"] {
        let error = with("https://coder.example", token);
        assert_eq!(error, SettingsError::Token);
        assert!(!error.to_string().contains("CANARY"));
    }
    for ca in ["", "CANARY", "-----BEGIN CERTIFICATE-----\nCANARY\n"] {
        let mut settings = CoderSettings::new("https://coder.example", Secret::new("token"));
        settings.ca = Some(ca.as_bytes().to_vec());
        let error = CoderBackend::new(settings, Clock::system()).map(|_| ()).unwrap_err();
        assert_eq!(error, SettingsError::Certificates, "{ca}");
    }
    for url in
        ["https://coder.example", "https://user:CANARY@coder.example", "https://coder.example?key=CANARY"]
    {
        let settings = CoderSettings::new(url, Secret::new("CANARY"));
        assert!(!format!("{settings:?}").contains("CANARY"), "{url}");
    }
}
