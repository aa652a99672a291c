//! The loop: one request after the other until the goal is reached or something ends it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::run::{RunId, StopReason};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::completion::{self, AGENT_COMPLETE, Delivery};
use super::governor::{CapReached, Caps, Governor, Verdict};
use super::history::History;
use super::marker::{MarkerKind, find_marker};
use super::prompt::{self, ToolUse};
use super::{Concurrency, Durability, ToolAnswer, Toolbox, Transcript, TranscriptError, estimate_tokens};
use crate::event::{EventBody, ToolCall, Usage};
use crate::model::{Ask, AskError, Message, Model, Reply, ToolDef};

/// Share of the window a request may fill before older turns are summarised, in percent.
const FULL_PERCENT: u64 = 80;
/// Share of the window that the newest turns may keep after that, in percent.
const KEEP_PERCENT: u64 = 30;

/// What the loop works towards.
pub enum Goal<'a> {
    /// Fulfil a contract.
    Contract(Contract<'a>),
    /// Answer the newest message of a chat; the first reply without tool calls is the answer.
    Answer,
}

/// The contract of a run.
pub struct Contract<'a> {
    /// The run.
    pub id: &'a RunId,
    /// The text of the contract.
    pub text: &'a str,
    /// The working directory, if the run has one.
    pub workdir: Option<&'a Path>,
    /// Largest payload in bytes.
    pub max_payload: u64,
}

/// Everything the loop needs.
pub struct Assignment<'a> {
    /// What to work towards.
    pub goal: Goal<'a>,
    /// What may be used.
    pub caps: Caps,
    /// Tokens of earlier attempts.
    pub used: Usage,
    /// Earlier messages, from [`super::rebuild`].
    pub past: Vec<Message>,
    /// The model to ask.
    pub model: &'a dyn Model,
    /// The tools the model may call.
    pub toolbox: &'a dyn Toolbox,
    /// Where everything is recorded before it has consequences.
    pub transcript: &'a dyn Transcript,
    /// Cancelled when somebody else has ended the run.
    pub halt: CancellationToken,
    /// Receives the text of a reply as it arrives.
    pub on_text: &'a (dyn Fn(&str) + Send + Sync),
    /// Returns the working time of the attempt.
    pub elapsed: &'a (dyn Fn() -> Duration + Send + Sync),
    /// Largest tool result handed to the model, in bytes.
    pub max_result: usize,
    /// Tool calls that run at once.
    pub parallel: usize,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The goal is reached.
    Completed {
        /// The agent's summary; for a chat, the answer.
        summary: String,
        /// The work product.
        payload: Option<String>,
    },
    /// The goal is not reached.
    Stopped {
        /// The kind of reason.
        reason: StopReason,
        /// The reason in words.
        error: String,
    },
    /// Somebody else ended the run; its record says how.
    Halted,
}

impl From<CapReached> for End {
    fn from(cap: CapReached) -> Self {
        Self::Stopped { reason: cap.reason, error: cap.message }
    }
}

impl From<TranscriptError> for End {
    fn from(error: TranscriptError) -> Self {
        match error {
            TranscriptError::AttemptOver => Self::Halted,
            TranscriptError::Failed(error) => Self::Stopped { reason: StopReason::StoreFailed, error },
        }
    }
}

/// Works on an assignment until it ends.
pub async fn carry_out(assignment: Assignment<'_>) -> End {
    let mut turns = TurnLoop::new(assignment);
    loop {
        if let Err(end) = turns.turn().await {
            return end;
        }
    }
}

struct TurnLoop<'a> {
    job: Assignment<'a>,
    history: History,
    governor: Governor,
    tool_use: ToolUse,
    call_ids: HashSet<String>,
    is_resumed: bool,
}

impl<'a> TurnLoop<'a> {
    fn new(mut job: Assignment<'a>) -> Self {
        let tool_use = if job.model.takes_tools() { ToolUse::Offered } else { ToolUse::Refused };
        let past = std::mem::take(&mut job.past);
        let is_resumed = matches!(job.goal, Goal::Contract(_)) && !past.is_empty();
        let mut call_ids = HashSet::new();
        for message in &past {
            if let Message::Assistant { tool_calls, .. } = message {
                call_ids.extend(tool_calls.iter().map(|call| call.id.clone()));
            }
        }
        let history = History::new(prompt::opening(&job.goal, tool_use), past);
        let governor = Governor::new(job.caps.clone(), job.used);
        Self { job, history, governor, tool_use, call_ids, is_resumed }
    }

