//! Makes an agent: a workspace of the project's template, with the role's preset, that gets the spec as its prompt.
//!
//! How the prompt reaches the agent depends on template and version. Whatever happens, the request is sent once; when
//! its answer gets lost, the workspace is looked for by its name.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;

use super::capability::Version;
use super::error::{CoderError, unclear};
use super::intents::{Intent, Work};
use super::journal::Note;
use super::project::{aliases, version_of};
use super::wire::{CoderTask, ParameterValue, Workspace};
use super::{CoderHandle, Inner};
use crate::backend::{AgentRecord, Made, NewAgent};
use crate::error::FleetError;
use crate::filter::UNKNOWN_ROLE;
use crate::model::RoleOrigin;

/// Looks for a workspace whose creation was not confirmed, and the time between them.
const LOOKS: u32 = 4;
const LOOK: Duration = Duration::from_millis(500);

/// How the spec reaches the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// As a parameter of the workspace.
    Parameter(String),
    /// As the input of a task.
    Task,
    /// As a message, once the agent is ready.
    Later,
}

/// The ways to try in turn. Coder fills a prompt parameter from a task until 2.29; from 2.30 on it does not, so that a
/// template with such a parameter needs it set.
fn ways(version: Option<Version>, prompt_parameter: Option<String>, needs_parameters: bool) -> Vec<Way> {
    let fills_parameter = version.is_some_and(|version| {
        (Version::TASKS_WITH_OWN_IDS..Version::PLAIN_PROMPT_PARAMETER).contains(&version)
    });
    let has_tasks = version.is_none_or(|version| version >= Version::TASKS_WITH_OWN_IDS);
    match prompt_parameter {
        Some(name) if fills_parameter && !needs_parameters => vec![Way::Task, Way::Parameter(name)],
        Some(name) => vec![Way::Parameter(name)],
        None if has_tasks && !needs_parameters => vec![Way::Task, Way::Later],
        None => vec![Way::Later],
    }
}

#[derive(Serialize)]
struct NewWorkspace<'a> {
    name: &'a str,
    template_version_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    template_version_preset_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rich_parameter_values: Vec<ParameterValue>,
}

#[derive(Serialize)]
struct NewTask<'a> {
    name: &'a str,
    template_version_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    template_version_preset_id: Option<&'a str>,
    input: &'a str,
}

