//! The one error type of this crate: a code, what happened where, and what to do about it.
//!
//! Every failure is built where its circumstances are known and travels unchanged to the door that renders it, so
//! a message never degrades into a bare context line.

use std::fmt;
use std::io;
use std::path::Path;

use crewkit_core::Code;
use serde_json::{Map, Value};

/// The result of everything that can fail here.
pub(crate) type Result<T, E = PackError> = std::result::Result<T, E>;

/// A failure with a stable code.
#[derive(Debug)]
pub struct PackError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    message: String,
    reason: Option<&'static str>,
    next_actions: Option<Vec<&'static str>>,
    hint: Option<String>,
    details: Map<String, Value>,
    /// What was noticed before the failure; it must not be lost with the answer that never came.
    warnings: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl PackError {
    /// Says what happened; `message` is a lower-case fragment that names the place.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            reason: None,
            next_actions: None,
            hint: None,
            details: Map::new(),
            warnings: Vec::new(),
            source: None,
        }))
    }

    /// An I/O error at `path`; the code follows from its kind.
    pub fn io(doing: &str, path: &Path, error: io::Error) -> Self {
        let code = code_of_io(&error);
        let mut this = Self::new(code, format!("{doing} {}: {error}", path.display()))
            .paths(path)
            .detail("io_kind", error.kind().to_string())
            .detail("raw_os_error", error.raw_os_error());
        this.0.source = Some(Box::new(error));
        this
    }

    /// A state that cannot be; reported as a bug.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Code::Unexpected, message)
    }

    /// Adds a member to `details`.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// Adds the path it is about to `details`.
    #[must_use]
    pub fn path(self, path: &Path) -> Self {
        self.detail("path", path.display().to_string())
    }

    /// Adds the path it is about to `details`, also with forward slashes.
    #[must_use]
    pub fn paths(self, path: &Path) -> Self {
        self.path(path).detail("path_posix", path.display().to_string().replace('\\', "/"))
    }

    /// Replaces the reason that follows from the code.
    #[must_use]
    pub fn reason(mut self, reason: &'static str) -> Self {
        self.0.reason = Some(reason);
        self
    }

    /// Replaces the machine-readable next steps that follow from the code.
    #[must_use]
    pub fn next(mut self, actions: &[&'static str]) -> Self {
        self.0.next_actions = Some(actions.to_vec());
        self
    }

    /// Says in a sentence what to do next, where that is more than the code's own advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Keeps the error that caused this one for logs.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// Adds what was noticed before the failure, ahead of what is there.
    #[must_use]
    pub fn with_warnings(mut self, mut earlier: Vec<String>) -> Self {
        earlier.append(&mut self.0.warnings);
        self.0.warnings = earlier;
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What happened and where.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What a person does about it.
    pub fn advice(&self) -> &str {
        self.0.hint.as_deref().unwrap_or_else(|| self.0.code.next_step())
    }

    /// What was noticed before the failure.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// The machine-readable next steps.
    pub fn next_actions(&self) -> Vec<&'static str> {
        self.0.next_actions.clone().unwrap_or_else(|| routing(self.0.code).1.to_vec())
    }

    /// The `details` member of the envelope; nothing for a bug.
    pub fn details(&self) -> Option<Value> {
        let (reason, _) = routing(self.0.code);
        let reason = self.0.reason.unwrap_or(reason);
        let mut details = self.0.details.clone();
        if let Some(hint) = &self.0.hint {
            details.insert("hint".to_owned(), hint.as_str().into());
        }
        if reason.is_empty() {
            return (!details.is_empty()).then_some(Value::Object(details));
        }
        details.insert("reason_code".to_owned(), reason.into());
        details.insert("next_actions".to_owned(), self.next_actions().into());
        Some(Value::Object(details))
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for PackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// The code of an I/O error that has no more telling one.
pub(crate) fn code_of_io(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Code::IoPermissionDenied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::IoNoSpace,
        io::ErrorKind::ReadOnlyFilesystem => Code::IoReadOnly,
        io::ErrorKind::InvalidFilename => Code::IoPathTooLong,
        _ => Code::IoFailed,
    }
}

/// Reason and next steps a client can branch on. They are part of the answer's contract, hence not derived from
/// the code's name.
fn routing(code: Code) -> (&'static str, &'static [&'static str]) {
    match code {
        Code::ConfirmRequired => ("confirm_required", &["retry_with_yes"]),
        Code::ArgumentInvalid => ("argument_invalid", &["inspect_help_json", "retry_command"]),
        Code::AdoptConfirmRequired => ("adopt_confirm_required", &["retry_with_adopt"]),
        Code::ConfigMissing => ("config_missing", &["run_init", "retry_with_repo", "retry_command"]),
        Code::ConfigInvalid => ("config_invalid", &["fix_config", "retry_command"]),
        Code::ConfigExists => ("config_exists", &["fix_config", "retry_with_repo"]),
        Code::ConfigUnsupportedVersion => {
            ("config_unsupported_version", &["upgrade_agentpack", "fix_config_version", "retry_command"])
        }
        Code::ProfileNotFound => ("profile_not_found", &["retry_with_profile", "fix_config"]),
        Code::TargetUnsupported => {
            ("target_filter_unsupported", &["inspect_help_json", "retry_with_supported_target"])
        }
        Code::TargetNotAFile => ("target_not_a_file", &["move_existing_path", "retry_command"]),
        Code::TargetEscape => ("target_escape", &["replace_link", "retry_command"]),
        Code::ModuleNotFound => ("module_not_found", &["fix_config", "retry_command"]),
        Code::ModuleInvalid => ("module_invalid", &["fix_module", "retry_command"]),
        Code::SourceInvalid => ("source_invalid", &["fix_config", "retry_command"]),
        Code::SourceMissing => ("source_missing", &["fix_config", "retry_command"]),
        Code::SourceMismatch => ("source_mismatch", &["run_fetch", "run_lock", "retry_command"]),
        Code::DesiredStateConflict => {
            ("desired_state_conflict", &["resolve_desired_state_conflict", "retry_command"])
        }
        Code::LockfileMissing => ("lockfile_missing", &["run_lock", "run_update", "retry_command"]),
        Code::LockfileInvalid => ("lockfile_invalid_json", &["regenerate_lockfile", "retry_command"]),
        Code::LockfileUnsupportedVersion => {
            ("lockfile_unsupported_version", &["upgrade_agentpack", "regenerate_lockfile", "retry_command"])
        }
        Code::OverlayNotFound => ("overlay_not_found", &["run_overlay_edit", "retry_command"]),
        Code::OverlayBaselineMissing => ("overlay_baseline_missing", &["run_overlay_edit", "retry_command"]),
        Code::OverlayBaselineUnsupported => (
            "overlay_baseline_unsupported",
            &["init_git_repo", "commit_or_stash", "run_overlay_edit", "retry_command"],
        ),
        Code::OverlayRebaseConflict => {
            ("overlay_rebase_conflict", &["resolve_overlay_conflicts", "retry_overlay_rebase"])
        }
        Code::OverlayPatchApplyFailed => {
            ("overlay_patch_apply_failed", &["regenerate_patch", "switch_to_dir_overlay", "retry_command"])
        }
        Code::GitNotFound => ("git_not_found", &["install_git", "retry_command"]),
        Code::GitFailed => ("git_failed", &["check_git_source", "retry_command"]),
        Code::EditorFailed => ("editor_failed", &["fix_editor", "retry_command"]),
        Code::ConfirmTokenExpired => ("confirm_token_expired", &["call_deploy", "retry_deploy_apply"]),
        Code::ConfirmTokenMismatch => ("confirm_token_mismatch", &["call_deploy", "retry_deploy_apply"]),
        Code::SnapshotNotFound => ("snapshot_not_found", &["list_snapshots", "retry_command"]),
        Code::SnapshotInvalid => ("snapshot_invalid", &["list_snapshots", "retry_command"]),
        Code::Locked => ("locked", &["retry_command"]),
        Code::RecoveryFailed => ("recovery_failed", &["fix_permissions", "retry_command"]),
        Code::Drifted => ("drifted", &["retry_command"]),
        Code::IoPermissionDenied => ("io_permission_denied", &["fix_permissions", "retry_command"]),
        Code::IoNoSpace => ("io_no_space", &["free_space", "retry_command"]),
        Code::IoReadOnly => ("io_read_only", &["fix_permissions", "retry_command"]),
        Code::IoInvalidPath => ("io_invalid_path", &["fix_path", "retry_command"]),
        Code::IoPathTooLong => ("io_path_too_long", &["shorten_path", "enable_long_paths", "retry_command"]),
        Code::IoFailed => ("io_failed", &["retry_command"]),
        _ => ("", &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_carry_reason_and_next_actions() {
        let error = PackError::new(Code::ConfirmRequired, "x").detail("command", "init");
        assert_eq!(
            error.details().unwrap(),
            serde_json::json!({"command": "init", "next_actions": ["retry_with_yes"], "reason_code": "confirm_required"})
        );
        assert_eq!(PackError::bug("x").details(), None);
    }

    #[test]
    fn an_io_error_names_path_and_cause() {
        let error = PackError::io("read", Path::new("/a/b"), io::Error::from_raw_os_error(13));
        assert_eq!(error.code(), Code::IoPermissionDenied);
        assert!(error.message().starts_with("read /a/b: "), "{error}");
    }

    #[test]
    fn earlier_warnings_come_first() {
        let error = PackError::bug("x").with_warnings(vec!["b".into()]).with_warnings(vec!["a".into()]);
        assert_eq!(error.warnings(), ["a", "b"]);
    }
}