    /// Sends one request and acts on the reply; `Err` is the end.
    async fn turn(&mut self) -> Result<(), End> {
        if std::mem::take(&mut self.is_resumed) {
            self.nudge(prompt::RESUMED.to_owned()).await?;
        }
        let (reply, estimate) = self.ask().await?;
        let spent = reply.usage.map_or_else(|| estimate + estimate_tokens(reply.content.len()), Usage::total);
        self.governor.count_reply(spent);
        let (calls, oversized) = self.adopt_calls(&reply);
        // Calls are on disk before they run, so that the transcript holds every call that may have had an effect.
        let durability = if calls.is_empty() { Durability::Soon } else { Durability::Now };
        let entry = EventBody::Assistant {
            content: reply.content.clone(),
            reasoning: reply.reasoning.clone(),
            tool_calls: calls.clone(),
            usage: reply.usage,
        };
        self.job.transcript.append(vec![entry], durability).await?;
        if self.job.halt.is_cancelled() {
            return Err(End::Halted);
        }
        self.history.push(Message::Assistant { content: reply.content.clone(), tool_calls: calls.clone() });
        if calls.is_empty() { self.plain(reply).await } else { self.act(calls, &oversized).await }
    }

    /// Asks until there is a reply; makes room if the conversation is too long.
    async fn ask(&mut self) -> Result<(Reply, u64), End> {
        let mut overflows = 0;
        loop {
            let tools = self.offered_tools();
            let tool_tokens: u64 = tools.iter().map(|tool| tool_tokens(tool)).sum();
            if let Some(window) = self.job.model.window()
                && overflows == 0
            {
                self.make_room(window, tool_tokens).await?;
            }
            let estimate = tool_tokens + self.history.tokens();
            self.governor.before_request(estimate, (self.job.elapsed)())?;
            if self.job.halt.is_cancelled() {
                return Err(End::Halted);
            }
            match self.request(self.history.messages(), &tools).await {
                Ok(reply) => return Ok((reply, estimate)),
                Err(AskError::Halted) => return Err(End::Halted),
                Err(AskError::ToolsRefused) if self.tool_use == ToolUse::Offered => {
                    self.tool_use = ToolUse::Refused;
                    self.history.reopen(prompt::opening(&self.job.goal, self.tool_use));
                    let note = EventBody::note("The model takes no tools; it is asked without.");
                    self.job.transcript.append(vec![note], Durability::Soon).await?;
                }
                Err(overflow @ AskError::Overflow(_)) => {
                    overflows += 1;
                    let end =
                        End::Stopped { reason: StopReason::ContextOverflow, error: overflow.to_string() };
                    if overflows > 2 {
                        return Err(end);
                    }
                    let keep = self.history.past_tokens() / (2 * overflows);
                    let has_room =
                        (overflows == 1 && self.history.drop_old_results()) || self.summarise(keep).await?;
                    if !has_room {
                        return Err(end);
                    }
                }
                Err(failed) => {
                    return Err(End::Stopped { reason: StopReason::ModelFailed, error: failed.to_string() });
                }
            }
        }
    }

    fn offered_tools(&self) -> Vec<Arc<ToolDef>> {
        if self.tool_use == ToolUse::Refused {
            return Vec::new();
        }
        let completion = matches!(self.job.goal, Goal::Contract(_)).then(completion::definition);
        completion.into_iter().chain(self.job.toolbox.tools()).collect()
    }

    async fn request(&self, messages: &[Message], tools: &[Arc<ToolDef>]) -> Result<Reply, AskError> {
        let ask = Ask {
            messages,
            tools,
            halt: &self.job.halt,
            stop_grace: self.job.caps.stop_grace,
            on_text: self.job.on_text,
        };
        self.job.model.ask(ask).await
    }

