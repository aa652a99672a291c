//! The built-in model `rehearsal`: simulates a run without asking a model.
//!
//! It is deterministic: the same contract in the same directory gives the same run. It reads files but does not change them,
//! and every reply says that it is a rehearsal.

use std::fmt::Write as _;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{Ask, AskError, Message, Model, Reply, WantedCall};
use crate::event::Usage;

/// A model that simulates a run.
#[derive(Debug, Default)]
pub struct Rehearsal;

impl Rehearsal {
    /// Its name in configuration and answers.
    pub const NAME: &'static str = "rehearsal";
}

impl Model for Rehearsal {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn takes_tools(&self) -> bool {
        true
    }

    fn window(&self) -> Option<u64> {
        None
    }

    fn ask<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Reply, AskError>> {
        async move { Ok(next(&ask)) }.boxed()
    }
}

/// Returns the next reply, which depends only on the conversation so far.
fn next(ask: &Ask<'_>) -> Reply {
    let contract = contract_of(ask.messages);
    let offered = |name: &str| ask.tools.iter().any(|tool| tool.name == name);
    let played = |name: &str| result_of(ask.messages, name);
    if ask.tools.is_empty() {
        return words(format!("[rehearsal] A reply in words to: {}", title(ask_of(ask.messages))));
    }
    if contract_wants_failure(contract) {
        return words(format!(
            "[rehearsal] The contract asks for a failure: {}\n[CONTRACT FAILED]",
            title(contract)
        ));
    }
    if offered("list_files") && played("list_files").is_none() {
        let said = format!(
            "[rehearsal] I read the contract: {}. First I look at the working directory.",
            title(contract)
        );
        return calling(said, "list_files", &json!({}));
    }
    if let Some(listing) = played("list_files")
        && offered("read_file")
        && played("read_file").is_none()
        && let Some(file) = file_worth_reading(listing)
    {
        return calling(
            format!("[rehearsal] I read {file} to see what this is about."),
            "read_file",
            &json!({"path": file}),
        );
    }
    if !offered("agent_complete") {
        return words(format!("[rehearsal] A reply to: {}", title(ask_of(ask.messages))));
    }
    let report = report(contract, played("list_files"), played("read_file"));
    let summary =
        format!("Rehearsal only, no model was asked and nothing was changed. Contract: {}", title(contract));
    calling(
        "[rehearsal] I am done and deliver a report.".to_owned(),
        "agent_complete",
        &json!({"summary": summary, "payload": report}),
    )
}

/// Returns whether the contract has a line `rehearse: fail`, which lets users test how they handle a failure.
fn contract_wants_failure(contract: &str) -> bool {
    contract.lines().any(|line| line.trim().eq_ignore_ascii_case("rehearse: fail"))
}

fn report(contract: &str, listing: Option<&str>, file: Option<&str>) -> String {
    let mut report =
        String::from("# Rehearsal report\n\nNo model was asked. This is what a run looks like.\n");
    let _ = write!(report, "\n## Contract\n\n{}\n", contract.trim());
    if let Some(listing) = listing {
        let files = listing.lines().filter(|line| !line.starts_with('(')).count();
        let _ = write!(report, "\n## Working directory\n\n{files} entries\n");
    }
    if let Some(file) = file {
        let first = file.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let _ = write!(report, "\n## What was read\n\n{first}\n");
    }
    report
}

fn words(content: String) -> Reply {
    Reply { usage: Some(usage(&content)), content, ..Reply::default() }
}

fn calling(content: String, tool: &str, arguments: &Value) -> Reply {
    let call = WantedCall {
        id: format!("rehearsal_{tool}"),
        name: tool.to_owned(),
        arguments: arguments.to_string(),
        oversized: false,
    };
    Reply { usage: Some(usage(&content)), content, calls: vec![call], ..Reply::default() }
}

/// Counts words as tokens.
fn usage(content: &str) -> Usage {
    Usage { input_tokens: 0, output_tokens: content.split_whitespace().count() as u64 }
}

/// Returns the contract within the opening message.
fn contract_of(messages: &[Message]) -> &str {
    let opening = messages.iter().find_map(|message| match message {
        Message::User(text) => Some(text.as_str()),
        _ => None,
    });
    let opening = opening.unwrap_or_default();
    let begun = opening.strip_prefix("Your contract:").unwrap_or(opening);
    begun.strip_suffix("Begin now.").unwrap_or(begun).trim()
}

/// Returns the newest message of a person.
fn ask_of(messages: &[Message]) -> &str {
    let newest = messages.iter().rev().find_map(|message| match message {
        Message::User(text) => Some(text.as_str()),
        _ => None,
    });
    newest.unwrap_or_default()
}

fn result_of<'a>(messages: &'a [Message], tool: &str) -> Option<&'a str> {
    messages.iter().rev().find_map(|message| match message {
        Message::Tool { name, content, .. } if name == tool => Some(content.as_str()),
        _ => None,
    })
}

fn file_worth_reading(listing: &str) -> Option<&str> {
    let files = || {
        listing
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.ends_with('/') && !line.starts_with('('))
    };
    let readme = files().find(|file| file.to_lowercase().starts_with("readme"));
    let is_prose = |file: &&str| {
        let extension = std::path::Path::new(file).extension();
        extension.is_some_and(|extension| {
            extension.eq_ignore_ascii_case("md") || extension.eq_ignore_ascii_case("txt")
        })
    };
    readme.or_else(|| files().find(is_prose))
}

/// Returns the first line of a text, cut to 80 characters.
fn title(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    if line.chars().count() > 80 { line.chars().take(79).chain(['…']).collect() } else { line.to_owned() }
}
