//! The fixture's tools that answer in one go.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ElicitRequestParams, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, ServiceError};
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};

use super::content::{PNG, WAV};
use super::{Change, Fixture, fixture};

/// The pause between two notifications, as the suite asks for.
const STEP: Duration = Duration::from_millis(50);

/// Name, description and input schema of every tool; without a schema it takes no arguments.
const TOOLS: &[(&str, &str, &str)] = &[
    ("test_simple_text", "Answers with a text.", ""),
    ("test_image_content", "Answers with a picture.", ""),
    ("test_audio_content", "Answers with a sound.", ""),
    ("test_embedded_resource", "Answers with a resource.", ""),
    ("test_multiple_content_types", "Answers with a text, a picture and a resource.", ""),
    ("test_tool_with_logging", "Writes three log messages.", ""),
    ("test_error_handling", "Fails.", ""),
    ("test_tool_with_progress", "Reports progress three times.", ""),
    ("test_reconnection", "Takes longer than a stream has to stay open.", ""),
    (
        "test_sampling",
        "Asks the client's model.",
        r#"{"type":"object","properties":{"prompt":{"type":"string","description":"What to ask."}},"required":["prompt"]}"#,
    ),
    (
        "test_elicitation",
        "Asks the client's user.",
        r#"{"type":"object","properties":{"message":{"type":"string","description":"What to ask."}},"required":["message"]}"#,
    ),
    ("test_elicitation_sep1034_defaults", "Asks with a default for every kind of field.", ""),
    ("test_elicitation_sep1330_enums", "Asks with every kind of choice.", ""),
    (
        "json_schema_2020_12_tool",
        "Has a schema with keywords of JSON Schema 2020-12.",
        r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}"##,
    ),
    (
        "test_header_parameter",
        "Has a parameter that also travels as a header.",
        r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}"#,
    ),
    ("test_missing_capability", "Works only for clients that have a model.", ""),
    ("test_logging_tool", "Writes a log message when the request asks for some.", ""),
    ("test_trigger_tool_change", "Announces that the tools changed.", ""),
    ("test_trigger_prompt_change", "Announces that the prompts changed.", ""),
    ("test_streaming_elicitation", "Asks back without a request of its own.", ""),
    ("test_input_required_result_elicitation", "Asks back for a name.", ""),
    ("test_input_required_result_sampling", "Asks back for a model's answer.", ""),
    ("test_input_required_result_list_roots", "Asks back for the roots.", ""),
    ("test_input_required_result_request_state", "Asks back and wants its state again.", ""),
    ("test_input_required_result_tampered_state", "Asks back and refuses a changed state.", ""),
    ("test_input_required_result_multiple_inputs", "Asks back for three things at once.", ""),
    ("test_input_required_result_multi_round", "Asks back twice.", ""),
    ("test_input_required_result_capabilities", "Asks back only for what the client can do.", ""),
];

const NO_ARGUMENTS: &str = r#"{"type":"object","properties":{}}"#;

/// Every tool, as the client sees it.
pub(super) fn all() -> Vec<Tool> {
    TOOLS
        .iter()
        .map(|&(name, description, schema)| {
            let schema = if schema.is_empty() { NO_ARGUMENTS } else { schema };
            let schema = serde_json::from_str(schema).unwrap_or_default();
            Tool::new(name, description, Arc::new(schema)).with_annotations(
                ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false),
            )
        })
        .collect()
}

/// An answer of one text.
pub(super) fn text(words: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    answer(&json!([{"type": "text", "text": words.into()}]))
}

fn answer(content: &Value) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResponse::Complete(fixture(
        json!({"content": content, "isError": false, "resultType": "complete"}),
    )?))
}

