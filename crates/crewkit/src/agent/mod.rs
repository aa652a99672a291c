//! What the settings say about runs, and the process that supervises a command of theirs.

mod options;

use std::ffi::OsString;
use std::process::ExitCode;

use crewkit_agent::Error;

pub use options::{client_environment, options, run_settings};

use crate::failure::Failure;
use crate::output;

/// The hidden sub-command that supervises a process of an agent, confined or not.
pub const EXEC_CONFINED: &str = "exec-confined";

/// Runs what the arguments name, and ends when everything it started has ended.
pub fn exec_confined(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let code =
        crewkit_agent::supervisor::run(&[EXEC_CONFINED.into()], arguments, &mut |text| output::talk(text));
    ExitCode::from(code)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Lets the server have as many files open as the system allows: every request to a model is one.
pub fn raise_open_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
