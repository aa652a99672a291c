//! The loop: one turn after the other until something ends it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crewkit_core::run::{RunId, StopReason};
use futures_util::StreamExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::completion::{self, AGENT_COMPLETE, Delivery};
use super::governor::{Caps, Enough, Governor, Verdict};
use super::history::History;
use super::marker::{MarkerKind, find_marker};
use super::prompt::{self, Ending};
use super::{Company, Durability, ToolAnswer, Toolbox, Transcript, estimate_tokens};
use crate::event::{EventBody, ToolCall, Usage};
use crate::model::{Ask, AskError, Message, Model, Reply, ToolDef};
use crate::store::StoreError;

/// Share of the window a request may fill before older turns are summarised, in percent.
const FULL_PERCENT: u64 = 80;
/// Share of the window the newest turns may keep after that.
const KEEP_PERCENT: u64 = 30;

/// Everything one attempt needs.
pub struct Assignment<'a> {
    /// The run.
    pub id: &'a RunId,
    /// Its contract.
    pub contract: &'a str,
    /// Where it works, if anywhere.
    pub workdir: Option<PathBuf>,
    /// What it may use up.
    pub caps: Caps,
    /// Tokens of earlier attempts.
    pub used: Usage,
    /// The conversation of earlier attempts, from [`super::rebuild`].
    pub past: Vec<Message>,
    /// Whom to ask.
    pub model: &'a dyn Model,
    /// What it may use.
    pub toolbox: &'a dyn Toolbox,
    /// Where everything is written first.
    pub transcript: &'a dyn Transcript,
    /// Cancelled when the run has ended by another hand.
    pub halt: CancellationToken,
    /// Hears words as they arrive.
    pub speaking: &'a (dyn Fn(&str) + Send + Sync),
    /// Time since the attempt began.
    pub elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Largest payload.
    pub max_payload: u64,
    /// Largest tool result handed to the model.
    pub max_result: usize,
    /// Tool calls at once.
    pub parallel: usize,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The agent delivered.
    Completed {
        /// What it says it did.
        summary: String,
        /// The work product.
        payload: Option<String>,
    },
    /// It did not.
    Stopped {
        /// Why.
        reason: StopReason,
        /// In words.
        error: String,
    },
    /// Somebody else ended the run; its state says how.
    Halted,
}

impl From<Enough> for End {
    fn from(enough: Enough) -> Self {
        Self::Stopped { reason: enough.reason, error: enough.message }
    }
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        match error {
            // The run was deleted or begun anew under our hands.
            StoreError::Unknown(_) | StoreError::Stale => Self::Halted,
            error => Self::Stopped { reason: StopReason::StoreFailed, error: error.to_string() },
        }
    }
}

/// Works on a contract until it ends.
pub async fn carry_out(assignment: Assignment<'_>) -> End {
    let mut worker = Worker::new(assignment);
    loop {
        match worker.turn().await {
            Ok(()) => {}
            Err(end) => return end,
        }
    }
}

struct Worker<'a> {
    job: Assignment<'a>,
    history: History,
    tools: Tools,
    governor: Governor,
    ending: Ending,
    call_ids: HashSet<String>,
    resumed: bool,
}

/// What the model is offered; the same in every turn, so it is put together once.
#[derive(Default)]
struct Tools {
    offered: Vec<Arc<ToolDef>>,
    tokens: u64,
}

impl Tools {
    fn of(toolbox: &dyn Toolbox) -> Self {
        let mut offered = vec![completion::definition()];
        offered.extend(toolbox.tools());
        let bytes = |tool: &Arc<ToolDef>| {
            tool.input_schema.to_string().len() + tool.description.len() + tool.name.len()
        };
        let tokens = offered.iter().map(|tool| estimate_tokens(bytes(tool))).sum();
        Self { offered, tokens }
    }
}

impl<'a> Worker<'a> {
    fn new(mut job: Assignment<'a>) -> Self {
        let ending = ending_for(job.model);
        let past = std::mem::take(&mut job.past);
        let resumed = !past.is_empty();
        let mut call_ids = HashSet::new();
        for message in &past {
            if let Message::Assistant { tool_calls, .. } = message {
                call_ids.extend(tool_calls.iter().map(|call| call.id.clone()));
            }
        }
        let opening = prompt::opening(job.id, job.contract, job.workdir.as_deref(), ending);
        let governor = Governor::new(job.caps.clone(), job.used);
        let tools = if ending == Ending::Tool { Tools::of(job.toolbox) } else { Tools::default() };
        Self { history: History::new(opening, past), tools, governor, ending, job, call_ids, resumed }
    }

