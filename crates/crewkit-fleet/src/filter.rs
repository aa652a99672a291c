//! Which agents a list shows, and which project or role a word means. Pure.

use crewkit_core::{AgentStatus, Availability};

use crate::error::FleetError;
use crate::model::{Project, Role, StatusWord};

/// The role taken when none is named and the project has one of that name.
pub const DEFAULT_ROLE: &str = "coder";

/// The role shown when it cannot be told.
pub const UNKNOWN_ROLE: &str = "unknown";

/// A status to wait for or to filter by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFilter {
    /// Exactly this one.
    Is(AgentStatus),
    /// Neither busy nor idle.
    Offline,
}

impl StatusFilter {
    /// Reads one of the eleven statuses, or `offline`.
    pub fn parse(field: &str, text: &str) -> Result<Self, FleetError> {
        let word = text.trim();
        if word.eq_ignore_ascii_case(Availability::Offline.as_str()) {
            return Ok(Self::Offline);
        }
        word.parse().map(Self::Is).map_err(|_| {
            let known = AgentStatus::ALL.map(AgentStatus::as_str).join(", ");
            FleetError::invalid(field, format!("`{word}` is no agent status; use {known} or offline"))
        })
    }

    /// Whether `status` passes.
    pub fn accepts(self, status: &StatusWord) -> bool {
        match self {
            Self::Is(wanted) => *status == wanted,
            Self::Offline => !status.availability().is_online(),
        }
    }
}

impl std::fmt::Display for StatusFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Is(status) => status.fmt(f),
            Self::Offline => f.pad(Availability::Offline.as_str()),
        }
    }
}

/// What came of looking for a project by a word.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// This one is meant.
    One(&'a Project),
    /// There is none.
    None,
    /// Several have that name; they are told apart as `organization/name`.
    Several(Vec<String>),
}

/// Finds the project `word` means: its name, short name, id, or `organization/name`, in any case.
pub fn choose_project<'a>(projects: &'a [Project], word: &str) -> Choice<'a> {
    let word = word.trim();
    let same = |text: &str| text.to_lowercase() == word.to_lowercase();
    if let Some(project) = projects.iter().find(|project| same(&project.template_id)) {
        return Choice::One(project);
    }
    let qualified = projects.iter().find(|project| {
        let in_organization = |name: &str| same(&format!("{}/{name}", project.organization));
        in_organization(&project.template_name) || in_organization(&project.name)
    });
    if let Some(project) = qualified {
        return Choice::One(project);
    }
    let by_name: Vec<&Project> =
        projects.iter().filter(|project| same(&project.name) || same(&project.template_name)).collect();
    match by_name.as_slice() {
        [] => Choice::None,
        [project] => Choice::One(project),
        several => match several.iter().filter(|project| project.preferred).collect::<Vec<_>>().as_slice() {
            [project] => Choice::One(project),
            _ => Choice::Several(
                several
                    .iter()
                    .map(|project| format!("{}/{}", project.organization, project.template_name))
                    .collect(),
            ),
        },
    }
}

