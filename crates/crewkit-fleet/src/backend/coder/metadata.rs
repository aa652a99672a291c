//! Where the metadata of a Coder workspace comes from; the first source that has any wins.
//!
//! 1. an app `fleet-mcp` in the workspace that serves `/metadata`;
//! 2. Coder's own agent metadata, as far as its keys are meant for the fleet;
//! 3. the Taskfile in the workspace, read and run through the web terminal;
//! 4. branch and commit from git, and the pull request the agent reported.
//!
//! Lists do not open terminals: they show what was found last.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use reqwest::Method;
use tokio::time::Instant;
use uuid::Uuid;

use super::pty::{self, BEGIN, END, from_base64, quoted};
use super::sse::Events;
use super::wire::{AgentMetadatum, NullableList, Workspace, WorkspaceAgent};
use super::{CoderHandle, Inner, agentapi};
use crate::metadata::runner::{Outcome, field};
use crate::metadata::taskfile::{FILE_NAMES, MetaTask, meta_tasks};
use crate::metadata::{Field, GitFacts, Metadata, NO_DESCRIPTION, is_field_name, typed_value};
use crate::model::AgentKit;

/// Slug of the app that serves metadata.
const APP_SLUG: &str = "fleet-mcp";

/// Prefixes of agent metadata keys that are meant for the fleet; the field is named by what follows.
const LIST_PREFIX: &str = "fleet_list_";
const PREFIXES: [&str; 3] = [LIST_PREFIX, "fleet_mcp_", "fleet_"];

/// Collects the metadata of one workspace. A terminal is opened for an agent that is looked at alone, and not more often
/// than the settings allow: Coder counts it as use of the workspace.
pub(super) async fn collect(
    inner: &Inner,
    handle: &CoderHandle,
    pull_request: Option<&str>,
    until: Instant,
) -> Metadata {
    let now = || Some(inner.clock.now());
    if let Some(metadata) = from_app(inner, handle, until).await {
        return Metadata { at: now(), ..metadata };
    }
    let Some(agent) = handle.workspace.top_agents().next() else {
        return reported(pull_request);
    };
    // On the heap: a list waits for a thousand of these at once, and the first source mostly answers.
    if let Some(metadata) = Box::pin(from_agent_metadata(inner, agent, until)).await {
        return Metadata { at: now(), ..metadata };
    }
    let workspace = &handle.workspace;
    let looked = inner.looked(workspace);
    let known = looked.metadata.clone();
    let found = if (handle.alone || inner.settings.list_metadata) && inner.may_look(looked.metadata_read) {
        // Noted before: a look that is given up is one, too.
        inner.note_look(workspace, |looked| looked.metadata_read = Some(Instant::now()));
        let found = Box::pin(from_terminal(inner, agent, until)).await.map(|found| {
            let (is_taskfile, metadata) = match found {
                Found::Taskfile(metadata) => (true, metadata),
                Found::Git(metadata) => (false, metadata),
            };
            (is_taskfile, Metadata { at: now(), ..metadata })
        });
        if found.is_some() {
            inner.note_look(workspace, |looked| looked.metadata.clone_from(&found));
        }
        found.or(known)
    } else {
        known
    };
    match found {
        Some((true, metadata)) => metadata,
        found => {
            let mut metadata = found.map(|(_, metadata)| metadata).unwrap_or_default();
            metadata.fields.extend(reported(pull_request).fields);
            metadata
        }
    }
}

/// What was found through the terminal of a workspace since its last start, and when it was looked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Looked {
    build: Option<Uuid>,
    metadata_read: Option<Instant>,
    /// With whether it comes from a Taskfile.
    metadata: Option<(bool, Metadata)>,
    pub(super) kit_read: Option<Instant>,
    pub(super) kit: Option<AgentKit>,
}

impl Inner {
    /// What is known of a workspace from its terminal.
    pub(super) fn looked(&self, workspace: &Workspace) -> Looked {
        let build = Some(workspace.latest_build.id);
        let fresh = || Looked { build, ..Looked::default() };
        self.looked.get(workspace.id).filter(|looked| looked.build == build).unwrap_or_else(fresh)
    }

