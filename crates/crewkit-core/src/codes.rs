//! Every error code a user can meet, with its meaning and what to do next.
//!
//! `docs/errors.md` is written from this table, so a code without an explanation cannot exist.

use std::fmt;

macro_rules! codes {
    ($( $section:literal { $( $variant:ident = $text:literal, $meaning:literal, $next:literal; )+ } )+) => {
        /// A stable error code: its text never changes once released.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($( #[doc = $meaning] $variant, )+)+ }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$($( Self::$variant, )+)+];

            /// The text that appears in answers.
            pub const fn as_str(self) -> &'static str {
                match self { $($( Self::$variant => $text, )+)+ }
            }

            /// What the code means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $($( Self::$variant => $meaning, )+)+ }
            }

            /// What a person does about it.
            pub const fn next_step(self) -> &'static str {
                match self { $($( Self::$variant => $next, )+)+ }
            }

            /// The part of the documentation it belongs to.
            pub const fn section(self) -> &'static str {
                match self { $($( Self::$variant => $section, )+)+ }
            }
        }
    };
}

codes! {
    "Everywhere" {
        ArgumentInvalid = "E_ARGUMENT_INVALID",
            "An argument is missing, unknown, or of the wrong kind.",
            "Correct the argument the message names; it lists what is allowed.";
        ConfirmRequired = "E_CONFIRM_REQUIRED",
            "The operation changes something and was not approved.",
            "Review what would change, then repeat with `yes: true` or `--yes`.";
        Internal = "E_INTERNAL",
            "crewkit itself failed; this is a bug.",
            "Repeat with `-v` and report the log; nothing was half done.";
    }
    "Starting and configuration" {
        SettingInvalid = "E_SETTING_INVALID",
            "A setting in crewkit.toml, the environment or a flag has a value that cannot be used.",
            "Correct the setting the message names; `crewkit config show` prints where each value comes from.";
        ListenRefused = "E_LISTEN_REFUSED",
            "The server does not listen beyond this machine without a token.",
            "Add `--auth`, or listen on a loopback address.";
        ListenFailed = "E_LISTEN_FAILED",
            "The address could not be listened on.",
            "Stop what uses the port, or choose another with `--listen`.";
        StateUnusable = "E_STATE_UNUSABLE",
            "A file or directory of crewkit's own could not be read or written.",
            "Check owner, permissions and free space of the path the message names.";
        ServerUnreachable = "E_SERVER_UNREACHABLE",
            "No crewkit server answered at the address.",
            "Start one with `crewkit serve`, or correct `--server`.";
    }
    "HTTP" {
        HostRefused = "E_HOST_REFUSED",
            "The Host or Origin header names a place this server does not trust.",
            "Use the address `serve` printed, or add the name to `server.allowed_hosts`.";
        Unauthorized = "E_UNAUTHORIZED",
            "The bearer token is missing or wrong.",
            "Send `Authorization: Bearer …` with the token from the file `serve` names.";
        PeerRefused = "E_PEER_REFUSED",
            "The connection comes from another user's process on this machine.",
            "Connect as the user that runs the server, or start it with `--auth`.";
        NotFound = "E_NOT_FOUND",
            "There is nothing at this address.",
            "`GET /api/openapi.json` lists what there is.";
        MethodNotAllowed = "E_METHOD_NOT_ALLOWED",
            "The address exists but does not take this method.",
            "Use a method the `Allow` header names.";
        BodyTooLarge = "E_BODY_TOO_LARGE",
            "The request body is larger than the limit.",
            "Send less, or raise `limits.http_body_bytes`.";
        BodyInvalid = "E_BODY_INVALID",
            "The request body is not the JSON that was expected.",
            "Send one JSON object with `Content-Type: application/json`.";
        Busy = "E_BUSY",
            "A limit on connections, sessions or work in flight is reached.",
            "Try again shortly, or raise the limit the message names.";
        TimedOut = "E_TIMED_OUT",
            "The request took longer than its limit.",
            "Try again, or raise the limit the message names.";
    }
    "Fleet" {
        FleetBadRequest = "bad_request",
            "A fleet tool was given something it cannot act on: an argument, a name that is taken, an agent in the wrong status.",
            "Read `message` and `details.field` or `details.reason`; they say what to change.";
        FleetNotFound = "not_found",
            "The agent or project does not exist, or belongs to someone else.",
            "List what there is with `list_agents` or `list_agent_projects`.";
        FleetConflict = "conflict",
            "The agent is busy, or its workspace is in the middle of another operation.",
            "Wait with `wait_for_agent`, or stop the running task first.";
        FleetUnavailable = "service_unavailable",
            "The place where the workspaces live did not answer, refused the token, or answered nonsense.",
            "Read `details`; check `CODER_URL` and `CODER_SESSION_TOKEN`, then try again.";
    }
    "Agents" {
        AgentNotFound = "E_AGENT_NOT_FOUND",
            "There is no agent with this id.",
            "`crewkit agent list` shows the agents there are.";
        ContractInvalid = "E_CONTRACT_INVALID",
            "The contract is blank or longer than the limit.",
            "Say in the contract what the agent shall do; put long material into files.";
        AgentStateInvalid = "E_AGENT_STATE_INVALID",
            "The agent's present state does not allow this.",
            "`agent_status` tells where it stands; a stopped agent can be resumed, an ended one restarted.";
        AgentsBusy = "E_AGENTS_BUSY",
            "As many agents are at work as the limit allows.",
            "Wait for one to end, or raise `limits.agent_runs_active`.";
        PayloadTooLarge = "E_PAYLOAD_TOO_LARGE",
            "The payload is larger than the limit; the agent keeps running.",
            "Write large results to files and name them in the summary, or raise `limits.agent_payload_bytes`.";
        PayloadNotFound = "E_PAYLOAD_NOT_FOUND",
            "The agent has no payload.",
            "`agent_status` shows `payload_size` when there is one.";
        PayloadEncoding = "E_PAYLOAD_ENCODING",
            "The payload is served gzip-compressed only and the client does not accept that.",
            "Send `Accept-Encoding: gzip`.";
        DriverUnknown = "E_DRIVER_UNKNOWN",
            "No driver or model of this name is configured.",
            "Use one the message names, or add it to crewkit.toml.";
        WorkdirInvalid = "E_WORKDIR_INVALID",
            "The working directory of the agent does not exist or cannot be opened.",
            "Name an existing directory that the server may read.";
        StoreFull = "E_STORE_FULL",
            "The disk of the run store is full; nothing was changed and reading still works.",
            "Free some space; the next attempt succeeds without a restart.";
        StoreFailed = "E_STORE_FAILED",
            "The run store could not be read or written; nothing was changed.",
            "Check the file the message names; it says what the system answered.";
        StoreLocked = "E_STORE_LOCKED",
            "Another crewkit process has the run store open.",
            "Talk to that process with `--server`, or stop it first.";
        StoreTooNew = "E_STORE_TOO_NEW",
            "The run store was written by a newer crewkit.",
            "Update crewkit, or point it at another home.";
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_explained() {
        let texts: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(code.meaning().ends_with('.') && code.next_step().ends_with('.'), "{code}");
        }
    }
}
