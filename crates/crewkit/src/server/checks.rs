//! When no server is started in the background, and why.
//!
//! A background server outlives the command that started it and serves everybody else of the home. So it must not be started
//! from inside a sandbox, by an agent or by another user: all later clients would be served from there.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crewkit_agent::MARK_RUN;
use crewkit_fleet::backend::local::MARK_TASK;

/// Bytes that a home must have room for: the record, the log and the first pages of the store.
const PROBE_BYTES: usize = 64 * 1024;

/// File systems that are on another machine. Locks and sockets there do not mean what they mean here.
const NETWORK: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "9p",
    "lustre",
    "beegfs",
    "fuse.sshfs",
    "fuse.glusterfs",
];

/// Why no server is started in the background for `home`. Returns `None` if one can be.
pub(super) fn refusal(home: &Path) -> Option<String> {
    agent_mark()
        .or_else(|| other_user(home))
        .or_else(sandbox)
        .or_else(|| file_system(home))
        .map(|why| format!("No server is started in the background: {why}, or use `--in-process`"))
}

/// An agent that starts a server would own everybody's agents.
fn agent_mark() -> Option<String> {
    let mark = [MARK_RUN, MARK_TASK].into_iter().find(|mark| std::env::var_os(mark).is_some())?;
    Some(format!("this process belongs to an agent ({mark} is set). Start the server outside of it"))
}

/// With `sudo`, files of the home would belong to root.
fn other_user(home: &Path) -> Option<String> {
    let owner = existing(home)?.1.uid();
    let own = rustix::process::geteuid().as_raw();
    (owner != own).then(|| {
        format!(
            "{} belongs to user {owner}, and this process runs as user {own}. Run it as that user",
            home.display()
        )
    })
}

/// The nearest of the home and its parents that exists.
fn existing(home: &Path) -> Option<(&Path, std::fs::Metadata)> {
    home.ancestors().find_map(|path| Some((path, std::fs::metadata(path).ok()?)))
}

fn sandbox() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    sandbox_by(&status, std::fs::read_to_string("/proc/1/status").ok().as_deref())
}

/// Whether a process with this status is in a sandbox that the system around it is not in. `init` is the status of process 1.
fn sandbox_by(status: &str, init: Option<&str>) -> Option<String> {
    let field = |status: &str, name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.is_some_and(|value| value.trim() != "0")
    };
    if field(status, "NoNewPrivs") {
        return Some(
            "this process is in a sandbox (no_new_privs is set). Start the server outside of it".to_owned(),
        );
    }
    // A filter without no_new_privs was installed by root. Container engines give one to everything in a container.
    let everywhere = init.is_some_and(|init| field(init, "Seccomp"));
    (field(status, "Seccomp") && !everywhere).then(|| {
        "this process is in a sandbox (a seccomp filter is active). Start the server outside of it".to_owned()
    })
}

fn file_system(home: &Path) -> Option<String> {
    let (nearest, metadata) = existing(home)?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(kind) = file_system_of(&mounts, metadata.dev()).filter(|kind| NETWORK.contains(kind)) {
        return Some(format!(
            "{} is on a network file system ({kind}). Use a home on a local disk (`--home`)",
            nearest.display()
        ));
    }
    probe(home).err().map(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::ROFS.raw_os_error() => {
            format!("{} is read-only. Use a home that can be written (`--home`)", home.display())
        }
        Some(code)
            if [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT]
                .iter()
                .any(|full| full.raw_os_error() == code) =>
        {
            format!("the disk of {} is full. Free some space", home.display())
        }
        _ => format!("{}: {error}. Make it writable", home.display()),
    })
}

/// Writes and removes a file, to learn whether the home has room.
fn probe(home: &Path) -> std::io::Result<()> {
    let directory = home.join("run");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("probe.{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(&vec![0; PROBE_BYTES]));
    let _ = std::fs::remove_file(&path);
    written
}

/// The kind of file system that the device number belongs to, in the format of `/proc/self/mountinfo`.
fn file_system_of(mounts: &str, device: u64) -> Option<&str> {
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mounts.lines().find_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| rest.split(' ').next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_told_from_a_container() {
        let status = |privileges: u8, seccomp: u8| {
            format!("Name:\tx\nNoNewPrivs:\t{privileges}\nSeccomp:\t{seccomp}\n")
        };
        for (own, init, expected) in [
            (status(0, 0), Some(status(0, 0)), None),
            (status(0, 2), Some(status(0, 2)), None),
            (status(0, 2), Some(status(0, 0)), Some("seccomp")),
            (status(0, 2), None, Some("seccomp")),
            (status(1, 2), Some(status(1, 2)), Some("no_new_privs")),
            (status(1, 0), Some(status(0, 0)), Some("no_new_privs")),
            (String::new(), None, None),
        ] {
            let found = sandbox_by(&own, init.as_deref());
            match expected {
                None => assert_eq!(found, None, "{own} {init:?}"),
                Some(word) => assert!(found.is_some_and(|why| why.contains(word)), "{own} {init:?}"),
            }
        }
    }

    #[test]
    fn the_file_system_of_a_home_is_found_by_its_device() {
        let mounts = "22 1 0:20 / / rw - overlay overlay rw\n\
                      40 22 0:50 / /home rw,relatime shared:3 - nfs4 host:/home rw\n\
                      41 22 0:51 / /work rw - fuse.sshfs me@host: rw\n";
        let device = |minor| rustix::fs::makedev(0, minor);
        assert_eq!(file_system_of(mounts, device(20)), Some("overlay"));
        assert_eq!(file_system_of(mounts, device(50)), Some("nfs4"));
        assert_eq!(file_system_of(mounts, device(51)), Some("fuse.sshfs"));
        assert_eq!(file_system_of(mounts, device(9)), None);
        assert_eq!(file_system_of("", device(20)), None);
    }
}
