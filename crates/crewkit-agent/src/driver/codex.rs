//! The stream of `codex exec --json`.

use crewkit_core::run::StopReason;
use serde_json::{Value, json};

use super::{Exit, Interpreter, Used};
use crate::contract::{End, estimate_tokens};
use crate::event::{EventBody, ToolCall, Usage};

#[derive(Debug, Default)]
pub(super) struct Codex {
    last_message: Option<String>,
    failure: Option<String>,
    finished: bool,
    begun: std::collections::HashSet<String>,
    used: Used,
    /// Bytes of its conversation that were seen so far.
    context_bytes: usize,
}

impl Interpreter for Codex {
    fn line(&mut self, line: &str) -> Vec<EventBody> {
        if line.trim().is_empty() {
            return Vec::new();
        }
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return vec![EventBody::note(line.chars().take(2000).collect::<String>())];
        };
        match event["type"].as_str().unwrap_or_default() {
            "thread.started" => vec![EventBody::note("codex started")],
            "item.started" => self.begin(&event["item"]),
            "item.completed" => self.complete(&event["item"]),
            "turn.completed" => {
                self.finished = true;
                self.failure = None;
                let entries = usage_of(&event["usage"]);
                if let Some(EventBody::Assistant { usage: Some(usage), .. }) = entries.first() {
                    self.used.tokens = usage.total();
                }
                entries
            }
            "turn.failed" => {
                self.fail(event["error"]["message"].as_str());
                Vec::new()
            }
            "error" => {
                // Reported also for hiccups it recovers from; only the turn decides.
                let message = event["message"].as_str().unwrap_or("an error without a message");
                self.failure.get_or_insert_with(|| message.to_owned());
                vec![EventBody::error(message)]
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self, name: &str, exit: &Exit) -> End {
        let failed = |error| End::Stopped { reason: StopReason::DriverFailed, error };
        match (self.failure.take(), self.finished) {
            (Some(failure), _) => failed(failure),
            (None, true) => {
                End::Completed { summary: self.last_message.take().unwrap_or_default(), payload: None }
            }
            (None, false) if exit.success => failed(format!("{name} ended without finishing its turn")),
            (None, false) => failed(exit.describe(name)),
        }
    }

    fn used(&self) -> Used {
        self.used
    }
}

impl Codex {
    fn fail(&mut self, message: Option<&str>) {
        self.failure = Some(message.unwrap_or("the turn failed").to_owned());
        self.finished = false;
    }

    /// A tool item as it begins; its end carries the result.
    fn begin(&mut self, item: &Value) -> Vec<EventBody> {
        let Some(call) = call_of(item) else { return Vec::new() };
        self.begun.insert(call.id.clone());
        vec![EventBody::Assistant {
            content: String::new(),
            reasoning: None,
            tool_calls: vec![call],
            usage: None,
        }]
    }

    /// Counts a message or a tool call as a reply. Codex reports tokens only at the end, so they are estimated: each reply
    /// reads the conversation so far.
    fn count_reply(&mut self, bytes: usize) {
        self.context_bytes += bytes;
        self.used.turns += 1;
        self.used.tokens += estimate_tokens(self.context_bytes);
    }

    fn complete(&mut self, item: &Value) -> Vec<EventBody> {
        let text = item["text"].as_str().unwrap_or_default().to_owned();
        let said = |content, reasoning| EventBody::Assistant {
            content,
            reasoning,
            tool_calls: Vec::new(),
            usage: None,
        };
        match item["type"].as_str().unwrap_or_default() {
            "agent_message" => {
                self.count_reply(text.len());
                self.last_message = Some(text.clone());
                vec![said(text, None)]
            }
            "reasoning" => vec![said(String::new(), Some(text))],
            "error" => {
                vec![EventBody::error(item["message"].as_str().unwrap_or("an error without a message"))]
            }
            _ => {
                let Some(call) = call_of(item) else { return Vec::new() };
                // Some items are only reported when they are over.
                let mut entries = if self.begun.remove(&call.id) { Vec::new() } else { self.begin(item) };
                self.begun.remove(&call.id);
                let result = result_of(item, call);
                self.count_reply(result.weight());
                entries.push(result);
                entries
            }
        }
    }
}

fn call_of(item: &Value) -> Option<ToolCall> {
    let (name, arguments) = match item["type"].as_str()? {
        "command_execution" => ("command".to_owned(), json!({"command": item["command"]})),
        "file_change" => ("file_change".to_owned(), json!({"changes": item["changes"]})),
        "web_search" => ("web_search".to_owned(), json!({"query": item["query"]})),
        "mcp_tool_call" => {
            let word = |key: &str| item[key].as_str().unwrap_or_default();
            (format!("{}.{}", word("server"), word("tool")), item["arguments"].clone())
        }
        _ => return None,
    };
    let id = item["id"].as_str().unwrap_or_default().to_owned();
    Some(ToolCall { id, name, arguments: arguments.to_string() })
}

fn result_of(item: &Value, call: ToolCall) -> EventBody {
    let is_error = item["status"] == "failed"
        || item["status"] == "declined"
        || item["exit_code"].as_i64().is_some_and(|code| code != 0);
    let content = match (item["aggregated_output"].as_str(), &item["error"]["message"], &item["result"]) {
        (Some(output), _, _) => output.to_owned(),
        (None, Value::String(message), _) => message.clone(),
        (None, _, Value::Null) => item["status"].as_str().unwrap_or("done").to_owned(),
        (None, _, result) => result.to_string(),
    };
    EventBody::ToolResult { call_id: call.id, name: call.name, content, is_error }
}

/// Codex tells what a turn cost when it is over; an empty message carries it into the run's count.
fn usage_of(usage: &Value) -> Vec<EventBody> {
    if !usage.is_object() {
        return Vec::new();
    }
    let count = |key: &str| usage[key].as_u64().unwrap_or(0);
    let usage = Usage { input_tokens: count("input_tokens"), output_tokens: count("output_tokens") };
    vec![EventBody::Assistant {
        content: String::new(),
        reasoning: None,
        tool_calls: Vec::new(),
        usage: Some(usage),
    }]
}
