//! Finds out what an agent was created to do. It never changes, so it is asked for once.

use uuid::Uuid;

use super::agentapi;
use super::capability::{TasksRoute, Version};
use super::error::CoderError;
use super::wire::{BuildReference, CoderTask, NullableList, ParameterValue, TaskList};
use super::{CoderHandle, Inner};
use crate::backend::coder::record::LIVE_CHECK;

impl Inner {
    /// The spec: the task's prompt, else the prompt parameter of the first build, else the first thing the agent was
    /// told, else nothing.
    pub(super) async fn spec(&self, handle: &CoderHandle) -> String {
        let id = handle.workspace.id;
        if let Some(spec) = self.specs.get(id) {
            return spec;
        }
        let spec = match self.spec_of_task(handle).await {
            Some(spec) => Some(spec),
            None => match self.spec_of_first_build(handle).await {
                Some(spec) => Some(spec),
                None => self.spec_of_conversation(handle).await,
            },
        };
        if let Some(spec) = &spec {
            self.specs.put(id, spec.clone());
        }
        spec.unwrap_or_default()
    }

    /// The id the tasks API knows the workspace by.
    pub(super) fn task_id(&self, handle: &CoderHandle) -> Option<Uuid> {
        let workspace = &handle.workspace;
        let ids_are_shared =
            self.client.version().is_some_and(|version| version < Version::TASKS_WITH_OWN_IDS);
        workspace.task_id.or(ids_are_shared.then_some(workspace.id))
    }

    /// The route of the tasks API this Coder answers on.
    pub(super) async fn tasks_route(&self) -> Option<TasksRoute> {
        let query = format!("owner:{}", self.settings.owner);
        for route in self.tasks_routes.candidates(self.client.version()) {
            match self.client.get::<TaskList>(route.path(), &[("q", &query)]).await {
                Ok(list) => {
                    self.remember_prompts(list);
                    return Some(route);
                }
                Err(CoderError::RouteMissing { .. }) => self.tasks_routes.is_missing(route),
                Err(_) => return None,
            }
        }
        None
    }

    fn remember_prompts(&self, list: TaskList) {
        for task in list.tasks {
            if let (Some(workspace), false) = (task.workspace_id, task.initial_prompt.is_empty()) {
                self.specs.put(workspace, task.initial_prompt);
            }
        }
    }

    async fn spec_of_task(&self, handle: &CoderHandle) -> Option<String> {
        self.task(handle).await.map(|task| task.initial_prompt).filter(|prompt| !prompt.is_empty())
    }

    /// What the tasks API knows about the workspace.
    pub(super) async fn task(&self, handle: &CoderHandle) -> Option<CoderTask> {
        let task = self.task_id(handle)?;
        for route in self.tasks_routes.candidates(self.client.version()) {
            let path = format!("{}/{}/{task}", route.path(), self.settings.owner);
            match self.client.get::<CoderTask>(&path, &[]).await {
                Ok(task) => return Some(task),
                Err(CoderError::RouteMissing { .. }) => self.tasks_routes.is_missing(route),
                Err(_) => return None,
            }
        }
        None
    }

    async fn spec_of_first_build(&self, handle: &CoderHandle) -> Option<String> {
        let workspace = &handle.workspace;
        let prompt =
            self.prompt_parameter(workspace.latest_build.template_version_id).await.ok().flatten()?;
        let path = format!("/api/v2/users/{}/workspace/{}/builds/1", self.settings.owner, workspace.name);
        let build = self.client.get::<BuildReference>(&path, &[]).await.ok()?;
        let path = format!("/api/v2/workspacebuilds/{}/parameters", build.id);
        let values = self.client.get::<NullableList<ParameterValue>>(&path, &[]).await.ok()?.into_vec();
        values
            .into_iter()
            .find(|value| value.name == prompt)
            .map(|value| value.value)
            .filter(|text| !text.is_empty())
    }

    async fn spec_of_conversation(&self, handle: &CoderHandle) -> Option<String> {
        let places = self.task_places(handle).await;
        let messages = agentapi::messages(&self.client, &places, LIVE_CHECK).await.ok()?;
        let first = messages.into_iter().find(|message| message.role == "user")?;
        Some(first.content.trim().to_owned()).filter(|text| !text.is_empty())
    }
}
