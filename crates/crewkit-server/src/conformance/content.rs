//! The resources, prompts and media of the fixture.

use rmcp::ErrorData;
use rmcp::model::GetPromptRequestParams;
use serde_json::{Value, json};

/// A PNG of one red pixel.
pub(super) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";
/// A WAV file of no samples: 8 kHz, mono, 8 bit.
pub(super) const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

const TEMPLATE_START: &str = "test://template/";
const TEMPLATE_END: &str = "/data";
const WORDS: [&str; 3] = ["paris", "park", "party"];

pub(super) fn resources() -> Value {
    json!([
        {"uri": "test://static-text", "name": "static-text", "description": "A fixed text.", "mimeType": "text/plain"},
        {"uri": "test://static-binary", "name": "static-binary", "description": "A fixed picture.", "mimeType": "image/png"},
        {"uri": "test://watched-resource", "name": "watched-resource", "description": "A text to subscribe to.", "mimeType": "text/plain"},
    ])
}

pub(super) fn templates() -> Value {
    json!([{
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "A text made from an id.",
        "mimeType": "application/json",
    }])
}

/// What is at `uri`, if anything is.
pub(super) fn resource(uri: &str) -> Option<Value> {
    match uri {
        "test://static-text" => Some(
            json!({"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."}),
        ),
        "test://static-binary" => Some(json!({"uri": uri, "mimeType": "image/png", "blob": PNG})),
        "test://watched-resource" => {
            Some(json!({"uri": uri, "mimeType": "text/plain", "text": "This text can be watched."}))
        }
        _ => {
            let id = uri.strip_prefix(TEMPLATE_START)?.strip_suffix(TEMPLATE_END)?;
            let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            Some(json!({"uri": uri, "mimeType": "application/json", "text": text.to_string()}))
        }
    }
}

pub(super) fn prompts() -> Value {
    json!([
        {"name": "test_simple_prompt", "description": "A prompt without arguments."},
        {"name": "test_prompt_with_arguments", "description": "A prompt with two arguments.", "arguments": [
            {"name": "arg1", "description": "The first argument.", "required": true},
            {"name": "arg2", "description": "The second argument.", "required": true},
        ]},
        {"name": "test_prompt_with_embedded_resource", "description": "A prompt that carries a resource.", "arguments": [
            {"name": "resourceUri", "description": "The resource to carry.", "required": true},
        ]},
        {"name": "test_prompt_with_image", "description": "A prompt that carries a picture."},
        {"name": super::rounds::PROMPT, "description": "A prompt that asks back before it answers."},
    ])
}

/// The answer to `prompts/get`.
pub(super) fn prompt(request: &GetPromptRequestParams) -> Result<Value, ErrorData> {
    let argument = |name: &str| {
        let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name));
        value.and_then(Value::as_str).ok_or_else(|| {
            ErrorData::invalid_params(format!("prompt `{}` needs the argument `{name}`", request.name), None)
        })
    };
    let text = |text: &str| json!({"role": "user", "content": {"type": "text", "text": text}});
    let messages = match request.name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1")?, argument("arg2")?);
            vec![text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let resource = json!({
                "uri": argument("resourceUri")?,
                "mimeType": "text/plain",
                "text": "Embedded resource content for testing.",
            });
            vec![
                json!({"role": "user", "content": {"type": "resource", "resource": resource}}),
                text("Please process the embedded resource above."),
            ]
        }
        "test_prompt_with_image" => vec![
            json!({"role": "user", "content": {"type": "image", "data": PNG, "mimeType": "image/png"}}),
            text("Please analyze the image above."),
        ],
        unknown => return Err(ErrorData::invalid_params(format!("unknown prompt `{unknown}`"), None)),
    };
    Ok(json!({"messages": messages, "resultType": "complete"}))
}

/// The words that complete `start`.
pub(super) fn completions(start: &str) -> Vec<String> {
    WORDS.iter().filter(|word| word.starts_with(start)).map(ToString::to_string).collect()
}
