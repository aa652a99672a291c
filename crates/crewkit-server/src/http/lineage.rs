//! Which processes of this machine were started by an agent.
//!
//! Everything crewkit starts for an agent carries a mark in its environment. A child can drop the mark, but not its
//! ancestors: commands run below a helper that carries the mark, stays the same program, and adopts whatever is orphaned.
//! So a process belongs to an agent if it or any of its ancestors is marked. Marks that this server carries itself do not
//! count: a server that an agent started for its own work serves that agent.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use crewkit_agent::MARK_RUN;
use crewkit_fleet::backend::local::MARK_TASK;

/// Variables that name the run, or before 0.2 the task, that a process belongs to.
const MARKS: [&str; 2] = [MARK_RUN, MARK_TASK];

/// Ancestors looked at. A longer chain is no ordinary one.
const MAX_ANCESTORS: usize = 1024;

type Marks = BTreeSet<Vec<u8>>;

/// Whether an agent started `pid`; `None` if that cannot be told, for instance because the process is gone.
pub(super) fn is_agent(pid: u32) -> Option<bool> {
    Some(marks_of_lineage(pid)?.difference(own_marks()).next().is_some())
}

/// Whether any process of this user that an agent started is alive.
pub(super) fn any_agent_alive() -> bool {
    own_processes().any(|pid| marks(pid).difference(own_marks()).next().is_some())
}

/// The process of this user that has the socket `inode` open.
pub(super) fn holder_of(inode: u32) -> Option<u32> {
    let link = format!("socket:[{inode}]");
    own_processes().find(|pid| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors
            .filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok())
            .any(|target| target.as_os_str() == link.as_str())
    })
}

fn own_marks() -> &'static Marks {
    static OWN: OnceLock<Marks> = OnceLock::new();
    OWN.get_or_init(|| marks_of_lineage(std::process::id()).unwrap_or_default())
}

fn marks_of_lineage(mut pid: u32) -> Option<Marks> {
    let mut found = Marks::new();
    for _ in 0..MAX_ANCESTORS {
        found.extend(marks(pid));
        pid = parent(pid)?;
        if pid == 0 {
            return Some(found);
        }
    }
    None
}

/// The marks in the environment of `pid`; none if it cannot be read, as with processes of others.
fn marks(pid: u32) -> Marks {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_mark = |entry: &&[u8]| {
        let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default();
        MARKS.iter().any(|mark| mark.as_bytes() == name)
    };
    environment.split(|byte| *byte == 0).filter(is_mark).map(<[u8]>::to_vec).collect()
}

/// The parent of `pid`, 0 for the first process; `None` if `pid` is gone.
fn parent(pid: u32) -> Option<u32> {
    parent_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the parent from `/proc/PID/stat`. The name of the program comes before it and may contain anything.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn own_processes() -> impl Iterator<Item = u32> {
    let own = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == own).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A shell that says the id of a process when that is there, which ends with its input.
    fn marked(script: &str, mark: Option<&str>) -> (Child, u32) {
        use std::io::BufRead as _;
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(mark) = mark {
            command.env("CREWKIT_RUN", mark);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim().parse().unwrap())
    }

    #[test]
    fn a_mark_is_inherited_from_any_ancestor() {
        // Whoever carries the mark does not become another program: for an instant it would have no environment.
        for (script, mark, expected) in [
            ("echo $$; read line", Some("agent_1"), true),
            ("env -i sh -c 'echo $$; read line'; true", Some("agent_2"), true),
            ("env -i setsid --wait sh -c 'echo $$; read line'; true", Some("agent_3"), true),
            ("echo $$; read line", None, false),
        ] {
            let (mut child, pid) = marked(script, mark);
            assert_eq!(is_agent(pid), Some(expected), "{script}");
            assert!(!expected || any_agent_alive());
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(is_agent(child.id()), None, "a process that is gone");
        }
    }

    #[test]
    fn the_name_of_a_program_does_not_mislead() {
        for (stat, expected) in [
            ("7 (sh) S 5 7 7 0", Some(5)),
            ("7 (a) S 1 (b) R 6 7", Some(6)),
            ("7 (sh S 5", None),
            ("", None),
            ("7 (sh) S", None),
        ] {
            assert_eq!(parent_in(stat), expected, "{stat}");
        }
    }
}
