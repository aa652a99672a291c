//! The helper between the server and a process of an agent: whatever that process starts ends with it.
//!
//! The helper leads a session of its own, without a terminal, and becomes the parent of everything below it that loses its own.
//! So a process cannot get away by leaving its group, its session, its parent or its environment. When the process ends, when
//! the server asks for it, or when the server is gone, the helper kills everything that is left and ends as the process did.
//!
//! The server speaks to it through a pipe: a byte means "ask the process to end", and the end of the pipe, which comes
//! with the end of the server too, means "kill everything".
//!
//! A confined command is started as a second stage of the helper, which locks itself in and becomes the command. The
//! helper itself stays outside, where the command can neither signal nor read it.

use std::ffi::OsString;

use super::confine::{ConfineError, Confinement, number};

/// Exit code when the command could not be confined or the helper was called wrongly.
const NOT_RUN: u8 = 126;
/// Says which number the pipe of the server has.
const CONTROL: &str = "--control";
/// Says that the process is supervised only.
const UNCONFINED: &str = "--unconfined";
/// Says that this is the second stage.
const SECOND_STAGE: &str = "--second-stage";
/// Says that the process is held for the next server; its directory follows.
pub(crate) const HOLD: &str = "--hold";

/// What the helper was told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Order {
    control: Option<i32>,
    unconfined: bool,
    second_stage: bool,
    confinement: Confinement,
    command: Vec<OsString>,
}

impl Order {
    fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ConfineError> {
        let mut order = Self::default();
        let mut arguments = arguments.into_iter();
        loop {
            let flag = arguments.next().ok_or(ConfineError::Usage)?;
            match flag.to_str() {
                Some(CONTROL) => {
                    order.control = Some(number(&arguments.next().ok_or(ConfineError::Usage)?)?);
                }
                Some(UNCONFINED) => order.unconfined = true,
                Some(SECOND_STAGE) => order.second_stage = true,
                Some("--") => break,
                _ if order.confinement.take(&flag, &mut arguments)? => {}
                _ => return Err(ConfineError::Usage),
            }
        }
        order.command = arguments.collect();
        if order.command.is_empty() { Err(ConfineError::Usage) } else { Ok(order) }
    }
}

/// The arguments that make the helper run `command`, confined if that is said.
pub(super) fn to_arguments(
    control: Option<i32>,
    confinement: Option<&Confinement>,
    command: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments = Vec::new();
    if let Some(control) = control {
        arguments.extend([CONTROL.into(), control.to_string().into()]);
    }
    match confinement {
        Some(confinement) => arguments.extend(confinement.to_arguments(command)),
        None => {
            arguments.extend([UNCONFINED.into(), "--".into()]);
            arguments.extend(command);
        }
    }
    arguments
}

/// The helper's whole life; returns what it exits with. `prefix` are the arguments, if any, by which the program that calls this
/// knows that it is the helper. `complain` shows a message to whoever started it.
pub fn run(
    prefix: &[OsString],
    arguments: impl IntoIterator<Item = OsString>,
    complain: &mut dyn FnMut(&str),
) -> u8 {
    let mut arguments = arguments.into_iter().peekable();
    let ended = if arguments.next_if(|first| first == HOLD).is_some() {
        arguments.next().ok_or(ConfineError::Usage).and_then(|dir| imp::hold(&dir))
    } else {
        Order::read(arguments).and_then(|order| {
            if order.second_stage { Err(imp::become_command(&order)) } else { imp::supervise(prefix, &order) }
        })
    };
    ended.unwrap_or_else(|error| {
        complain(&error.to_string());
        NOT_RUN
    })
}

