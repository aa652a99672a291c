//! Turns the conversation with an agent into its tasks. Pure: no clock, no I/O.
//!
//! A task is a message that the agent was given. When it ended is told by reports, by what the agent said and by the
//! status of its workspace; what the agent calls its work comes from reports, where they have words.

use crate::backend::local::headline;
use crate::history::{Context, Doing, Intervention, Report, unreported_id};
use crate::model::{LogEntry, LogKind, Task, TaskStatus};
use crate::time::Moment;

/// Characters that tell one message from another.
const FINGERPRINT: usize = 500;

/// One message that the agent was given.
struct Given<'a> {
    id: String,
    at: Moment,
    /// When the agent had it; none for a spec that is not in the conversation.
    begun: Option<Moment>,
    text: &'a str,
}

/// What was seen of the agent between one message and the next.
struct Seen<'a> {
    reports: Vec<&'a Report>,
    /// When the agent last said something.
    said_at: Option<Moment>,
    /// When the next message came.
    next: Option<Moment>,
}

/// Whether the conversation names a task.
pub fn has_tasks(entries: &[LogEntry]) -> bool {
    entries.iter().any(|entry| entry.kind == LogKind::Input)
}

/// The tasks of a conversation, newest first. `reports` are sorted by time. Without any message the spec is the only one.
pub fn tasks(entries: &[LogEntry], reports: &[Report], context: &Context<'_>) -> Vec<Task> {
    let given = given(entries, context);
    let starts: Vec<Moment> = given.iter().map(|given| given.begun.unwrap_or(given.at)).collect();
    let windows = starts.iter().enumerate().map(|(index, start)| {
        let next = starts.get(index + 1).copied();
        // What came before the first message is about it: Coder and the workspace need not have the same time.
        let is_within = |at: Moment| (index == 0 || at >= *start) && next.is_none_or(|next| at < next);
        let said =
            entries.iter().filter(|entry| entry.kind == LogKind::Output).filter_map(|entry| entry.time);
        Seen {
            reports: reports.iter().filter(|report| is_within(report.at)).collect(),
            said_at: said.filter(|at| is_within(*at)).max(),
            next,
        }
    });
    let mut tasks: Vec<Task> =
        given.iter().zip(windows).map(|(given, seen)| task(given, &seen, context)).collect();
    tasks.reverse();
    tasks
}

/// What the agent was given, oldest first: its spec, then every message.
fn given<'a>(entries: &'a [LogEntry], context: &Context<'a>) -> Vec<Given<'a>> {
    let mut all: Vec<Given<'_>> = entries
        .iter()
        .filter(|entry| entry.kind == LogKind::Input)
        .map(|entry| {
            let at = entry.time.unwrap_or(context.since);
            let id = match entry.time {
                Some(at) => unreported_id(context.workspace_id, at),
                None => format!("{}-{}", unreported_id(context.workspace_id, context.since), entry.id),
            };
            Given { id, at, begun: Some(at), text: entry.content.trim() }
        })
        .collect();
    let spec = context.spec.trim();
    if !spec.is_empty() {
        let id = unreported_id(context.workspace_id, context.created_at);
        let at = context.created_at;
        match all.first_mut() {
            // The row of the spec is the same before and after the agent has read it.
            Some(first) if context.is_first_build && is_same(first.text, spec) => {
                (first.id, first.at, first.text) = (id, at, spec);
            }
            _ => all.insert(0, Given { id, at, begun: None, text: spec }),
        }
    }
    for intervention in context.interventions {
        // An id that was given out before the conversation could be read stays.
        if let Intervention::Started { id: Some(id), at, text, .. } = intervention
            && let Some(given) = nearest(&mut all, *at, text)
        {
            given.id.clone_from(id);
        }
    }
    all
}

/// The message with this text that came nearest to a time.
fn nearest<'a, 'b>(all: &'a mut [Given<'b>], at: Moment, text: &str) -> Option<&'a mut Given<'b>> {
    all.iter_mut()
        .filter(|given| is_same(given.text, text))
        .min_by_key(|given| given.at.unix_ms().abs_diff(at.unix_ms()))
}

/// Whether two texts are the same message.
pub fn is_same(one: &str, other: &str) -> bool {
    fingerprint(one) == fingerprint(other)
}

/// What of a text tells it from others: a terminal may have changed its line ends and spaces, and it may be long.
pub fn fingerprint(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(FINGERPRINT).collect::<String>().trim_end().to_owned()
}

fn task(given: &Given<'_>, seen: &Seen<'_>, context: &Context<'_>) -> Task {
    let newest_report = seen.reports.last();
    let words = seen.reports.iter().rev().find(|report| !report.message.is_empty());
    let uri = seen.reports.iter().rev().find(|report| !report.uri.is_empty());
    let (status, completed_at) = end(given, seen, context);
    let summary = headline(given.text);
    let is_open = matches!(status, TaskStatus::Running | TaskStatus::Pending);
    let state = newest_report.map(|report| report.state.clone()).unwrap_or_default();
    Task {
        id: given.id.clone(),
        agent_name: context.agent_name.to_owned(),
        message: words.map_or_else(|| summary.clone(), |report| report.message.clone()),
        summary,
        status,
        source: context.source_of(given.at, |text| is_same(text, given.text)),
        created_at: given.at,
        started_at: (status != TaskStatus::Pending).then(|| given.begun.unwrap_or(given.at)),
        completed_at: completed_at.filter(|_| !is_open),
        uri: uri.map(|report| report.uri.clone()).unwrap_or_default(),
        needs_user_attention: state == "failure"
            || newest_report.is_some_and(|report| report.needs_attention),
        state,
        phase: None,
        waits_for: None,
    }
}

/// How a task stands, and when it ended.
fn end(given: &Given<'_>, seen: &Seen<'_>, context: &Context<'_>) -> (TaskStatus, Option<Moment>) {
    let begun = given.begun.unwrap_or(given.at);
    let newest = seen.reports.last();
    let reported = newest.map(|report| report.at);
    let is_last = seen.next.is_none();
    if is_last && context.doing == Doing::Works {
        return (TaskStatus::Running, None);
    }
    let stopped = context.stops().filter(|at| *at >= begun && seen.next.is_none_or(|next| *at < next)).max();
    match newest.map(|report| report.state.as_str()).unwrap_or_default() {
        "complete" => return (TaskStatus::Completed, reported),
        "failure" => return (TaskStatus::Failed, reported),
        _ if stopped.is_some() => return (TaskStatus::Stopped, stopped),
        "idle" => return (TaskStatus::Completed, reported),
        _ => {}
    }
    if let Some(next) = seen.next {
        return (TaskStatus::Completed, seen.said_at.or(Some(next)));
    }
    let is_unread = given.begun.is_none() && newest.is_none() && context.is_first_build;
    if is_unread && context.doing == Doing::MayNotHaveBegun {
        return (TaskStatus::Pending, None);
    }
    if context.doing != Doing::Nothing && given.begun.is_none_or(|begun| begun >= context.since) {
        // At rest, and nobody said when it came to rest.
        return (TaskStatus::Completed, seen.said_at.max(reported).max(Some(begun)));
    }
    // Its workspace was stopped under it.
    (TaskStatus::Stopped, Some(begun.max(context.since)))
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
