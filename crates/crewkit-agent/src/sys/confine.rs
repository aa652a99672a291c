//! What a command of an agent may reach, and how a process locks itself in.
//!
//! A process can only lock itself in, so a command is started through a helper (see [`super::supervisor`]), a hidden sub-command
//! of the binary. Its arguments are made and read here.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// What a confined command may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confinement {
    /// The directory it works in and may change, if it has one: known by more than its path, because somebody else may put
    /// another directory, or a link to one, in its place.
    pub workdir: Option<KnownDirectory>,
    /// Other directories it may read and change.
    pub writable: Vec<PathBuf>,
    /// Directories it may read and run programs from.
    pub readable: Vec<PathBuf>,
    /// Whether it may use the network.
    pub network: bool,
    /// TCP ports it may not connect to, even with the network.
    pub closed_ports: Vec<u16>,
    /// Whether it may use Unix sockets that others have made.
    pub unix_sockets: bool,
}

/// A directory that is the same one only with the same numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDirectory {
    /// Where it was found.
    pub path: PathBuf,
    /// The number of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// Why a command was not run.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The helper was called wrongly.
    #[error(
        "usage: [--control FD] [--unconfined] [--workdir DEVICE INODE DIR] [--write DIR]… [--read DIR]… [--network] \
         [--closed-port PORT]… [--unix-sockets] -- PROGRAM [ARGUMENT]…"
    )]
    Usage,
    /// The kernel cannot confine.
    #[error("this system cannot confine commands: {0}")]
    Unavailable(String),
    /// The working directory is not what it was.
    #[error("{}: the working directory was moved or replaced", .0.display())]
    Moved(PathBuf),
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
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(KnownDirectory { path, device, inode }) = &self.workdir {
            arguments.extend(["--workdir".into(), device.to_string().into(), inode.to_string().into()]);
            arguments.push(path.clone().into());
        }
        for (flag, paths) in [("--write", &self.writable), ("--read", &self.readable)] {
            for path in paths {
                arguments.extend([flag.into(), path.clone().into_os_string()]);
            }
        }
        for port in &self.closed_ports {
            arguments.extend(["--closed-port".into(), port.to_string().into()]);
        }
        let flags = [(self.network, "--network"), (self.unix_sockets, "--unix-sockets")];
        arguments.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into()));
        arguments.push("--".into());
        arguments.extend(command);
        arguments
    }

    /// Takes one flag with its values; says whether it is one of the confinement's.
    pub(super) fn take(
        &mut self,
        flag: &OsStr,
        values: &mut impl Iterator<Item = OsString>,
    ) -> Result<bool, ConfineError> {
        let mut value = || values.next().ok_or(ConfineError::Usage);
        match flag.to_str() {
            Some("--workdir") => {
                let (device, inode) = (number(&value()?)?, number(&value()?)?);
                self.workdir = Some(KnownDirectory { path: value()?.into(), device, inode });
            }
            Some("--write") => self.writable.push(value()?.into()),
            Some("--read") => self.readable.push(value()?.into()),
            Some("--closed-port") => self.closed_ports.push(number(&value()?)?),
            Some("--network") => self.network = true,
            Some("--unix-sockets") => self.unix_sockets = true,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

pub(super) fn number<N: std::str::FromStr>(text: &OsStr) -> Result<N, ConfineError> {
    text.to_str().and_then(|text| text.parse().ok()).ok_or(ConfineError::Usage)
}

/// Whether the kernel can confine commands.
pub fn available() -> bool {
    platform::available()
}

#[cfg(target_os = "linux")]
pub(super) use platform::lock_in;

#[cfg(target_os = "linux")]
mod platform {
    use std::os::fd::OwnedFd;

    use landlock::{
        ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset,
        RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
        path_beneath_rules,
    };
    use rustix::fs::{Mode, OFlags};
    use rustix::thread::{CapabilitySet, CapabilitySets};

    use super::{ConfineError, Confinement, KnownDirectory};
    use crate::sys::seccomp;

    /// The newest set of rights asked for; an older kernel enforces the part it knows.
    const RIGHTS: ABI = ABI::V6;
    /// Devices every program expects. The terminal is not among them: whoever can write to it can type into it.
    const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    /// What is left of root's powers: those over files that it may reach, and to become somebody with less.
    const KEPT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
        .union(CapabilitySet::DAC_OVERRIDE)
        .union(CapabilitySet::FOWNER)
        .union(CapabilitySet::FSETID)
        .union(CapabilitySet::SETGID)
        .union(CapabilitySet::SETUID)
        .union(CapabilitySet::NET_BIND_SERVICE);

    pub(super) fn available() -> bool {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create)
            .is_ok()
    }

    /// Locks this process in for good. Everything it starts is locked in with it.
    pub(in crate::sys) fn lock_in(confinement: &Confinement) -> Result<(), ConfineError> {
        let workdir = confinement.workdir.as_ref().map(enter).transpose()?;
        drop_capabilities()?;
        let no = |error: RulesetError| ConfineError::Unavailable(error.to_string());
        let status = rules(confinement, workdir).and_then(RulesetCreated::restrict_self).map_err(no)?;
        if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
            return Err(ConfineError::Unavailable("the kernel has no Landlock".to_owned()));
        }
        seccomp::apply(confinement.network, confinement.unix_sockets).map_err(ConfineError::Unavailable)
    }

    /// Opens the directory and goes there, if it is still the one that was meant.
    fn enter(known: &KnownDirectory) -> Result<OwnedFd, ConfineError> {
        let moved = || ConfineError::Moved(known.path.clone());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&known.path, flags, Mode::empty()).map_err(|_| moved())?;
        let stat = rustix::fs::fstat(&handle).map_err(|_| moved())?;
        if (stat.st_dev, stat.st_ino) != (known.device, known.inode) {
            return Err(moved());
        }
        rustix::process::fchdir(&handle).map_err(|_| moved())?;
        Ok(handle)
    }

    /// Root could make a device file of the disk in its working directory, set the clock, or load a module; none of that is what
    /// Landlock looks at.
    fn drop_capabilities() -> Result<(), ConfineError> {
        let no = |error: rustix::io::Errno| ConfineError::Unavailable(format!("capabilities stay: {error}"));
        let now = rustix::thread::capabilities(None).map_err(no)?;
        let kept = now.permitted & KEPT_CAPABILITIES;
        let sets = CapabilitySets {
            effective: now.effective & kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).map_err(no)
    }

    fn rules(confinement: &Confinement, workdir: Option<OwnedFd>) -> Result<RulesetCreated, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RIGHTS))?
            .scope(Scope::from_all(RIGHTS))?;
        if !confinement.network {
            // Sockets cannot be made at all then; this is a second wall where the kernel has it.
            ruleset = ruleset.handle_access(AccessNet::from_all(RIGHTS))?;
        } else if !confinement.closed_ports.is_empty() {
            // A kernel that cannot close a port is one on which the command does not run.
            ruleset = ruleset
                .set_compatibility(CompatLevel::HardRequirement)
                .handle_access(AccessNet::ConnectTcp)?
                .set_compatibility(CompatLevel::BestEffort);
        }
        let mut rules = ruleset.create()?;
        if confinement.network && !confinement.closed_ports.is_empty() {
            let open = (0..=u16::MAX).filter(|port| !confinement.closed_ports.contains(port));
            rules = rules.add_rules(
                open.map(|port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp))),
            )?;
        }
        // Nobody needs to make device files, nor to control devices that lie in a working directory.
        let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
        let change: BitFlags<AccessFs> = AccessFs::from_all(RIGHTS) & !devices;
        if let Some(workdir) = workdir {
            rules = rules.add_rule(PathBeneath::new(workdir, change))?;
        }
        rules
            .add_rules(path_beneath_rules(&confinement.writable, change))?
            .add_rules(path_beneath_rules(&confinement.readable, AccessFs::from_read(RIGHTS)))?
            .add_rules(path_beneath_rules(DEVICES, AccessFs::ReadFile | AccessFs::WriteFile))
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    pub(super) fn available() -> bool {
        false
    }
}
