//! What tells one server process from another: its build, its process, and where it runs.

use std::cmp::Ordering;
use std::fmt;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// Which build of crewkit a process runs: the version, and when the executable was made.
///
/// Builds are ordered, so that a newer one can take over from an older one and never the other way round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Build(String);

impl Build {
    /// The build of this process.
    pub fn own() -> Self {
        #[cfg(debug_assertions)]
        if let Ok(build) = std::env::var(TEST_BUILD) {
            return Self(build);
        }
        let made = std::fs::metadata(executable()).and_then(|file| file.modified()).ok();
        let made = made.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        Self(format!("{}+{}", env!("CARGO_PKG_VERSION"), made.as_secs()))
    }

    /// Whether this build is newer than `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.order().cmp(&other.order()) == Ordering::Greater
    }

    /// The numbers of the version, then the time.
    fn order(&self) -> Vec<u64> {
        self.0.split(['.', '+', '-']).map(|part| part.parse().unwrap_or(0)).collect()
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replaces the build of a process in debug builds, for tests of upgrades.
#[cfg(debug_assertions)]
pub const TEST_BUILD: &str = "CREWKIT_TEST_BUILD";
/// Replaces the protocol number of a process in debug builds, for tests of upgrades.
#[cfg(debug_assertions)]
pub const TEST_PROTOCOL: &str = "CREWKIT_TEST_PROTOCOL";

/// The protocol number of this process.
pub fn protocol() -> u32 {
    #[cfg(debug_assertions)]
    if let Some(protocol) = std::env::var(TEST_PROTOCOL).ok().and_then(|text| text.parse().ok()) {
        return protocol;
    }
    crewkit_server::asker::PROTOCOL
}

/// The executable that this process runs. On Linux it is reached even if its file was replaced or removed.
pub fn executable() -> std::path::PathBuf {
    let running = std::path::Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() {
        return running.to_owned();
    }
    std::env::current_exe().unwrap_or_else(|_| "crewkit".into())
}

/// The namespaces of a process. Two processes in different ones see different files or processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Namespaces {
    /// The mount namespace. `None` where there is no such thing.
    pub mnt: Option<String>,
    /// The process namespace. `None` where there is no such thing.
    pub pid: Option<String>,
}

impl Namespaces {
    /// Those of this process.
    pub fn own() -> Self {
        let of = |name: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
            Some(link.to_string_lossy().into_owned())
        };
        Self { mnt: of("mnt"), pid: of("pid") }
    }

    /// Which kind of namespace differs, in words. Returns `None` if none does.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.mnt != other.mnt {
            return Some("mount namespace");
        }
        (self.pid != other.pid).then_some("process namespace")
    }
}

/// What the kernel calls the present run of the machine. `None` where there is no such thing.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// When `pid` was started, in ticks since the machine was. With the pid this names a process for as long as the machine runs.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in parentheses and can hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_ordered_by_version_and_then_by_time() {
        for (newer, older) in [
            ("0.2.0+1", "0.1.9+9"),
            ("0.10.0+1", "0.9.0+1"),
            ("0.1.0+20", "0.1.0+3"),
            ("1.0.0+1", "0.99.99+99"),
            ("0.1.0+1", "0.1.0"),
        ] {
            let (newer, older) = (Build(newer.to_owned()), Build(older.to_owned()));
            assert!(newer.is_newer_than(&older) && !older.is_newer_than(&newer), "{newer} {older}");
            assert!(!newer.is_newer_than(&newer.clone()));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_start_and_namespaces() {
        assert!(start_ticks(std::process::id()).is_some_and(|ticks| ticks > 0));
        let own = Namespaces::own();
        assert!(own.mnt.is_some() && own.pid.is_some());
        assert_eq!(own.difference(&Namespaces { pid: None, ..own.clone() }), Some("process namespace"));
        assert_eq!(own.difference(&own), None);
    }
}