    pub(super) fn note_look(&self, workspace: &Workspace, change: impl FnOnce(&mut Looked)) {
        let mut looked = self.looked(workspace);
        change(&mut looked);
        self.looked.put(workspace.id, looked);
    }

    /// Whether a terminal may be opened again for what was last read at a time.
    pub(super) fn may_look(&self, last: Option<Instant>) -> bool {
        last.is_none_or(|last| last.elapsed() >= Duration::from_secs(self.settings.metadata_seconds))
    }
}

fn reported(pull_request: Option<&str>) -> Metadata {
    let field = pull_request.map(|url| Field {
        name: "pull_request_url".to_owned(),
        value: url.into(),
        error: None,
        description: "The pull request the agent reported".to_owned(),
        include_in_list: true,
    });
    Metadata { fields: field.into_iter().collect(), ..Metadata::default() }
}

async fn from_app(inner: &Inner, handle: &CoderHandle, until: Instant) -> Option<Metadata> {
    let (agent, app) = handle.workspace.apps().find(|(_, app)| app.slug == APP_SLUG)?;
    let places = agentapi::addresses(&inner.client, &inner.app_host, &handle.workspace, agent, app).await;
    let answer = agentapi::ask(&inner.client, &places, Method::GET, "metadata", None, until).await.ok()?;
    let most = usize::try_from(inner.client.limits().fleet_metadata_bytes).unwrap_or(usize::MAX);
    (answer.status.is_success() && answer.body.len() <= most)
        .then(|| Metadata::from_endpoint(&answer.body))
        .flatten()
}

async fn from_agent_metadata(inner: &Inner, agent: &WorkspaceAgent, until: Instant) -> Option<Metadata> {
    let path = format!("/api/v2/workspaceagents/{}/watch-metadata", agent.id);
    let most = usize::try_from(inner.client.limits().fleet_metadata_bytes).unwrap_or(usize::MAX);
    let mut events = Events::new(inner.client.events(&path, until).await.ok()?, most);
    let data = loop {
        let event = events.next(until).await?;
        match event.name.as_str() {
            "data" => break event.data,
            "error" => return None,
            _ => {}
        }
    };
    let values: NullableList<AgentMetadatum> = serde_json::from_str(&data).ok()?;
    let metadata = agent_metadata(values.into_vec(), &inner.settings.metadata_keys);
    (!metadata.is_empty()).then_some(metadata)
}

/// The values meant for the fleet: by prefix, or because the configuration names them (and wants them in lists).
fn agent_metadata(values: Vec<AgentMetadatum>, configured: &[String]) -> Metadata {
    let mut fields = Vec::new();
    for AgentMetadatum { result, description } in values {
        let key = description.key;
        let is_configured = configured.contains(&key);
        let name = match PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)) {
            Some(name) if !name.is_empty() => name,
            _ if is_configured => key.as_str(),
            _ => continue,
        };
        if result.error.is_empty()
            && let Some(whole) = Metadata::from_endpoint(result.value.as_bytes()).filter(|m| !m.is_empty())
        {
            // One block may carry all fields at once, in the form of the endpoint.
            fields.extend(whole.fields);
            continue;
        }
        fields.push(Field {
            name: name.to_owned(),
            value: if result.error.is_empty() { typed_value(&result.value) } else { serde_json::Value::Null },
            error: (!result.error.is_empty()).then_some(result.error),
            description: Some(description.display_name)
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| NO_DESCRIPTION.to_owned()),
            include_in_list: is_configured || key.starts_with(LIST_PREFIX),
        });
    }
    Metadata { fields, ..Metadata::default() }
}

enum Found {
    Taskfile(Metadata),
    Git(Metadata),
}

/// What a first look through the terminal finds.
#[derive(Debug, Default, PartialEq)]
struct Sight {
    taskfile: Option<String>,
    has_task: bool,
    branch: Option<String>,
    sha: Option<String>,
    dirty: Option<bool>,
}

