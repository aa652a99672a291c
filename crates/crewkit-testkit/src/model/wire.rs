//! Replies in the two wire formats.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Reply;

/// Replies of the model in a conversation.
pub(super) fn turns(body: &Value) -> usize {
    let said = ["messages", "input"].iter().filter_map(|form| body[*form].as_array()).flatten();
    said.filter(|item| item["role"] == "assistant" || item["type"] == "function_call").count()
}

/// The id in the system prompt.
pub(super) fn agent_id(body: &Value) -> String {
    let system =
        body["messages"][0]["content"].as_str().or_else(|| body["system"].as_str()).unwrap_or_default();
    let id = system.find("agent-").map(|at| &system[at..]).unwrap_or_default();
    id.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

fn openai_calls(reply: &Reply) -> Vec<Value> {
    let calls = reply.calls.iter().enumerate();
    calls
        .map(|(index, (id, name, arguments))| {
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect()
}

fn openai_usage() -> Value {
    json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
}

pub(super) fn openai_whole(reply: &Reply) -> Value {
    let mut message = json!({"role": "assistant", "content": reply.content});
    if !reply.calls.is_empty() {
        message["tool_calls"] = openai_calls(reply).into();
    }
    if let Some(reasoning) = &reply.reasoning {
        message["reasoning_content"] = reasoning.clone().into();
    }
    let finish = if reply.calls.is_empty() { "stop" } else { "tool_calls" };
    json!({"id": "x", "object": "chat.completion", "usage": openai_usage(),
           "choices": [{"index": 0, "message": message, "finish_reason": finish}]})
}

/// One event of a stream.
pub(super) fn openai_delta(delta: &Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
}

pub(super) fn openai_stream(reply: &Reply) -> String {
    let mut text = openai_delta(&json!({"role": "assistant", "content": null}));
    if let Some(reasoning) = &reply.reasoning {
        text += &openai_delta(&json!({"reasoning_content": reasoning}));
    }
    if let Some(content) = &reply.content {
        let middle = content.floor_char_boundary(content.len() / 2);
        for piece in [&content[..middle], &content[middle..]] {
            text += &openai_delta(&json!({"content": piece}));
        }
    }
    for (index, (id, name, arguments)) in reply.calls.iter().enumerate() {
        let middle = arguments.floor_char_boundary(arguments.len() / 2);
        let first = json!({"index": index, "id": id, "type": "function",
                           "function": {"name": name, "arguments": arguments[..middle]}});
        let second = json!({"index": index, "function": {"arguments": arguments[middle..]}});
        text += &openai_delta(&json!({"tool_calls": [first]}));
        text += &openai_delta(&json!({"tool_calls": [second]}));
    }
    let finish = if reply.calls.is_empty() { "stop" } else { "tool_calls" };
    let _ = write!(
        text,
        "data: {}\n\n",
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    );
    let _ = write!(text, "data: {}\n\n", json!({"choices": [], "usage": openai_usage()}));
    text + "data: [DONE]\n\n"
}

fn anthropic_input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))
}

pub(super) fn anthropic_whole(reply: &Reply) -> Value {
    let mut blocks = Vec::new();
    if let Some(reasoning) = &reply.reasoning {
        blocks.push(json!({"type": "thinking", "thinking": reasoning}));
    }
    if let Some(content) = &reply.content {
        blocks.push(json!({"type": "text", "text": content}));
    }
    for (id, name, arguments) in &reply.calls {
        blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": anthropic_input(arguments)}));
    }
    let stop = if reply.calls.is_empty() { "end_turn" } else { "tool_use" };
    json!({"type": "message", "role": "assistant", "content": blocks, "stop_reason": stop,
           "usage": {"input_tokens": 10, "output_tokens": 5}})
}

pub(super) fn anthropic_stream(reply: &Reply) -> String {
    let whole = anthropic_whole(reply);
    let mut text = String::new();
    let mut event = |value: Value| {
        let _ = write!(text, "event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default());
    };
    event(json!({"type": "message_start", "message": {
        "id": format!("msg_{}", uuid::Uuid::now_v7().simple()), "type": "message", "role": "assistant", "content": [],
        "model": "scripted", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 10, "output_tokens": 1}}}));
    for (index, block) in whole["content"].as_array().into_iter().flatten().enumerate() {
        let (start, delta) = match block["type"].as_str().unwrap_or_default() {
            "text" => {
                (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]}))
            }
            "thinking" => (
                json!({"type": "thinking", "thinking": ""}),
                json!({"type": "thinking_delta", "thinking": block["thinking"]}),
            ),
            _ => (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
            ),
        };
        event(json!({"type": "content_block_start", "index": index, "content_block": start}));
        event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        event(json!({"type": "content_block_stop", "index": index}));
    }
    event(
        json!({"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": {"output_tokens": 5}}),
    );
    event(json!({"type": "message_stop"}));
    text
}

pub(super) fn responses_stream(reply: &Reply) -> String {
    let mut text = String::new();
    let mut event = |value: Value| {
        let _ = write!(text, "event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default());
    };
    event(json!({"type": "response.created", "response": {"id": "resp_1"}}));
    let said = reply.content.iter().map(|content| {
        json!({"type": "message", "id": "item_said", "role": "assistant",
               "content": [{"type": "output_text", "text": content}]})
    });
    let calls = reply.calls.iter().map(|(id, name, arguments)| {
        json!({"type": "function_call", "id": format!("item_{id}"), "call_id": id, "name": name, "arguments": arguments})
    });
    for (index, item) in said.chain(calls).enumerate() {
        event(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    let usage = json!({"input_tokens": 10, "input_tokens_details": null, "output_tokens": 5,
                       "output_tokens_details": null, "total_tokens": 15});
    event(json!({"type": "response.completed", "response": {"id": "resp_1", "usage": usage}}));
    text
}
