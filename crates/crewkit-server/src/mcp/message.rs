//! What a front decides about one incoming JSON value, without doing anything.

use rmcp::model::{
    CallToolRequest, ClientJsonRpcMessage, ClientRequest, NumberOrString, ProtocolVersion, RequestId,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// JSON-RPC: the input is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON-RPC: the JSON is not a message this connection may send now.
pub const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC: a known method with parameters of the wrong form.
pub const INVALID_PARAMS: i32 = -32602;
/// A fault of the server.
pub const INTERNAL_ERROR: i32 = -32603;
/// JSON-RPC: the transport, not the message, is at fault.
pub const TRANSPORT_ERROR: i32 = -32000;
/// The session a message names is not there.
pub const SESSION_NOT_FOUND: i32 = -32001;

/// The revisions served over `initialize` and, for the last one, over `server/discover`.
pub const SUPPORTED_VERSIONS: &[ProtocolVersion] =
    &[ProtocolVersion::V_2025_03_26, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

/// Methods with parameters that rmcp would take for unknown methods when the parameters are malformed.
const METHODS_WITH_PARAMS: &[&str] = &["initialize", "tools/call", "tools/list", "ping", "server/discover"];

/// One message that passed.
#[derive(Debug)]
pub struct Message {
    /// The message as rmcp takes it.
    pub inner: ClientJsonRpcMessage,
}

impl Message {
    /// The id, when it is a request.
    pub fn request_id(&self) -> Option<&RequestId> {
        match &self.inner {
            ClientJsonRpcMessage::Request(request) => Some(&request.id),
            _ => None,
        }
    }

    /// Whether it is an `initialize` request.
    pub fn is_initialize(&self) -> bool {
        matches!(&self.inner, ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::InitializeRequest(_)))
    }

    /// Whether it opens the stateless revision: a request that carries its own supported version.
    pub fn opens_stateless(&self) -> bool {
        use rmcp::model::GetMeta as _;
        match &self.inner {
            ClientJsonRpcMessage::Request(request)
                if !matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                let meta = request.request.get_meta();
                meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                    && meta.protocol_version().is_some_and(|version| SUPPORTED_VERSIONS.contains(&version))
            }
            _ => false,
        }
    }
}

/// A message that was refused, with the answer to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The id to answer to; null when there is none.
    pub id: Value,
    /// The JSON-RPC code.
    pub code: i32,
    /// What is wrong.
    pub message: String,
}

impl Refusal {
    /// A refusal of input that has no id.
    pub fn anonymous(code: i32, message: impl Into<String>) -> Self {
        Self { id: Value::Null, code, message: message.into() }
    }

    /// The answer as a line to send, without its end.
    pub fn to_line(&self) -> Vec<u8> {
        self.to_json().to_string().into_bytes()
    }

    /// The answer as JSON; `id` is always there, as JSON-RPC wants it.
    pub fn to_json(&self) -> Value {
        json!({"jsonrpc": "2.0", "id": self.id, "error": {"code": self.code, "message": self.message}})
    }
}

/// What `write` makes of an answer or another message; when it cannot be written down, the one who waits for it under `id`
/// hears of that instead.
pub fn written<T>(
    id: Option<&RequestId>,
    write: impl FnOnce() -> serde_json::Result<T>,
    refuse: impl FnOnce(Refusal) -> T,
) -> Option<T> {
    match write() {
        Ok(written) => Some(written),
        Err(error) => {
            tracing::error!(%error, "a message cannot be written as JSON");
            let message = format!("the answer cannot be written as JSON: {error}");
            Some(refuse(Refusal { id: id_to_json(id?), code: INTERNAL_ERROR, message }))
        }
    }
}

