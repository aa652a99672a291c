//! Running a shell command in the working directory.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crewkit_core::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{number, object, text};
use crate::contract::ToolAnswer;
use crate::sys::confine::{Confinement, KnownDirectory};
use crate::sys::{Launch, ProcessTree};

/// Whether and how agents may run commands.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandPolicy {
    /// They may not; the tool does not exist.
    Off,
    /// Through the helper, which locks itself in before it becomes the command.
    Confined {
        /// Directories commands may read besides the system's own.
        readable: Vec<PathBuf>,
        /// Whether commands may use the network.
        network: bool,
        /// Whether commands may use Unix sockets that others have made.
        unix_sockets: bool,
        /// Their whole environment, apart from what is set per run.
        #[serde(with = "crate::settings::text::environment")]
        environment: Vec<(OsString, OsString)>,
    },
    /// Without confinement, because the operator wants it so.
    Unconfined {
        /// Their whole environment, apart from what is set per run.
        #[serde(with = "crate::settings::text::environment")]
        environment: Vec<(OsString, OsString)>,
    },
}

/// How commands of all runs are started.
#[derive(Debug)]
pub(crate) struct Commands {
    /// Whether and how agents may run them.
    pub(crate) policy: CommandPolicy,
    /// Command line of the helper.
    pub(crate) helper: Vec<OsString>,
    /// Ports of the server that runs the agents.
    pub(crate) server_ports: Vec<u16>,
}

/// Where a system keeps its programs and their settings. Of `/proc` only what describes the machine: with the rest of it a
/// command could read the environment of other processes, and with that the server's keys.
const SYSTEM: [&str; 20] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];

pub(super) fn schema() -> Value {
    object(
        &json!({
            "command": {"type": "string", "description": "Passed to sh -c."},
            "timeout_seconds": {"type": "integer", "minimum": 1, "description": "Kill it after this time."},
        }),
        &["command"],
    )
}

/// Where commands of one run are at home.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The working directory.
    pub(super) workdir: KnownDirectory,
    /// Below it each command gets a directory for temporary files.
    pub(super) scratch: PathBuf,
    /// The run, for the mark its processes carry.
    pub(super) run: String,
}

pub(super) async fn run(
    commands: &Commands,
    place: &Place,
    limits: &Limits,
    arguments: &Value,
) -> ToolAnswer {
    let (command, seconds) = match (text(arguments, "command"), number(arguments, "timeout_seconds")) {
        (Ok(command), Ok(seconds)) => (command, seconds.unwrap_or(limits.tool_call_seconds)),
        (Err(message), _) | (_, Err(message)) => return ToolAnswer::error(message),
    };
    if command.contains('\0') {
        return ToolAnswer::error("the command holds a NUL byte");
    }
    let time = Duration::from_secs(seconds.clamp(1, limits.tool_command_max_seconds));
    match execute(commands, place, command, time, limits).await {
        Ok(answer) => answer,
        Err(error) => ToolAnswer::error(format!("the command could not be started: {error}")),
    }
}

async fn execute(
    commands: &Commands,
    place: &Place,
    command: &str,
    time: Duration,
    limits: &Limits,
) -> std::io::Result<ToolAnswer> {
    let scratch = Scratch::create(&place.scratch)?;
    let mut launch = prepare(commands, &place.workdir, &scratch.0, command)?;
    launch.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tree = ProcessTree::spawn(launch, &place.run)?;
    let room = usize::try_from(limits.tool_result_bytes).unwrap_or(usize::MAX) / 2;
    let (stdout, stderr) = match tree.child() {
        Some(child) => (child.stdout.take(), child.stderr.take()),
        None => (None, None),
    };
    let mut output = Output::default();
    let finished = {
        let reading = async {
            tokio::join!(
                read_ends(stdout, &mut output.stdout, room),
                read_ends(stderr, &mut output.stderr, room)
            );
        };
        // A command is over when its leader has ended; what it left in the background is killed, pipes or not.
        let waiting = async {
            tokio::pin!(reading);
            tokio::select! {
                status = tree.wait() => {
                    let _ = tokio::time::timeout(Duration::from_millis(200), &mut reading).await;
                    status
                }
                () = &mut reading => tree.wait().await,
            }
        };
        tokio::time::timeout(time, waiting).await
    };
    tree.kill_tree().await;
    let seconds = time.as_secs();
    Ok(match finished {
        Ok(Ok(status)) if status.success() => ToolAnswer::ok(output.render("exit code 0")),
        Ok(Ok(status)) => {
            ToolAnswer::error(output.render(&status.to_string().replace("exit status:", "exit code")))
        }
        Ok(Err(error)) => ToolAnswer::error(output.render(&error.to_string())),
        Err(_) => ToolAnswer::error(output.render(&format!("killed after {seconds} seconds"))),
    })
}

