//! Running the commands of a Taskfile that an agent may have written.
//!
//! Such a command reads its workspace and the system's programs, writes to a directory that goes with it, has no network and
//! gets nothing of the environment but what programs need to find each other.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crewkit_agent::confine::Confinement;
use tokio::process::Command;

/// What the commands of Taskfiles may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskfileCommands {
    /// What this process may do: for a server that runs inside the workspace and belongs to it.
    Plain,
    /// Read their workspace, and nothing else.
    Confined(Sandbox),
    /// Nothing, for this reason: they are not run.
    Off(String),
}

/// How commands are confined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The command line of the helper that confines; the confinement and the command are appended.
    pub helper: Vec<OsString>,
    /// Where the variables of [`PASSED`] are taken from; the others stay here.
    pub environment: Vec<(OsString, OsString)>,
    /// Where directories for temporary files are made.
    pub scratch: PathBuf,
}

/// Variables that confined commands get.
const PASSED: [&str; 6] = ["PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"];

/// What programs need of the system. Of `/etc` only what tells nothing about the people of the machine.
const SYSTEM: [&str; 20] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix",
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/ssl",
    "/etc/timezone",
];

impl Sandbox {
    /// `program` with `arguments`, confined to reading `workspace` and writing `scratch`.
    pub(super) fn command(
        &self,
        workspace: &Path,
        scratch: &Path,
        program: &OsStr,
        arguments: &[OsString],
    ) -> Command {
        let own = Path::new(program);
        let readable = SYSTEM.iter().map(PathBuf::from).chain([workspace.to_owned()]);
        let confinement = Confinement {
            writable: vec![scratch.to_owned()],
            // A program that was found somewhere else must be readable to be run.
            readable: readable.chain(own.is_absolute().then(|| own.to_owned())).collect(),
            ..Confinement::default()
        };
        let line = [program.to_owned()].into_iter().chain(arguments.iter().cloned());
        let mut command = Command::new(self.helper.first().cloned().unwrap_or_default());
        command.args(self.helper.iter().skip(1)).args(confinement.to_arguments(line)).env_clear();
        let passed = self.environment.iter().filter(|(name, _)| PASSED.iter().any(|known| name == known));
        command.envs(passed.map(|(name, value)| (name, value)));
        command.env("HOME", scratch).env("TMPDIR", scratch).env("TASK_TEMP_DIR", scratch);
        command
    }

    /// A new directory for temporary files; gone with what it returns.
    pub(super) fn scratch_dir(&self) -> std::io::Result<ScratchDir> {
        let path = self.scratch.join(uuid::Uuid::now_v7().simple().to_string());
        crate::sys::create_private_dir(&path)?;
        Ok(ScratchDir(path))
    }
}

/// A directory that is removed when it is dropped.
#[derive(Debug)]
pub(super) struct ScratchDir(PathBuf);

impl ScratchDir {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // A command may have filled it; whoever drops it should not wait for that.
        let _ = std::thread::Builder::new().spawn(move || std::fs::remove_dir_all(path));
    }
}
