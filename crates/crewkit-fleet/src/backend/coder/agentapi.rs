//! Speaks with the agent itself: AgentAPI inside the workspace, reached through Coder's app proxy.
//!
//! The proxy answers its own troubles with web pages and a missing login with a redirect; both only ever mean that
//! the agent cannot be reached.

use std::time::Duration;

use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{AppAnswer, Client};
use super::error::CoderError;
use super::wire::{App, ApplicationHost, NullableList, Workspace, WorkspaceAgent};
use crate::metadata::clean_text;
use crate::time::Moment;

/// The key that interrupts a coding agent in its terminal.
pub(super) const ESCAPE: &str = "\u{1b}";

/// What the agent does, as its screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    Running,
    Stable,
}

/// How something is typed into the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Typing {
    /// As a message of the user.
    Message,
    /// As bare keys.
    Keys,
}

/// Why an app did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AppError {
    #[error("the agent's app cannot be reached: {0}")]
    Unreachable(String),
    #[error("the agent did not take the message: {0}")]
    Refused(String),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Message {
    #[serde(default)]
    pub(super) id: i64,
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: String,
    #[serde(default)]
    pub(super) time: Option<Moment>,
}

/// The pattern of the subdomains apps are reached at, asked for once.
#[derive(Default)]
pub(super) struct AppHost(tokio::sync::Mutex<Option<(Instant, Option<String>)>>);

/// Time Coder gets to name the pattern; apps can be reached by path meanwhile.
const HOST_TIME: Duration = Duration::from_secs(1);
/// How long it is believed that it cannot: a list of many agents must not ask for each.
const HOST_AGAIN: Duration = Duration::from_secs(30);

impl AppHost {
    async fn pattern(&self, client: &Client) -> Option<String> {
        let mut known = self.0.lock().await;
        match &*known {
            Some((_, Some(pattern))) => return Some(pattern.clone()),
            Some((at, None)) if at.elapsed() < HOST_AGAIN => return None,
            _ => {}
        }
        let asked = client.get::<ApplicationHost>("/api/v2/applications/host", &[]);
        let answer = tokio::time::timeout(HOST_TIME, asked).await;
        let pattern = answer.ok().and_then(Result::ok).map(|answer| answer.host);
        *known = Some((Instant::now(), pattern.clone()));
        pattern
    }
}

/// Where an app in a workspace can be reached, the likelier place first.
pub(super) async fn addresses(
    client: &Client,
    host: &AppHost,
    workspace: &Workspace,
    agent: &WorkspaceAgent,
    app: &App,
) -> Vec<Url> {
    let mut found = Vec::new();
    if app.subdomain
        && let Some(label) = &app.subdomain_name
    {
        let pattern = host.pattern(client).await;
        found.extend(pattern.and_then(|pattern| subdomain_address(client.base(), &pattern, label)));
    }
    let path = format!("/@{}/{}.{}/apps/{}/", workspace.owner_name, workspace.name, agent.name, app.slug);
    found.push(client.url(&path, &[]));
    found
}

/// `label` in place of the star of `pattern`; the label comes from a workspace and must be no more than a label.
fn subdomain_address(base: &Url, pattern: &str, label: &str) -> Option<Url> {
    let is_label =
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let (before, after) = pattern.split_once('*')?;
    if !is_label || !before.is_empty() || after.contains(['/', '@', '*', '?', '#']) {
        return None;
    }
    Url::parse(&format!("{}://{label}{after}/", base.scheme())).ok()
}

/// Asks the first place that has the app.
pub(super) async fn ask(
    client: &Client,
    places: &[Url],
    method: Method,
    path: &str,
    body: Option<&Value>,
    until: Instant,
) -> Result<AppAnswer, AppError> {
    let mut trouble = AppError::Unreachable("it has no address".to_owned());
    for place in places {
        let mut url = place.clone();
        url.set_path(&format!("{}{path}", place.path()));
        match client.app(method.clone(), url, body, until).await {
            Ok(answer) if answer.is_json && !answer.status.is_redirection() => return Ok(answer),
            // A page of the proxy: the app is not here, or not there at all. Nothing was delivered.
            Ok(answer) => trouble = AppError::Unreachable(proxy_trouble(answer.status)),
            Err(error @ CoderError::TimedOut { .. }) => return Err(AppError::Unreachable(error.to_string())),
            Err(error) => trouble = AppError::Unreachable(error.to_string()),
        }
    }
    Err(trouble)
}

