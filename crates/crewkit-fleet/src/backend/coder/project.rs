//! Projects are templates, roles are their presets.

use std::sync::Arc;

use uuid::Uuid;

use super::Inner;
use super::error::CoderError;
use super::wire::{NullableList, Organization, Preset, RichParameter, Template};
use crate::error::FleetError;
use crate::model::{Project, Role, RoleOrigin};

/// The parameter that takes the prompt in templates that take it by parameter.
const PROMPT_PARAMETER: &str = "AI Prompt";
/// Parameters whose options are roles in templates without presets.
const ROLE_PARAMETERS: [&str; 2] = ["role", "agent_role"];

impl Inner {
    /// The templates that are in use.
    pub(super) async fn projects(&self) -> Result<Vec<Project>, FleetError> {
        let templates = self.client.get::<NullableList<Template>>("/api/v2/templates", &[]).await?.into_vec();
        let organizations: std::collections::BTreeSet<_> =
            templates.iter().map(|template| template.organization_id).collect();
        let preferred =
            if organizations.len() > 1 { self.preferred_organizations().await? } else { Vec::new() };
        let mut found: Vec<(Uuid, Project)> = templates
            .into_iter()
            .filter(|template| !template.deprecated && !template.deleted)
            .map(|template| (template.organization_id, project(template)))
            .filter(|(_, project)| self.is_allowed_project(project))
            .collect();
        prefer(&mut found, &preferred);
        let mut projects: Vec<Project> = found.into_iter().map(|(_, project)| project).collect();
        projects.sort_by(|a, b| {
            (a.name.to_lowercase(), &a.organization).cmp(&(b.name.to_lowercase(), &b.organization))
        });
        Ok(projects)
    }

    /// The organizations that win when a name exists in several: the configured one, then Coder's default.
    async fn preferred_organizations(&self) -> Result<Vec<Uuid>, FleetError> {
        let organizations =
            self.client.get::<NullableList<Organization>>("/api/v2/organizations", &[]).await?.into_vec();
        let configured = self.settings.organization.as_deref();
        let is_configured = |organization: &&Organization| {
            configured.is_some_and(|name| name.eq_ignore_ascii_case(&organization.name))
        };
        let found = organizations.iter().find(is_configured);
        let default = organizations.iter().find(|organization| organization.is_default);
        Ok(found.into_iter().chain(default).map(|organization| organization.id).collect())
    }

    fn is_allowed_project(&self, project: &Project) -> bool {
        let allowed = &self.settings.projects;
        let names =
            aliases(&project.name, &project.template_name, &project.template_id, &project.organization);
        allowed.is_empty()
            || allowed.iter().any(|word| names.iter().any(|name| name.eq_ignore_ascii_case(word)))
    }

    /// The presets of the project's active version; without any, the options of a parameter that is a role.
    pub(super) async fn roles(&self, project: &Project) -> Result<Vec<Role>, FleetError> {
        let version = version_of(project)?;
        let presets = self.presets(version).await?;
        let role = |name: &str, description: &str, id: String, default: bool, origin: RoleOrigin| Role {
            name: name.to_owned(),
            display_name: name.to_owned(),
            description: description.to_owned(),
            template_id: project.template_id.clone(),
            id,
            project_id: project.template_id.clone(),
            project_name: project.name.clone(),
            default,
            origin,
        };
        if !presets.is_empty() {
            return Ok(presets
                .iter()
                .map(|preset| {
                    let description = preset.description.as_deref().unwrap_or_default();
                    role(&preset.name, description, preset.id.to_string(), preset.default, RoleOrigin::Named)
                })
                .collect());
        }
        let parameters = self.parameters(version).await?;
        let Some(parameter) = role_parameter(&parameters) else { return Ok(Vec::new()) };
        Ok(parameter
            .options
            .iter()
            .map(|option| {
                let origin =
                    RoleOrigin::Parameter { name: parameter.name.clone(), value: option.value.clone() };
                let is_default = option.value == parameter.default_value;
                role(&option.name, &option.description, option.value.clone(), is_default, origin)
            })
            .collect())
    }

