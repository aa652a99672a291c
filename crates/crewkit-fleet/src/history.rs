//! Turns the reports of an agent into a task history. Pure: no clock, no I/O.
//!
//! Reports arrive in any order, many without a message (a screen watcher that only says working or idle), and an idle
//! report often repeats the last message. A reader wants one row per thing the agent did.

use crate::model::{Task, TaskSource, TaskStatus};
use crate::time::Moment;

/// One report of an agent about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Id of the report.
    pub id: String,
    /// When it was made.
    pub at: Moment,
    /// `working`, `idle`, `complete`, `failure`, or a word of a newer backend.
    pub state: String,
    /// What the agent says it does; may be empty.
    pub message: String,
    /// Link to related work; may be empty.
    pub uri: String,
    /// Whether the report asks for a person.
    pub needs_attention: bool,
}

/// Something this server did to the agent, which the backend itself does not record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intervention {
    /// A task was given.
    Started {
        /// When.
        at: Moment,
        /// What it was.
        text: String,
        /// Who gave it.
        source: TaskSource,
        /// The id that was told to whoever gave it, if it cannot be told from the conversation.
        id: Option<String>,
    },
    /// The running task was interrupted.
    Stopped {
        /// When.
        at: Moment,
    },
}

impl Intervention {
    /// When it was done.
    pub const fn at(&self) -> Moment {
        match self {
            Self::Started { at, .. } | Self::Stopped { at } => *at,
        }
    }
}

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// It works.
    Works,
    /// It is at rest.
    Rests,
    /// It is at rest or on its way, and may simply not have read its spec yet.
    MayNotHaveBegun,
    /// Its workspace is stopped or broken.
    Nothing,
}

/// What the rows are read against.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Whose history it is.
    pub agent_name: &'a str,
    /// Id of the workspace, from which ids of unreported tasks are made.
    pub workspace_id: &'a str,
    /// When the workspace was made.
    pub created_at: Moment,
    /// What the agent was made for; may be empty.
    pub spec: &'a str,
    /// When the workspace was last started or stopped; reports before that are stale.
    pub since: Moment,
    /// Whether that was the first time.
    pub is_first_build: bool,
    /// What the agent does right now.
    pub doing: Doing,
    /// What this server did, oldest first.
    pub interventions: &'a [Intervention],
}

/// Time between a start and the message that came of it, at most; clocks differ.
const NEAR_MS: u64 = 120_000;

impl Context<'_> {
    /// Who gave the task of this time whose text passes; people talk to agents without this server.
    pub fn source_of(&self, given_at: Moment, is_text: impl Fn(&str) -> bool) -> TaskSource {
        let distance = |at: Moment| at.unix_ms().abs_diff(given_at.unix_ms());
        let starts = self.interventions.iter().filter_map(|intervention| match intervention {
            Intervention::Started { at, text, source, .. } if distance(*at) <= NEAR_MS && is_text(text) => {
                Some((distance(*at), *source))
            }
            _ => None,
        });
        starts.min_by_key(|(distance, _)| *distance).map_or(TaskSource::Human, |(_, source)| source)
    }

    /// When tasks were interrupted.
    pub fn stops(&self) -> impl Iterator<Item = Moment> {
        self.interventions.iter().filter_map(|intervention| match intervention {
            Intervention::Stopped { at } => Some(*at),
            Intervention::Started { .. } => None,
        })
    }
}

/// Consecutive reports about one thing.
struct Group {
    id: String,
    first: Moment,
    last: Moment,
    state: String,
    message: String,
    uri: String,
    needs_attention: bool,
    source: TaskSource,
    stopped_at: Option<Moment>,
}

impl Group {
    fn of(report: Report) -> Self {
        Self {
            id: report.id,
            first: report.at,
            last: report.at,
            state: report.state,
            message: report.message,
            uri: report.uri,
            needs_attention: report.needs_attention,
            source: TaskSource::Agent,
            stopped_at: None,
        }
    }

    fn absorb(&mut self, report: Report) {
        self.last = report.at;
        self.state = report.state;
        self.needs_attention = report.needs_attention;
        if !report.uri.is_empty() {
            self.uri = report.uri;
        }
    }
}

/// The history with empty rows dropped and repetitions joined, newest first.
pub fn tidy(reports: &[Report], context: &Context<'_>) -> Vec<Task> {
    let mut groups: Vec<Group> = Vec::new();
    let only_empty = reports.iter().all(|report| report.message.is_empty());
    for report in in_order(reports) {
        match groups.last_mut() {
            Some(group) if report.message.is_empty() || report.message == group.message => {
                group.absorb(report);
            }
            None if report.message.is_empty() && !only_empty => {}
            _ => groups.push(Group::of(report)),
        }
    }
    finish(groups, context)
}

/// Every report as its own row, newest first.
pub fn raw(reports: &[Report], context: &Context<'_>) -> Vec<Task> {
    finish(in_order(reports).into_iter().map(Group::of).collect(), context)
}

