//! Settings as they are written down: every secret is replaced by its fingerprint.

use std::ffi::OsString;
use std::sync::Arc;

use crewkit_core::Secret;
use crewkit_core::run::MissingSecret;
use crewkit_core::secret::masked_url;
use sha2::{Digest as _, Sha256};

use super::RunSettings;
use crate::tools::CommandPolicy;
use crate::tools::mcp::Transport;

/// Words in the name of a setting, variable, header or argument that make its value a secret.
const SECRET_WORDS: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTHORIZATION", "COOKIE"];
/// What the text that replaces a secret begins with. No variable, argument or address can hold this character.
const REPLACED: char = '\0';
/// Digits of the hash that names recorded settings.
const ID_DIGITS: usize = 32;

/// Whether the value of something called `name` is a secret: because of its name, or because it is an address with user info
/// or a query.
pub fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let has_word = || SECRET_WORDS.iter().any(|word| name.contains(word));
    !value.is_empty() && (has_word() || value.starts_with(REPLACED) || is_private_address(value))
}

fn is_private_address(value: &str) -> bool {
    value.contains("://") && masked_url(value) != value
}

/// What uses a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UsedBy {
    /// Every run.
    Everything,
    /// Runs of the built-in loop.
    Loop,
    /// Runs of the built-in loop with this model.
    Model(String),
    /// Runs with this driver.
    Driver(String),
}

/// Where a secret is.
pub(super) struct Spot {
    pub(super) secret: MissingSecret,
    pub(super) used_by: UsedBy,
    /// What may be shown of the value itself.
    pub(super) shown: Option<String>,
}

/// A secret that recorded settings need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NeededSecret {
    pub(super) secret: MissingSecret,
    pub(super) used_by: UsedBy,
    pub(super) fingerprint: String,
}

/// Settings that can be written down: every secret is replaced by its fingerprint.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordedSettings {
    id: Arc<str>,
    body: String,
    redacted: Arc<RunSettings>,
    needed: Vec<NeededSecret>,
}

impl RecordedSettings {
    /// Replaces every secret by what `fingerprint` makes of it.
    pub(super) fn new(settings: &RunSettings, fingerprint: impl Fn(&str) -> String) -> Self {
        let mut redacted = settings.clone();
        visit(&mut redacted, &mut |spot, value| {
            let shown = spot.shown.map(|shown| format!(" {shown}")).unwrap_or_default();
            *value = format!("{REPLACED}{}{shown}", fingerprint(value));
        });
        // Plain structs with text keys always have a JSON form.
        Self::of(serde_json::to_string(&redacted).unwrap_or_default(), redacted)
    }

    /// Reads what was written down.
    pub(crate) fn parse(body: String) -> Result<Self, serde_json::Error> {
        let redacted = serde_json::from_str(&body)?;
        Ok(Self::of(body, redacted))
    }

    fn of(body: String, mut redacted: RunSettings) -> Self {
        let mut needed = Vec::new();
        visit(&mut redacted, &mut |spot, value| {
            if let Some((fingerprint, _)) = replaced(value) {
                let fingerprint = fingerprint.to_owned();
                needed.push(NeededSecret { secret: spot.secret, used_by: spot.used_by, fingerprint });
            }
        });
        let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id: digest[..ID_DIGITS].into(), body, redacted: Arc::new(redacted), needed }
    }

    /// Names the content.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text that is written down.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The settings with every secret replaced: good for looking, not for carrying out.
    pub fn redacted(&self) -> &Arc<RunSettings> {
        &self.redacted
    }

    pub(super) fn needed(&self) -> &[NeededSecret] {
        &self.needed
    }

    /// Whether these have a secret with each of the names, for the same address.
    pub fn has_all(&self, secrets: &[MissingSecret]) -> bool {
        secrets.iter().all(|secret| self.needed.iter().any(|needed| needed.secret == *secret))
    }
}

/// The fingerprint in a text that replaces a secret, and what is shown of the secret.
pub(super) fn replaced(value: &str) -> Option<(&str, &str)> {
    let rest = value.strip_prefix(REPLACED)?;
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}

/// An address as it may be shown, also if it is replaced.
fn shown_address(value: &str) -> String {
    replaced(value).map_or_else(|| masked_url(value), |(_, shown)| shown.to_owned())
}

/// The scheme and the host of an address; its path may be a secret too.
fn origin(value: &str) -> String {
    let address = shown_address(value);
    let from = address.find("://").map_or(0, |at| at + 3);
    let end = address[from..].find(['/', '?', '#']).map_or(address.len(), |at| from + at);
    address[..end].to_owned()
}

