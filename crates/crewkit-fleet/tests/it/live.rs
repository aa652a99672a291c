//! The shared suite on a real Coder: set `CREWKIT_LIVE_CODER=1`, `CODER_URL`, `CODER_SESSION_TOKEN` and
//! `CREWKIT_LIVE_TEMPLATE`. Only workspaces made here are touched, and they are deleted at the end.

use std::time::Duration;

use crewkit_core::{Limits, Secret};
use crewkit_fleet::backend::coder::{CoderBackend, CoderSettings};
use crewkit_fleet::model::WaitForAgent;
use crewkit_fleet::time::Clock;
use crewkit_fleet::{Fleet, FleetOptions};
use futures_util::FutureExt as _;

use super::suite::{self, Ground};
use super::support::named;

struct Live {
    fleet: Fleet<CoderBackend>,
    project: String,
    names: std::sync::Mutex<Vec<String>>,
}

impl Ground for Live {
    type Backend = CoderBackend;

    fn fleet(&self) -> &Fleet<CoderBackend> {
        &self.fleet
    }

    fn project(&self) -> String {
        self.project.clone()
    }

    fn fresh_name(&self, hint: &str) -> String {
        let stamp = jiff::Timestamp::now().as_millisecond() % 100_000_000;
        let name = format!("ckt-{hint}-{stamp}");
        self.names.lock().unwrap().push(name.clone());
        name
    }

    async fn until_idle(&self, name: &str) {
        for _ in 0..4 {
            let waited = self
                .fleet
                .wait_for_agent(WaitForAgent {
                    agent_name: name.to_owned(),
                    status: Some("idle".to_owned()),
                    timeout_seconds: Some(300),
                })
                .await
                .unwrap();
            if waited.reached {
                return;
            }
        }
        panic!("the agent {name} did not become idle");
    }
}

#[tokio::test]
async fn the_suite_holds_on_a_real_coder() {
    let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if setting("CREWKIT_LIVE_CODER").as_deref() != Some("1") {
        return;
    }
    let needed = |name: &str| setting(name).unwrap_or_else(|| panic!("{name} is not set"));
    let settings = CoderSettings::new(needed("CODER_URL"), Secret::new(needed("CODER_SESSION_TOKEN")));
    let options = FleetOptions { max_name_length: 32, limits: Limits::default(), ..FleetOptions::default() };
    let live = Live {
        fleet: Fleet::new(CoderBackend::new(settings, Clock::system()).unwrap(), options),
        project: needed("CREWKIT_LIVE_TEMPLATE"),
        names: std::sync::Mutex::default(),
    };
    let work = async {
        Box::pin(suite::bad_requests(&live)).await;
        let whole = Box::pin(suite::life_of_an_agent(&live));
        tokio::time::timeout(Duration::from_hours(1), whole).await.unwrap();
    };
    // Whatever goes wrong, what was made here is deleted.
    let outcome = std::panic::AssertUnwindSafe(work).catch_unwind().await;
    let names = live.names.lock().unwrap().clone();
    for name in names {
        // Those that were never made, or are deleted already, are not found.
        let _ = live.fleet.delete_agent(named(&name)).await;
    }
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
