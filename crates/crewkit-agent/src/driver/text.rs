//! A command that prints lines for people.

use crewkit_core::run::StopReason;

use super::{Exit, Interpreter, Used};
use crate::contract::{End, MarkerKind, find_marker};
use crate::event::EventBody;

/// The last lines become the summary.
const SUMMARY_LINES: usize = 20;
const SUMMARY_BYTES: usize = 4000;

#[derive(Debug, Default)]
pub(super) struct Plain {
    last: std::collections::VecDeque<String>,
}

impl Interpreter for Plain {
    fn line(&mut self, line: &str) -> Vec<EventBody> {
        if self.last.len() == SUMMARY_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        if line.trim().is_empty() {
            return Vec::new();
        }
        vec![EventBody::Assistant {
            content: line.to_owned(),
            reasoning: None,
            tool_calls: Vec::new(),
            usage: None,
        }]
    }

    fn end(&mut self, name: &str, exit: &Exit) -> End {
        let said = self.last.make_contiguous().join("\n").trim().to_owned();
        let marker = find_marker(&said);
        match marker {
            Some(marker) if marker.kind == MarkerKind::Failed => {
                End::Stopped { reason: StopReason::ContractFailed, error: marker.rest }
            }
            _ if !exit.success => {
                End::Stopped { reason: StopReason::DriverFailed, error: exit.describe(name) }
            }
            Some(marker) => End::Completed { summary: marker.rest, payload: None },
            None => {
                let from = said.ceil_char_boundary(said.len().saturating_sub(SUMMARY_BYTES));
                End::Completed { summary: said[from..].to_owned(), payload: None }
            }
        }
    }

    /// Lines for people say nothing about turns and tokens.
    fn used(&self) -> Used {
        Used::default()
    }
}