    /// Makes room before a request that would nearly fill the window.
    async fn make_room(&mut self, window: u64, tool_tokens: u64) -> Result<(), End> {
        let full = window * FULL_PERCENT / 100;
        if tool_tokens + self.history.tokens() > full {
            self.history.drop_old_results();
        }
        if tool_tokens + self.history.tokens() > full {
            self.summarise(window * KEEP_PERCENT / 100).await?;
        }
        Ok(())
    }

    /// Lets the model summarise all but the newest turns. Returns whether that made room.
    async fn summarise(&mut self, keep_tokens: u64) -> Result<bool, End> {
        let Some(kept_from) = self.history.split_for_summary(keep_tokens) else { return Ok(false) };
        let request = self.history.summary_request(kept_from);
        let estimate = request.iter().map(|message| estimate_tokens(format!("{message:?}").len())).sum();
        self.governor.before_request(estimate, (self.job.elapsed)())?;
        match self.request(&request, &[]).await {
            Ok(reply) if !reply.content.trim().is_empty() => {
                self.governor.count_reply(reply.usage.map_or(estimate, Usage::total));
                let kept = self.history.replace_with_summary(kept_from, &reply.content);
                let entry = EventBody::Compacted { summary: reply.content, kept, usage: reply.usage };
                self.job.transcript.append(vec![entry], Durability::Soon).await?;
                if self.job.halt.is_cancelled() { Err(End::Halted) } else { Ok(true) }
            }
            Ok(_) | Err(AskError::Overflow(_) | AskError::ToolsRefused) => Ok(false),
            Err(AskError::Halted) => Err(End::Halted),
            Err(AskError::Failed(error)) => Err(End::Stopped { reason: StopReason::ModelFailed, error }),
        }
    }

    /// Gives every call a unique id. Also returns the ids of calls whose arguments were too long.
    fn adopt_calls(&mut self, reply: &Reply) -> (Vec<ToolCall>, HashSet<String>) {
        let mut oversized = HashSet::new();
        let mut calls = Vec::with_capacity(reply.calls.len());
        for wanted in &reply.calls {
            let given = if wanted.id.is_empty() { "call".to_owned() } else { wanted.id.clone() };
            let mut id = given.clone();
            let mut n = 1;
            while !self.call_ids.insert(id.clone()) {
                n += 1;
                id = format!("{given}_{n}");
            }
            if wanted.oversized {
                oversized.insert(id.clone());
            }
            // Servers refuse a history with broken arguments; the result says what was wrong with them.
            let arguments =
                if wanted.oversized || wanted.arguments.trim().is_empty() { "{}" } else { &wanted.arguments };
            calls.push(ToolCall { id, name: wanted.name.clone(), arguments: arguments.to_owned() });
        }
        (calls, oversized)
    }

    /// Handles a reply without calls: it reaches the goal, or the model is asked to go on.
    async fn plain(&mut self, reply: Reply) -> Result<(), End> {
        if matches!(self.job.goal, Goal::Answer) {
            return Err(End::Completed { summary: reply.content, payload: None });
        }
        if let Some(marker) = find_marker(&reply.content) {
            return Err(match marker.kind {
                MarkerKind::Complete => End::Completed { summary: marker.rest, payload: None },
                MarkerKind::Failed => {
                    let error =
                        if marker.rest.is_empty() { "the agent gave no reason".into() } else { marker.rest };
                    End::Stopped { reason: StopReason::ContractFailed, error }
                }
            });
        }
        if let Verdict::End(cap) = self.governor.plain_reply() {
            return Err(cap.into());
        }
        self.nudge(prompt::go_on(self.tool_use, reply.cut)).await
    }

    async fn nudge(&mut self, content: String) -> Result<(), End> {
        let entry = EventBody::Nudge { content: content.clone() };
        self.job.transcript.append(vec![entry], Durability::Soon).await?;
        self.history.push(Message::User(content));
        Ok(())
    }