/// Calls `see` with every secret and where it is. In redacted settings, these are the texts that replace them.
pub(super) fn visit(settings: &mut RunSettings, see: &mut dyn FnMut(Spot, &mut String)) {
    for model in &mut settings.models {
        let used_by = UsedBy::Model(model.name.clone());
        let address = shown_address(&model.url);
        let spot = |field: &str, shown| {
            let name = match model.name.as_str() {
                "default" => format!("llm.{field}"),
                name => format!("llm.endpoints.{name}.{field}"),
            };
            let secret = MissingSecret { name, of: address.clone() };
            Spot { secret, used_by: used_by.clone(), shown }
        };
        let is_private = |value: &str| value.starts_with(REPLACED) || masked_url(value) != value;
        if is_private(&model.url) {
            see(spot("endpoint", Some(address.clone())), &mut model.url);
        }
        if let Some(key) = model.api_key.as_mut().filter(|key| !key.is_empty()) {
            see_secret(spot("api_key", None), key, see);
        }
        if let Some(proxy) = model.proxy.as_mut().filter(|proxy| is_private(proxy)) {
            see(spot("proxy", None), proxy);
        }
    }
    for driver in &mut settings.drivers {
        let of = format!("driver {}", driver.name);
        let used_by = UsedBy::Driver(driver.name.clone());
        let prefix = format!("agents.drivers.{}.", driver.name);
        visit_arguments(&mut driver.command, &prefix, &of, &used_by, see);
        visit_variables(&mut driver.environment, &of, &used_by, see);
    }
    for server in &mut settings.tool_servers {
        let spot = |name: &str, of: String, shown| {
            let secret = MissingSecret { name: format!("{}.{name}", server.name), of };
            Spot { secret, used_by: UsedBy::Loop, shown }
        };
        match &mut server.transport {
            Transport::Stdio { args, env, .. } => {
                let of = format!("tool server {}", server.name);
                visit_arguments(args, &format!("{}.", server.name), &of, &UsedBy::Loop, see);
                for (name, value) in env.iter_mut().filter(|(name, value)| is_secret(name, value.expose())) {
                    see_secret(spot(name, of.clone(), None), value, see);
                }
            }
            Transport::Http { url, headers } => {
                let address = origin(url.expose());
                see_secret(spot("url", address.clone(), Some(address.clone())), url, see);
                // What a header is for cannot be told by its name.
                for (name, value) in headers.iter_mut().filter(|(_, value)| !value.is_empty()) {
                    see_secret(spot(name, address.clone(), None), value, see);
                }
            }
        }
    }
    match &mut settings.commands {
        CommandPolicy::Off => {}
        CommandPolicy::Confined { environment, .. } | CommandPolicy::Unconfined { environment } => {
            visit_variables(environment, "commands", &UsedBy::Loop, see);
        }
    }
    visit_variables(&mut settings.environment, "the environment", &UsedBy::Everything, see);
}

fn see_secret(spot: Spot, secret: &mut Secret, see: &mut dyn FnMut(Spot, &mut String)) {
    let mut value = secret.expose().to_owned();
    see(spot, &mut value);
    *secret = Secret::new(value);
}

fn visit_variables(
    variables: &mut [(OsString, OsString)],
    of: &str,
    used_by: &UsedBy,
    see: &mut dyn FnMut(Spot, &mut String),
) {
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        let mut text = value.to_string_lossy().into_owned();
        if is_secret(&name, &text) {
            let secret = MissingSecret { name, of: of.to_owned() };
            see(Spot { secret, used_by: used_by.clone(), shown: None }, &mut text);
            *value = text.into();
        }
    }
}

/// Arguments are named by what stands before the last `=` or `:` in them, or by the option before them.
fn visit_arguments(
    arguments: &mut [String],
    prefix: &str,
    of: &str,
    used_by: &UsedBy,
    see: &mut dyn FnMut(Spot, &mut String),
) {
    let mut option = String::new();
    for (position, argument) in arguments.iter_mut().enumerate() {
        let own = argument.rsplit_once(['=', ':']).map(|(name, _)| name.to_owned());
        let is_option = argument.starts_with('-') && own.is_none();
        let is_found = own.as_ref().is_some_and(|name| is_secret(name, argument))
            || (!is_option && is_secret(&option, argument));
        let following = if is_option { argument.clone() } else { String::new() };
        if is_found {
            let secret = MissingSecret { name: format!("{prefix}argument {position}"), of: of.to_owned() };
            see(Spot { secret, used_by: used_by.clone(), shown: None }, argument);
        }
        option = following;
    }
}
