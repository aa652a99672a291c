//! Anthropic Messages: content blocks, tool results in one user turn, a separate system prompt.

use crewkit_core::Limits;
use serde_json::{Map, Value, json};

use super::endpoint::Endpoint;
use super::failure::{Failure, Sent, classify};
use super::http::{Answer, Http, StreamState};
use super::openai::in_words;
use super::{Ask, Message, Reply, WantedCall};
use crate::event::Usage;

/// Longest reply in tokens. The format requires a limit; all current models accept this one.
const MAX_OUTPUT_TOKENS: u64 = 8192;

pub(super) async fn exchange(
    http: &Http,
    endpoint: &Endpoint,
    limits: &Limits,
    ask: &Ask<'_>,
    stream: bool,
) -> Result<Reply, Failure> {
    let body = request_body(endpoint, ask, stream);
    let sent = Sent { tools: !ask.tools.is_empty(), stream };
    let mut gather = Gather::new(limits, sent);
    let answer =
        http.post(body.to_string().into_bytes(), sent, &mut |data| gather.event(data, ask.on_text)).await;
    match answer {
        Ok(Answer::Whole(value)) => gather.whole(&value),
        Ok(Answer::Streamed) => gather.finish(),
        // The reply is whole; how the connection ends does not matter.
        Err(_) if gather.is_whole() => gather.finish(),
        Err(failure) => Err(failure),
    }
}

fn request_body(endpoint: &Endpoint, ask: &Ask<'_>, stream: bool) -> Value {
    let messages = if ask.tools.is_empty() { in_words(ask.messages) } else { ask.messages.to_vec() };
    let (system, turns) = encode(&messages);
    let mut body = Map::new();
    body.insert("model".into(), endpoint.model.clone().into());
    body.insert("max_tokens".into(), endpoint.max_output_tokens.unwrap_or(MAX_OUTPUT_TOKENS).into());
    if !system.is_empty() {
        body.insert("system".into(), system.into());
    }
    body.insert("messages".into(), turns.into());
    if !ask.tools.is_empty() {
        let tools = ask.tools.iter().map(|tool| {
            json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema})
        });
        body.insert("tools".into(), tools.collect());
    }
    if stream {
        body.insert("stream".into(), true.into());
    }
    Value::Object(body)
}

/// Returns the system prompt and the turns, which alternate between user and assistant.
fn encode(messages: &[Message]) -> (String, Vec<Value>) {
    let mut system: Vec<&str> = Vec::new();
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut push = |role: &'static str, block: Value| match turns.last_mut() {
        Some((last, blocks)) if *last == role => blocks.push(block),
        _ => turns.push((role, vec![block])),
    };
    for message in messages {
        match message {
            Message::System(text) => system.push(text),
            Message::User(text) => push("user", json!({"type": "text", "text": text})),
            Message::Assistant { content, tool_calls } => {
                if !content.trim().is_empty() || tool_calls.is_empty() {
                    // Empty text blocks are refused.
                    let text = if content.trim().is_empty() { "(nothing)" } else { content.trim_end() };
                    push("assistant", json!({"type": "text", "text": text}));
                }
                for call in tool_calls {
                    let input = serde_json::from_str::<Value>(&call.arguments)
                        .ok()
                        .filter(Value::is_object)
                        .unwrap_or_else(|| json!({}));
                    push(
                        "assistant",
                        json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}),
                    );
                }
            }
            Message::Tool { call_id, content, is_error, .. } => push(
                "user",
                json!({"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}),
            ),
        }
    }
    let turns = turns.into_iter().map(|(role, blocks)| json!({"role": role, "content": blocks})).collect();
    (system.join("\n\n"), turns)
}

