//! Messages from crewkit to the model.

use std::fmt::Write as _;

use super::{Contract, Goal};
use crate::model::Message;

const CHAT_DUTIES: &str = "You are a helpful assistant. Use the tools you are offered when they help.";

/// Whether the model can call tools, which decides how it reports that it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolUse {
    /// It calls `agent_complete`; markers work too.
    Offered,
    /// Its server refuses tools: it writes a marker.
    Refused,
}

/// Returns the messages that a conversation opens with.
pub(super) fn opening(goal: &Goal<'_>, tools: ToolUse) -> Vec<Message> {
    match goal {
        Goal::Contract(contract) => contract_opening(contract, tools),
        Goal::Answer => vec![Message::System(CHAT_DUTIES.to_owned())],
    }
}

fn contract_opening(contract: &Contract<'_>, tools: ToolUse) -> Vec<Message> {
    let Contract { id, text, workdir, .. } = contract;
    let mut duties = format!(
        "You are an autonomous agent with the id {id}. You were given a contract and carry it out alone.\n\
         - Keep to the contract; do what it asks and nothing it does not ask.\n\
         - Nobody answers questions. Where something is open, decide sensibly and say so in your summary.\n\
         - Work step by step until the contract is fulfilled or you are sure it cannot be.\n"
    );
    if let (Some(workdir), ToolUse::Offered) = (workdir, tools) {
        let place = workdir.display();
        let _ = writeln!(
            duties,
            "- Your working directory is {place}. The file tools take paths relative to it and reach nothing outside."
        );
    }
    match tools {
        ToolUse::Offered => duties.push_str(
            "- When you are finished, call agent_complete with a summary; add the work product as payload if it is text \
             that is not in a file. Also call it when the contract cannot be fulfilled, and say why.\n\
             - If you cannot call tools, write [CONTRACT COMPLETE] on a line of its own instead, or [CONTRACT FAILED] if the \
             contract cannot be fulfilled; the rest of that message is your summary.\n",
        ),
        ToolUse::Refused => duties.push_str(
            "- When you are finished, write [CONTRACT COMPLETE] on a line of its own; the rest of that message is your \
             summary. If the contract cannot be fulfilled, write [CONTRACT FAILED] on a line of its own and say why.\n",
        ),
    }
    vec![Message::System(duties), Message::User(format!("Your contract:\n\n{text}\n\nBegin now."))]
}

/// Returns the message that follows a reply which neither called a tool nor finished.
pub(super) fn go_on(tools: ToolUse, cut: bool) -> String {
    let begin = if cut { "Your reply was cut off at the length limit. " } else { "" };
    match tools {
        ToolUse::Offered => format!("{begin}Go on with the contract, or call agent_complete if it is done."),
        ToolUse::Refused => {
            format!(
                "{begin}Go on with the contract, or write [CONTRACT COMPLETE] on a line of its own if it is done."
            )
        }
    }
}

/// Sent when a run continues after an interruption.
pub(super) const RESUMED: &str = "You were interrupted and now go on. Tool calls that were under way may or may not have \
                                  had their effect: look before you repeat them.";

/// The result of a call that was interrupted.
pub(super) const UNKNOWN_RESULT: &str =
    "The agent was interrupted while this call was under way; it is not known whether it had its effect.";

/// Requests the summary that replaces older turns.
pub(super) const SUMMARISE: &str = "The conversation has become too long. Summarise everything above for yourself, so that you can go on without it: what \
     the contract asks, what was done and found (names, paths, values), what is still open. Write only the summary.";

/// Introduces that summary.
pub(super) fn summary_so_far(summary: &str) -> String {
    format!("Earlier work on this contract, summarised:\n\n{summary}\n\nGo on from here.")
}
