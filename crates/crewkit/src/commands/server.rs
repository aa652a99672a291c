//! `crewkit status`, `crewkit stop` and `crewkit events`: the server of the home itself.

use std::io::IsTerminal as _;

use crewkit_core::Code;
use crewkit_core::secret::masked_url;
use crewkit_server::ops::Source;
use serde_json::{Value, json};

use super::follow::EVENT_WAIT_SECONDS;
use super::{Owner, Session, show};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::server::{self, ServerRecord, identity, own};
use crate::style::Style;
use crate::text::{Cell, age, count, field, shorten, table};
use crate::{ask, output};

/// Characters of a contract or task in a list.
const WORK_CHARACTERS: usize = 60;
/// Events fetched at a time.
const EVENT_PAGE: u64 = 500;

/// Shows whether the home has a server, what it does, and the settings of this process.
pub fn status(config: &Config, json: bool) -> Result<Exit, Failure> {
    super::runtime()?.block_on(async {
        let session = Session::open(config, Owner::Server, Source::Cli).await?;
        let server = server::running(&config.home).await?;
        let work = match server.as_ref().filter(|server| speaks_our_protocol(server)) {
            Some(_) => Some(session.run("server_status", json!({})).await?["work"].take()),
            None => None,
        };
        let settings = settings(config);
        let body = json!({
            "server": server, "home": config.home, "work": work, "settings": settings,
        });
        show(&body, json, || {
            let server = match &server {
                None => "not running; the first command that needs it starts it".to_owned(),
                Some(server) => {
                    let socket = server.socket.as_ref().map(|_| "socket".to_owned());
                    let doors: Vec<String> = socket.into_iter().chain(server.http.clone()).collect();
                    let doors = if doors.is_empty() { "in-process".to_owned() } else { doors.join(" and ") };
                    format!("running since {} (pid {}), {doors}", server.since, server.pid)
                }
            };
            let mut page = format!("server    {server}\nhome      {}\n", config.home.display());
            if let Some(work) = &work {
                page.push_str(&format!("work      {}\n", work_line(work)));
            }
            page.push_str(&format!("settings  {}\n", settings.join(" · ")));
            page
        });
        Ok(Exit::Ok)
    })
}

/// Ends the server of the home and all of its work.
pub fn stop(config: &Config, is_confirmed: bool, json: bool) -> Result<Exit, Failure> {
    super::runtime()?.block_on(async {
        let session = Session::open(config, Owner::Server, Source::Cli).await?;
        let mut server = server::running(&config.home).await?;
        if server.is_none() && crewkit_agent::engine::has_held_processes(&config.home) {
            // A server that was killed left them at work; another one, which this starts, ends them and records it.
            session.newest_event().await?;
            server = server::running(&config.home).await?;
        }
        let Some(server) = server else {
            let home = config.home.display();
            show(&json!({"stopped": false}), json, || format!("No server is running for {home}."));
            return Ok(Exit::Ok);
        };
        if server.socket.is_none() {
            return Err(
                own::in_use(&config.home).with_next(format!("end process {} to free the home", server.pid))
            );
        }
        // What a server of another protocol does is not known.
        let work = if speaks_our_protocol(&server) { Some(Work::read(&session).await?) } else { None };
        if !is_confirmed && std::io::stdin().is_terminal() {
            let list = work.as_ref().map(|work| work.list(Style::of_stderr()));
            output::coloured_talk(list.as_deref().unwrap_or("It is of another build.").trim_end());
            if !ask::yes(&format!("Stop the server (pid {}) and all of its work?", server.pid)) {
                return Ok(Exit::Failed);
            }
        }
        server::stop(config).await?;
        let work = work.map(|work| work.json());
        show(&json!({"stopped": true, "pid": server.pid, "work": work}), json, || {
            let had = work.as_ref().map(|work| format!(" It had {}.", work_line(work))).unwrap_or_default();
            format!("The server (pid {}) has ended.{had}", server.pid)
        });
        Ok(Exit::Ok)
    })
}