async fn from_terminal(inner: &Inner, agent: &WorkspaceAgent, until: Instant) -> Option<Found> {
    let seen = sight(&pty::run(&inner.client, agent, &look_script(), until).await.ok()?);
    let facts = GitFacts { branch: seen.branch, sha: seen.sha, dirty: seen.dirty };
    let git = || Found::Git(Metadata { git: Some(facts.clone()), ..Metadata::default() });
    let Some(tasks) = seen.taskfile.as_deref().and_then(|text| meta_tasks(text).ok()) else {
        return Some(git());
    };
    let tasks: Vec<MetaTask> = tasks.into_iter().filter(|task| is_field_name(&task.name)).collect();
    if tasks.is_empty() {
        return Some(git());
    }
    let limits = inner.client.limits();
    // Below the time of the agent, so that what is slow does not hide the others.
    let seconds = (limits.fleet_metadata_agent_ms / 6 * 5).min(limits.fleet_metadata_field_ms) / 1000;
    let script = fields_script(&tasks, seen.has_task, seconds.max(1));
    let margin = Duration::from_millis(limits.fleet_metadata_agent_ms / 12);
    let lines = pty::run_for(&inner.client, agent, &script, until - margin).await.ok()?;
    let mut results = results(&lines);
    let fields = tasks.into_iter().map(|task| {
        let outcome = match (results.remove(&task.name), &task.plain) {
            (Some(outcome), _) => outcome,
            (None, Err(reason)) if !seen.has_task => {
                Outcome::Error(format!("{reason}, which needs `task`; it is not installed in the workspace"))
            }
            (None, _) => Outcome::Error(format!("took longer than {seconds} s")),
        };
        field(task, outcome)
    });
    Some(Found::Taskfile(Metadata { fields: fields.collect(), git: Some(facts), at: None }))
}

/// Prints the Taskfile, whether `task` is there, and what git says.
fn look_script() -> String {
    let names = FILE_NAMES.join(" ");
    format!(
        r#"echo {BEGIN}
for f in {names}; do if [ -f "$f" ]; then printf 'taskfile '; head -c 1000000 "$f" | base64 | tr -d '\n'; echo; break; fi; done
command -v task >/dev/null 2>&1 && echo task
export GIT_OPTIONAL_LOCKS=0
if git rev-parse --git-dir >/dev/null 2>&1; then
printf 'branch '; git branch --show-current 2>/dev/null | base64 | tr -d '\n'; echo
printf 'sha '; git rev-parse HEAD 2>/dev/null || echo
if [ -n "$(git status --porcelain 2>/dev/null | head -n 1)" ]; then echo 'dirty yes'; else echo 'dirty no'; fi
fi
echo {END}
"#
    )
}

fn sight(lines: &[String]) -> Sight {
    let mut seen = Sight::default();
    let text = |encoded: &str| from_base64(encoded).and_then(|bytes| String::from_utf8(bytes).ok());
    for line in lines {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "taskfile" => seen.taskfile = text(value),
            "task" => seen.has_task = true,
            "branch" => seen.branch = text(value).map(|branch| branch.trim().to_owned()),
            "sha" => seen.sha = Some(value.trim().to_owned()).filter(|sha| !sha.is_empty()),
            "dirty" => seen.dirty = Some(value == "yes"),
            _ => {}
        }
    }
    seen
}

