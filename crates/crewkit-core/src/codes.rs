//! Every error code a user can meet, with its HTTP status, its meaning and what to do next.
//!
//! `docs/errors.md` is written from this table, so a code without an explanation cannot exist.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

macro_rules! codes {
    ($( $section:literal { $( $variant:ident = $text:literal, $status:literal, $meaning:literal, $next:literal; )+ } )+) => {
        /// A stable error code: its text never changes once released.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
        #[schemars(with = "String")]
        #[non_exhaustive]
        pub enum Code { $($( #[doc = $meaning] #[serde(rename = $text)] $variant, )+)+ }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$($( Self::$variant, )+)+];

            /// The text that appears in answers.
            pub const fn as_str(self) -> &'static str {
                match self { $($( Self::$variant => $text, )+)+ }
            }

            /// The HTTP status of an answer with this code.
            pub const fn http_status(self) -> u16 {
                match self { $($( Self::$variant => $status, )+)+ }
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
        ArgumentInvalid = "E_ARGUMENT_INVALID", 400,
            "An argument is missing, unknown, or of the wrong kind.",
            "Correct the argument the message names; it lists what is allowed.";
        ConfirmRequired = "E_CONFIRM_REQUIRED", 409,
            "The operation changes something and was not approved.",
            "Review what would change, then repeat with `yes: true` or `--yes`.";
        Internal = "E_INTERNAL", 500,
            "crewkit itself failed; this is a bug.",
            "Repeat with `-v` and report the log; nothing was half done.";
        OutcomeUnknown = "E_OUTCOME_UNKNOWN", 502,
            "The server went away before it answered; the call may have been carried out or not.",
            "Look with `agent_status` or `show_agent` (`crewkit runs list`, `crewkit fleet list`), then repeat if it is still needed.";
    }
    "Starting and configuration" {
        SettingInvalid = "E_SETTING_INVALID", 400,
            "A setting in crewkit.toml, the environment or a flag has a value that cannot be used.",
            "Correct the setting the message names; `crewkit config show` prints where each value comes from.";
        ListenRefused = "E_LISTEN_REFUSED", 500,
            "The server does not listen beyond this machine without a token.",
            "Add `--auth`, or listen on a loopback address.";
        ListenFailed = "E_LISTEN_FAILED", 500,
            "The address could not be listened on.",
            "Stop what uses the port, or choose another with `--listen`.";
        StateUnusable = "E_STATE_UNUSABLE", 500,
            "A file or directory of crewkit's own could not be read or written.",
            "Check owner, permissions and free space of the path the message names.";
        ServerUnreachable = "E_SERVER_UNREACHABLE", 503,
            "No crewkit server answered at the address.",
            "Start one with `crewkit serve`, or name another with `CREWKIT_SERVER`.";
        ServerNotStarted = "E_SERVER_NOT_STARTED", 503,
            "No server runs for this home, and none can be started in the background here.",
            "Do what the message says, or repeat with `--in-process`.";
        HomeInUse = "E_HOME_IN_USE", 503,
            "Another process owns the home.",
            "Use that process, stop it with `crewkit stop`, or choose another home with `--home`.";
        ProtocolDiffers = "E_PROTOCOL_DIFFERS", 409,
            "The client and the server of this home are of builds that do not understand each other.",
            "Update the older one; `crewkit status` shows the build of the server.";
        AskerUnknown = "E_ASKER_UNKNOWN", 409,
            "The server does not know the asker that the request names; it was restarted, or had too many.",
            "Say hello again and repeat the request.";
    }
    "HTTP" {
        HostRefused = "E_HOST_REFUSED", 403,
            "The Host or Origin header names a place this server does not trust.",
            "Use the address `serve` printed, or add the name to `server.allowed_hosts`.";
        Unauthorized = "E_UNAUTHORIZED", 401,
            "The bearer token is missing or wrong.",
            "Send `Authorization: Bearer …` with the token from the file `serve` names.";
        PeerRefused = "E_PEER_REFUSED", 403,
            "The connection comes from a process of another user, or its process cannot be told.",
            "Connect as the user that runs the server, or start it with `--auth` and send the token.";
        AgentRefused = "E_AGENT_REFUSED", 403,
            "A process that an agent started asked for something that agents may not do.",
            "Ask the person who runs the server; an agent may complete itself with the token of its attempt.";
        NotFound = "E_NOT_FOUND", 404,
            "There is nothing at this address.",
            "`GET /api/openapi.json` lists what there is.";
        MethodNotAllowed = "E_METHOD_NOT_ALLOWED", 405,
            "The address exists but does not take this method.",
            "Use a method the `Allow` header names.";
        BodyTooLarge = "E_BODY_TOO_LARGE", 413,
            "The request body is larger than the limit.",
            "Send less, or raise `limits.http_body_bytes`.";
        BodyInvalid = "E_BODY_INVALID", 400,
            "The request body is not the JSON that was expected.",
            "Send one JSON object with `Content-Type: application/json`.";
        Busy = "E_BUSY", 503,
            "A limit on connections, sessions or work in flight is reached.",
            "Try again shortly, or raise the limit the message names.";
        TimedOut = "E_TIMED_OUT", 504,
            "The request took longer than its limit.",
            "Try again, or raise the limit the message names.";
    }
    "Packs" {
        AdoptConfirmRequired = "E_ADOPT_CONFIRM_REQUIRED", 409,
            "The deploy would overwrite files that are not managed yet.",
            "Look at them with `preview --diff`; repeat with `--adopt` if they may be replaced, a backup is kept.";
        ConfigMissing = "E_CONFIG_MISSING", 404,
            "There is no agentpack.yaml in the config repo.",
            "Run `agentpack init`, or name another repo with `--repo`.";
        ConfigInvalid = "E_CONFIG_INVALID", 422,
            "agentpack.yaml, a frontmatter or an overlay file says something that cannot be used.",
            "Correct the place the message names, then repeat.";
        ConfigUnsupportedVersion = "E_CONFIG_UNSUPPORTED_VERSION", 422,
            "agentpack.yaml has a version this program does not know.",
            "Use `version: 1`, or a newer program.";
        ConfigExists = "E_CONFIG_EXISTS", 422,
            "There is a configuration already where a new one was to be written.",
            "Edit the existing one, or choose another place with `--repo`.";
        ProfileNotFound = "E_PROFILE_NOT_FOUND", 404,
            "agentpack.yaml has no profile of that name.",
            "Use one of the profiles the message lists, or add it.";
        TargetUnsupported = "E_TARGET_UNSUPPORTED", 422,
            "A target is named that does not exist.",
            "Use one of the targets the message lists.";
        TargetNotAFile = "E_TARGET_NOT_A_FILE", 422,
            "Something that is not a regular file stands where a file is to be written.",
            "Move the directory, link or device the message names away, then repeat.";
        TargetEscape = "E_TARGET_ESCAPE", 422,
            "A path below a target root leads outside of it, through a symbolic link or its own spelling.",
            "Replace the link with a directory; only the root itself may be a link.";
        ModuleNotFound = "E_MODULE_NOT_FOUND", 404,
            "agentpack.yaml has no module of that id.",
            "Use one of the ids `agentpack.yaml` lists.";
        ModuleInvalid = "E_MODULE_INVALID", 422,
            "The content of a module does not fit its type, or its id cannot become a path.",
            "Correct the file or id the message names.";
        SourceInvalid = "E_SOURCE_INVALID", 422,
            "The source of a module is written in a way that is refused: a path that leaves its root, or an unsafe git URL or ref.",
            "Correct `source` of the module the message names.";
        SourceMissing = "E_SOURCE_MISSING", 404,
            "The source of a module does not exist or cannot be read.",
            "Create it, correct its path, or disable the module.";
        SourceMismatch = "E_SOURCE_MISMATCH", 422,
            "A checkout in the cache, or what was fetched, is not what the lockfile or its own record says.",
            "Run `agentpack fetch` to fetch it anew; if that says the same, find out who changed it before `agentpack lock`.";
        DesiredStateConflict = "E_DESIRED_STATE_CONFLICT", 409,
            "Two modules want different content in the same file.",
            "Rename, disable or restrict one of the modules the message names.";
        LockfileMissing = "E_LOCKFILE_MISSING", 404,
            "There is no agentpack.lock.json.",
            "Run `agentpack lock` or `agentpack update`.";
        LockfileInvalid = "E_LOCKFILE_INVALID", 422,
            "agentpack.lock.json cannot be read or contains values that are refused.",
            "Restore it from version control, or write it anew with `agentpack lock`.";
        LockfileUnsupportedVersion = "E_LOCKFILE_UNSUPPORTED_VERSION", 422,
            "agentpack.lock.json has a version this program does not know.",
            "Use a newer program, or write it anew with `agentpack lock`.";
        OverlayNotFound = "E_OVERLAY_NOT_FOUND", 404,
            "The module has no overlay in that scope.",
            "Create one with `agentpack overlay edit`.";
        OverlayBaselineMissing = "E_OVERLAY_BASELINE_MISSING", 422,
            "The overlay does not say which upstream it was made from.",
            "Run `agentpack overlay edit` once; it writes the baseline.";
        OverlayBaselineUnsupported = "E_OVERLAY_BASELINE_UNSUPPORTED", 422,
            "The upstream content the overlay was made from is not available any more.",
            "Compare by hand, then delete `.agentpack/baseline.json` and run `overlay edit`.";
        OverlayRebaseConflict = "E_OVERLAY_REBASE_CONFLICT", 422,
            "Overlay and upstream changed the same lines.",
            "Resolve the files the message names, then run `overlay rebase` again.";
        OverlayPatchApplyFailed = "E_OVERLAY_PATCH_APPLY_FAILED", 422,
            "A patch of an overlay does not fit its upstream file.",
            "Run `agentpack overlay rebase`, or correct the patch.";
        GitNotFound = "E_GIT_NOT_FOUND", 422,
            "The program git was not found.",
            "Install git and make sure it is in PATH.";
        GitFailed = "E_GIT_FAILED", 422,
            "A git command ended with an error or took too long.",
            "Read what git said in the message; check address, ref, network and credentials.";
        EditorFailed = "E_EDITOR_FAILED", 422,
            "The editor could not be started or ended with an error.",
            "Set EDITOR to a program that exists; the overlay is kept.";
        ConfirmTokenExpired = "E_CONFIRM_TOKEN_EXPIRED", 409,
            "The plan that was approved is too old.",
            "Call `deploy` again, look at the plan, and apply with its new token.";
        ConfirmTokenMismatch = "E_CONFIRM_TOKEN_MISMATCH", 409,
            "The plan that was approved is not the plan that would be applied now.",
            "Call `deploy` again, look at the plan, and apply with its new token.";
        Cancelled = "E_CANCELLED", 422,
            "Whoever called gave up before the work was done.",
            "Nothing was changed; call again if it is still wanted.";
        SnapshotNotFound = "E_SNAPSHOT_NOT_FOUND", 404,
            "There is no snapshot of that id.",
            "Use an id `agentpack snapshots list` prints.";
        SnapshotInvalid = "E_SNAPSHOT_INVALID", 422,
            "A snapshot cannot be read or lacks content that is needed.",
            "Use another snapshot, or restore the state directory from a backup.";
        Locked = "E_LOCKED", 409,
            "Another command is changing the same home.",
            "Wait for the process the message names to end.";
        RecoveryFailed = "E_RECOVERY_FAILED", 500,
            "An interrupted deploy could not be finished or undone.",
            "Correct the cause the message names, then run any command again; the journal is kept.";
        Drifted = "E_DRIFTED", 409,
            "A file changed between the plan and its application.",
            "Look at the new plan and repeat.";
        IoPermissionDenied = "E_IO_PERMISSION_DENIED", 403,
            "The system denied access to a file or directory.",
            "Correct the permissions of the path the message names.";
        IoNoSpace = "E_IO_NO_SPACE", 507,
            "The disk is full or a quota is reached.",
            "Free some space; nothing was changed.";
        IoReadOnly = "E_IO_READ_ONLY", 422,
            "The file system is mounted read-only.",
            "Mount it writable; nothing was changed.";
        IoInvalidPath = "E_IO_INVALID_PATH", 422,
            "A path contains something the system or this program does not allow.",
            "Rename the path the message names.";
        IoPathTooLong = "E_IO_PATH_TOO_LONG", 422,
            "A path is longer than the system allows.",
            "Shorten the path the message names.";
        IoFailed = "E_IO_FAILED", 500,
            "Reading or writing a file failed.",
            "Read the cause in the message; it names the path.";
        Unexpected = "E_UNEXPECTED", 500,
            "The pack part itself failed; this is a bug.",
            "Report the message.";
    }
    "Fleet" {
        FleetBadRequest = "bad_request", 400,
            "A fleet tool was given something it cannot act on: an argument, a name that is taken, an agent in the wrong status.",
            "Read `message` and `details.field` or `details.reason`; they say what to change.";
        FleetNotFound = "not_found", 404,
            "The agent or project does not exist, or belongs to someone else.",
            "List what there is with `list_agents` or `list_agent_projects`.";
        FleetConflict = "conflict", 409,
            "The agent is busy, or its workspace is in the middle of another operation.",
            "Wait with `wait_for_agent`, or stop the running task first.";
        FleetUnavailable = "service_unavailable", 503,
            "The place where the workspaces live did not answer, refused the token, or answered nonsense.",
            "Read `details`; check `CODER_URL` and `CODER_SESSION_TOKEN`, then try again.";
    }
    "Agents" {
        AgentNotFound = "E_AGENT_NOT_FOUND", 404,
            "There is no agent with this id.",
            "`crewkit runs list` shows the runs there are.";
        ContractInvalid = "E_CONTRACT_INVALID", 400,
            "The contract is blank or longer than the limit.",
            "Say in the contract what the agent shall do; put long material into files.";
        AgentStateInvalid = "E_AGENT_STATE_INVALID", 409,
            "The agent's present state does not allow this.",
            "`agent_status` tells where it stands; a stopped agent can be resumed, an ended one restarted.";
        AgentsBusy = "E_AGENTS_BUSY", 503,
            "As many agents are queued as the limit allows.",
            "Wait for some to end, or raise `limits.agent_queue`.";
        CursorExpired = "E_CURSOR_EXPIRED", 410,
            "The cursor points to events that are no longer kept, or that never were.",
            "Read the present state, then follow the events from 0; `limits.events_days` says how long they are kept.";
        PayloadTooLarge = "E_PAYLOAD_TOO_LARGE", 413,
            "The payload is larger than the limit; the agent keeps running.",
            "Write large results to files and name them in the summary, or raise `limits.agent_payload_bytes`.";
        PayloadNotFound = "E_PAYLOAD_NOT_FOUND", 404,
            "The agent has no payload.",
            "`agent_status` shows `payload_size` when there is one.";
        PayloadEncoding = "E_PAYLOAD_ENCODING", 406,
            "The payload is served gzip-compressed only and the client does not accept that.",
            "Send `Accept-Encoding: gzip`.";
        SecretMissing = "E_SECRET_MISSING", 409,
            "The run needs a secret that the server does not have, and the client has none for the same address.",
            "Start a client that has the secret, or give it with `crewkit config secret set`.";
        DriverUnknown = "E_DRIVER_UNKNOWN", 400,
            "No driver or model of this name is configured.",
            "Use one the message names, or add it to crewkit.toml.";
        WorkdirInvalid = "E_WORKDIR_INVALID", 400,
            "The working directory of the agent does not exist or cannot be opened.",
            "Name an existing directory that the server may read.";
        StoreFull = "E_STORE_FULL", 507,
            "The disk of the run store is full; nothing was changed and reading still works.",
            "Free some space; the next attempt succeeds without a restart.";
        StoreFailed = "E_STORE_FAILED", 500,
            "The run store could not be read or written; nothing was changed.",
            "Check the file the message names; it says what the system answered.";
        StoreLocked = "E_STORE_LOCKED", 503,
            "Another crewkit process has the run store open.",
            "Run `crewkit serve` once and let commands and editors use it, or stop the other process first.";
        StoreTooNew = "E_STORE_TOO_NEW", 500,
            "The run store was written by a newer crewkit.",
            "Update crewkit, or point it at another home.";
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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
            assert!((400..=599).contains(&code.http_status()), "{code}");
        }
    }
}