/// Makes the agent.
pub(super) async fn create(inner: &Arc<Inner>, new: NewAgent<'_>) -> Result<Made<CoderHandle>, FleetError> {
    let version = version_of(new.project)?;
    let prompt = inner.prompt_parameter(version).await?;
    let (preset, role_value) = match new.role.map(|role| (&role.id, &role.origin)) {
        Some((id, RoleOrigin::Named)) => (Some(id.as_str()), None),
        Some((_, RoleOrigin::Parameter { name, value })) => {
            (None, Some(ParameterValue { name: name.clone(), value: value.clone() }))
        }
        None => (None, None),
    };
    let mut note = preset_overrides(inner, version, preset, prompt.as_deref()).await?;
    let project = new.project;
    let names = aliases(&project.name, &project.template_name, &project.template_id, &project.organization);
    let role = new.role.map_or(UNKNOWN_ROLE, |role| role.name.as_str());
    let kit = inner.has_kit_for(role, &names);
    let intents = &inner.settings.intents;
    if intents.of(&inner.place()).await?.iter().any(|intent| new.name.is(&intent.name)) {
        return Err(FleetError::already_exists(new.name.as_str()));
    }
    let ways = ways(inner.client.version(), prompt, role_value.is_some());
    for way in &ways {
        let spec = (*way == Way::Later).then(|| new.spec.to_owned());
        let work = Work::Create { role: role.to_owned(), spec, kit };
        // Recorded before Coder is asked: whatever happens then, the agent gets its kit and its spec.
        let intent = inner.new_intent(new.name.as_str(), None, work);
        intents.put(intent.clone()).await?;
        let outcome = match way {
            Way::Task => create_task(inner, &new, version, preset).await,
            Way::Parameter(_) | Way::Later => {
                let spec = match way {
                    Way::Parameter(name) => {
                        Some(ParameterValue { name: name.clone(), value: new.spec.to_owned() })
                    }
                    _ => None,
                };
                let values = role_value.clone().into_iter().chain(spec).collect();
                create_workspace(inner, &new, version, preset, values).await
            }
        };
        let workspace = match outcome {
            Ok(workspace) => Ok(workspace),
            Err(error) if *way == Way::Task && is_no_task(&error) => continue,
            Err(error) if error.leaves_doubt() => {
                note = Some("Coder's answer was lost; the workspace was found by its name".to_owned());
                look_for(inner, &new, &error).await
            }
            Err(error) => Err(refused(error, &new)),
        };
        let workspace = match workspace {
            Ok(workspace) => workspace,
            Err(error) => {
                intents.done(&intent).await;
                return Err(error);
            }
        };
        let agent = describe(inner, workspace, &new);
        let given = Note::started(agent.created_at, new.spec, new.source);
        intents.note(agent.handle.workspace.id, given, inner.settings.limits.fleet_journal_entries).await;
        let made = Intent { workspace: Some(agent.handle.workspace.id), ..intent };
        // What could not be recorded is found by its name.
        let _ = intents.put(made).await;
        inner.carry_out(&agent.name);
        let more = match way {
            Way::Later => Some("its spec is sent when its start script is done"),
            _ => None,
        };
        let kit = kit.then_some(match way {
            Way::Later => "its kit goes in before that",
            _ => "its kit goes in when its start script is done; its first task may start without it",
        });
        let notes: Vec<&str> = note.as_deref().into_iter().chain(more).chain(kit).collect();
        return Ok(Made { agent, note: (!notes.is_empty()).then(|| notes.join("; ")) });
    }
    Err(CoderError::RouteMissing { route: "tasks".to_owned() }.into())
}

/// Whether the tasks API is not there, or not for this template; nothing was made then.
fn is_no_task(error: &CoderError) -> bool {
    match error {
        CoderError::RouteMissing { .. } => true,
        CoderError::Refused(refused) => refused.status == 400 && refused.message.contains("coder_ai_task"),
        _ => false,
    }
}

/// A preset that sets the prompt itself wins over the spec; the caller must know.
async fn preset_overrides(
    inner: &Inner,
    version: Uuid,
    preset: Option<&str>,
    prompt: Option<&str>,
) -> Result<Option<String>, FleetError> {
    let (Some(preset), Some(prompt)) = (preset, prompt) else { return Ok(None) };
    let presets = inner.presets(version).await?;
    let sets_prompt = presets
        .iter()
        .filter(|candidate| candidate.id.to_string() == preset)
        .any(|preset| preset.parameters.iter().any(|parameter| parameter.name == prompt));
    Ok(sets_prompt.then(|| "the role's preset sets the prompt itself, which replaces the spec".to_owned()))
}

async fn create_workspace(
    inner: &Inner,
    new: &NewAgent<'_>,
    version: Uuid,
    preset: Option<&str>,
    rich_parameter_values: Vec<ParameterValue>,
) -> Result<Workspace, CoderError> {
    let body = NewWorkspace {
        name: new.name.as_str(),
        template_version_id: version,
        template_version_preset_id: preset,
        rich_parameter_values,
    };
    let path = format!("/api/v2/users/{}/workspaces", inner.settings.owner);
    let workspace: Workspace = inner.client.send(Method::POST, &path, &body, inner.write_time()).await?;
    if new.name.is(&workspace.name) {
        Ok(workspace)
    } else {
        Err(CoderError::Malformed { reason: "it describes another workspace".to_owned(), request_id: None })
    }
}

