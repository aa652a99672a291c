//! The tool `agent_complete` of the agent itself, bound to the run that calls it.

use std::sync::{Arc, LazyLock};

use crewkit_core::run::RunId;
use serde_json::{Value, json};

use crate::model::ToolDef;

/// The tool's name.
pub const AGENT_COMPLETE: &str = "agent_complete";

/// The arguments of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) summary: String,
    pub(super) payload: Option<String>,
}

/// Returns the definition of the tool.
pub fn definition() -> Arc<ToolDef> {
    Arc::clone(&DEFINITION)
}

static DEFINITION: LazyLock<Arc<ToolDef>> = LazyLock::new(|| {
    Arc::new(ToolDef {
        name: AGENT_COMPLETE.to_owned(),
        description:
            "Ends your work on the contract. Call it once, when the contract is fulfilled or cannot be \
                      fulfilled, with a summary of what was done."
                .to_owned(),
        input_schema: json!({
            "type": "object",
            "properties": {
                "agent_id": {"type": "string", "description": "Your own id; may be left out."},
                "summary": {"type": "string", "description": "What was done and what came out of it."},
                "payload": {"type": "string", "description": "The work product, if it is text and not in a file."},
            },
            "required": ["summary"],
        }),
    })
});

/// Parses the arguments; an error is an answer for the model.
pub(super) fn parse(arguments: &Value, own_id: &RunId, max_payload: u64) -> Result<Delivery, String> {
    match &arguments["agent_id"] {
        Value::Null => {}
        Value::String(id) if id == own_id.as_str() || id.is_empty() => {}
        _ => {
            return Err(format!("agent_id must be your own id, {own_id}; you cannot complete another agent"));
        }
    }
    let Value::String(summary) = &arguments["summary"] else {
        return Err("summary is missing or not a string".to_owned());
    };
    let payload = match &arguments["payload"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        structured => Some(structured.to_string()),
    };
    if let Some(payload) = &payload
        && payload.len() as u64 > max_payload
    {
        return Err(format!(
            "the payload has {} bytes, at most {max_payload} are allowed; write it to a file and name the file in the \
             summary",
            payload.len()
        ));
    }
    Ok(Delivery { summary: summary.clone(), payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_completes_itself_and_nobody_else() {
        let own: RunId = "agent-1".parse().unwrap();
        let parsed = |arguments: Value| parse(&arguments, &own, 10);
        assert_eq!(
            parsed(json!({"summary": "ok", "payload": ""})),
            Ok(Delivery { summary: "ok".into(), payload: Some(String::new()) })
        );
        assert!(parsed(json!({"summary": "ok", "agent_id": "agent-1"})).is_ok());
        assert!(parsed(json!({"summary": "ok", "agent_id": "agent-2"})).unwrap_err().contains("agent-1"));
        assert!(parsed(json!({"summary": 5})).is_err());
        assert!(parsed(json!([])).is_err());
        assert!(parsed(json!({"summary": "ok", "payload": "12345678901"})).unwrap_err().contains("11 bytes"));
        assert_eq!(
            parsed(json!({"summary": "ok", "payload": {"a": 1}})).unwrap().payload.unwrap(),
            r#"{"a":1}"#
        );
    }
}