impl Fixture {
    /// Runs a tool that answers in one go.
    pub(super) async fn call_plain(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
        match request.name.as_ref() {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => answer(&json!([image])),
            "test_audio_content" => answer(&json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])),
            "test_embedded_resource" => answer(&json!([{"type": "resource", "resource": {
                "uri": "test://embedded-resource",
                "mimeType": "text/plain",
                "text": "This is an embedded resource content.",
            }}])),
            "test_multiple_content_types" => answer(&json!([
                {"type": "text", "text": "Multiple content types test:"},
                image,
                {"type": "resource", "resource": {
                    "uri": "test://mixed-content-resource",
                    "mimeType": "application/json",
                    "text": r#"{"test":"data","value":123}"#,
                }},
            ])),
            "test_error_handling" => Ok(CallToolResponse::Complete(fixture(json!({
                "content": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
                "isError": true,
                "resultType": "complete",
            }))?)),
            "test_tool_with_logging" => self.log_three_times(&context).await,
            "test_logging_tool" => {
                self.log(&context, "The logging tool runs").await?;
                text("done")
            }
            "test_tool_with_progress" => report_three_times(&context).await,
            "test_reconnection" => {
                tokio::time::sleep(STEP * 2).await;
                text("Reconnection test completed.")
            }
            "test_sampling" => ask_model(&context, argument(&request, "prompt")?).await,
            "test_elicitation" => {
                let message = argument(&request, "message")?;
                let schema = json!({"type": "object", "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                }, "required": ["username", "email"]});
                ask_user(&context, message, schema).await
            }
            "test_elicitation_sep1034_defaults" => {
                ask_user(&context, "Every field has a default", defaults_form()).await
            }
            "test_elicitation_sep1330_enums" => {
                ask_user(&context, "Every field is a choice", choices_form()).await
            }
            "json_schema_2020_12_tool" | "test_header_parameter" => {
                text(json!(request.arguments.unwrap_or_default()).to_string())
            }
            "test_missing_capability" => {
                let has_model = context.client_capabilities().is_some_and(|client| client.sampling.is_some());
                if !has_model {
                    let needed = ClientCapabilities::builder().enable_sampling().build();
                    return Err(ErrorData::missing_required_client_capability(needed));
                }
                text("the client has a model")
            }
            "test_trigger_tool_change" => {
                self.announce(Change::Tools);
                text("announced")
            }
            "test_trigger_prompt_change" => {
                self.announce(Change::Prompts);
                text("announced")
            }
            unknown => Err(ErrorData::invalid_params(format!("unknown tool `{unknown}`"), None)),
        }
    }

    async fn log_three_times(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.log(context, "Tool execution started").await?;
        tokio::time::sleep(STEP).await;
        self.log(context, "Tool processing data").await?;
        tokio::time::sleep(STEP).await;
        self.log(context, "Tool execution completed").await?;
        text("logged three times")
    }

    async fn log(&self, context: &RequestContext<RoleServer>, words: &str) -> Result<(), ErrorData> {
        if !self.logs(LoggingLevel::Info, context) {
            return Ok(());
        }
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(words));
        context.peer.notify_logging_message(message).await.map_err(|error| gone(&error))
    }
}

async fn report_three_times(context: &RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let report = ProgressNotificationParam::new(token, done).with_total(100.0);
            context.peer.notify_progress(report).await.map_err(|error| gone(&error))?;
        }
        tokio::time::sleep(STEP).await;
    }
    text("reported three times")
}

async fn ask_model(
    context: &RequestContext<RoleServer>,
    prompt: &str,
) -> Result<CallToolResponse, ErrorData> {
    let question = fixture(json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": prompt}}],
        "maxTokens": 100,
    }))?;
    let result = context.peer.create_message(question).await.map_err(|error| gone(&error))?;
    let answer = serde_json::to_value(result.message.content).unwrap_or_default();
    text(format!("LLM response: {answer}"))
}

async fn ask_user(
    context: &RequestContext<RoleServer>,
    message: &str,
    schema: Value,
) -> Result<CallToolResponse, ErrorData> {
    let question: ElicitRequestParams =
        fixture(json!({"mode": "form", "message": message, "requestedSchema": schema}))?;
    let result = context.peer.create_elicitation(question).await.map_err(|error| gone(&error))?;
    let result = serde_json::to_value(result).unwrap_or_default();
    text(format!("Elicitation completed: action={}, content={}", result["action"], result["content"]))
}

fn defaults_form() -> Value {
    json!({"type": "object", "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    }})
}

fn choices_form() -> Value {
    let options = json!(["option1", "option2", "option3"]);
    let titled = json!([
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]);
    json!({"type": "object", "properties": {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }})
}

fn argument<'a>(request: &'a CallToolRequestParams, name: &str) -> Result<&'a str, ErrorData> {
    let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name));
    value
        .and_then(Value::as_str)
        .ok_or_else(|| ErrorData::invalid_params(format!("argument `{name}` must be a string"), None))
}

fn gone(error: &ServiceError) -> ErrorData {
    ErrorData::internal_error(format!("the client did not answer: {error}"), None)
}
