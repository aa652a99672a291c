//! Runs operations on a running server, for the commands whose state lives there.

use crewkit_core::Code;
use crewkit_server::ops::{Answer, JsonObject};
use serde_json::Value;

use crate::address;
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
        let base = address::server(config);
        let client = crewkit_agent::http_client()
            .build()
            .map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        let token = token::load(&config.home)?;
        Ok(Self { base, client, token })
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
                format!("{} wants a token this home does not have", self.base),
            ));
        }
        Ok(response)
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        Failure::new(Code::ServerUnreachable, format!("{}: {}", self.base, error.without_url()))
    }
}
