//! The stream of `claude -p --output-format stream-json --verbose`.

use std::collections::HashMap;

use crewkit_core::run::StopReason;
use serde_json::Value;

use super::{Exit, Interpreter, Used};
use crate::contract::End;
use crate::event::{EventBody, ToolCall, Usage};

#[derive(Debug, Default)]
pub(super) struct Claude {
    /// Lines of one message repeat its usage; it is counted once.
    counted: Option<String>,
    /// What was counted so far; the result reports the whole.
    usage: Usage,
    turns: u64,
    /// Names of the tools that were called; results tell only the call.
    tools: HashMap<String, String>,
    /// Why its last request to the model failed, while it tries again.
    trouble: Option<String>,
    verdict: Option<Verdict>,
}

#[derive(Debug)]
struct Verdict {
    /// Why it stopped, unless it succeeded.
    failed: Option<StopReason>,
    text: String,
}

impl Interpreter for Claude {
    fn line(&mut self, line: &str) -> Vec<EventBody> {
        if line.trim().is_empty() {
            return Vec::new();
        }
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            // Warnings of the runtime and wrappers land here.
            return vec![EventBody::note(line.chars().take(2000).collect::<String>())];
        };
        match event["type"].as_str().unwrap_or_default() {
            "system" if event["subtype"] == "init" => {
                let model = event["model"].as_str().unwrap_or("an unnamed model");
                vec![EventBody::note(format!("claude started with {model}"))]
            }
            "system" if event["subtype"] == "api_retry" => {
                let trouble = retry(&event);
                self.trouble = Some(trouble.clone());
                vec![EventBody::note(trouble)]
            }
            "assistant" => {
                self.trouble = None;
                self.assistant(&event["message"])
            }
            "user" => self.results(&event["message"]),
            "result" => self.take_result(&event),
            _ => Vec::new(),
        }
    }

    fn end(&mut self, name: &str, exit: &Exit) -> End {
        match self.verdict.take() {
            Some(Verdict { failed: None, text }) => End::Completed { summary: text, payload: None },
            Some(Verdict { failed: Some(reason), text }) => End::Stopped { reason, error: text },
            None if exit.success => End::Stopped {
                reason: StopReason::DriverFailed,
                error: format!("{name} ended without a result"),
            },
            None => {
                let mut error = exit.describe(name);
                if let Some(trouble) = self.trouble.take() {
                    error = format!("{error} ({trouble})");
                }
                End::Stopped { reason: StopReason::DriverFailed, error }
            }
        }
    }

    fn used(&self) -> Used {
        Used { turns: self.turns, tokens: self.usage.total() }
    }
}

/// It tries again for minutes, whatever the reason, and this line is all it says meanwhile.
fn retry(event: &Value) -> String {
    let error = event["error"].as_str().unwrap_or("no reason given");
    let status =
        event["error_status"].as_u64().map(|status| format!(", status {status}")).unwrap_or_default();
    let count = |key: &str| event[key].as_u64().unwrap_or(0);
    let pause = event["retry_delay_ms"].as_f64().unwrap_or(0.0) / 1000.0;
    format!(
        "a request to the model failed ({error}{status}); retry {} of {} in {pause:.1} s",
        count("attempt"),
        count("max_retries")
    )
}

impl Claude {
    fn assistant(&mut self, message: &Value) -> Vec<EventBody> {
        let mut content = String::new();
        let mut reasoning = String::new();
        let mut tool_calls = Vec::new();
        for block in message["content"].as_array().into_iter().flatten() {
            let word = |key: &str| block[key].as_str().unwrap_or_default();
            match word("type") {
                "text" => content.push_str(word("text")),
                "thinking" => reasoning.push_str(word("thinking")),
                "tool_use" => tool_calls.push(ToolCall {
                    id: word("id").to_owned(),
                    name: word("name").to_owned(),
                    arguments: block["input"].to_string(),
                }),
                _ => {}
            }
        }
        let id = message["id"].as_str().map(str::to_owned);
        let is_new = id.is_none() || id != self.counted;
        let usage = if is_new { usage_of(&message["usage"]) } else { None };
        self.turns += u64::from(is_new);
        self.counted = id;
        self.usage = self.usage.plus(usage.unwrap_or_default());
        self.tools.extend(tool_calls.iter().map(|call: &ToolCall| (call.id.clone(), call.name.clone())));
        if content.is_empty() && reasoning.is_empty() && tool_calls.is_empty() {
            return Vec::new();
        }
        let reasoning = (!reasoning.is_empty()).then_some(reasoning);
        vec![EventBody::Assistant { content, reasoning, tool_calls, usage }]
    }

    fn take_result(&mut self, event: &Value) -> Vec<EventBody> {
        let subtype = event["subtype"].as_str().unwrap_or_default();
        let is_error = event["is_error"].as_bool().unwrap_or(false);
        let failed = match subtype {
            "success" if !is_error => None,
            "error_max_turns" => Some(StopReason::TurnLimit),
            _ => Some(StopReason::DriverFailed),
        };
        let listed: Vec<&str> =
            event["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let text = match event["result"].as_str() {
            Some(text) => text.to_owned(),
            None if !listed.is_empty() => listed.join("; "),
            None => format!("claude ended with {subtype}"),
        };
        self.verdict = Some(Verdict { failed, text });
        // Messages carry the usage of their beginning; what was written later shows only here.
        let whole = usage_of(&event["usage"]).unwrap_or_default();
        let missing = Usage {
            input_tokens: whole.input_tokens.saturating_sub(self.usage.input_tokens),
            output_tokens: whole.output_tokens.saturating_sub(self.usage.output_tokens),
        };
        if missing.total() == 0 {
            return Vec::new();
        }
        vec![EventBody::Assistant {
            content: String::new(),
            reasoning: None,
            tool_calls: Vec::new(),
            usage: Some(missing),
        }]
    }

    fn results(&mut self, message: &Value) -> Vec<EventBody> {
        let blocks = message["content"].as_array().into_iter().flatten();
        blocks
            .filter(|block| block["type"] == "tool_result")
            .map(|block| {
                let call_id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
                EventBody::ToolResult {
                    name: self.tools.remove(&call_id).unwrap_or_default(),
                    content: text_of(&block["content"]),
                    is_error: block["is_error"].as_bool().unwrap_or(false),
                    call_id,
                }
            })
            .collect()
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    usage.is_object().then(|| {
        let count = |key: &str| usage[key].as_u64().unwrap_or(0);
        Usage {
            input_tokens: count("input_tokens")
                + count("cache_read_input_tokens")
                + count("cache_creation_input_tokens"),
            output_tokens: count("output_tokens"),
        }
    })
}
