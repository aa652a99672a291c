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
    /// Connections of identified callers served at once, web sockets included.
    http_connections = 2048;
    /// Connections whose caller is not identified yet; the oldest gives way to a new one.
    http_unidentified_connections = 256;
    /// Time a connection has to identify its caller.
    http_identify_seconds = 10;
    /// Time a client has to send its request headers; also how long an idle keep-alive connection stays.
    http_idle_seconds = 75;
    /// Time one request may take; streams are exempt.
    http_request_seconds = 330;
    /// Time running requests get to finish when the server stops.
    shutdown_grace_seconds = 10;
    /// How often a client sends a call that may be repeated when the server goes away under it.
    client_attempts = 5;

    // The server of a home.
    /// Different settings of clients that the server keeps at once; the least recently used make room.
    server_askers = 256;
    /// Time a server has to start in the background.
    server_start_seconds = 60;
    /// Size of the log of a background server, its older half included.
    server_log_bytes = 4 * MIB;

    // MCP.
    /// Sessions of streamable HTTP kept at once.
    mcp_sessions = 512;
    /// Time an unused session is kept.
    mcp_session_idle_seconds = 1800;
    /// Sessions remembered on disk, so that clients survive a restart of the server.
    mcp_session_records = 4096;
    /// Time a remembered session can be taken up again.
    mcp_session_record_seconds = 7 * 24 * 3600;
    /// Longest line on stdio. More than a payload may have: one that is too large is refused with the id of its request, and a
    /// line that is too long without it.
    mcp_line_bytes = 80 * MIB;
    /// Deepest nesting of JSON in a message.
    json_depth = 64;
    /// Messages in one batch.
    mcp_batch_messages = 64;
    /// Calls in flight on one connection or session.
    mcp_calls_in_flight = 256;
    /// Resources that one connection or session is notified of.
    mcp_subscriptions = 1000;

    // Packs: reading.
    /// Largest agentpack.yaml, frontmatter or overlay metadata file.
    pack_yaml_bytes = 16 * MIB;
    /// Largest agentpack.lock.json, target manifest or snapshot.
    pack_lockfile_bytes = 512 * MIB;
    /// Largest instructions, command or patched file; others are streamed and have no limit.
    pack_text_bytes = 16 * MIB;
    /// Deepest directory nesting inside a module or below a target root.
    pack_tree_depth = 64;
    /// Most files in one module.
    pack_module_files = 100_000;
    /// Most entries of the hash cache; beyond it only what the last command used is kept.
    pack_hash_cache_entries = 1_000_000;
    /// Days an entry of the hash cache that no command uses stays.
    pack_cache_days = 30;

    // Packs: diffs, git, approval.
    /// Largest file that is compared line by line.
    pack_diff_input_bytes = 4 * MIB;
    /// Largest unified diff of one file in an answer.
    pack_diff_bytes = 100 * KIB;
    /// Largest total of unified diffs in one answer.
    pack_diff_total_bytes = 16 * MIB;
    /// Time the comparison of one file may take before a coarser result is used.
    pack_diff_milliseconds = 200;
    /// Time one git command may take.
    pack_git_seconds = 300;
    /// Git commands run at once.
    pack_git_parallel = 4;
    /// Time a changing command waits for another one to finish.
    pack_lock_wait_seconds = 30;
    /// Snapshots that stay after a deploy or rollback, and when `snapshots prune` is not told how many.
    pack_snapshots_kept = 20;
    /// Time an approved plan can be applied.
    pack_confirm_seconds = 600;

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
    /// Connections to Coder that are kept open for some seconds; without HTTP/2 a list with metadata needs one per agent.
    fleet_coder_idle_connections = 1_024;
    /// Workspaces asked for in one request of a list.
    fleet_coder_page = 250;
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
    /// Largest kit that goes into a workspace on Coder.
    fleet_kit_bytes = 4 * MIB;
    /// Time one workspace on Coder may take to be equipped.
    fleet_kit_ms = 60_000;
    /// Workspaces on Coder that are equipped or compared at once.
    fleet_coder_equip_parallel = 32;

    // The fleet on this machine.
    /// Time one git command may take.
    fleet_git_seconds = 120;
    /// Largest plain directory that is copied for an agent.
    fleet_copy_bytes = 2 * 1024 * MIB;
    /// Files and directories of a plain directory that is copied for an agent.
    fleet_copy_entries = 100_000;
    /// Days the files of deleted agents stay in the trash; 0 means for ever.
    fleet_trash_days = 14;
    /// Tasks of agents on this machine at work at once; further ones wait.
    fleet_tasks_active = 32;
    /// Time one task may take; 0 means no cap.
    fleet_task_seconds = 14_400;
    /// Tokens one agent may use in all its tasks; 0 means no cap.
    fleet_agent_tokens = 20_000_000;
    /// Tasks that are remembered of one agent.
    fleet_tasks_kept = 1_000;
    /// Time a new agent's workspace may take before the answer says that it is still being made.
    fleet_create_wait_ms = 5_000;
    /// Text of changes in one answer of `agent_diff`; the answer says how to get the rest.
    fleet_diff_bytes = 48 * KIB;
    /// Longest line of a change that is shown; longer ones are cut.
    fleet_diff_line_bytes = 2 * KIB;
    /// Largest file whose changes are shown line by line.
    fleet_diff_file_bytes = 4 * MIB;
    /// Commits of an agent that `land_agent` rebases at most.
    fleet_land_commits = 200;
    /// Agents that are equipped at once.
    fleet_equip_parallel = 16;

    // Agents.
    /// Longest contract.
    agent_contract_bytes = MIB;
    /// Largest payload, uncompressed.
    agent_payload_bytes = 64 * MIB;
    /// Longest summary; what is beyond is cut.
    agent_summary_bytes = 16 * KIB;
    /// Ids in one status or wait call.
    agent_status_ids = 10_000;
    /// Runs at work at once; further ones are queued.
    agent_runs_active = 1_000;
    /// Runs that may be queued; further ones are refused.
    agent_queue = 10_000;
    /// Times a run is taken up again by itself after its server ended.
    agent_restarts = 3;
    /// Longest time one wait call waits.
    agent_wait_seconds = 300;
    /// Entries in one page of output.
    agent_output_entries = 500;
    /// Compressed payloads kept in memory for quick serving, in total.
    agent_payload_cache_bytes = 64 * MIB;
    /// Changes the run store takes up before it makes callers wait.
    agent_store_queue = 8192;
    /// Turns of one run of the built-in loop.
    agent_turns = 200;
    /// Tokens of one run; 0 means no cap.
    agent_tokens = 0;
    /// Working time of one run; 0 means no cap.
    agent_wall_seconds = 0;
    /// Identical tool calls in a row before the model is warned.
    agent_identical_calls_warn = 3;
    /// Identical tool calls in a row before the run is stopped.
    agent_identical_calls_stop = 6;
    /// Replies in a row without a tool call before the run is stopped.
    agent_plain_replies = 5;
    /// Days an ended run is kept; 0 means for ever.
    agent_retention_days = 0;
    /// Days the event log goes back.
    events_days = 30;
    /// Chat conversations kept.
    chat_conversations = 1000;
    /// Messages kept of one chat conversation.
    chat_messages = 1000;
    /// Tool rounds in one chat turn.
    chat_tool_rounds = 25;

    // The model.
    /// Requests in flight to one endpoint.
    llm_concurrency = 1024;
    /// Time to connect to an endpoint.
    llm_connect_seconds = 10;
    /// Time an unused connection to an endpoint is kept; each takes some 27 KB.
    llm_keep_alive_seconds = 15;
    /// Silence from the model before a request counts as lost.
    llm_idle_seconds = 300;
    /// Time one request to the model may take in all.
    llm_request_seconds = 1800;
    /// Time a request in flight has to end after its run was stopped or completed; its reply is kept, and no other is sent.
    llm_stop_grace_seconds = 30;
    /// Largest reply of the model.
    llm_reply_bytes = 32 * MIB;
    /// Largest arguments of one tool call.
    llm_tool_arguments_bytes = 4 * MIB;
    /// Tool calls in one reply.
    llm_tool_calls = 128;
    /// Attempts per request, the first included.
    llm_tries = 5;
    /// Pause before the second attempt; it doubles from there.
    llm_retry_millis = 1000;
    /// Longest pause between attempts.
    llm_retry_max_seconds = 30;
    /// Longest pause a `Retry-After` may ask for.
    llm_retry_after_max_seconds = 120;
    /// Time a server's refusal of tools or streaming is remembered.
    llm_refusal_memory_seconds = 3600;

    // Tools of agents.
    /// Largest tool result handed to the model; the middle of what is longer is cut out.
    tool_result_bytes = 64 * KIB;
    /// Time one tool call may take.
    tool_call_seconds = 120;
    /// Time a command may take at most when the model asks for more.
    tool_command_max_seconds = 1800;
    /// Tool calls of one turn that run at once.
    tool_parallel_calls = 16;
    /// Largest file the workspace tools read or write.
    tool_file_bytes = 8 * MIB;
    /// Files the workspace tools look at in one call.
    tool_walk_entries = 50_000;
    /// Longest message of a tool server.
    tool_server_message_bytes = 16 * MIB;
    /// Time a tool server has to answer its first message.
    tool_server_start_seconds = 30;
    /// Time a new run waits for tool servers that are starting; later their tools are offered as they become ready.
    tool_server_wait_ms = 2_000;
    /// Longest pause before a failed tool server is started again.
    tool_server_restart_max_seconds = 60;

    // Agent command lines.
    /// Longest line a driven command may print; the rest of it is dropped.
    driver_line_bytes = 4 * MIB;
    /// Output of a process that is kept on disk until it is read; the oldest is dropped first.
    driver_output_bytes = 16 * MIB;
    /// Time a process gets between being asked to end and being killed.
    driver_stop_grace_seconds = 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_too_large_still_fits_a_line() {
        let limits = Limits::default();
        assert!(limits.mcp_line_bytes > limits.agent_payload_bytes);
    }

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