async fn create_task(
    inner: &Inner,
    new: &NewAgent<'_>,
    version: Uuid,
    preset: Option<&str>,
) -> Result<Workspace, CoderError> {
    let body = NewTask {
        name: new.name.as_str(),
        template_version_id: version,
        template_version_preset_id: preset,
        input: new.spec,
    };
    for route in inner.tasks_routes.candidates(inner.client.version()) {
        let path = format!("{}/{}", route.path(), inner.settings.owner);
        match inner.client.send::<CoderTask>(Method::POST, &path, &body, inner.write_time()).await {
            Err(CoderError::RouteMissing { .. }) => inner.tasks_routes.is_missing(route),
            Err(error) => return Err(error),
            Ok(_) => {
                // A task says too little about its workspace; what cannot be read now is found by name below.
                let path = format!("/api/v2/users/{}/workspace/{}", inner.settings.owner, new.name);
                return inner.client.get(&path, &[]).await.map_err(|error| CoderError::Malformed {
                    reason: format!("the new task has no workspace yet: {error}"),
                    request_id: None,
                });
            }
        }
    }
    Err(CoderError::RouteMissing { route: "tasks".to_owned() })
}

/// Finds the workspace of a request whose answer was lost; it may appear a little later.
async fn look_for(inner: &Inner, new: &NewAgent<'_>, error: &CoderError) -> Result<Workspace, FleetError> {
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(LOOK).await;
        }
        match inner.workspace(new.name).await {
            Ok(Some(workspace)) => return Ok(workspace),
            Ok(None) => {}
            Err(_) => break,
        }
    }
    Err(unclear(
        error,
        format!(
            "Coder did not confirm that agent '{}' was made ({error}), and no workspace of that name was found; \
             look with list_agents before trying again",
            new.name
        ),
    )
    .with("agent_name", new.name.as_str()))
}

/// A refusal in the words of the caller's request.
fn refused(error: CoderError, new: &NewAgent<'_>) -> FleetError {
    let CoderError::Refused(refused) = error else { return error.into() };
    let said = &refused.message;
    let told = match refused.status {
        409 => FleetError::already_exists(new.name.as_str()),
        // Quota, rights on the template, missing external logins: the caller can do something about these.
        403 => FleetError::bad_request(format!("Coder does not allow this workspace: {said}"))
            .with("reason", "not_allowed"),
        404 => {
            FleetError::invalid("project", format!("the template of '{}' is gone: {said}", new.project.name))
        }
        406 | 425 => FleetError::unavailable(format!(
            "the template of '{}' is still being prepared; try again shortly",
            new.project.name
        ))
        .with("reason", "template_importing"),
        _ => return CoderError::Refused(refused).into(),
    };
    refused.quoted_in(told)
}

/// The new agent, described with what the caller asked for.
fn describe(inner: &Inner, workspace: Workspace, new: &NewAgent<'_>) -> AgentRecord<CoderHandle> {
    inner.specs.put(workspace.id, new.spec.to_owned());
    let mut agent = inner.record(workspace);
    if let Some(role) = new.role {
        agent.role.clone_from(&role.name);
    }
    agent.spec = Some(new.spec.to_owned());
    agent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_the_spec_depends_on_version_and_template() {
        let at = |minor| Some(Version { major: 2, minor });
        let parameter = || Some("AI Prompt".to_owned());
        let by_parameter = Way::Parameter("AI Prompt".to_owned());
        let cases = [
            (at(27), parameter(), false, vec![by_parameter.clone()]),
            (at(28), parameter(), false, vec![Way::Task, by_parameter.clone()]),
            (at(29), parameter(), false, vec![Way::Task, by_parameter.clone()]),
            (at(30), parameter(), false, vec![by_parameter.clone()]),
            (at(37), parameter(), false, vec![by_parameter.clone()]),
            (at(28), parameter(), true, vec![by_parameter]),
            (at(27), None, false, vec![Way::Later]),
            (at(32), None, false, vec![Way::Task, Way::Later]),
            (None, None, false, vec![Way::Task, Way::Later]),
            (at(32), None, true, vec![Way::Later]),
        ];
        for (version, parameter, needs_parameters, expected) in cases {
            let case = format!("{version:?} {parameter:?} {needs_parameters}");
            assert_eq!(ways(version, parameter, needs_parameters), expected, "{case}");
        }
    }
}
