//! Answers that need several rounds: the server asks back, the client repeats its request with the answers.
//!
//! What the server must remember between rounds travels with the client, sealed, so that a changed state is noticed.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, GetPromptRequestParams, GetPromptResponse,
    InputRequests, InputRequiredResult, InputResponses, RequestStateCodec,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};

use super::tools::text;
use super::{NoRandomness, fixture};

/// The prompt that asks back.
pub(super) const PROMPT: &str = "test_input_required_result_prompt";

const KEY_BYTES: usize = 32;

/// The tools that ask back.
pub(super) struct Rounds {
    seal: RequestStateCodec,
}

impl Rounds {
    pub(super) fn new() -> Result<Self, NoRandomness> {
        let mut key = vec![0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(Self { seal: RequestStateCodec::new(key) })
    }

    /// Answers one round; `None` when the tool is not one that asks back.
    pub(super) fn call(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<CallToolResponse>, ErrorData> {
        let answers = request.input_responses.as_ref();
        let state = request.request_state.as_deref().map(|sealed| self.open(sealed)).transpose()?;
        let response = match request.name.as_ref() {
            "test_input_required_result_elicitation" | "test_streaming_elicitation" => {
                match accepted(answers, "user_name") {
                    Some(answer) => text(format!("Hello, {}!", word(answer, "name")))?,
                    None => ask(json!({"user_name": name_question("What is your name?")}), None)?,
                }
            }
            "test_input_required_result_sampling" => match answered(answers, "capital_question") {
                Some(answer) => text(format!("The model says: {}", answer["content"]))?,
                None => ask(json!({"capital_question": sampling("What is the capital of France?")}), None)?,
            },
            "test_input_required_result_list_roots" => match answered(answers, "client_roots") {
                Some(answer) => text(format!("The roots are {}", answer["roots"]))?,
                None => ask(json!({"client_roots": roots()}), None)?,
            },
            "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
                match (state, accepted(answers, "confirm")) {
                    (Some(_), Some(_)) => text("state-ok: confirmed")?,
                    _ => ask(json!({"confirm": confirmation()}), Some(self.seal(&json!({"round": 1}))?))?,
                }
            }
            "test_input_required_result_multiple_inputs" => {
                let complete = accepted(answers, "user_name").is_some()
                    && answered(answers, "greeting").is_some()
                    && answered(answers, "client_roots").is_some();
                if complete && state.is_some() {
                    text("all three answers are in")?
                } else {
                    let questions = json!({
                        "user_name": name_question("What is your name?"),
                        "greeting": sampling("Generate a greeting"),
                        "client_roots": roots(),
                    });
                    ask(questions, Some(self.seal(&json!({"round": 1}))?))?
                }
            }
            "test_input_required_result_multi_round" => self.several_rounds(state.as_ref(), answers)?,
            "test_input_required_result_capabilities" => {
                let capabilities = context.client_capabilities().unwrap_or_default();
                if answers.is_some() { text("answered")? } else { ask(within(&capabilities), None)? }
            }
            _ => return Ok(None),
        };
        Ok(Some(response))
    }

    fn several_rounds(
        &self,
        state: Option<&Value>,
        answers: Option<&InputResponses>,
    ) -> Result<CallToolResponse, ErrorData> {
        let round = state.map_or(0, |state| state["round"].as_u64().unwrap_or_default());
        match (round, accepted(answers, "step1"), accepted(answers, "step2")) {
            (1, Some(answer), _) => {
                let state = json!({"round": 2, "name": word(answer, "name")});
                ask(json!({"step2": colour_question()}), Some(self.seal(&state)?))
            }
            (2, _, Some(answer)) => {
                let name = state.map(|state| word(state, "name")).unwrap_or_default();
                text(format!("{name} likes {}", word(answer, "color")))
            }
            _ => ask(
                json!({"step1": name_question("Step 1: What is your name?")}),
                Some(self.seal(&json!({"round": 1}))?),
            ),
        }
    }

    fn seal(&self, state: &Value) -> Result<String, ErrorData> {
        self.seal.seal_json(state).map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    fn open(&self, sealed: &str) -> Result<Value, ErrorData> {
        self.seal
            .open_json(sealed)
            .map_err(|error| ErrorData::invalid_params(format!("`requestState` is not ours: {error}"), None))
    }
}

/// Answers one round of the prompt that asks back.
pub(super) fn prompt(request: &GetPromptRequestParams) -> Result<GetPromptResponse, ErrorData> {
    let Some(answer) = accepted(request.input_responses.as_ref(), "user_context") else {
        let question = question("What context should the prompt use?", "context", "string");
        return Ok(required(json!({"user_context": question}), None)?.into());
    };
    let words = format!("Use this context: {}", word(answer, "context"));
    let messages = json!([{"role": "user", "content": {"type": "text", "text": words}}]);
    Ok(GetPromptResponse::Complete(fixture(json!({"messages": messages, "resultType": "complete"}))?))
}

fn ask(questions: Value, state: Option<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(required(questions, state)?.into())
}

fn required(questions: Value, state: Option<String>) -> Result<InputRequiredResult, ErrorData> {
    let questions: InputRequests = fixture(questions)?;
    Ok(InputRequiredResult::new(Some(questions), state))
}

/// The answer to `key`, if it is an object at all.
fn answered<'a>(answers: Option<&'a InputResponses>, key: &str) -> Option<&'a Value> {
    answers?.get(key).filter(|answer| answer.is_object())
}

/// What a person filled in for `key`, if they agreed to.
fn accepted<'a>(answers: Option<&'a InputResponses>, key: &str) -> Option<&'a Value> {
    answered(answers, key)
        .filter(|answer| answer["action"] == "accept")
        .and_then(|answer| answer.get("content"))
}

fn word<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn question(message: &str, field: &str, kind: &str) -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": {
        "type": "object", "properties": {field: {"type": kind}}, "required": [field],
    }}})
}

fn name_question(message: &str) -> Value {
    question(message, "name", "string")
}

fn colour_question() -> Value {
    question("Step 2: What is your favorite color?", "color", "string")
}

fn confirmation() -> Value {
    question("Please confirm", "ok", "boolean")
}

fn sampling(words: &str) -> Value {
    json!({"method": "sampling/createMessage", "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": words}}],
        "maxTokens": 100,
    }})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

/// One question for each thing the client can do.
fn within(capabilities: &ClientCapabilities) -> Value {
    let mut questions = serde_json::Map::new();
    if capabilities.elicitation.is_some() {
        questions.insert("user_name".to_owned(), name_question("What is your name?"));
    }
    if capabilities.sampling.is_some() {
        questions.insert("greeting".to_owned(), sampling("Generate a greeting"));
    }
    if capabilities.roots.is_some() {
        questions.insert("client_roots".to_owned(), roots());
    }
    Value::Object(questions)
}