#[cfg(target_os = "linux")]
mod imp {
    use std::ffi::OsString;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};
    use std::time::Duration;

    use rustix::process::{
        Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    };

    use super::{ConfineError, Order, SECOND_STAGE};
    use crate::sys::confine::lock_in;
    use crate::sys::descendants;

    /// This program, whatever has become of its file.
    const MYSELF: &str = "/proc/self/exe";

    /// Locks this process in and becomes the command; returns only if that failed.
    pub(super) fn become_command(order: &Order) -> ConfineError {
        // Should the helper be killed by somebody else, the command does not live on without it.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if let Err(error) = lock_in(&order.confinement) {
            return error;
        }
        let Some((program, arguments)) = order.command.split_first() else { return ConfineError::Usage };
        let source = Command::new(program).args(arguments).exec();
        ConfineError::Start { program: program.clone(), source }
    }

    /// Becomes the shim of the process that is ordered in `dir`.
    pub(super) fn hold(dir: &std::ffi::OsStr) -> Result<u8, ConfineError> {
        let held = crate::held::run_shim(std::path::Path::new(dir));
        held.map(|()| 0)
            .map_err(|error| ConfineError::Unavailable(format!("the process is not held: {error}")))
    }

    /// Starts the process and stays until nothing of it is left.
    pub(super) fn supervise(prefix: &[OsString], order: &Order) -> Result<u8, ConfineError> {
        let broken =
            |what: &str, error: &dyn std::fmt::Display| ConfineError::Unavailable(format!("{what}: {error}"));
        rustix::process::setsid().map_err(|error| broken("the session cannot be left", &error))?;
        rustix::process::set_child_subreaper(Some(getpid()))
            .map_err(|error| broken("processes cannot be kept together", &error))?;
        let lifeline =
            Lifeline::open(order.control).map_err(|error| broken("the server is not in reach", &error))?;
        crate::sys::close_inherited(&[lifeline.number()])
            .map_err(|error| broken("open files stay", &error))?;
        let leader = start(prefix, order)?;
        let leader = Pid::from_child(&leader);
        crate::sys::hold_no_streams();
        let watching = std::thread::Builder::new().spawn(move || {
            lifeline.watch(leader);
            // Nobody is left to work for. The other thread ends us when everything is gone.
            loop {
                descendants::signal_all(Signal::KILL);
                std::thread::sleep(descendants::PAUSES[1]);
            }
        });
        if watching.is_err() {
            let _ = kill_process_group(leader, Signal::KILL);
        }
        let status = end_of(leader);
        descendants::end_all(|_, _| {});
        Ok(end_like(status))
    }

    fn start(prefix: &[OsString], order: &Order) -> Result<Child, ConfineError> {
        let (program, arguments) = order.command.split_first().ok_or(ConfineError::Usage)?;
        let mut command = if order.unconfined {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        } else {
            let mut command = Command::new(MYSELF);
            command.arg0("crewkit").args(prefix).arg(SECOND_STAGE);
            command.args(order.confinement.to_arguments(order.command.iter().cloned()));
            command
        };
        command.env_remove(crate::sys::process::MARK_HELPER).process_group(0);
        command.spawn().map_err(|source| ConfineError::Start { program: program.clone(), source })
    }

    /// What tells that the server wants an end, or has come to its own.
    enum Lifeline {
        /// The server's pipe.
        Pipe(File),
        /// A handle of the process that started the helper by hand.
        Parent(rustix::fd::OwnedFd),
    }

    impl Lifeline {
        fn open(control: Option<i32>) -> std::io::Result<Self> {
            let Some(control) = control else {
                let parent = rustix::process::getppid().ok_or(std::io::ErrorKind::NotFound)?;
                let handle = rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty())?;
                let is_parent = rustix::process::getppid() == Some(parent);
                return if is_parent {
                    Ok(Self::Parent(handle))
                } else {
                    Err(std::io::ErrorKind::NotFound.into())
                };
            };
            // Opened once more by its number, because a bare number cannot be owned.
            File::open(format!("/proc/self/fd/{control}")).map(Self::Pipe)
        }

        fn number(&self) -> i32 {
            match self {
                Self::Pipe(file) => file.as_raw_fd(),
                Self::Parent(handle) => handle.as_raw_fd(),
            }
        }

        /// Passes on what the server asks for; returns when everything has to end.
        fn watch(self, leader: Pid) {
            use rustix::event::{PollFd, PollFlags, poll};
            match self {
                Self::Pipe(mut pipe) => {
                    while pipe.read(&mut [0; 16]).is_ok_and(|length| length > 0) {
                        let _ = kill_process_group(leader, Signal::TERM);
                    }
                }
                Self::Parent(handle) => {
                    while poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).is_err() {}
                }
            }
        }
    }

    /// Waits for the leader to end; collects whatever else ends meanwhile.
    fn end_of(leader: Pid) -> Option<WaitStatus> {
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == leader => return Some(status),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// The exit code of the process. One that a signal ended lets the helper end by the same signal.
    fn end_like(status: Option<WaitStatus>) -> u8 {
        const SIGNALLED: i32 = 128;
        let Some(status) = status else { return super::NOT_RUN };
        if let Some(code) = status.exit_status() {
            return u8::try_from(code).unwrap_or(u8::MAX);
        }
        let number = status.terminating_signal().unwrap_or_default();
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            // The first one may only take away the handler that every Rust program has for some signals.
            for _ in 0..2 {
                let _ = kill_process(getpid(), signal);
                // Another thread may be the one that takes it.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        u8::try_from(SIGNALLED + number).unwrap_or(u8::MAX)
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::{ConfineError, Order, OsString};

    pub(super) fn become_command(_: &Order) -> ConfineError {
        ConfineError::Unavailable("not a Linux system".to_owned())
    }

    pub(super) fn hold(_: &std::ffi::OsStr) -> Result<u8, ConfineError> {
        Err(ConfineError::Unavailable("not a Linux system".to_owned()))
    }

    pub(super) fn supervise(_: &[OsString], _: &Order) -> Result<u8, ConfineError> {
        Err(ConfineError::Unavailable("not a Linux system".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::confine::KnownDirectory;

    #[test]
    fn arguments_read_back() {
        let confinement = Confinement {
            workdir: Some(KnownDirectory { path: "/w d".into(), device: 1, inode: 2 }),
            writable: vec!["/a".into(), "/b c".into()],
            readable: vec!["/usr".into()],
            network: true,
            closed_ports: vec![80, 8101],
            unix_sockets: true,
        };
        let command: Vec<OsString> = ["sh", "-c", "--write x --"].map(Into::into).to_vec();
        let order = Order::read(to_arguments(Some(7), Some(&confinement), command.clone())).unwrap();
        let expected = Order { control: Some(7), confinement, command: command.clone(), ..Order::default() };
        assert_eq!(order, expected);
        let order = Order::read(to_arguments(None, None, command.clone())).unwrap();
        assert_eq!(order, Order { unconfined: true, command, ..Order::default() });
        for bad in [
            &["--"][..],
            &["--write"],
            &["sh"],
            &[],
            &["--control", "x", "--", "a"],
            &["--closed-port", "70000", "--", "a"],
            &["--workdir", "1", "2"],
        ] {
            assert!(Order::read(bad.iter().map(Into::into)).is_err(), "{bad:?}");
        }
    }
}
