//! Runs operations on a running server, for the commands whose state lives there.
//!
//! A command talks to the server of its home through the home's socket. The token of the home travels only over TCP, and only
//! to a server that the user has named.

use crewkit_core::Code;
use crewkit_core::secret::masked_url;
use crewkit_server::ops::{Answer, JsonObject};
use serde_json::Value;

use crate::config::{Config, Origin};
use crate::failure::Failure;
use crate::token;

/// A server to ask.
pub struct Remote {
    base: String,
    client: reqwest::Client,
    token: Option<crewkit_core::Secret>,
    #[cfg(unix)]
    _socket: Option<crate::socket::Reachable>,
}

/// Whether the user names the server to talk to.
pub fn is_named(config: &Config) -> bool {
    config.values.get("client.server").is_some_and(|server| server.origin != Origin::Default)
}

impl Remote {
    /// The server the user names, else the one of the home.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let broken = |error: reqwest::Error| Failure::new(Code::Internal, error.to_string());
        #[cfg(unix)]
        if !is_named(config) {
            let path = crate::socket::of_running_server(&config.home)?;
            let unusable = |error: std::io::Error| {
                Failure::new(Code::ServerUnreachable, format!("{}: {error}", path.display()))
            };
            let socket = crate::socket::Reachable::new(&path).map_err(unusable)?;
            let client = crewkit_agent::http_client().unix_socket(socket.path()).build().map_err(broken)?;
            return Ok(Self {
                base: "http://localhost".to_owned(),
                client,
                token: None,
                _socket: Some(socket),
            });
        }
        let base = config.text("client.server").unwrap_or_default().trim_end_matches('/').to_owned();
        let client = crewkit_agent::http_client().build().map_err(broken)?;
        let token = if is_named(config) { token::load(&config.home)? } else { None };
        Ok(Self {
            base,
            client,
            token,
            #[cfg(unix)]
            _socket: None,
        })
    }

    /// Runs one operation; a refusal of the operation's own is an answer, not a failure.
    pub async fn run(&self, operation: &str, arguments: JsonObject) -> Result<Answer, Failure> {
        let url = format!("{}/api/ops/{operation}", self.base);
        self.answer(self.client.post(&url).json(&Value::Object(arguments))).await
    }

    /// Reads what is at a path of the server.
    pub async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.answer(self.client.get(format!("{}{path}", self.base))).await
    }

    /// Posts to a path of the server, without a body.
    pub async fn post(&self, path: &str) -> Result<Answer, Failure> {
        self.answer(self.client.post(format!("{}{path}", self.base))).await
    }

    /// Posts JSON to a path of the server.
    pub async fn post_json(&self, path: &str, body: JsonObject) -> Result<Answer, Failure> {
        self.answer(self.client.post(format!("{}{path}", self.base)).json(&Value::Object(body))).await
    }

    /// Removes what is at a path of the server.
    pub async fn delete(&self, path: &str) -> Result<Answer, Failure> {
        self.answer(self.client.delete(format!("{}{path}", self.base))).await
    }

    /// The bytes at a path of the server, compressed as they are kept.
    pub async fn bytes(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let request = self.client.get(format!("{}{path}", self.base)).header("Accept-Encoding", "gzip");
        let response = self.send(request).await?;
        if response.status().is_success() {
            let bytes = response.bytes().await.map_err(|error| self.unreachable(error))?;
            return Ok(bytes.to_vec());
        }
        let body: Value = response.json().await.map_err(|error| self.unreachable(error))?;
        let word = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let code = Code::ALL.iter().find(|code| code.as_str() == word("code"));
        Err(Failure::new(code.copied().unwrap_or(Code::NotFound), word("error")))
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> Result<Answer, Failure> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let body: Value = response.json().await.map_err(|error| self.unreachable(error))?;
        Ok(Answer { body, status })
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Result<reqwest::Response, Failure> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        if response.status().as_u16() == 401 {
            return Err(Failure::new(
                Code::Unauthorized,
                format!(
                    "The server at {} requires a token that this home does not have",
                    masked_url(&self.base)
                ),
            ));
        }
        Ok(response)
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        Failure::new(Code::ServerUnreachable, format!("{}: {}", masked_url(&self.base), error.without_url()))
    }
}
