//! Runs operations on a running server, for the commands whose state lives there.

use crewkit_core::Code;
use crewkit_server::ops::{Answer, JsonObject};
use serde_json::Value;

use crate::config::Config;
use crate::failure::Failure;
use crate::token;

/// A server to ask, with the token of this home when there is one.
pub struct Remote {
    base: String,
    client: reqwest::Client,
    token: Option<crewkit_core::Secret>,
}

impl Remote {
    /// The server the settings name.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let base = config.text("client.server").unwrap_or_default().trim_end_matches('/').to_owned();
        let client = reqwest::Client::builder()
            // The token must not follow a redirect to somewhere else.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        let token = token::load(&config.home)?;
        Ok(Self { base, client, token })
    }

    /// Runs one operation; a refusal of the operation's own is an answer, not a failure.
    pub async fn run(&self, operation: &str, arguments: JsonObject) -> Result<Answer, Failure> {
        let url = format!("{}/api/ops/{operation}", self.base);
        let mut request = self.client.post(&url).json(&Value::Object(arguments));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        let unreachable = |error: reqwest::Error| {
            Failure::new(Code::ServerUnreachable, format!("{}: {}", self.base, error.without_url()))
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let body: Value = response.json().await.map_err(unreachable)?;
        if status == 401 {
            return Err(Failure::new(
                Code::Unauthorized,
                format!("{} wants a token this home does not have", self.base),
            ));
        }
        Ok(Answer { body, status })
    }
}
