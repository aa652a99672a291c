//! A connection to one tool server over either transport.

use std::time::Duration;

use serde_json::{Value, json};

use super::Surroundings;
use super::config::{ServerConfig, Transport};
use super::http::HttpLink;
use super::stdio::StdioLink;

/// The protocol revision offered; servers answer with the one they support.
const PROTOCOL: &str = "2025-11-25";
/// Pages of a tool list read at most.
const MAX_PAGES: usize = 50;

/// Why a request got no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinkError {
    /// The server answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The server did not answer in time.
    #[error("no answer within {0} seconds")]
    TimedOut(u64),
    /// The server ended, or the connection broke.
    #[error("{0}")]
    Gone(String),
    /// The server did not receive the request, so it may be sent again over a new connection.
    #[error("{0}")]
    NotReached(String),
}

#[derive(Debug)]
pub(super) enum Link {
    Stdio(Box<StdioLink>),
    Http(HttpLink),
}

impl Link {
    /// Connects and initializes the session. Returns the link and the server's tools.
    pub(super) async fn open(
        config: &ServerConfig,
        around: &Surroundings,
        run: Option<&str>,
    ) -> Result<(Self, Vec<Value>), LinkError> {
        let time = Duration::from_secs(around.limits.tool_server_start_seconds);
        let link = match &config.transport {
            Transport::Stdio { .. } => Self::Stdio(Box::new(StdioLink::spawn(config, around, run)?)),
            Transport::Http { url, headers } => {
                Self::Http(HttpLink::new(url.expose(), headers, &around.limits)?)
            }
        };
        let params = json!({
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "crewkit", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = link.request("initialize", params, time).await?;
        if let Self::Http(http) = &link {
            http.negotiated(answer["protocolVersion"].as_str().unwrap_or(PROTOCOL));
        }
        link.notify("notifications/initialized").await?;
        let tools = link.list_tools(time).await?;
        Ok((link, tools))
    }

    async fn list_tools(&self, time: Duration) -> Result<Vec<Value>, LinkError> {
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        for _ in 0..MAX_PAGES {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
            let page = self.request("tools/list", params, time).await?;
            let listed = page["tools"].as_array().into_iter().flatten();
            tools.extend(
                listed.filter(|tool| tool["name"].as_str().is_some_and(|name| !name.is_empty())).cloned(),
            );
            cursor = page["nextCursor"].clone();
            if cursor.as_str().is_none_or(str::is_empty) {
                break;
            }
        }
        Ok(tools)
    }

    pub(super) async fn request(
        &self,
        method: &str,
        params: Value,
        time: Duration,
    ) -> Result<Value, LinkError> {
        let answer = match self {
            Self::Stdio(link) => tokio::time::timeout(time, link.request(method, params)).await,
            Self::Http(link) => tokio::time::timeout(time, link.request(method, params)).await,
        };
        answer.unwrap_or(Err(LinkError::TimedOut(time.as_secs())))
    }

    async fn notify(&self, method: &str) -> Result<(), LinkError> {
        match self {
            Self::Stdio(link) => link.notify(method, json!({})).await,
            Self::Http(link) => link.notify(method).await,
        }
    }

    /// Returns whether requests can be sent.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::Stdio(link) => link.is_alive(),
            Self::Http(_) => true,
        }
    }
}

/// Returns the answer to a request of the server: pings are answered, everything else is refused.
pub(super) fn reply_to(message: &Value) -> Option<Value> {
    let id = message.get("id").filter(|id| !id.is_null())?;
    Some(match message["method"].as_str() {
        Some("ping") => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
        _ => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "not supported"}}),
    })
}

/// Returns the notification that cancels a request.
pub(super) fn cancelled(id: u64) -> Value {
    let params = json!({"requestId": id, "reason": "no longer needed"});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
}

/// Returns the result of a JSON-RPC answer.
pub(super) fn result_of(mut answer: Value) -> Result<Value, LinkError> {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        let message = error["message"].as_str().unwrap_or("an error without a message");
        return Err(LinkError::Refused(message.chars().take(2000).collect()));
    }
    Ok(answer["result"].take())
}
