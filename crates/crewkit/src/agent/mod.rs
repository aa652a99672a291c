//! `crewkit agent`: contracts from the command line.

mod backend;
mod commands;
mod options;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use crewkit_agent::Error;
use crewkit_server::services::Forward;
use futures_util::FutureExt as _;

pub use commands::{AgentCommand, run};
pub use options::options;

use crate::config::Config;
use crate::failure::Failure;
use crate::output;
use crate::remote::Remote;

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

/// The way to a running server, taken when it has the store.
pub fn forward(config: &Config) -> Forward {
    let config = Arc::new(config.clone());
    Arc::new(move |operation, arguments| {
        let config = Arc::clone(&config);
        async move {
            let remote = Remote::new(&config).map_err(|failure| failure.to_string())?;
            remote.run(operation, arguments).await.map_err(|failure| failure.to_string())
        }
        .boxed()
    })
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
