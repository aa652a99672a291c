//! Roles: what an agent is told about itself, and what carries out its tasks.

/// A role agents can have.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct RoleConfig {
    /// Name, matched without regard to case.
    pub name: String,
    /// Name for people.
    pub display_name: String,
    /// What it is for.
    pub description: String,
    /// What the agent is told about itself.
    pub prompt: String,
    /// Project it belongs to; all of them when absent.
    pub project: Option<String>,
    /// What carries out its tasks; the fleet's default when absent.
    pub driver: Option<String>,
    /// Model of the built-in loop; the default one when absent.
    pub model: Option<String>,
    /// Pack profile; the project's when absent.
    pub profile: Option<String>,
    /// Turns one task may take.
    pub max_turns: Option<u64>,
    /// Tokens one task may take.
    pub max_tokens: Option<u64>,
    /// Seconds one task may take.
    pub max_seconds: Option<u64>,
}

/// The roles every project has.
pub fn built_in() -> Vec<RoleConfig> {
    let role = |name: &str, display_name: &str, description: &str, prompt: &str| RoleConfig {
        name: name.to_owned(),
        display_name: display_name.to_owned(),
        description: description.to_owned(),
        prompt: prompt.to_owned(),
        ..RoleConfig::default()
    };
    vec![
        role(
            "coder",
            "Software Engineer",
            "Writes code: builds features, fixes bugs, adds tests",
            "You are a software engineer. Read the code around a change before you make it, keep to the style you find, \
             test what you change, and commit in small steps with messages that say why.",
        ),
        role(
            "operator",
            "Operations Engineer",
            "Looks after builds, deployments and running systems",
            "You are an operations engineer. Look before you act, prefer changes that can be undone, say what you are \
             about to change and how to take it back, and write down what you found.",
        ),
        role(
            "manager",
            "Engineering Manager",
            "Plans and reviews work, and checks that it meets its goals",
            "You are an engineering manager. Break goals into tasks with a clear end, review work against its goal \
             rather than its effort, and report what is done, what is open and what is at risk.",
        ),
    ]
}

/// The roles of a project: the built-in ones, replaced and joined by those configured for all projects and then by its own.
pub fn of_project(configured: &[RoleConfig], project: &str) -> Vec<RoleConfig> {
    let mut roles = built_in();
    let applies =
        |role: &&RoleConfig| role.project.as_deref().is_none_or(|own| own.eq_ignore_ascii_case(project));
    let (own, global): (Vec<_>, Vec<_>) =
        configured.iter().filter(applies).partition(|role| role.project.is_some());
    for role in global.into_iter().chain(own) {
        match roles.iter_mut().find(|known| known.name.eq_ignore_ascii_case(&role.name)) {
            Some(known) => *known = merged(known, role),
            None => roles.push(with_defaults(role)),
        }
    }
    roles
}

/// A configured role keeps what it does not say from the role it refines.
fn merged(base: &RoleConfig, over: &RoleConfig) -> RoleConfig {
    let text = |over: &String, base: &String| if over.is_empty() { base.clone() } else { over.clone() };
    RoleConfig {
        name: base.name.clone(),
        display_name: text(&over.display_name, &base.display_name),
        description: text(&over.description, &base.description),
        prompt: text(&over.prompt, &base.prompt),
        project: over.project.clone().or_else(|| base.project.clone()),
        driver: over.driver.clone().or_else(|| base.driver.clone()),
        model: over.model.clone().or_else(|| base.model.clone()),
        profile: over.profile.clone().or_else(|| base.profile.clone()),
        max_turns: over.max_turns.or(base.max_turns),
        max_tokens: over.max_tokens.or(base.max_tokens),
        max_seconds: over.max_seconds.or(base.max_seconds),
    }
}

fn with_defaults(role: &RoleConfig) -> RoleConfig {
    let mut role = role.clone();
    if role.display_name.is_empty() {
        role.display_name.clone_from(&role.name);
    }
    role
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_roles_refine_the_built_in_ones() {
        let configured = [
            RoleConfig { name: "Coder".into(), driver: Some("claude".into()), ..RoleConfig::default() },
            RoleConfig { name: "tester".into(), prompt: "Test.".into(), ..RoleConfig::default() },
            RoleConfig {
                name: "coder".into(),
                project: Some("api".into()),
                prompt: "Own.".into(),
                ..RoleConfig::default()
            },
        ];
        let names =
            |project| of_project(&configured, project).into_iter().map(|role| role.name).collect::<Vec<_>>();
        assert_eq!(names("web"), ["coder", "operator", "manager", "tester"]);
        let coder = |project| of_project(&configured, project).swap_remove(0);
        assert_eq!(coder("web").driver.as_deref(), Some("claude"));
        assert!(coder("web").prompt.starts_with("You are a software engineer"));
        assert_eq!((coder("API").prompt.as_str(), coder("API").driver.as_deref()), ("Own.", Some("claude")));
    }
}