/// Prints events; with `follow`, also those that happen later.
pub fn events(config: &Config, mut after: u64, follow: bool, json: bool) -> Result<Exit, Failure> {
    super::runtime()?.block_on(async {
        let session = Session::open(config, Owner::of_short_command(config), Source::Cli).await?;
        // A server is started for the first question alone.
        session.newest_event().await?;
        loop {
            let wait = if follow { EVENT_WAIT_SECONDS } else { 0 };
            let wish = json!({"after": after, "limit": EVENT_PAGE, "wait_seconds": wait});
            let page = match session.watch("events", wish).await {
                Err(failure) if follow && failure.code == Code::CursorExpired => {
                    output::talk(&format!("{}; going on with the oldest that is kept", failure.message));
                    after = 0;
                    continue;
                }
                page => page?,
            };
            for event in page["events"].as_array().into_iter().flatten() {
                show(event, json, || {
                    let (at, kind, subject) =
                        (field(event, "at"), field(event, "kind"), field(event, "subject"));
                    format!("{:>8}  {at}  {kind:<14}  {subject}", event["seq"].to_string())
                });
            }
            after = page["next"].as_u64().unwrap_or(after);
            if !follow && page["last"].as_u64().is_none_or(|last| after >= last) {
                session.close().await;
                return Ok(Exit::Ok);
            }
        }
    })
}

fn speaks_our_protocol(server: &ServerRecord) -> bool {
    server.socket.is_some() && server.protocol == identity::protocol()
}

fn work_line(work: &Value) -> String {
    let number = |key: &str| work[key].as_u64().unwrap_or(0);
    format!("{} working, {}", count(number("agents"), "agent"), count(number("runs"), "run"))
}

/// What a server is doing.
struct Work {
    runs: Vec<Value>,
    agents: Vec<Value>,
}

impl Work {
    async fn read(session: &Session) -> Result<Self, Failure> {
        let runs = session.run("run_list", json!({"status": "running"})).await?;
        // Agents may be on a Coder that cannot be reached; that says nothing about the server.
        let agents = session.run("list_agents", json!({"include_metadata": false})).await.unwrap_or_default();
        let items = |body: &Value, key: &str| body[key].as_array().cloned().unwrap_or_default();
        let mut agents = items(&agents, "agents");
        agents.retain(|agent| matches!(field(agent, "status"), "busy" | "pending" | "starting"));
        Ok(Self { runs: items(&runs, "runs"), agents })
    }

    fn json(&self) -> Value {
        json!({"runs": self.runs.len(), "agents": self.agents.len()})
    }

    fn list(&self, style: Style) -> String {
        if self.runs.is_empty() && self.agents.is_empty() {
            return "Nothing is running.".to_owned();
        }
        let agents = self.agents.iter().map(|agent| {
            let task = shorten(field(agent, "current_task"), WORK_CHARACTERS);
            vec![
                Cell::from("agent".to_owned()),
                field(agent, "name").to_owned().into(),
                "–".to_owned().into(),
                task.into(),
            ]
        });
        let runs = self.runs.iter().map(|run| {
            let contract = shorten(field(run, "contract"), WORK_CHARACTERS);
            let id = super::runs_text::short(field(run, "id")).to_owned();
            vec![Cell::from("run".to_owned()), id.into(), age(&run["created_at"]).into(), contract.into()]
        });
        table(style, &["WORK", "NAME", "AGE", "TASK"], agents.chain(runs).collect())
    }
}

/// The settings of this process that decide what runs and agents use. Secrets are shown by their last characters.
fn settings(config: &Config) -> Vec<String> {
    let secret = |key: &str, name: &str| {
        let text = config.secret(key);
        let tail = text.as_ref().map(|text| {
            let text = text.expose();
            let shown = if text.len() >= 12 { text.get(text.len() - 4..).unwrap_or_default() } else { "" };
            format!(" ({name} …{shown})")
        });
        tail.unwrap_or_default()
    };
    let model = match (config.text("llm.model"), config.text("llm.endpoint")) {
        (Some(model), Some(endpoint)) => {
            format!("model {model} at {}{}", masked_url(endpoint), secret("llm.api_key", "key"))
        }
        _ => "no model (runs are rehearsals)".to_owned(),
    };
    let coder = config.text("fleet.coder.url");
    let coder =
        coder.map(|url| format!("Coder at {}{}", masked_url(url), secret("fleet.coder.token", "token")));
    std::iter::once(model).chain(coder).collect()
}
