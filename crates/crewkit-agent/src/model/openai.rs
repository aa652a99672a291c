//! OpenAI chat completions: strict requests, tolerant parsing of replies.

use std::borrow::Cow;
use std::fmt::Write as _;

use crewkit_core::Limits;
use serde::Serialize;
use serde_json::Value;

use super::endpoint::Endpoint;
use super::failure::{Failure, Sent, classify};
use super::http::{Answer, Http, StreamState};
use super::reasoning;
use super::{Ask, Message, Reply, WantedCall};
use crate::event::Usage;

pub(super) async fn exchange(
    http: &Http,
    endpoint: &Endpoint,
    limits: &Limits,
    ask: &Ask<'_>,
    stream: bool,
) -> Result<Reply, Failure> {
    let body = request_body(endpoint, ask, stream)?;
    let sent = Sent { tools: !ask.tools.is_empty(), stream };
    let mut gather = Gather::new(limits, sent);
    let answer = http.post(body, sent, &mut |data| gather.event(data, ask.on_text)).await;
    match answer {
        Ok(Answer::Whole(value)) => gather.whole(&value),
        Ok(Answer::Streamed) => gather.finish(),
        // The reply is whole; how the connection ends does not matter.
        Err(_) if gather.is_whole() => gather.finish(),
        Err(failure) => Err(failure),
    }
}

/// The body of a request. It borrows everything, since it contains the whole history.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Said<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Offered<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum Said<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        /// Null beside calls, as OpenAI itself sends it.
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Called<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: Cow<'a, str>,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Called<'a> {
    id: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Offered<'a> {
    function: Definition<'a>,
}

#[derive(Serialize)]
struct Definition<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

fn request_body(endpoint: &Endpoint, ask: &Ask<'_>, stream: bool) -> Result<Vec<u8>, Failure> {
    let messages =
        if ask.tools.is_empty() { Cow::Owned(in_words(ask.messages)) } else { Cow::Borrowed(ask.messages) };
    let tools = ask.tools.iter().map(|tool| Offered {
        function: Definition {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.input_schema,
        },
    });
    let body = Body {
        model: &endpoint.model,
        messages: messages.iter().map(encode).collect(),
        tools: tools.collect(),
        max_tokens: endpoint.max_output_tokens,
        stream,
        stream_options: stream.then_some(StreamOptions { include_usage: true }),
    };
    serde_json::to_vec(&body).map_err(|bad| Failure::Fatal(format!("the request cannot be written: {bad}")))
}

fn encode(message: &Message) -> Said<'_> {
    match message {
        Message::System(text) => Said::System { content: text },
        Message::User(text) => Said::User { content: text },
        Message::Assistant { content, tool_calls } => Said::Assistant {
            content: (!content.is_empty() || tool_calls.is_empty()).then_some(content),
            tool_calls: tool_calls
                .iter()
                .map(|call| Called {
                    id: &call.id,
                    function: Function { name: &call.name, arguments: sendable_arguments(&call.arguments) },
                })
                .collect(),
        },
        Message::Tool { call_id, content, is_error, .. } => Said::Tool {
            tool_call_id: call_id,
            content: if *is_error {
                Cow::Owned(format!("Error: {content}"))
            } else {
                Cow::Borrowed(content.as_str())
            },
        },
    }
}

/// Returns the arguments, or an empty object if they are invalid: servers refuse a history with invalid arguments.
fn sendable_arguments(arguments: &str) -> &str {
    let is_object = arguments.trim_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
    if is_object { arguments } else { "{}" }
}

/// Returns the conversation without tool messages, for a request without tools: servers refuse calls of tools that are not
/// defined.
pub(super) fn in_words(messages: &[Message]) -> Vec<Message> {
    messages
        .iter()
        .map(|message| match message {
            Message::Assistant { content, tool_calls } if !tool_calls.is_empty() => {
                let mut text = content.clone();
                for call in tool_calls {
                    let _ = write!(text, "\n(used {} with {})", call.name, call.arguments);
                }
                Message::Assistant { content: text.trim_start().to_owned(), tool_calls: Vec::new() }
            }
            Message::Tool { name, content, is_error, .. } => {
                let outcome = if *is_error { "failed" } else { "answered" };
                Message::User(format!("({name} {outcome})\n{content}"))
            }
            other => other.clone(),
        })
        .collect()
}

