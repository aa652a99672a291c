//! The real file system: modes, links, attackers, threads, sources.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crewkit_core::Code;
use crewkit_pack::fs::entry::{Entry, EntryKind};
use crewkit_pack::fs::hash::Digest;
use crewkit_pack::fs::{Fs, PathFs, RealFs};
use crewkit_pack::state::home::StateHome;
use crewkit_pack::state::lock::LockRequest;
use crewkit_pack::state::transaction::{Content, TxnError};

use crate::world::{Want, World, at, want};

fn variants() -> [RealFs; 2] {
    [RealFs::default(), RealFs::portable()]
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_get_the_modes_of_the_umask_and_keep_the_executable_bit() {
    fn on(disk: impl Fs) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("root");
        let expected = |mode_asked: u32| {
            let path = temp.path().join(format!("{mode_asked:o}"));
            fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(mode_asked)
                .open(&path)
                .unwrap();
            mode(&path)
        };
        let world = World::new(disk, temp.path().join("home"), &[("codex", &root)]);
        world.deploy(&[want(&[("d/plain.md", "x"), ("d/run.sh", "#!/bin/sh")])], 1).unwrap();
        assert_eq!(mode(&root.join("d/plain.md")), expected(0o666));
        assert_eq!(mode(&root.join("d/run.sh")), expected(0o777));
        // Updated in place, and changed in mode only.
        world.deploy(&[want(&[("d/plain.md", "#!x"), ("d/run.sh", "x")])], 2).unwrap();
        assert_eq!(mode(&root.join("d/plain.md")), expected(0o777));
        assert_eq!(mode(&root.join("d/run.sh")), expected(0o666));
        // The store is nobody else's business.
        assert_eq!(mode(&temp.path().join("home/state/crewkit")), 0o700);
    }
    variants().into_iter().for_each(on);
    on(PathFs::default());
}

#[test]
fn a_root_may_be_a_link_but_nothing_below_it() {
    fn on(disk: impl Fs) {
        let temp = tempfile::tempdir().unwrap();
        let (dotfiles, outside) = (temp.path().join("dotfiles"), temp.path().join("outside"));
        fs::create_dir(&dotfiles).unwrap();
        fs::create_dir(&outside).unwrap();
        let root = temp.path().join(".claude");
        symlink(&dotfiles, &root).unwrap();
        let world = World::new(disk, temp.path().join("home"), &[("claude_code", &root)]);
        world.deploy(&[want(&[("commands/x.md", "x")])], 1).unwrap();
        assert_eq!(fs::read(dotfiles.join("commands/x.md")).unwrap(), b"x");
        assert!(fs::symlink_metadata(&root).unwrap().is_symlink());

        symlink(&outside, dotfiles.join("skills")).unwrap();
        let wants = [want(&[("commands/x.md", "y"), ("skills/evil.md", "x")])];
        let error = world.deploy(&wants, 2).unwrap_err();
        assert!(matches!(error, TxnError::Io { .. } | TxnError::Blocked { .. }), "{error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read(dotfiles.join("commands/x.md")).unwrap(), b"x");
    }
    variants().into_iter().for_each(on);
    on(PathFs::default());
}

#[test]
fn a_dangling_root_is_not_written_through() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    symlink(temp.path().join("nowhere"), &root).unwrap();
    let world = World::new(RealFs::default(), temp.path().join("home"), &[("codex", &root)]);
    let error = world.deploy(&[want(&[("a", "x")])], 1).unwrap_err();
    assert_eq!(error.code(), Code::TargetEscape, "{error}");
    assert!(!temp.path().join("nowhere").exists());
}

