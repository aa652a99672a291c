//! Operations on the server itself. They belong to no toolset: they are no tools, and narrowing does not hide them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crewkit_agent::{Error, EventPage};
use crewkit_fleet::AnyFleet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::runs::{NoArguments, engine, row};
use super::{Call, Doors, Hints, Operation};
use crate::services::{ServerAbout, ServerControl};

/// Input of `events`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct EventQuery {
    /// Show what happened after this cursor; 0 stands for the oldest event that is kept.
    #[schemars(extend("default" = 0))]
    pub after: Option<u64>,
    /// Events at most.
    #[schemars(range(min = 1, max = 500), extend("default" = 100))]
    pub limit: Option<u64>,
    /// Only events of this run, agent or project.
    pub subject: Option<String>,
    /// Wait this long for the first event.
    #[schemars(range(min = 0, max = 300), extend("default" = 0))]
    pub wait_seconds: Option<u64>,
}

/// Output of `server_status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServerStatus {
    /// Who it is.
    #[serde(flatten)]
    pub about: ServerAbout,
    /// What it does.
    pub work: ServerWork,
}

/// What a server does.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServerWork {
    /// Runs that have not ended.
    pub runs: usize,
    /// Agents of this machine with a task.
    pub agents: usize,
}

/// Input of `server_stop`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct StopServer {
    /// Leave the work to the next server of the home.
    #[schemars(extend("default" = false))]
    pub keep_work: Option<bool>,
}

/// Output of `server_stop`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stopping {
    /// Always true: the server ends after this answer.
    pub stopping: bool,
}

/// The rows of the table.
pub fn operations() -> Vec<Operation> {
    let rows = vec![
        row(
            "events",
            "Events",
            "Show what happened to runs, agents and projects, in order and from a cursor on.",
            (Hints::READ, Doors::shown_with(&[]).cli(&["events"], &[])),
            events,
        ),
        row(
            "server_status",
            "Status of the server",
            "Show who the server is and how much it has to do.",
            (Hints::READ, Doors::shown_with(&[]).cli(&["status"], &[])),
            status,
        ),
        row(
            "server_stop",
            "Stop the server",
            "End the server and all of its work, or leave the work to the next one.",
            (Hints::DESTROY, Doors::shown_with(&[]).cli(&["stop"], &[])),
            stop,
        ),
    ];
    rows.into_iter().map(|row| Operation { toolset: None, ..row }).collect()
}

/// A page of the event log. With `wait_seconds`, answers as soon as there is an event that matches.
async fn events(call: Call, input: EventQuery) -> Result<EventPage, Error> {
    let engine = engine(&call).await?;
    let mut after = input.after.unwrap_or(0);
    let limit = usize::try_from(input.limit.unwrap_or(100)).unwrap_or(usize::MAX);
    let until = Instant::now() + Duration::from_secs(input.wait_seconds.unwrap_or(0));
    let mut newest = engine.watch_events();
    loop {
        newest.mark_unchanged();
        let mut page = engine.events(after, limit).await?;
        let is_last_page = page.next >= page.last;
        if let Some(subject) = &input.subject {
            page.events.retain(|event| event.subject == *subject);
        }
        if !page.events.is_empty() || (is_last_page && Instant::now() >= until) {
            return Ok(page);
        }
        after = page.next;
        if !is_last_page {
            continue;
        }
        if matches!(timeout_at(until, newest.changed()).await, Ok(Err(_))) {
            return Ok(page);
        }
    }
}

fn control(call: &Call) -> Result<&Arc<ServerControl>, Error> {
    let control = call.services.server.as_ref();
    control.ok_or_else(|| Error::Setting("this process serves nobody".to_owned()))
}

async fn status(call: Call, NoArguments {}: NoArguments) -> Result<ServerStatus, Error> {
    let about = control(&call)?.about.get().cloned();
    let about = about.ok_or_else(|| Error::Setting("the server is only just starting".to_owned()))?;
    let fleets = call.services.fleet.iter().chain(&call.services.other_fleets);
    let agents = fleets.map(|fleet| match fleet {
        AnyFleet::Local(local) => {
            local.opened().map_or(0, |opened| opened.backend().agents_with_open_tasks().len())
        }
        AnyFleet::Coder(_) => 0,
    });
    let work = ServerWork { agents: agents.sum(), runs: engine(&call).await?.active() };
    Ok(ServerStatus { about, work })
}

async fn stop(call: Call, input: StopServer) -> Result<Stopping, Error> {
    let control = control(&call)?;
    control.ends_work.store(!input.keep_work.unwrap_or(false), Ordering::Relaxed);
    control.stop.cancel();
    std::future::ready(Ok(Stopping { stopping: true })).await
}
