//! `crewkit fleet …`: named agents in workspaces of their own.

use std::io::IsTerminal as _;

use clap::{ArgMatches, FromArgMatches, Subcommand};
use crewkit_core::Code;
use crewkit_core::suggest::nearest;
use crewkit_server::ops::{JsonObject, Source};
use serde_json::{Value, json};

use super::row::{Argument, Given, Group, Wording};
use super::{Owner, Session, fleet_text, show};
use crate::ask;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::Style;
use crate::text::field;

/// Longest time without a look at a log that is followed. What an agent says while it works, and everything on Coder, leaves
/// no event.
const LOG_WAIT_SECONDS: u64 = 1;
/// Log entries fetched at a time.
const LOG_PAGE: u64 = 100;
/// Log entries that are shown before those that are followed.
const FIRST_ENTRIES: u64 = 20;

const fn argument(property: &'static str, name: &'static str, help: &'static str) -> Argument {
    Argument { property, name, help }
}

const AGENT: Argument = argument("agent_name", "agent", "Name of the agent");
const PAGE: Argument = argument("page", "page", "Page to show, from 1");
const PAGE_SIZE: Argument = argument("page_size", "page-size", "Entries per page, at most 100");

const fn by_name(operation: &'static str) -> Wording {
    Wording { arguments: &[AGENT], ..Wording::of(operation) }
}

const FLEET: Group = Group {
    name: "fleet",
    wordings: &[
        Wording {
            about: "List agents",
            arguments: &[
                argument(
                    "status_filter",
                    "status",
                    "Filter by status: pending, starting, busy, idle, …, or offline",
                ),
                argument("project_filter", "project", "Filter by project"),
                argument("role_filter", "role", "Filter by role"),
                argument("include_metadata", "no-metadata", "Do not ask the workspaces for metadata"),
                argument("limit", "limit", "Number of agents to list"),
                argument("offset", "offset", "Number of agents to skip"),
            ],
            ..Wording::of("list_agents")
        },
        by_name("show_agent"),
        Wording {
            about: "Create an agent and start it on a spec",
            arguments: &[
                argument("name", "name", "Name of the new agent: letters, digits and hyphens"),
                argument("spec", "spec", "What the agent shall do"),
                argument("project", "project", "Project it works on; see `crewkit fleet projects`"),
                argument("role", "role", "Role of the agent; see `crewkit fleet roles`"),
                argument("task", "", ""),
            ],
            ..Wording::of("create_agent")
        },
        Wording { question: Some("Delete agent `{}` and its workspace?"), ..by_name("delete_agent") },
        Wording {
            arguments: &[AGENT, argument("task_description", "task", "What the agent shall do")],
            ..Wording::of("start_agent_task")
        },
        by_name("stop_agent_task"),
        Wording {
            about: "Show the tasks of an agent, newest first",
            arguments: &[AGENT, PAGE, PAGE_SIZE, argument("raw", "raw", "Show every report as it came")],
            ..Wording::of("show_agent_task_history")
        },
        Wording { follows: true, arguments: &[AGENT, PAGE, PAGE_SIZE], ..Wording::of("show_agent_log") },
        Wording {
            arguments: &[argument("project", "project", "Name of the project")],
            ..Wording::of("list_agent_roles")
        },
        Wording { alias: Some(&["fleet", "project", "list"]), ..Wording::of("list_agent_projects") },
        Wording {
            arguments: &[
                argument("agent_name", "agent", "Equip this agent"),
                argument("project", "project", "Equip the agents of this project"),
                argument("all", "all", "Equip all agents"),
                argument("profile", "profile", "Profile to deploy; default: the one each agent has"),
                argument("canary", "canary", "Equip this many first, the others only if none failed"),
                argument("rollback", "rollback", "Take the newest deployment back instead"),
            ],
            one_of: &["agent_name", "project", "all"],
            positional: Some(&[]),
            about: "Deploy a pack profile into workspaces, or take it back",
            ..Wording::of("equip_agents")
        },
        Wording {
            positional: Some(&[]),
            arguments: &[
                argument("agent_name", "agent", "Show this agent only"),
                argument("project", "project", "Show agents of this project only"),
            ],
            ..Wording::of("fleet_drift")
        },
        Wording {
            about: "Wait until an agent has a status; fails if it does not get there in time",
            arguments: &[
                AGENT,
                argument("status", "status", "Status to wait for [default: idle]"),
                argument("timeout_seconds", "timeout", "Longest wait in seconds [default: 60]"),
            ],
            ..Wording::of("wait_for_agent")
        },
        by_name("restart_agent"),
        Wording {
            arguments: &[
                AGENT,
                argument("file", "file", "Show this file only, by path or id"),
                argument("names_only", "names-only", "Show the files without their lines"),
                argument("after", "after", "Go on where an answer ended"),
            ],
            ..Wording::of("agent_diff")
        },
        Wording {
            about: "Bring an agent's work onto its base branch; shows a plan first",
            arguments: &[
                AGENT,
                argument("strategy", "strategy", "How: merge, squash or rebase [default: merge]"),
                argument("message", "message", "Message of the commit (merge, squash)"),
                argument("plan", "plan", "Carry out the plan of this id"),
            ],
            ..Wording::of("land_agent")
        },
    ],
};

