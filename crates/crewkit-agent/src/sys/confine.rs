//! Running a command that can reach its working directory and the system's programs, and nothing else.
//!
//! A process can only lock itself in, so a command is started through a small helper (this module behind a hidden
//! sub-command of the binary) that does so and then becomes the command.

use std::ffi::OsString;
use std::path::PathBuf;

/// What a confined command may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// Directories it may read and change.
    pub writable: Vec<PathBuf>,
    /// Directories it may read and run programs from.
    pub readable: Vec<PathBuf>,
    /// Whether it may use the network.
    pub network: bool,
}

/// Why a command was not run.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The helper was called wrongly.
    #[error("usage: [--write DIR]… [--read DIR]… [--network] -- PROGRAM [ARGUMENT]…")]
    Usage,
    /// The kernel cannot confine.
    #[error("this system cannot confine commands: {0}")]
    Unavailable(String),
    /// The program could not be started.
    #[error("{}: {source}", PathBuf::from(program).display())]
    Start {
        /// Which.
        program: OsString,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Confinement {
    /// The arguments that make the helper apply this to `command`.
    pub fn to_arguments(&self, command: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let mut arguments = Vec::new();
        for (flag, paths) in [("--write", &self.writable), ("--read", &self.readable)] {
            for path in paths {
                arguments.extend([flag.into(), path.clone().into_os_string()]);
            }
        }
        if self.network {
            arguments.push("--network".into());
        }
        arguments.push("--".into());
        arguments.extend(command);
        arguments
    }

    /// Reads what [`Self::to_arguments`] wrote.
    pub fn from_arguments(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Vec<OsString>), ConfineError> {
        let mut confinement = Self::default();
        let mut arguments = arguments.into_iter();
        loop {
            let flag = arguments.next().ok_or(ConfineError::Usage)?;
            match flag.to_str() {
                Some("--write") => {
                    confinement.writable.push(arguments.next().ok_or(ConfineError::Usage)?.into());
                }
                Some("--read") => {
                    confinement.readable.push(arguments.next().ok_or(ConfineError::Usage)?.into());
                }
                Some("--network") => confinement.network = true,
                Some("--") => break,
                _ => return Err(ConfineError::Usage),
            }
        }
        let command: Vec<OsString> = arguments.collect();
        if command.is_empty() { Err(ConfineError::Usage) } else { Ok((confinement, command)) }
    }
}

/// The helper's whole life: lock this process in and become the command. Returns only if that failed.
pub fn exec(arguments: impl IntoIterator<Item = OsString>) -> ConfineError {
    let (confinement, command) = match Confinement::from_arguments(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return error,
    };
    match platform::apply(&confinement) {
        Ok(()) => become_command(&command),
        Err(error) => error,
    }
}

#[cfg(unix)]
fn become_command(command: &[OsString]) -> ConfineError {
    use std::os::unix::process::CommandExt;
    let Some((program, arguments)) = command.split_first() else { return ConfineError::Usage };
    let source = std::process::Command::new(program).args(arguments).exec();
    ConfineError::Start { program: program.clone(), source }
}

#[cfg(not(unix))]
fn become_command(_: &[OsString]) -> ConfineError {
    ConfineError::Unavailable("not a Unix system".to_owned())
}

/// Whether the kernel can confine commands.
pub fn available() -> bool {
    platform::available()
}

#[cfg(target_os = "linux")]
mod platform {
    use std::collections::BTreeMap;

    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
        RulesetStatus, Scope, path_beneath_rules,
    };

    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule,
    };

    use super::{ConfineError, Confinement};

    /// Marks calls of the second kind x86-64 kernels may take: the same calls under other numbers.
    const OTHER_ABI: i64 = 0x4000_0000;
    /// The newest set of rights asked for; an older kernel enforces the part it knows.
    const RIGHTS: ABI = ABI::V6;
    /// Devices every program expects.
    const DEVICES: [&str; 6] =
        ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

    pub(super) fn available() -> bool {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create)
            .is_ok()
    }

    pub(super) fn apply(confinement: &Confinement) -> Result<(), ConfineError> {
        let no = |error: landlock::RulesetError| ConfineError::Unavailable(error.to_string());
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(RIGHTS))
            .and_then(|rules| rules.scope(Scope::from_all(RIGHTS)))
            .map_err(no)?;
        if !confinement.network {
            ruleset = ruleset.handle_access(AccessNet::from_all(RIGHTS)).map_err(no)?;
        }
        let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
        let status = ruleset
            .create()
            .and_then(|rules| {
                rules.add_rules(path_beneath_rules(&confinement.writable, AccessFs::from_all(RIGHTS)))
            })
            .and_then(|rules| {
                rules.add_rules(path_beneath_rules(&confinement.readable, AccessFs::from_read(RIGHTS)))
            })
            .and_then(|rules| rules.add_rules(path_beneath_rules(DEVICES, devices)))
            .and_then(landlock::RulesetCreated::restrict_self)
            .map_err(no)?;
        if status.ruleset == RulesetStatus::NotEnforced {
            return Err(ConfineError::Unavailable("the kernel has no Landlock".to_owned()));
        }
        if confinement.network { Ok(()) } else { forbid_sockets() }
    }

    /// Landlock knows TCP alone, and data gets out by UDP just as well. So no socket can be made but local ones, neither by the
    /// ordinary call nor by the ring that makes calls in its place.
    fn forbid_sockets() -> Result<(), ConfineError> {
        let no = |error: &dyn std::fmt::Display| {
            ConfineError::Unavailable(format!("the network cannot be denied: {error}"))
        };
        let local = u64::from(libc::AF_UNIX.unsigned_abs());
        let not_local = || {
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, local)
                .and_then(|condition| SeccompRule::new(vec![condition]))
        };
        let mut forbidden = BTreeMap::new();
        for number in [libc::SYS_socket, libc::SYS_socket | OTHER_ABI] {
            forbidden.insert(number, vec![not_local().map_err(|error| no(&error))?]);
        }
        for number in [libc::SYS_io_uring_setup, libc::SYS_io_uring_setup | OTHER_ABI] {
            forbidden.insert(number, Vec::new());
        }
        let here = std::env::consts::ARCH.try_into().map_err(|error: BackendError| no(&error))?;
        let refuse = SeccompAction::Errno(libc::EACCES.unsigned_abs());
        let filter = SeccompFilter::new(forbidden, SeccompAction::Allow, refuse, here)
            .and_then(BpfProgram::try_from)
            .map_err(|error| no(&error))?;
        seccompiler::apply_filter(&filter).map_err(|error| no(&error))
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use super::{ConfineError, Confinement};

    pub(super) fn available() -> bool {
        false
    }

    pub(super) fn apply(_: &Confinement) -> Result<(), ConfineError> {
        Err(ConfineError::Unavailable("Landlock is a feature of Linux".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_back() {
        let confinement = Confinement {
            writable: vec!["/a".into(), "/b c".into()],
            readable: vec!["/usr".into()],
            network: true,
        };
        let command: Vec<OsString> = ["sh", "-c", "--write x --"].map(Into::into).to_vec();
        let parsed = Confinement::from_arguments(confinement.to_arguments(command.clone())).unwrap();
        assert_eq!(parsed, (confinement, command));
        for bad in [&["--"][..], &["--write"], &["sh"], &[]] {
            assert!(Confinement::from_arguments(bad.iter().map(Into::into)).is_err(), "{bad:?}");
        }
    }
}