/// A call that is assembled from pieces.
#[derive(Default)]
struct Piece {
    index: Option<u64>,
    call: WantedCall,
}

/// Assembles a reply, streamed or whole.
struct Gather {
    sent: Sent,
    max_arguments: usize,
    max_calls: usize,
    content: String,
    reasoning: String,
    calls: Vec<Piece>,
    usage: Option<Usage>,
    finish: Option<String>,
    done: bool,
}

impl Gather {
    fn new(limits: &Limits, sent: Sent) -> Self {
        Self {
            sent,
            max_arguments: usize::try_from(limits.llm_tool_arguments_bytes).unwrap_or(usize::MAX),
            max_calls: usize::try_from(limits.llm_tool_calls).unwrap_or(usize::MAX),
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            usage: None,
            finish: None,
            done: false,
        }
    }

    fn event(&mut self, data: &str, on_text: &(dyn Fn(&str) + Send + Sync)) -> Result<StreamState, Failure> {
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return Ok(StreamState::Over);
        }
        if data.is_empty() {
            return Ok(StreamState::Open);
        }
        let chunk: Value = serde_json::from_str(data)
            .map_err(|bad| Failure::transient(format!("the stream holds invalid JSON: {bad}")))?;
        self.check_error(&chunk)?;
        self.usage = usage(&chunk["usage"]).or(self.usage);
        let choice = &chunk["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        if let Some(text) = delta["content"].as_str() {
            on_text(text);
        }
        self.add_delta(delta)?;
        Ok(if self.is_whole() { StreamState::ReplyEnded } else { StreamState::Open })
    }

    /// Returns whether the server has announced the end of the reply.
    fn is_whole(&self) -> bool {
        self.done || self.finish.is_some()
    }

    /// Returns an error if the chunk is one. Errors inside a stream may have their status in `code`.
    fn check_error(&self, chunk: &Value) -> Result<(), Failure> {
        let error = &chunk["error"];
        if error.is_null() {
            return Ok(());
        }
        let status = error["code"].as_u64().or_else(|| error["status"].as_u64()).unwrap_or(503);
        let status = u16::try_from(status).ok().filter(|status| (400..600).contains(status)).unwrap_or(503);
        Err(classify(status, &chunk.to_string(), self.sent, None))
    }

    fn add_delta(&mut self, delta: &Value) -> Result<(), Failure> {
        match &delta["content"] {
            Value::String(text) => self.content.push_str(text),
            // Some servers answer with a list of parts.
            Value::Array(parts) => {
                for part in parts {
                    self.content.push_str(part["text"].as_str().unwrap_or_default());
                }
            }
            _ => {}
        }
        let thought = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
        self.reasoning.push_str(thought.unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.add_call_piece(call)?;
        }
        Ok(())
    }

    /// Adds a piece to the call it belongs to: by index, else by id, else to the newest.
    fn add_call_piece(&mut self, piece: &Value) -> Result<(), Failure> {
        let index = piece["index"].as_u64();
        let id = piece["id"].as_str().unwrap_or_default();
        let function = &piece["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let at = if index.is_some() {
            self.calls.iter().position(|known| known.index == index)
        } else if !id.is_empty() {
            // Without an index, the same id with another name is another call of a server that repeats ids.
            self.calls.iter().position(|known| known.call.id == id && name.is_empty())
        } else if name.is_empty() {
            self.calls.len().checked_sub(1)
        } else {
            None
        };
        let at = if let Some(at) = at {
            at
        } else {
            if self.calls.len() >= self.max_calls {
                return Err(Failure::Fatal(format!("the reply has more than {} tool calls", self.max_calls)));
            }
            self.calls.push(Piece { index, ..Piece::default() });
            self.calls.len() - 1
        };
        let Some(Piece { call, .. }) = self.calls.get_mut(at) else { return Ok(()) };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        // Most servers send the name once; a few repeat it with every piece.
        if call.name != name {
            call.name.push_str(name);
        }
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            structured => structured.to_string(),
        };
        if call.arguments.len() + arguments.len() > self.max_arguments {
            call.oversized = true;
            call.arguments = String::new();
        } else if !call.oversized {
            call.arguments.push_str(&arguments);
        }
        Ok(())
    }

    fn finish(self) -> Result<Reply, Failure> {
        if !self.is_whole() {
            return Err(Failure::transient("the stream was cut off"));
        }
        Ok(self.reply())
    }

    fn whole(mut self, value: &Value) -> Result<Reply, Failure> {
        self.check_error(value)?;
        let choice = &value["choices"][0];
        if !choice["message"].is_object() {
            return Err(Failure::transient("the reply has no choices"));
        }
        self.usage = usage(&value["usage"]);
        self.finish = choice["finish_reason"].as_str().map(str::to_owned);
        // Calls of a whole reply are complete; their position identifies them, since ids may be duplicate.
        let mut message = choice["message"].clone();
        for (index, call) in message["tool_calls"].as_array_mut().into_iter().flatten().enumerate() {
            if call.is_object() {
                call["index"] = index.into();
            }
        }
        self.add_delta(&message)?;
        Ok(self.reply())
    }

    fn reply(self) -> Reply {
        let (content, thought) = reasoning::split(&self.content);
        let reasoning = match (self.reasoning.is_empty(), thought) {
            (true, thought) => thought,
            (false, _) => Some(self.reasoning),
        };
        let calls =
            self.calls.into_iter().map(|piece| piece.call).filter(|call| !call.name.is_empty()).collect();
        Reply { content, reasoning, calls, usage: self.usage, cut: self.finish.as_deref() == Some("length") }
    }
}