/// The newest thing the agent said.
pub fn newest_message(reports: &[Report]) -> Option<&Report> {
    reports.iter().filter(|report| !report.message.trim().is_empty()).max_by_key(|report| report.at)
}

/// The newest link to a pull or merge request.
pub fn pull_request_url(reports: &[Report]) -> Option<&str> {
    reports
        .iter()
        .filter(|report| is_pull_request(&report.uri))
        .max_by_key(|report| report.at)
        .map(|report| report.uri.as_str())
}

fn is_pull_request(uri: &str) -> bool {
    let is_web = uri.starts_with("https://") || uri.starts_with("http://");
    is_web
        && ["/pull/", "/merge_requests/"].iter().any(|marker| {
            uri.split_once(marker).is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
}

fn in_order(reports: &[Report]) -> Vec<Report> {
    let mut sorted = reports.to_vec();
    sorted.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    sorted
}

fn finish(mut groups: Vec<Group>, context: &Context<'_>) -> Vec<Task> {
    for intervention in context.interventions {
        match intervention {
            Intervention::Started { at, text, source, id } => {
                let id = id.clone().unwrap_or_else(|| unreported_id(context.workspace_id, *at));
                note_start(&mut groups, *at, text, *source, id);
            }
            Intervention::Stopped { at } => note_stop(&mut groups, *at),
        }
    }
    let next_starts: Vec<Option<Moment>> =
        groups.iter().skip(1).map(|group| Some(group.first)).chain([None]).collect();
    let mut tasks: Vec<Task> =
        groups.into_iter().zip(next_starts).map(|(group, next)| task_of(group, next, context)).collect();
    tasks.reverse();
    tasks
}

/// The first report after a start is about that task; until there is one, the start itself is the row.
fn note_start(groups: &mut Vec<Group>, at: Moment, text: &str, source: TaskSource, id: String) {
    let position = groups.partition_point(|group| group.first <= at);
    if let Some(group) = groups.get_mut(position) {
        (group.source, group.id) = (source, id);
        return;
    }
    groups.push(Group {
        id,
        first: at,
        last: at,
        state: "working".to_owned(),
        message: text.to_owned(),
        uri: String::new(),
        needs_attention: false,
        source,
        stopped_at: None,
    });
}

fn note_stop(groups: &mut [Group], at: Moment) {
    let position = groups.partition_point(|group| group.first <= at);
    if let Some(group) = position.checked_sub(1).and_then(|index| groups.get_mut(index)) {
        group.stopped_at = Some(at);
    }
}

fn task_of(group: Group, next: Option<Moment>, context: &Context<'_>) -> Task {
    let is_newest = next.is_none();
    let runs = is_newest && group.last > context.since && context.doing == Doing::Works;
    let (status, completed_at) = match group.state.as_str() {
        "complete" => (TaskStatus::Completed, Some(group.last)),
        "failure" => (TaskStatus::Failed, Some(group.last)),
        _ if group.stopped_at.is_some() => (TaskStatus::Stopped, group.stopped_at),
        "idle" => (TaskStatus::Completed, Some(group.last)),
        _ if runs => (TaskStatus::Running, None),
        _ => (TaskStatus::Completed, Some(next.unwrap_or(group.last))),
    };
    Task {
        id: group.id,
        agent_name: context.agent_name.to_owned(),
        summary: group.message.clone(),
        status,
        source: group.source,
        created_at: group.first,
        started_at: Some(group.first),
        completed_at,
        message: group.message,
        uri: group.uri,
        needs_user_attention: group.needs_attention || group.state == "failure",
        state: group.state,
        phase: None,
        waits_for: None,
    }
}

/// The id of a task that was given at a time.
pub fn unreported_id(workspace_id: &str, at: Moment) -> String {
    format!("{workspace_id}:{}", at.unix_ms())
}

/// One page of something, and where it stands in the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// What is on the page.
    pub items: Vec<T>,
    /// Items on all pages.
    pub total_count: usize,
    /// This page, from 1.
    pub page: usize,
    /// Items per page.
    pub page_size: usize,
    /// Number of pages.
    pub total_pages: usize,
}

impl<T> Page<T> {
    /// Cuts page `page` (from 1) out of `all`; past the end it is empty.
    pub fn of(all: Vec<T>, page: usize, page_size: usize) -> Self {
        let total_count = all.len();
        let skipped = page.saturating_sub(1).saturating_mul(page_size);
        Self::part(all.into_iter().skip(skipped).take(page_size).collect(), total_count, page, page_size)
    }

    /// Page `page` (from 1) with `items`, of `total_count` in all.
    pub fn part(items: Vec<T>, total_count: usize, page: usize, page_size: usize) -> Self {
        let total_pages = total_count.div_ceil(page_size.max(1));
        Self { items, total_count, page, page_size, total_pages }
    }

    /// Whether something comes after this page.
    pub const fn has_next(&self) -> bool {
        self.page < self.total_pages
    }

    /// Whether something comes before this page.
    pub const fn has_previous(&self) -> bool {
        self.page > 1 && self.total_count > 0
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