/// One of the commands, with its arguments.
#[derive(Debug, Clone)]
pub struct FleetCommand(Given);

impl FleetCommand {
    #[cfg(test)]
    pub(super) fn given(self) -> Given {
        self.0
    }
}

impl Subcommand for FleetCommand {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        FLEET.augment(command)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        FLEET.has(name)
    }
}

impl FromArgMatches for FleetCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        FLEET.given(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs one command.
pub fn run(config: &Config, command: FleetCommand, json: bool) -> Result<Exit, Failure> {
    let Given { operation, mut arguments, question, follow } = command.0;
    if let Some(question) = question.filter(|_| std::io::stdin().is_terminal())
        && !ask::yes(&question)
    {
        return Ok(Exit::Failed);
    }
    // A path means the same wherever the server runs.
    if let Some(Value::String(path)) = arguments.get_mut("path") {
        let absolute = std::path::absolute(&*path)
            .map_err(|error| Failure::new(Code::StateUnusable, format!("{path}: {error}")))?;
        *path = absolute.display().to_string();
    }
    super::runtime()?.block_on(async {
        let session = Session::open(config, Owner::of_short_command(config), Source::Cli).await?;
        if follow {
            follow_log(&session, &arguments, json).await?;
            return Ok(Exit::Ok);
        }
        let name = arguments.get("agent_name").and_then(Value::as_str).map(str::to_owned);
        let body = match session.run(operation, Value::Object(arguments)).await {
            Err(failure) if failure.code == Code::FleetNotFound => {
                return Err(with_near_name(&session, failure, name).await);
            }
            answered => answered?,
        };
        show(&body, json, || fleet_text::page(operation, &body, Style::of_stdout()));
        session.close().await;
        // A script that waited in vain, or whose work conflicts, must not go on.
        let is_failed = body["reached"] == false || body["outcome"] == "conflicts";
        Ok(if is_failed { Exit::Failed } else { Exit::Ok })
    })
}

/// The failure, with the name that was probably meant.
async fn with_near_name(session: &Session, failure: Failure, name: Option<String>) -> Failure {
    let failure = failure.with_next("crewkit fleet list");
    let Some(name) = name else { return failure };
    let listed = session.run("list_agents", json!({"include_metadata": false})).await.unwrap_or_default();
    let known = listed["agents"].as_array().into_iter().flatten().map(|agent| field(agent, "name"));
    match nearest(&name, known) {
        Some(near) => {
            let message = format!("{}. Did you mean `{near}`?", failure.message.trim_end_matches('.'));
            Failure { message, ..failure }
        }
        None => failure,
    }
}

/// Shows the log of an agent as it grows, oldest first, until Ctrl-C.
async fn follow_log(session: &Session, arguments: &JsonObject, json: bool) -> Result<(), Failure> {
    let name = arguments.get("agent_name").cloned().unwrap_or_default();
    let page_size = arguments.get("page_size").and_then(Value::as_u64).unwrap_or(FIRST_ENTRIES);
    let fetch = async |page: u64, size: u64| {
        session.watch("show_agent_log", json!({"agent_name": name, "page": page, "page_size": size})).await
    };
    let mut cursor = session.newest_event().await?;
    let mut seen: Option<u64> = None;
    loop {
        let newest = fetch(1, seen.map_or(page_size, |_| LOG_PAGE)).await?;
        let total = newest["total_count"].as_u64().unwrap_or(0);
        let added = seen.map_or(page_size, |seen| total.saturating_sub(seen));
        let mut entries = newest["logs"].as_array().cloned().unwrap_or_default();
        let mut page = 1;
        // The newest page may not reach back to what was shown last.
        while (entries.len() as u64) < added.min(total) {
            page += 1;
            let older = fetch(page, LOG_PAGE).await?;
            let older = older["logs"].as_array().cloned().unwrap_or_default();
            if older.is_empty() {
                break;
            }
            entries.extend(older);
        }
        entries.truncate(usize::try_from(added).unwrap_or(usize::MAX));
        for entry in entries.iter().rev() {
            show(entry, json, || fleet_text::log_entry(entry));
        }
        seen = Some(total);
        cursor = session.wait_for_event(cursor, None, LOG_WAIT_SECONDS).await?;
    }
}