fn usage(value: &Value) -> Option<Usage> {
    value.is_object().then(|| Usage {
        input_tokens: value["prompt_tokens"].as_u64().unwrap_or(0),
        output_tokens: value["completion_tokens"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::ToolCall;

    const SENT: Sent = Sent { tools: true, stream: true };

    fn streamed(events: &[Value]) -> Result<Reply, Failure> {
        let mut gather = Gather::new(&Limits::default(), SENT);
        for event in events {
            gather.event(&event.to_string(), &|_| {})?;
        }
        gather.finish()
    }

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"delta": delta}]})
    }

    fn end(reason: &str) -> Value {
        json!({"choices": [{"delta": {}, "finish_reason": reason}]})
    }

    fn calls(reply: &Reply) -> Vec<(&str, &str, &str)> {
        reply
            .calls
            .iter()
            .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
            .collect()
    }

    #[test]
    fn a_stream_becomes_words_calls_and_usage() {
        let reply = streamed(&[
            delta(&json!({"role": "assistant", "content": null})),
            delta(&json!({"content": "Let "})),
            delta(&json!({"content": "me see", "reasoning_content": "hm"})),
            delta(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{\"x\""}}]})),
            delta(&json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "ask", "arguments": "{}"}}]})),
            delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]})),
            end("stop"),
            json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}),
        ])
        .unwrap();
        assert_eq!((reply.content.as_str(), reply.reasoning.as_deref()), ("Let me see", Some("hm")));
        assert_eq!(calls(&reply), [("a", "look", "{\"x\":1}"), ("b", "ask", "{}")]);
        assert_eq!(reply.usage, Some(Usage { input_tokens: 7, output_tokens: 3 }));
    }

    #[test]
    fn calls_without_index_or_id_are_told_apart() {
        let reply = streamed(&[
            delta(&json!({"tool_calls": [{"function": {"name": "look", "arguments": {"at": 1}}}]})),
            delta(&json!({"tool_calls": [{"function": {"name": "look", "arguments": "{\"a"}}]})),
            delta(&json!({"tool_calls": [{"function": {"arguments": "t\":2}"}}]})),
            end("tool_calls"),
        ])
        .unwrap();
        assert_eq!(calls(&reply), [("", "look", "{\"at\":1}"), ("", "look", "{\"at\":2}")]);
    }

    #[test]
    fn a_cut_stream_and_an_error_inside_are_failures() {
        assert_eq!(
            streamed(&[delta(&json!({"content": "half"}))]),
            Err(Failure::transient("the stream was cut off"))
        );
        let busy = streamed(&[json!({"error": {"code": 429, "message": "slow down"}})]);
        assert!(matches!(busy, Err(Failure::Transient { .. })), "{busy:?}");
        let denied = streamed(&[json!({"error": {"code": 401, "message": "no"}})]);
        assert!(matches!(denied, Err(Failure::Fatal(_))), "{denied:?}");
    }

    #[test]
    fn arguments_beyond_the_limit_are_dropped_and_marked() {
        let limits = Limits { llm_tool_arguments_bytes: 10, ..Limits::default() };
        let mut gather = Gather::new(&limits, SENT);
        for _ in 0..3 {
            let piece = delta(
                &json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "123456"}}]}),
            );
            gather.event(&piece.to_string(), &|_| {}).unwrap();
        }
        gather.event("[DONE]", &|_| {}).unwrap();
        let reply = gather.finish().unwrap();
        assert!(reply.calls[0].oversized && reply.calls[0].arguments.is_empty());
    }

    #[test]
    fn a_whole_reply_may_lack_nearly_everything() {
        let whole = |value: Value| Gather::new(&Limits::default(), SENT).whole(&value);
        let reply = whole(
            json!({"choices": [{"message": {"content": "<think>a</think>b"}, "finish_reason": "length"}]}),
        );
        let reply = reply.unwrap();
        assert_eq!((reply.content.as_str(), reply.reasoning.as_deref(), reply.cut), ("b", Some("a"), true));
        let same_ids =
            json!([{"id": "x", "function": {"name": "p"}}, {"id": "x", "function": {"name": "q"}}]);
        let reply =
            whole(json!({"choices": [{"message": {"content": null, "tool_calls": same_ids}}]})).unwrap();
        assert_eq!(calls(&reply), [("x", "p", ""), ("x", "q", "")]);
        for odd in [json!({}), json!({"choices": []}), json!([]), json!({"choices": [{}]}), json!("text")] {
            assert!(matches!(whole(odd.clone()), Err(Failure::Transient { .. })), "{odd}");
        }
    }

    #[test]
    fn the_history_is_valid_for_strict_servers() {
        let call = |id: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: "look".into(),
            arguments: arguments.into(),
        };
        let messages = [
            Message::Assistant {
                content: String::new(),
                tool_calls: vec![call("a", "{\"x\":1}"), call("b", "{broken")],
            },
            Message::Tool {
                call_id: "a".into(),
                name: "look".into(),
                content: "seen".into(),
                is_error: false,
            },
            Message::Tool { call_id: "b".into(), name: "look".into(), content: "bad".into(), is_error: true },
        ];
        let encode = |message| serde_json::to_value(encode(message)).unwrap();
        let encoded: Vec<Value> = messages.iter().map(encode).collect();
        assert_eq!(encoded[0]["content"], Value::Null);
        assert_eq!(
            encoded[0]["tool_calls"][0],
            json!({"type": "function", "id": "a", "function": {"name": "look", "arguments": "{\"x\":1}"}})
        );
        assert_eq!(encoded[0]["tool_calls"][1]["function"]["arguments"], "{}");
        assert_eq!(encoded[1], json!({"role": "tool", "tool_call_id": "a", "content": "seen"}));
        let words: Vec<Value> = in_words(&messages).iter().map(encode).collect();
        assert!(words.iter().all(|message| message["role"] != "tool" && message["tool_calls"].is_null()));
    }
}