    /// One request and what follows from it; `Err` is the end.
    async fn turn(&mut self) -> Result<(), End> {
        if std::mem::take(&mut self.resumed) {
            self.nudge(prompt::RESUMED.to_owned()).await?;
        }
        let (reply, estimate) = self.ask().await?;
        let spent = reply.usage.map_or_else(|| estimate + estimate_tokens(reply.content.len()), Usage::total);
        self.governor.count_reply(spent);
        let (calls, oversized) = self.adopt_calls(&reply);
        // Written before anything it wants is done. A call whose effect may have happened is always in the transcript.
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
        if calls.is_empty() { self.plain(&reply).await } else { self.act(calls, &oversized).await }
    }

    /// Asks until there is a reply, making room where that is what is missing.
    async fn ask(&mut self) -> Result<(Reply, u64), End> {
        let mut overflows = 0;
        loop {
            if let Some(window) = self.job.model.window()
                && self.tokens() > window * FULL_PERCENT / 100
                && overflows == 0
            {
                self.make_room(window).await?;
            }
            let estimate = self.tokens();
            self.governor.before_request(estimate, (self.job.elapsed)())?;
            if self.job.halt.is_cancelled() {
                return Err(End::Halted);
            }
            match self.request(self.history.messages(), &self.tools.offered).await {
                Ok(reply) => return Ok((reply, estimate)),
                Err(AskError::Halted) => return Err(End::Halted),
                Err(AskError::ToolsRefused) if self.ending == Ending::Tool => {
                    self.ending = Ending::Marker;
                    self.tools = Tools::default();
                    let (id, contract) = (self.job.id, self.job.contract);
                    self.history.reopen(prompt::opening(id, contract, None, self.ending));
                    let note = EventBody::note("the model takes no tools; it was asked again without");
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

    /// About how many tokens the next request has.
    fn tokens(&self) -> u64 {
        self.tools.tokens + self.history.tokens()
    }

    async fn request(&self, messages: &[Message], tools: &[Arc<ToolDef>]) -> Result<Reply, AskError> {
        let ask = Ask { messages, tools, halt: &self.job.halt, speaking: self.job.speaking };
        self.job.model.ask(ask).await
    }

    /// Makes room before a request that would come too close to the window.
    async fn make_room(&mut self, window: u64) -> Result<(), End> {
        self.history.drop_old_results();
        if self.tokens() > window * FULL_PERCENT / 100 {
            self.summarise(window * KEEP_PERCENT / 100).await?;
        }
        Ok(())
    }

    /// Lets the model summarise all but the newest turns; false when there was nothing to summarise or it could not.
    async fn summarise(&mut self, keep_tokens: u64) -> Result<bool, End> {
        let Some(kept_from) = self.history.split_for_summary(keep_tokens) else { return Ok(false) };
        let request = self.history.summary_request(kept_from);
        let estimate = request.iter().map(|message| estimate_tokens(format!("{message:?}").len())).sum();
        self.governor.before_request(estimate, (self.job.elapsed)())?;
        match self.request(&request, &[]).await {
            Ok(reply) if !reply.content.trim().is_empty() => {
                self.governor.count_reply(reply.usage.map_or(estimate, Usage::total));
                let kept = self.history.replace_with_summary(kept_from, &reply.content);
                let entry = EventBody::Compacted { summary: reply.content, kept };
                self.job.transcript.append(vec![entry], Durability::Soon).await?;
                if self.job.halt.is_cancelled() { Err(End::Halted) } else { Ok(true) }
            }
            Ok(_) | Err(AskError::Overflow(_) | AskError::ToolsRefused) => Ok(false),
            Err(AskError::Halted) => Err(End::Halted),
            Err(AskError::Failed(error)) => Err(End::Stopped { reason: StopReason::ModelFailed, error }),
        }
    }

    /// Gives every call an id of its own. Returns also those whose arguments were too long.
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
            // Broken arguments would break every later request that carries them; the error answer quotes enough.
            let arguments =
                if wanted.oversized || wanted.arguments.trim().is_empty() { "{}" } else { &wanted.arguments };
            calls.push(ToolCall { id, name: wanted.name.clone(), arguments: arguments.to_owned() });
        }
        (calls, oversized)
    }

    /// A reply without calls: it finishes, or is asked to go on.
    async fn plain(&mut self, reply: &Reply) -> Result<(), End> {
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
        if let Verdict::End(enough) = self.governor.plain_reply() {
            return Err(enough.into());
        }
        self.nudge(prompt::go_on(self.ending, reply.cut)).await
    }

    async fn nudge(&mut self, content: String) -> Result<(), End> {
        let entry = EventBody::Nudge { content: content.clone() };
        self.job.transcript.append(vec![entry], Durability::Soon).await?;
        self.history.push(Message::User(content));
        Ok(())
    }

    /// Runs the calls of one reply and hands the results back in the order of the calls.
    async fn act(&mut self, calls: Vec<ToolCall>, oversized: &HashSet<String>) -> Result<(), End> {
        let verdict = self.governor.calls(&calls);
        if let Verdict::End(enough) = verdict {
            return Err(enough.into());
        }
        let mut delivery = None;
        let mut results: Vec<(ToolCall, ToolAnswer)> = Vec::with_capacity(calls.len());
        let mut waiting: Vec<(ToolCall, Value)> = Vec::new();
        for call in calls {
            let prepared = prepare(&call, oversized);
            match prepared {
                Ok(arguments) if call.name == AGENT_COMPLETE => {
                    self.run(&mut waiting, &mut results).await?;
                    match completion::parse(&arguments, self.job.id, self.job.max_payload) {
                        Ok(delivered) => {
                            delivery = Some(delivered);
                            results.push((call, ToolAnswer::ok("The contract is complete.")));
                            break;
                        }
                        Err(message) => results.push((call, ToolAnswer::error(message))),
                    }
                }
                Ok(arguments) => {
                    let alone = self.job.toolbox.company(&call.name) == Company::Alone;
                    if alone {
                        self.run(&mut waiting, &mut results).await?;
                    }
                    waiting.push((call, arguments));
                    if alone {
                        self.run(&mut waiting, &mut results).await?;
                    }
                }
                Err(answer) => {
                    self.run(&mut waiting, &mut results).await?;
                    results.push((call, answer));
                }
            }
        }
        if delivery.is_none() {
            self.run(&mut waiting, &mut results).await?;
        }
        self.record(results).await?;
        if let Some(Delivery { summary, payload }) = delivery {
            return Err(End::Completed { summary, payload });
        }
        if let Verdict::Warn(warning) = verdict {
            self.nudge(warning).await?;
        }
        Ok(())
    }

    /// Runs what is waiting, side by side, and appends the results in order.
    async fn run(
        &self,
        waiting: &mut Vec<(ToolCall, Value)>,
        results: &mut Vec<(ToolCall, ToolAnswer)>,
    ) -> Result<(), End> {
        if waiting.is_empty() {
            return Ok(());
        }
        if self.job.halt.is_cancelled() {
            return Err(End::Halted);
        }
        let toolbox = self.job.toolbox;
        let started = std::mem::take(waiting).into_iter().map(|(call, arguments)| async move {
            let answer = toolbox.call(&call, arguments).await;
            (call, answer)
        });
        let answers =
            futures_util::stream::iter(started).buffered(self.job.parallel.max(1)).collect::<Vec<_>>();
        tokio::select! {
            biased;
            answers = answers => results.extend(answers),
            // The tools are dropped where they stand; commands end with their process group.
            () = self.job.halt.cancelled() => return Err(End::Halted),
        }
        Ok(())
    }

    async fn record(&mut self, results: Vec<(ToolCall, ToolAnswer)>) -> Result<(), End> {
        let mut entries = Vec::with_capacity(results.len());
        for (call, answer) in results {
            let content = cut_middle(answer.content, self.job.max_result);
            let is_error = answer.is_error;
            entries.push(EventBody::ToolResult {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: content.clone(),
                is_error,
            });
            self.history.push(Message::Tool { call_id: call.id, name: call.name, content, is_error });
        }
        self.job.transcript.append(entries, Durability::Soon).await?;
        Ok(())
    }
}

fn ending_for(model: &dyn Model) -> Ending {
    if model.takes_tools() { Ending::Tool } else { Ending::Marker }
}

/// The arguments as an object, or the answer that tells the model what is wrong with them.
fn prepare(call: &ToolCall, oversized: &HashSet<String>) -> Result<Value, ToolAnswer> {
    if oversized.contains(&call.id) {
        return Err(ToolAnswer::error("the arguments are longer than allowed; use less in one call"));
    }
    match serde_json::from_str::<Value>(&call.arguments) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ToolAnswer::error("the arguments must be a JSON object")),
        Err(bad) => Err(ToolAnswer::error(format!("the arguments are not valid JSON: {bad}"))),
    }
}

/// Keeps beginning and end of a text that is too long, and says what is missing.
pub(crate) fn cut_middle(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let head = text.floor_char_boundary(limit * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - limit / 3);
    format!("{}\n[… {} bytes left out …]\n{}", &text[..head], tail - head, &text[tail..])
}