fn prepare(
    commands: &Commands,
    workdir: &KnownDirectory,
    scratch: &Path,
    command: &str,
) -> std::io::Result<Launch> {
    let shell: [OsString; 3] = ["sh".into(), "-c".into(), command.into()];
    let (mut launch, environment) = match &commands.policy {
        CommandPolicy::Confined { .. } if commands.helper.is_empty() => {
            return Err(std::io::Error::other("there is no helper to confine it"));
        }
        CommandPolicy::Confined { readable, network, unix_sockets, environment } => {
            let confinement = Confinement {
                workdir: Some(workdir.clone()),
                writable: vec![scratch.to_owned()],
                readable: SYSTEM.iter().map(PathBuf::from).chain(readable.iter().cloned()).collect(),
                network: *network,
                closed_ports: commands.server_ports.clone(),
                unix_sockets: *unix_sockets,
            };
            // It goes to its working directory by itself, when it has seen that it is the one that is meant.
            let mut launch = Launch::new(&commands.helper, Some(&confinement), &shell)?;
            launch.command.current_dir(scratch);
            (launch, environment)
        }
        CommandPolicy::Unconfined { environment } => {
            let mut launch = Launch::new(&commands.helper, None, &shell)?;
            launch.command.current_dir(&workdir.path);
            (launch, environment)
        }
        CommandPolicy::Off => return Err(std::io::ErrorKind::Unsupported.into()),
    };
    launch.command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    launch.command.env("HOME", scratch).env("TMPDIR", scratch);
    Ok(launch)
}

/// A directory for temporary files, gone when the command is.
struct Scratch(PathBuf);

impl Scratch {
    fn create(below: &Path) -> std::io::Result<Self> {
        let path = below.join(uuid::Uuid::now_v7().simple().to_string());
        crate::sys::create_private_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        let _ = std::thread::Builder::new().spawn(move || std::fs::remove_dir_all(path));
    }
}

#[derive(Default)]
struct Output {
    stdout: Ends,
    stderr: Ends,
}

impl Output {
    fn render(&self, outcome: &str) -> String {
        let mut text = outcome.to_owned();
        for (name, ends) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let shown = ends.render();
            if !shown.is_empty() {
                let _ = write!(text, "\n--- {name}\n{shown}");
            }
        }
        text
    }
}

/// Beginning and end of a stream of any length.
#[derive(Default)]
struct Ends {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    dropped: u64,
}

impl Ends {
    fn push(&mut self, bytes: &[u8], room: usize) {
        let to_head = bytes.len().min((room / 2).saturating_sub(self.head.len()));
        self.head.extend_from_slice(&bytes[..to_head]);
        self.tail.extend(&bytes[to_head..]);
        let excess = self.tail.len().saturating_sub(room / 2);
        self.tail.drain(..excess);
        self.dropped += excess as u64;
    }

    fn render(&self) -> String {
        let head = String::from_utf8_lossy(&self.head);
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let tail = String::from_utf8_lossy(&tail);
        if self.dropped == 0 {
            return format!("{head}{tail}");
        }
        format!("{head}\n[… {} bytes left out …]\n{tail}", self.dropped)
    }
}

async fn read_ends(stream: Option<impl AsyncRead + Unpin>, ends: &mut Ends, room: usize) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length) = stream.read(&mut buffer).await {
        if length == 0 {
            break;
        }
        ends.push(&buffer[..length], room);
    }
}
