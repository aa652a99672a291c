//! Every limit and timeout of crewkit: one name, one default, one config key.
//!
//! The key in `crewkit.toml` is the field's name under `[limits]`; the unit is part of the name.

macro_rules! limits {
    ($( $(#[doc = $doc:literal])+ $name:ident = $default:expr; )+) => {
        /// The limits in force.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits { $( $(#[doc = $doc])+ pub $name: u64, )+ }

        impl Default for Limits {
            fn default() -> Self {
                Self { $( $name: $default, )+ }
            }
        }

        impl Limits {
            /// Name, default and explanation of each limit, in the order of the documentation.
            pub const TABLE: &'static [Limit] = &[
                $( Limit { name: stringify!($name), default: $default, doc: concat!($($doc),+) }, )+
            ];

            /// The value of the limit called `name`.
            pub fn get(&self, name: &str) -> Option<u64> {
                match name { $( stringify!($name) => Some(self.$name), )+ _ => None }
            }

            /// Sets the limit called `name`; says whether there is one.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name { $( stringify!($name) => { self.$name = value; true } )+ _ => false }
            }
        }
    };
}

/// One row of [`Limits::TABLE`].
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Name, and key under `[limits]`.
    pub name: &'static str,
    /// Value when nothing is configured.
    pub default: u64,
    /// What it bounds.
    pub doc: &'static str,
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

limits! {
    // HTTP.
    /// Largest request body.
    http_body_bytes = 64 * MIB;
    /// Largest total of request headers.
    http_header_bytes = 32 * KIB;
    /// Connections served at once.
    http_connections = 2048;
    /// Time a client has to send its request headers; also how long an idle keep-alive connection stays.
    http_idle_seconds = 75;
    /// Time one request may take; streams are exempt.
    http_request_seconds = 330;
    /// Time running requests get to finish when the server stops.
    shutdown_grace_seconds = 10;

    // MCP.
    /// Sessions of streamable HTTP kept at once.
    mcp_sessions = 512;
    /// Time an unused session is kept.
    mcp_session_idle_seconds = 1800;
    /// Sessions remembered on disk, so that clients survive a restart of the server.
    mcp_session_records = 4096;
    /// Time a remembered session can be taken up again.
    mcp_session_record_seconds = 7 * 24 * 3600;
    /// Longest line on stdio.
    mcp_line_bytes = 64 * MIB;
    /// Deepest nesting of JSON in a message.
    json_depth = 64;
    /// Messages in one batch.
    mcp_batch_messages = 64;
    /// Calls in flight on one connection or session.
    mcp_calls_in_flight = 256;

    // Fleet.
    /// Time one request to Coder may take.
    fleet_coder_request_ms = 4_000;
    /// Time one read from Coder may take with all its attempts.
    fleet_coder_deadline_ms = 8_500;
    /// Time Coder or a workspace gets to accept a message for an agent.
    fleet_coder_send_ms = 20_000;
    /// Time requests to Coder are refused at once after it stopped answering, until one is tried again.
    fleet_coder_pause_ms = 10_000;
    /// Largest single answer of Coder, and largest workspace within a list.
    fleet_coder_answer_bytes = 8 * MIB;
    /// Workspaces asked for in one request of a list.
    fleet_coder_page = 100;
    /// Longest spec or task description.
    fleet_text_bytes = 256 * KIB;
    /// Time the metadata of one agent may take.
    fleet_metadata_agent_ms = 3_000;
    /// Time the metadata of a whole list may take; agents that are later have none.
    fleet_metadata_list_ms = 5_000;
    /// Agents whose metadata is collected at once.
    fleet_metadata_parallel = 1_024;
    /// Time one metadata command in a workspace may take.
    fleet_metadata_field_ms = 5_000;
    /// Largest metadata answer of one workspace.
    fleet_metadata_bytes = 256 * KIB;
    /// Largest value of one metadata field; longer ones are cut.
    fleet_metadata_value_bytes = 8 * KIB;
    /// Largest log entry in an answer; longer ones are cut.
    fleet_log_entry_bytes = 16 * KIB;
    /// Time a stopped task gets to come to rest before the answer says that it has not.
    fleet_stop_confirm_ms = 3_000;
    /// Time a deletion waits for another operation on the workspace to end.
    fleet_delete_wait_ms = 8_000;
    /// Time a restart waits for the workspace to stop.
    fleet_restart_wait_seconds = 120;
    /// Longest time `wait_for_agent` waits.
    fleet_wait_seconds = 300;
    /// Started and stopped tasks that are remembered.
    fleet_journal_entries = 4_096;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_read_and_set_by_its_name() {
        let mut limits = Limits::default();
        for row in Limits::TABLE {
            assert_eq!(limits.get(row.name), Some(row.default), "{}", row.name);
            assert!(limits.set(row.name, 7));
            assert_eq!(limits.get(row.name), Some(7));
            assert!(row.doc.ends_with('.'), "{}", row.name);
        }
        assert!(!limits.set("no_such_limit", 1));
        assert_eq!(limits.get("no_such_limit"), None);
    }
}