/// Runs each field in a process of its own, all at once, and prints each as it ends.
fn fields_script(tasks: &[MetaTask], has_task: bool, seconds: u64) -> String {
    let mut script = format!(
        r#"echo {BEGIN}
d=$(mktemp -d) || exit 1
export NO_COLOR=1
T=
command -v timeout >/dev/null 2>&1 && T='timeout {seconds}'
one() {{
n=$1; i=$2; shift 2
$T "$@" >"$d/$i.o" 2>"$d/$i.e"; c=$?
until mkdir "$d/lock" 2>/dev/null; do sleep 0.1 2>/dev/null || sleep 1; done
printf '%s %s ' "$n" $c; base64 <"$d/$i.o" | tr -d '\n'; printf .; base64 <"$d/$i.e" | tr -d '\n'; echo
rmdir "$d/lock"
}}
"#
    );
    for (index, task) in tasks.iter().enumerate() {
        let name = &task.name;
        let _ = match &task.plain {
            _ if has_task => writeln!(script, "one field:{name} {index} task --silent {name} &"),
            Ok(commands) => {
                let commands = quoted(&commands.join("\n"));
                writeln!(script, "one field:{name} {index} sh -ec {commands} &")
            }
            Err(_) => continue,
        };
    }
    let _ = write!(script, "wait\nrm -rf \"$d\"\necho {END}\n");
    script
}

/// What the fields that ended came to, by name.
fn results(lines: &[String]) -> HashMap<String, Outcome> {
    let mut found = HashMap::new();
    let text =
        |encoded: &str| String::from_utf8_lossy(&from_base64(encoded).unwrap_or_default()).into_owned();
    for line in lines {
        let mut words = line.split(' ');
        let (Some(key), Some(code), Some(output)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (Some(name), Some((stdout, stderr))) = (key.strip_prefix("field:"), output.split_once('.'))
        else {
            continue;
        };
        let stderr = text(stderr);
        let outcome = match (code, stderr.trim()) {
            ("0", _) => Outcome::Value(typed_value(&text(stdout))),
            // What `timeout` ends with.
            ("124", "") => Outcome::Error("took too long and was ended".to_owned()),
            (code, "") => Outcome::Error(format!("exit status {code}")),
            (_, said) => Outcome::Error(said.to_owned()),
        };
        found.insert(name.to_owned(), outcome);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn agent_metadata_is_chosen_by_prefix_or_configuration() {
        let values = json!([
            {"result": {"value": "7", "error": ""}, "description": {"key": "fleet_list_pr", "display_name": "PR"}},
            {"result": {"value": "x", "error": ""}, "description": {"key": "fleet_mcp_pull_request_status"}},
            {"result": {"value": "", "error": "boom"}, "description": {"key": "fleet_ci"}},
            {"result": {"value": "99%", "error": ""}, "description": {"key": "cpu"}},
            {"result": {"value": "1%", "error": ""}, "description": {"key": "mem"}},
            {"result": {"value": "{\"data\":{\"a\":{\"value\":1,\"schema\":{\"include_in_list\":true}}}}", "error": ""},
             "description": {"key": "fleet_all"}},
        ]);
        let values: Vec<AgentMetadatum> = serde_json::from_value(values).unwrap();
        let metadata = agent_metadata(values, &["mem".to_owned()]);
        assert_eq!(
            serde_json::Value::Object(metadata.in_full()),
            json!({
                "pr": {"value": 7, "error": null, "schema": {"description": "PR", "include_in_list": true}},
                "pull_request_status": {"value": "x", "error": null, "schema": {"description": NO_DESCRIPTION, "include_in_list": false}},
                "ci": {"value": null, "error": "boom", "schema": {"description": NO_DESCRIPTION, "include_in_list": false}},
                "mem": {"value": "1%", "error": null, "schema": {"description": NO_DESCRIPTION, "include_in_list": true}},
                "a": {"value": 1, "error": null, "schema": {"description": NO_DESCRIPTION, "include_in_list": true}},
            })
        );
    }

    #[test]
    fn a_look_is_read_line_by_line() {
        let lines = ["taskfile dGFza3M6IHt9Cg==", "task", "branch bWFpbgo=", "sha abc", "dirty yes", "noise"];
        let lines: Vec<String> = lines.map(str::to_owned).into();
        assert_eq!(
            sight(&lines),
            Sight {
                taskfile: Some("tasks: {}\n".to_owned()),
                has_task: true,
                branch: Some("main".to_owned()),
                sha: Some("abc".to_owned()),
                dirty: Some(true),
            }
        );
    }
}