fn proxy_trouble(status: StatusCode) -> String {
    match status.as_u16() {
        300..=399 => "Coder's app proxy does not accept the session token".to_owned(),
        400 => "the workspace is not running".to_owned(),
        403 => "Coder does not allow this kind of app access".to_owned(),
        404 => "the app is not there or the workspace is not connected".to_owned(),
        502 => "nothing listens at the app's port".to_owned(),
        status => format!("Coder's app proxy answered with {status}"),
    }
}

/// What the agent does right now.
pub(super) async fn activity(client: &Client, places: &[Url], time: Duration) -> Result<Activity, AppError> {
    #[derive(Deserialize)]
    struct Status {
        status: String,
    }
    let answer = ask(client, places, Method::GET, "status", None, Instant::now() + time).await?;
    let status: Status = read(&answer)?;
    Ok(if status.status == "running" { Activity::Running } else { Activity::Stable })
}

/// Types something into the agent; success means that it was taken.
pub(super) async fn type_in(
    client: &Client,
    places: &[Url],
    typing: Typing,
    text: &str,
    time: Duration,
) -> Result<(), AppError> {
    #[derive(Deserialize)]
    struct Taken {
        #[serde(default)]
        ok: bool,
    }
    let kind = match typing {
        Typing::Message => "user",
        Typing::Keys => "raw",
    };
    let body = json!({"type": kind, "content": text});
    let answer = ask(client, places, Method::POST, "message", Some(&body), Instant::now() + time).await?;
    let taken: Taken = read(&answer)?;
    if taken.ok { Ok(()) } else { Err(AppError::Refused("it gave no reason".to_owned())) }
}

/// The conversation, oldest first.
pub(super) async fn messages(
    client: &Client,
    places: &[Url],
    time: Duration,
) -> Result<Vec<Message>, AppError> {
    #[derive(Deserialize)]
    struct Messages {
        messages: NullableList<Message>,
    }
    let answer = ask(client, places, Method::GET, "messages", None, Instant::now() + time).await?;
    Ok(read::<Messages>(&answer)?.messages.into_vec())
}

fn read<T: serde::de::DeserializeOwned>(answer: &AppAnswer) -> Result<T, AppError> {
    #[derive(Default, Deserialize)]
    struct Problem {
        #[serde(default)]
        detail: String,
        #[serde(default)]
        message: String,
    }
    if !answer.status.is_success() {
        let problem: Problem = serde_json::from_slice(&answer.body).unwrap_or_default();
        let said = if problem.detail.is_empty() { problem.message } else { problem.detail };
        return Err(AppError::Refused(format!("{} {}", answer.status.as_u16(), clean_text(&said, 300))));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|_| AppError::Unreachable("its answer makes no sense".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdomain_is_made_only_of_a_plain_label() {
        let base = Url::parse("https://coder.example:7443/x").unwrap();
        let address = |pattern, label| subdomain_address(&base, pattern, label).map(String::from);
        let label = "ccw--main--papi--me";
        assert_eq!(
            address("*.apps.example", label).as_deref(),
            Some("https://ccw--main--papi--me.apps.example/")
        );
        assert_eq!(address("*--x.example:8443", "a").as_deref(), Some("https://a--x.example:8443/"));
        for (pattern, label) in [
            ("", label),
            ("apps.example", label),
            ("evil.*", label),
            ("*.apps.example", "evil.example/"),
            ("*.apps.example", "a.b"),
            ("*.apps.example", ""),
            ("*@evil.example", label),
        ] {
            assert_eq!(address(pattern, label), None, "{pattern} {label}");
        }
    }
}