    /// Runs the calls of one reply. The model gets the results in the order of the calls.
    async fn act(&mut self, calls: Vec<ToolCall>, oversized: &HashSet<String>) -> Result<(), End> {
        let verdict = self.governor.calls(&calls);
        if let Verdict::End(cap) = verdict {
            return Err(cap.into());
        }
        let mut delivery = None;
        let mut results: Vec<Message> = Vec::with_capacity(calls.len());
        let mut waiting: Vec<(ToolCall, Value)> = Vec::new();
        for call in calls {
            match (parse_arguments(&call, oversized), &self.job.goal) {
                (Ok(arguments), Goal::Contract(contract)) if call.name == AGENT_COMPLETE => {
                    self.run(&mut waiting, &mut results).await?;
                    let answer = match completion::parse(&arguments, contract.id, contract.max_payload) {
                        Ok(delivered) => {
                            delivery = Some(delivered);
                            ToolAnswer::ok("The contract is complete.")
                        }
                        Err(message) => ToolAnswer::error(message),
                    };
                    results.push(self.record(call, answer).await?);
                    if delivery.is_some() {
                        break;
                    }
                }
                (Ok(arguments), _) => {
                    let is_exclusive = self.job.toolbox.concurrency(&call.name) == Concurrency::Exclusive;
                    if is_exclusive {
                        self.run(&mut waiting, &mut results).await?;
                    }
                    waiting.push((call, arguments));
                    if is_exclusive {
                        self.run(&mut waiting, &mut results).await?;
                    }
                }
                (Err(answer), _) => {
                    self.run(&mut waiting, &mut results).await?;
                    results.push(self.record(call, answer).await?);
                }
            }
        }
        self.run(&mut waiting, &mut results).await?;
        self.history.extend(results);
        if let Some(Delivery { summary, payload }) = delivery {
            return Err(End::Completed { summary, payload });
        }
        if let Verdict::Warn(warning) = verdict {
            self.nudge(warning).await?;
        }
        Ok(())
    }

    /// Runs the waiting calls at the same time and adds their results in order.
    async fn run(&self, waiting: &mut Vec<(ToolCall, Value)>, results: &mut Vec<Message>) -> Result<(), End> {
        if waiting.is_empty() {
            return Ok(());
        }
        if self.job.halt.is_cancelled() {
            return Err(End::Halted);
        }
        let started = std::mem::take(waiting).into_iter().map(|(call, arguments)| async move {
            let answer = self.job.toolbox.call(&call, arguments).await;
            self.record(call, answer).await
        });
        let answers =
            futures_util::stream::iter(started).buffered(self.job.parallel.max(1)).try_collect::<Vec<_>>();
        tokio::select! {
            biased;
            answers = answers => results.extend(answers?),
            // Dropping a call ends it; commands end with their process group.
            () = self.job.halt.cancelled() => return Err(End::Halted),
        }
        Ok(())
    }

    /// Writes a result as soon as it is known, so that an interruption of other calls does not lose it.
    async fn record(&self, call: ToolCall, answer: ToolAnswer) -> Result<Message, TranscriptError> {
        let content = cut_middle(answer.content, self.job.max_result);
        let (ToolCall { id: call_id, name, .. }, is_error) = (call, answer.is_error);
        let entry = EventBody::ToolResult {
            call_id: call_id.clone(),
            name: name.clone(),
            content: content.clone(),
            is_error,
        };
        self.job.transcript.append(vec![entry], Durability::Soon).await?;
        Ok(Message::Tool { call_id, name, content, is_error })
    }
}

fn tool_tokens(tool: &ToolDef) -> u64 {
    estimate_tokens(tool.input_schema.to_string().len() + tool.description.len() + tool.name.len())
}

/// Returns the arguments as an object, or the answer that tells the model what is wrong with them.
fn parse_arguments(call: &ToolCall, oversized: &HashSet<String>) -> Result<Value, ToolAnswer> {
    if oversized.contains(&call.id) {
        return Err(ToolAnswer::error("the arguments are longer than allowed; use less in one call"));
    }
    match serde_json::from_str::<Value>(&call.arguments) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ToolAnswer::error("the arguments must be a JSON object")),
        Err(bad) => Err(ToolAnswer::error(format!("the arguments are not valid JSON: {bad}"))),
    }
}

/// Cuts the middle out of a text that is longer than `limit`, and says how much is missing.
pub(crate) fn cut_middle(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let head = text.floor_char_boundary(limit * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - limit / 3);
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}
