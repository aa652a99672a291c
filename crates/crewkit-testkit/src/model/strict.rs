//! What strict servers refuse.

use std::collections::HashSet;

use serde_json::Value;

/// Says what a strict chat completions server would not accept.
pub(super) fn openai(body: &Value) -> Option<String> {
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Some("model is missing".to_owned());
    }
    let Some(messages) = body["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return Some("messages is missing".to_owned());
    };
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let mut open: Vec<&str> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role != "tool" && !open.is_empty() {
            return Some(format!("message {at}: calls {open:?} have no results"));
        }
        match role {
            "system" | "user" if message["content"].is_string() => {}
            "assistant" => {
                let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
                if calls.is_empty() && !message["content"].is_string() {
                    return Some(format!("message {at}: neither content nor tool_calls"));
                }
                if !calls.is_empty() && !has_tools {
                    return Some(format!("message {at}: tool_calls, but no tools were offered"));
                }
                for call in calls {
                    let id = call["id"].as_str().unwrap_or_default();
                    if id.is_empty() || !seen.insert(id) {
                        return Some(format!("message {at}: call id `{id}` is empty or not unique"));
                    }
                    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
                    if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                        return Some(format!("message {at}: arguments of {id} are not a JSON object"));
                    }
                    open.push(id);
                }
            }
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let Some(position) = open.iter().position(|open| *open == id) else {
                    return Some(format!("message {at}: result for `{id}`, which was not called"));
                };
                if position != 0 {
                    return Some(format!("message {at}: results are not in the order of the calls"));
                }
                open.remove(0);
            }
            other => return Some(format!("message {at}: role `{other}` or its content")),
        }
    }
    if !open.is_empty() {
        return Some(format!("calls {open:?} have no results"));
    }
    match messages.last().and_then(|message| message["role"].as_str()) {
        Some("assistant") => Some("the last message is the assistant's".to_owned()),
        _ => None,
    }
}

/// Says what a strict Messages server would not accept.
pub(super) fn anthropic(body: &Value) -> Option<String> {
    if body["max_tokens"].as_u64().is_none() {
        return Some("max_tokens is missing".to_owned());
    }
    let Some(messages) = body["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return Some("messages is missing".to_owned());
    };
    let mut open: HashSet<&str> = HashSet::new();
    // Claude Code puts reminders of the system between the turns.
    let turns = messages.iter().filter(|message| message["role"] != "system");
    for (at, message) in turns.enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role != ["user", "assistant"][at % 2] {
            return Some(format!("message {at}: roles must alternate, found {role}"));
        }
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str().unwrap_or_default() {
                "text" if block["text"].as_str().is_some_and(|text| !text.is_empty()) => {}
                "tool_use" if role == "assistant" && block["input"].is_object() => {
                    open.insert(block["id"].as_str().unwrap_or_default());
                }
                "tool_result" if role == "user" => {
                    if !open.remove(block["tool_use_id"].as_str().unwrap_or_default()) {
                        return Some(format!("message {at}: a result nobody asked for"));
                    }
                }
                other => return Some(format!("message {at}: block {other} is not valid here")),
            }
        }
        if role == "user" && !open.is_empty() {
            return Some(format!("message {at}: tool_use ids without tool_result: {open:?}"));
        }
    }
    None
}

/// Says what a strict Responses server would not accept.
pub(super) fn responses(body: &Value) -> Option<String> {
    let Some(items) = body["input"].as_array().filter(|items| !items.is_empty()) else {
        return Some("input is missing".to_owned());
    };
    let mut open: HashSet<&str> = HashSet::new();
    for (at, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or_default() {
            "function_call" => {
                open.insert(id);
            }
            "function_call_output" if !open.remove(id) => {
                return Some(format!("item {at}: a result nobody asked for"));
            }
            _ => {}
        }
    }
    (!open.is_empty()).then(|| format!("calls without a result: {open:?}"))
}