/// Reads one JSON value as a message. `None` is a notification nobody can answer and nobody understands.
pub fn read(value: Value) -> Result<Option<Message>, Refusal> {
    let Value::Object(object) = &value else {
        return Err(Refusal::anonymous(INVALID_REQUEST, "a message must be a JSON object"));
    };
    let id = object.get("id").cloned();
    let refuse = |code: i32, message: String| {
        let id = id.clone().filter(is_id).unwrap_or(Value::Null);
        Err(Refusal { id, code, message })
    };
    if object.get("jsonrpc") != Some(&Value::String("2.0".to_owned())) {
        return refuse(INVALID_REQUEST, "a message must have `\"jsonrpc\": \"2.0\"`".to_owned());
    }
    let method = match object.get("method") {
        Some(Value::String(method)) => Some(method.clone()),
        Some(_) => return refuse(INVALID_REQUEST, "`method` must be a string".to_owned()),
        None => None,
    };
    if let Some(id) = &id
        && !is_id(id)
    {
        return refuse(INVALID_REQUEST, "`id` must be a string or a whole number".to_owned());
    }
    let Some(method) = method else {
        let answers = id.is_some() && (object.contains_key("result") || object.contains_key("error"));
        if !answers {
            return refuse(
                INVALID_REQUEST,
                "a message must have a `method`, or an `id` and a `result` or `error`".to_owned(),
            );
        }
        return match serde_json::from_value(value) {
            Ok(inner) => Ok(Some(Message { inner })),
            Err(error) => {
                Err(Refusal::anonymous(INVALID_REQUEST, format!("this is not a response: {error}")))
            }
        };
    };
    let is_request = id.is_some();
    if object.get("params").is_some_and(|params| !params.is_object()) {
        return if is_request {
            refuse(INVALID_PARAMS, "`params` must be an object".to_owned())
        } else {
            Ok(None)
        };
    }
    if is_request && method == "tools/call" {
        return tool_call(value).map(Some);
    }
    let params = object.get("params").cloned();
    // rmcp takes a cursor of the wrong kind for none at all.
    let cursor = params.as_ref().and_then(|params| params.get("cursor"));
    if is_request && method.ends_with("/list") && cursor.is_some_and(|cursor| !cursor.is_string()) {
        return refuse(INVALID_PARAMS, "`params.cursor` must be a string".to_owned());
    }
    match serde_json::from_value::<ClientJsonRpcMessage>(value) {
        Ok(ClientJsonRpcMessage::Request(request))
            if matches!(request.request, ClientRequest::CustomRequest(_))
                && METHODS_WITH_PARAMS.contains(&method.as_str())
                && !unknown_to_stateless(&method, params.as_ref()) =>
        {
            refuse(INVALID_PARAMS, malformed(&method, params.as_ref()))
        }
        Ok(inner) => Ok(Some(Message { inner })),
        Err(error) if is_request => refuse(INVALID_REQUEST, format!("this is not a request: {error}")),
        Err(_) => Ok(None),
    }
}

/// Reads a request that is known to be a tool call. rmcp would try a dozen other kinds of request first, and this is the
/// one that counts.
fn tool_call(mut value: Value) -> Result<Message, Refusal> {
    let id = value.get_mut("id").map(Value::take).unwrap_or_default();
    let read_id = serde_json::from_value::<RequestId>(id.clone());
    let refuse = |code: i32, message: String| Refusal { id: id.clone(), code, message };
    let Ok(request) = CallToolRequest::deserialize(&value) else {
        return Err(refuse(INVALID_PARAMS, malformed("tools/call", value.get("params"))));
    };
    let id = read_id.map_err(|error| refuse(INVALID_REQUEST, format!("this is not a request: {error}")))?;
    Ok(Message { inner: ClientJsonRpcMessage::request(ClientRequest::CallToolRequest(request), id) })
}

/// The stateless revision has no `initialize`: a request that says it speaks that one is not malformed, it is lost.
fn unknown_to_stateless(method: &str, params: Option<&Value>) -> bool {
    let version = params
        .and_then(|params| params.get("_meta")?.get("io.modelcontextprotocol/protocolVersion")?.as_str());
    method == "initialize" && version == Some(ProtocolVersion::V_2026_07_28.as_str())
}

/// Says what is wrong with the parameters of a known method.
fn malformed(method: &str, params: Option<&Value>) -> String {
    let get = |name: &str| params.and_then(|params| params.get(name));
    match method {
        "tools/call" if !get("name").is_some_and(Value::is_string) => {
            "`params.name` must be the name of a tool".to_owned()
        }
        "tools/call"
            if !get("arguments").is_none_or(|arguments| arguments.is_object() || arguments.is_null()) =>
        {
            "`params.arguments` must be an object".to_owned()
        }
        "initialize" => {
            "`params` must have `protocolVersion`, `capabilities` and `clientInfo` with `name` and `version`"
                .to_owned()
        }
        _ => format!("the parameters of `{method}` do not have the form the protocol gives them"),
    }
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_i64()
}

/// A request id as JSON.
pub fn id_to_json(id: &RequestId) -> Value {
    match id {
        NumberOrString::Number(number) => Value::from(*number),
        NumberOrString::String(text) => Value::from(text.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use serde::ser::Error as _;

    use super::*;

    #[test]
    fn an_answer_that_cannot_be_written_is_an_error_with_its_id() {
        let fails = || Err(serde_json::Error::custom("no such number"));
        let id = NumberOrString::Number(7);
        let answer = written(Some(&id), fails, |refusal| refusal.to_json()).unwrap();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(7), &json!(INTERNAL_ERROR)),
            "{answer}"
        );
        assert!(answer["error"]["message"].as_str().unwrap().contains("no such number"), "{answer}");
        assert_eq!(written(None, fails, |refusal| refusal.to_json()), None);
    }
}
