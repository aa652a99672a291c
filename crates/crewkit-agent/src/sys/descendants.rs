//! Finding and killing everything below this process.

use std::collections::HashMap;

use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open, pidfd_send_signal, wait,
};

/// Pauses between two looks for processes that are left; they grow from the first to the second.
pub(crate) const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(20)];

/// A process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: i32,
    group: i32,
    /// When it began; with its number this is one process and no other.
    start: u64,
}

/// Kills until nobody is left below this process, which adopts whoever loses its parent: without children there are no
/// descendants. `seen` hears of every end.
pub(crate) fn end_all(mut seen: impl FnMut(Pid, WaitStatus)) {
    let mut pause = PAUSES[0];
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => seen(pid, status),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
            Ok(None) => {
                signal_all(Signal::KILL);
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES[1]);
            }
        }
    }
}

/// Sends a signal to every process below this one, once. Some of them may have started others meanwhile.
pub(crate) fn signal_all(signal: Signal) {
    let own = std::process::id().cast_signed();
    let all = processes();
    for (pid, process) in below(own, &all) {
        // The group first: that also reaches what it starts at this very moment.
        if process.group != own
            && let Some(group) = Pid::from_raw(process.group)
        {
            let _ = kill_process_group(group, signal);
        }
        let Some(target) = Pid::from_raw(pid) else { continue };
        // The handle pins the process: if the number was used again meanwhile, the second look sees another one.
        let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { continue };
        if look(pid).is_some_and(|now| now.start == process.start) {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// Those of `all` that have `ancestor` above them, parents before children.
fn below(ancestor: i32, all: &HashMap<i32, Process>) -> Vec<(i32, Process)> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, process) in all {
        children.entry(process.parent).or_default().push(*pid);
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for pid in children.remove(&parent).into_iter().flatten() {
            found.extend(all.get(&pid).map(|process| (pid, *process)));
            open.push(pid);
        }
    }
    found
}

fn processes() -> HashMap<i32, Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()));
    pids.filter_map(|pid: i32| Some((pid, look(pid)?))).collect()
}

fn look(pid: i32) -> Option<Process> {
    parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads what is in `/proc/PID/stat`. The program's name, in parentheses, may hold anything, parentheses included.
fn parse(stat: &[u8]) -> Option<Process> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> =
        std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?.split_whitespace().collect();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_hide_the_parent() {
        let stat = b"12 (a) S 1 1) (\xff)) S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0";
        assert_eq!(parse(stat), Some(Process { parent: 7, group: 8, start: 777 }));
        assert_eq!(parse(b"12 (x) S 7"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn everything_below_is_found_and_nothing_else() {
        let process = |parent| Process { parent, group: 0, start: 0 };
        let all: HashMap<i32, Process> = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 7)]
            .map(|(pid, up)| (pid, process(up)))
            .into();
        let mut found: Vec<i32> = below(2, &all).into_iter().map(|(pid, _)| pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
        assert!(below(6, &all).is_empty());
    }
}