/// Somebody swaps a directory for a link to the outside, again and again, while deploys go on.
#[test]
fn swapping_a_directory_for_a_link_never_leads_outside() {
    for variant in variants() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        fs::create_dir_all(root.join("dir")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("canary"), "canary").unwrap();
        fs::write(outside.join("a.md"), "canary").unwrap();
        symlink(&outside, root.join("swap")).unwrap();
        let done = AtomicBool::new(false);
        let mut odd = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                let mut swaps = 0;
                while !done.load(Ordering::Relaxed) || swaps % 2 == 1 {
                    let swapped =
                        renameat_with(CWD, root.join("dir"), CWD, root.join("swap"), RenameFlags::EXCHANGE);
                    swaps += u32::from(swapped.is_ok());
                }
            });
            let world = World::new(variant, temp.path().join("home"), &[("codex", &root)]);
            for round in 0..300 {
                let text = format!("round {round}");
                let wants = want(&[("dir/a.md", &text), ("dir/sub/b.md", &text)]);
                // Some of these fail, for one of these reasons; none may write outside.
                let outcome = world.deploy(&[if round % 3 == 0 { Want::new() } else { wants }], round);
                if let Err(error) = outcome {
                    let codes = [Code::TargetEscape, Code::Drifted, Code::IoFailed, Code::TargetNotAFile];
                    if !codes.contains(&error.code()) {
                        odd.push(format!("round {round}: {error}"));
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(odd, Vec::<String>::new());
        let mut names: Vec<_> =
            fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.md", "canary"]);
        assert_eq!(fs::read(outside.join("a.md")).unwrap(), b"canary");
    }
}

#[test]
fn many_files_are_staged_by_several_threads_from_sources_of_all_sizes() {
    let temp = tempfile::tempdir().unwrap();
    let (root, source) = (temp.path().join("root"), temp.path().join("source"));
    fs::create_dir(&source).unwrap();
    let sizes = [0, 1, 4096, 200_000, 3_000_000];
    let text = |n: usize| format!("{n}:").repeat(1 + sizes[n % sizes.len()] / 4);
    let world = World::new(RealFs::default(), temp.path().join("home"), &[("codex", &root)]);
    let wants: Want = (0..400).map(|n| (format!("s{}/f{n}", n / 5), text(n % 20))).collect();
    let mut request = world.request(std::slice::from_ref(&wants), at(1)).unwrap();
    for change in &mut request.changes {
        let new = change.after.as_mut().unwrap();
        let path = source.join(new.entry.sha256.to_string());
        if let Content::Bytes(bytes) = &new.content {
            fs::write(&path, bytes).unwrap();
        }
        new.content = Content::File(path.into());
    }
    let home = StateHome::new(temp.path().join("home")).threads(4);
    let lock = LockRequest {
        command: "deploy".to_owned(),
        since: at(1),
        wait: std::time::Duration::ZERO,
        roots: Vec::new(),
    };
    home.lock(&lock).unwrap().apply(&request).unwrap();
    for (path, text) in &wants {
        assert!(fs::read(root.join(path)).unwrap() == text.as_bytes(), "{path}");
    }
    let blobs = home.blobs().unwrap();
    for text in wants.values() {
        let stored = blobs.read_to_vec(home.fs(), &Digest::of(text.as_bytes())).unwrap().unwrap();
        assert!(stored == text.as_bytes());
    }
    assert_eq!(
        home.lock(&lock).unwrap().apply(&world.request(&[wants], at(2)).unwrap()).unwrap().snapshot_id,
        None
    );
}

#[test]
fn a_source_that_changed_since_the_plan_stops_everything() {
    let temp = tempfile::tempdir().unwrap();
    let (root, source) = (temp.path().join("root"), temp.path().join("source"));
    for size in [10, 3_000_000] {
        let world = World::new(RealFs::default(), temp.path().join("home"), &[("codex", &root)]);
        let mut request = world.request(&[want(&[("a", &"x".repeat(size)), ("b", "fine")])], at(1)).unwrap();
        fs::write(&source, "y".repeat(size)).unwrap();
        request.changes[0].after.as_mut().unwrap().content = Content::File(source.as_path().into());
        let error = world.home.lock_alone("deploy").unwrap().apply(&request).unwrap_err();
        assert_eq!(error.code(), Code::SourceMismatch, "{error}");
        assert!(!root.exists());
    }
    symlink(&source, temp.path().join("link")).unwrap();
    let world = World::new(RealFs::default(), temp.path().join("home"), &[("codex", &root)]);
    let mut request = world.request(&[want(&[("a", "x")])], at(1)).unwrap();
    request.changes[0].after.as_mut().unwrap().content = Content::File(temp.path().join("link").into());
    assert!(world.home.lock_alone("deploy").unwrap().apply(&request).is_err(), "a source is not a link");
    assert!(!root.exists());
}

#[test]
fn concurrent_deploys_come_one_after_the_other() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    let generation =
        |n: i64| want(&[("a.md", &format!("{n}")), ("b/c.md", &format!("{n}")), (&format!("{n}/x"), "x")]);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (root, home) = (root.clone(), temp.path().join("home"));
            scope.spawn(move || {
                let world = World::new(RealFs::default(), home, &[("codex", &root)]);
                for round in 0..10 {
                    let n = worker * 100 + round;
                    let wait = std::time::Duration::from_mins(2);
                    let lock =
                        LockRequest { command: format!("deploy {n}"), since: at(1), wait, roots: Vec::new() };
                    let locked = world.home.lock(&lock).unwrap();
                    world.deploy_locked(&locked, &[generation(n)], n).unwrap();
                }
            });
        }
    });
    let last: i64 = fs::read_to_string(root.join("a.md")).unwrap().parse().unwrap();
    for (path, text) in generation(last) {
        assert_eq!(fs::read_to_string(root.join(path)).unwrap(), text);
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 4, "three entries and the manifest");
    let home = StateHome::new(temp.path().join("home"));
    assert_eq!(home.snapshots().unwrap().snapshots.len(), 40);
}

#[test]
fn entries_tell_files_links_and_directories_apart() {
    use crewkit_pack::fs::Fs as _;
    use crewkit_pack::fs::entry::{Observed, observe};
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name);
    fs::write(path("plain"), "text").unwrap();
    fs::write(path("run"), "text").unwrap();
    fs::set_permissions(path("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("plain", path("link")).unwrap();
    fs::create_dir(path("dir")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let real = RealFs::default();
    let dir = real.open_root(temp.path()).unwrap();
    let look = |name: &str| observe(&real, &dir, name).unwrap();
    let entry = |text: &[u8], kind| Observed::Entry(Entry::new(Digest::of(text), kind));
    assert_eq!(look("plain"), entry(b"text", EntryKind::Plain));
    assert_eq!(look("run"), entry(b"text", EntryKind::Executable));
    assert_eq!(look("link"), entry(b"plain", EntryKind::Symlink));
    assert_eq!(look("dir"), Observed::Directory);
    assert_eq!(look("pipe"), Observed::Special);
    assert_eq!(look("absent"), Observed::Absent);
}