    pub(super) async fn presets(&self, version: Uuid) -> Result<Arc<Vec<Preset>>, CoderError> {
        if let Some(presets) = self.presets.get(version) {
            return Ok(presets);
        }
        let path = format!("/api/v2/templateversions/{version}/presets");
        let presets = Arc::new(self.client.get::<NullableList<Preset>>(&path, &[]).await?.into_vec());
        self.presets.put(version, Arc::clone(&presets));
        Ok(presets)
    }

    pub(super) async fn parameters(&self, version: Uuid) -> Result<Arc<Vec<RichParameter>>, CoderError> {
        if let Some(parameters) = self.parameters.get(version) {
            return Ok(parameters);
        }
        let path = format!("/api/v2/templateversions/{version}/rich-parameters");
        let parameters =
            Arc::new(self.client.get::<NullableList<RichParameter>>(&path, &[]).await?.into_vec());
        self.parameters.put(version, Arc::clone(&parameters));
        Ok(parameters)
    }

    /// The parameter of this version that takes the prompt.
    pub(super) async fn prompt_parameter(&self, version: Uuid) -> Result<Option<String>, CoderError> {
        Ok(prompt_parameter(&self.parameters(version).await?))
    }
}

/// The active version of a project.
pub(super) fn version_of(project: &Project) -> Result<Uuid, FleetError> {
    project
        .active_version_id
        .parse()
        .map_err(|_| FleetError::unavailable(format!("project '{}' has no active version", project.name)))
}

/// Everything a project can be called.
pub(super) fn aliases(name: &str, template_name: &str, id: &str, organization: &str) -> Vec<String> {
    vec![
        name.to_owned(),
        template_name.to_owned(),
        id.to_owned(),
        format!("{organization}/{template_name}"),
        format!("{organization}/{name}"),
    ]
}

/// Marks which project a name means that several have: that of the first organization in which there is one.
fn prefer(found: &mut [(Uuid, Project)], organizations: &[Uuid]) {
    let names = |project: &Project| [project.name.to_lowercase(), project.template_name.to_lowercase()];
    let mut taken = std::collections::HashSet::new();
    for organization in organizations {
        let mut ours = Vec::new();
        for (_, project) in found.iter_mut().filter(|(id, _)| id == organization) {
            project.preferred = names(project).iter().all(|name| !taken.contains(name));
            ours.extend(names(project));
        }
        taken.extend(ours);
    }
}

fn project(template: Template) -> Project {
    let name =
        if template.display_name.is_empty() { template.name.clone() } else { template.display_name.clone() };
    Project {
        display_name: name.clone(),
        name,
        description: template.description,
        template_id: template.id.to_string(),
        template_name: template.name,
        id: template.id.to_string(),
        organization: template.organization_name,
        active_version_id: template.active_version_id.to_string(),
        preferred: false,
    }
}

fn role_parameter(parameters: &[RichParameter]) -> Option<&RichParameter> {
    parameters.iter().find(|parameter| {
        !parameter.options.is_empty()
            && ROLE_PARAMETERS.iter().any(|name| parameter.name.eq_ignore_ascii_case(name))
    })
}

/// `AI Prompt` itself, or the only parameter with a name like it.
fn prompt_parameter(parameters: &[RichParameter]) -> Option<String> {
    if let Some(exact) = parameters.iter().find(|parameter| parameter.name == PROMPT_PARAMETER) {
        return Some(exact.name.clone());
    }
    let is_like = |parameter: &&RichParameter| {
        let letters: String =
            parameter.name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        letters.contains("aiprompt")
    };
    let mut like = parameters.iter().filter(is_like);
    like.next().filter(|_| like.next().is_none()).map(|parameter| parameter.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_parameter_is_found_by_name_or_likeness() {
        let named = |names: &[&str]| {
            let parameter = |name: &&str| RichParameter {
                name: (*name).to_owned(),
                options: Vec::new(),
                default_value: String::new(),
            };
            prompt_parameter(&names.iter().map(parameter).collect::<Vec<_>>())
        };
        assert_eq!(named(&["x", "AI Prompt", "ai_prompt"]).as_deref(), Some("AI Prompt"));
        assert_eq!(named(&["ai-prompt"]).as_deref(), Some("ai-prompt"));
        assert_eq!(named(&["ai_prompt", "aiprompt"]), None);
        assert_eq!(named(&["system_prompt"]), None);
    }
}