/// Assembles a reply, streamed or whole.
struct Gather {
    sent: Sent,
    max_arguments: usize,
    max_calls: usize,
    content: String,
    reasoning: String,
    calls: Vec<WantedCall>,
    usage: Usage,
    stop: Option<String>,
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
            usage: Usage::default(),
            stop: None,
            done: false,
        }
    }

    fn event(&mut self, data: &str, on_text: &(dyn Fn(&str) + Send + Sync)) -> Result<StreamState, Failure> {
        let event: Value = serde_json::from_str(data)
            .map_err(|bad| Failure::transient(format!("the stream holds invalid JSON: {bad}")))?;
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.count(&event["message"]["usage"]),
            "content_block_start" => self.block(&event["content_block"])?,
            "content_block_delta" => {
                let delta = &event["delta"];
                if let Some(text) = delta["text"].as_str() {
                    on_text(text);
                    self.content.push_str(text);
                }
                self.reasoning.push_str(delta["thinking"].as_str().unwrap_or_default());
                if let Some(json) = delta["partial_json"].as_str() {
                    self.arguments(json);
                }
            }
            "message_delta" => {
                self.count(&event["usage"]);
                self.stop = event["delta"]["stop_reason"].as_str().map(str::to_owned).or(self.stop.take());
            }
            "message_stop" => self.done = true,
            "error" => return Err(self.failure(&event)),
            _ => {}
        }
        Ok(match (self.done, &self.stop) {
            (true, _) => StreamState::Over,
            (false, Some(_)) => StreamState::ReplyEnded,
            (false, None) => StreamState::Open,
        })
    }

    /// Returns whether the server has announced the end of the reply.
    fn is_whole(&self) -> bool {
        self.done || self.stop.is_some()
    }

    fn failure(&self, value: &Value) -> Failure {
        let status = match value["error"]["type"].as_str().unwrap_or_default() {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" => 429,
            _ => 529,
        };
        classify(status, &value.to_string(), self.sent, None)
    }

    /// Adds a block: the beginning of a streamed one, or a whole one.
    fn block(&mut self, block: &Value) -> Result<(), Failure> {
        match block["type"].as_str().unwrap_or_default() {
            "text" => self.content.push_str(block["text"].as_str().unwrap_or_default()),
            "thinking" => self.reasoning.push_str(block["thinking"].as_str().unwrap_or_default()),
            "tool_use" => {
                if self.calls.len() >= self.max_calls {
                    return Err(Failure::Fatal(format!(
                        "the reply has more than {} tool calls",
                        self.max_calls
                    )));
                }
                let word = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
                self.calls.push(WantedCall { id: word("id"), name: word("name"), ..WantedCall::default() });
                // A streamed block begins with an empty object and fills it by deltas.
                if block["input"].as_object().is_some_and(|input| !input.is_empty()) {
                    self.arguments(&block["input"].to_string());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn arguments(&mut self, piece: &str) {
        let Some(call) = self.calls.last_mut() else { return };
        if call.arguments.len() + piece.len() > self.max_arguments {
            call.oversized = true;
            call.arguments = String::new();
        } else if !call.oversized {
            call.arguments.push_str(piece);
        }
    }

    fn count(&mut self, usage: &Value) {
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0)
            + usage["cache_creation_input_tokens"].as_u64().unwrap_or(0);
        if let Some(input) = usage["input_tokens"].as_u64() {
            self.usage.input_tokens = self.usage.input_tokens.max(input + cached);
        }
        if let Some(output) = usage["output_tokens"].as_u64() {
            self.usage.output_tokens = self.usage.output_tokens.max(output);
        }
    }

    fn finish(self) -> Result<Reply, Failure> {
        if !self.is_whole() {
            return Err(Failure::transient("the stream was cut off"));
        }
        Ok(self.reply())
    }

    fn whole(mut self, value: &Value) -> Result<Reply, Failure> {
        if value["type"] == "error" {
            return Err(self.failure(value));
        }
        let Some(blocks) = value["content"].as_array() else {
            return Err(Failure::transient("the reply has no content"));
        };
        for block in blocks {
            self.block(block)?;
        }
        self.count(&value["usage"]);
        self.stop = value["stop_reason"].as_str().map(str::to_owned);
        Ok(self.reply())
    }

    fn reply(self) -> Reply {
        let reasoning = (!self.reasoning.is_empty()).then_some(self.reasoning);
        let usage = (self.usage != Usage::default()).then_some(self.usage);
        let cut = self.stop.as_deref() == Some("max_tokens");
        Reply { content: self.content, reasoning, calls: self.calls, usage, cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ToolCall;

    const SENT: Sent = Sent { tools: true, stream: true };

    #[test]
    fn results_of_one_turn_share_one_user_message() {
        let call = |id: &str| ToolCall { id: id.into(), name: "look".into(), arguments: "{}".into() };
        let result = |id: &str| Message::Tool {
            call_id: id.into(),
            name: "look".into(),
            content: id.into(),
            is_error: false,
        };
        let (system, turns) = encode(&[
            Message::System("duties".into()),
            Message::User("begin".into()),
            Message::Assistant { content: String::new(), tool_calls: vec![call("a"), call("b")] },
            result("a"),
            result("b"),
            Message::User("warning".into()),
        ]);
        assert_eq!(system, "duties");
        let roles: Vec<_> = turns.iter().map(|turn| turn["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
        let kinds: Vec<_> =
            turns[2]["content"].as_array().unwrap().iter().map(|block| block["type"].clone()).collect();
        assert_eq!(kinds, ["tool_result", "tool_result", "text"]);
    }

    #[test]
    fn a_stream_becomes_words_calls_and_usage() {
        let mut gather = Gather::new(&Limits::default(), SENT);
        for event in [
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
            json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello"}}),
            json!({"type": "content_block_start", "index": 2,
                   "content_block": {"type": "tool_use", "id": "t1", "name": "look", "input": {}}}),
            json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"a\""}}),
            json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
            json!({"type": "ping"}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}}),
            json!({"type": "message_stop"}),
        ] {
            gather.event(&event.to_string(), &|_| {}).unwrap();
        }
        let reply = gather.finish().unwrap();
        assert_eq!((reply.content.as_str(), reply.reasoning.as_deref()), ("Hello", Some("hm")));
        assert_eq!((reply.calls[0].id.as_str(), reply.calls[0].arguments.as_str()), ("t1", "{\"a\":1}"));
        assert_eq!(reply.usage, Some(Usage { input_tokens: 10, output_tokens: 20 }));
    }

    #[test]
    fn errors_of_the_stream_keep_their_meaning() {
        let mut gather = Gather::new(&Limits::default(), SENT);
        let mut failed = |kind: &str, message: &str| {
            let event = json!({"type": "error", "error": {"type": kind, "message": message}});
            gather.event(&event.to_string(), &|_| {}).unwrap_err()
        };
        assert!(matches!(failed("overloaded_error", "busy"), Failure::Transient { .. }));
        assert!(matches!(failed("authentication_error", "no"), Failure::Fatal(_)));
        assert!(matches!(failed("invalid_request_error", "prompt is too long"), Failure::Overflow(_)));
        let cut = Gather::new(&Limits::default(), SENT).finish();
        assert!(matches!(cut, Err(Failure::Transient { .. })));
    }
}