/// Finds the role of a new agent; none when the project has no roles.
pub fn choose_role<'a>(roles: &'a [Role], wanted: Option<&str>) -> Result<Option<&'a Role>, FleetError> {
    let named = |name: &str| roles.iter().find(|role| role.name.to_lowercase() == name.to_lowercase());
    let Some(wanted) = wanted.map(str::trim) else {
        return Ok(named(DEFAULT_ROLE).or_else(|| roles.iter().find(|role| role.default)).or(roles.first()));
    };
    if wanted.is_empty() {
        return Err(FleetError::invalid(
            "role",
            "`role` is empty; list_agent_roles shows what there is, or leave it out",
        ));
    }
    if let Some(role) = named(wanted) {
        return Ok(Some(role));
    }
    if roles.is_empty() {
        // The documented default may be spelled out even where there is nothing to choose from.
        return if wanted.eq_ignore_ascii_case(DEFAULT_ROLE) {
            Ok(None)
        } else {
            Err(FleetError::invalid(
                "role",
                format!("role '{wanted}' does not exist; this project has no roles, leave `role` out"),
            ))
        };
    }
    let known = roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(", ");
    Err(FleetError::invalid(
        "role",
        format!("role '{wanted}' does not exist in this project; it has {known}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RoleOrigin;

    fn role(name: &str, default: bool) -> Role {
        Role {
            name: name.to_owned(),
            display_name: name.to_owned(),
            description: String::new(),
            template_id: "t".to_owned(),
            id: name.to_lowercase(),
            project_id: "t".to_owned(),
            project_name: "p".to_owned(),
            default,
            origin: RoleOrigin::Named,
        }
    }

    fn project(organization: &str, template_name: &str, name: &str, preferred: bool) -> Project {
        Project {
            name: name.to_owned(),
            display_name: name.to_owned(),
            description: String::new(),
            template_id: format!("id-{organization}-{template_name}"),
            template_name: template_name.to_owned(),
            id: String::new(),
            organization: organization.to_owned(),
            active_version_id: String::new(),
            preferred,
        }
    }

    #[test]
    fn every_status_and_offline_can_be_filtered_by() {
        for status in AgentStatus::ALL {
            let filter = StatusFilter::parse("status_filter", status.as_str()).unwrap();
            assert!(filter.accepts(&status.into()));
            assert_eq!(
                StatusFilter::Offline.accepts(&status.into()),
                !matches!(status, AgentStatus::Busy | AgentStatus::Idle)
            );
        }
        assert_eq!(StatusFilter::parse("f", " OFFLINE "), Ok(StatusFilter::Offline));
        let error = StatusFilter::parse("status_filter", "online").unwrap_err();
        assert_eq!(error.detail("field").unwrap(), "status_filter");
    }

    #[test]
    fn a_project_is_found_by_any_of_its_names() {
        let projects =
            [project("acme", "setup-dev", "Setup", false), project("acme", "data", "DataOne", false)];
        for word in
            ["setup", "SETUP", "setup-dev", "id-acme-setup-dev", "acme/setup-dev", "ACME/Setup", " Setup "]
        {
            assert_eq!(choose_project(&projects, word), Choice::One(&projects[0]), "{word}");
        }
        assert_eq!(choose_project(&projects, "nope"), Choice::None);
    }

    #[test]
    fn a_name_in_two_organizations_needs_a_preference_or_the_long_form() {
        let equal = [project("a", "x", "X", false), project("b", "x", "X", false)];
        assert_eq!(choose_project(&equal, "x"), Choice::Several(vec!["a/x".to_owned(), "b/x".to_owned()]));
        assert_eq!(choose_project(&equal, "b/x"), Choice::One(&equal[1]));
        let preferred = [project("a", "x", "X", false), project("b", "x", "X", true)];
        assert_eq!(choose_project(&preferred, "x"), Choice::One(&preferred[1]));
    }

    #[test]
    fn the_default_role_is_coder_then_the_marked_one_then_the_first() {
        let name = |roles: &[Role], wanted| choose_role(roles, wanted).unwrap().map(|role| role.name.clone());
        let all = [role("Operator", true), role("Coder", false)];
        assert_eq!(name(&all, None).as_deref(), Some("Coder"));
        assert_eq!(name(&all, Some("OPERATOR")).as_deref(), Some("Operator"));
        assert_eq!(name(&[role("A", false), role("B", true)], None).as_deref(), Some("B"));
        assert_eq!(name(&[role("A", false), role("B", false)], None).as_deref(), Some("A"));
        assert!(choose_role(&all, Some("  ")).is_err());
        assert_eq!(name(&[], None), None);
        assert_eq!(name(&[], Some("coder")), None);
        assert!(choose_role(&[], Some("manager")).is_err());
        let error = choose_role(&all, Some("boss")).unwrap_err();
        assert!(error.message().contains("Operator, Coder"), "{error}");
    }
}
