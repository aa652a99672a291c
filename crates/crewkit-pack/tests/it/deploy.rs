//! What a transaction promises on a healthy, a full and a read-only disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crewkit_core::Code;
use crewkit_pack::fs::entry::{Entry, EntryKind};
use crewkit_pack::fs::hash::Digest;
use crewkit_pack::plan::Change;
use crewkit_pack::state::transaction::{Content, NewFile, TxnError};

use crate::sim::{Node, SimFs};
use crate::world::{Want, World, at, rel, want};

fn world(fs: &SimFs) -> World<SimFs> {
    World::new(fs.clone(), "/home", &[("codex", Path::new("/p"))])
}

fn scene() -> SimFs {
    let fs = SimFs::new();
    fs.make_dir("/home");
    fs.make_dir("/p");
    fs
}

fn file(text: &str) -> Node {
    Node::File { text: text.as_bytes().to_vec(), mode: if text.starts_with("#!") { 0o755 } else { 0o644 } }
}

#[test]
fn a_second_deploy_changes_nothing_at_all() {
    let fs = scene();
    let wants = [want(&[("a/b.md", "x"), ("run", "#!")])];
    assert!(world(&fs).deploy(&wants, 1).unwrap().snapshot_id.is_some());
    let before = fs.tree("/");
    assert_eq!(world(&fs).deploy(&wants, 2).unwrap().snapshot_id, None);
    assert_eq!(fs.tree("/"), before);
}

#[test]
fn a_place_changed_since_the_plan_stops_everything() {
    type Meddle = fn(&SimFs);
    let cases: [(&str, Meddle, &str); 4] = [
        ("edited", |fs| fs.put_file("/p/a.md", b"edited"), "other content"),
        ("removed", |fs| fs.remove("/p/a.md"), "it is gone"),
        ("created", |fs| fs.put_file("/p/new.md", b"mine"), "something is there now"),
        ("directory", |fs| fs.make_dir("/p/new.md"), "a directory"),
    ];
    for (name, meddle, message) in cases {
        let fs = scene();
        world(&fs).deploy(&[want(&[("a.md", "one"), ("b.md", "one")])], 1).unwrap();
        let world = world(&fs);
        let request =
            world.request(&[want(&[("a.md", "two"), ("b.md", "two"), ("new.md", "new")])], at(2)).unwrap();
        meddle(&fs);
        let before = fs.tree("/");
        let error = world.home.lock_alone("deploy").unwrap().apply(&request).unwrap_err();
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert_eq!(fs.tree("/"), before, "{name}");
    }
}

#[test]
fn what_is_not_a_file_is_named_and_left_alone() {
    let fs = scene();
    fs.put_special("/p/pipe");
    fs.put_link("/p/dir", "/home");
    for (path, code, part) in [
        ("pipe", Code::TargetNotAFile, "a device, socket or pipe"),
        ("dir/x", Code::TargetEscape, "in the way"),
        ("pipe/x", Code::TargetEscape, "in the way"),
        (".crewkit-1-2", Code::IoInvalidPath, "reserved"),
        ("a/.agentpack.manifest.codex.json", Code::IoInvalidPath, "reserved"),
    ] {
        let before = fs.tree("/p");
        let world = world(&fs);
        let mut request = world.request(&[Want::new()], at(2)).unwrap();
        let entry = Entry::new(Digest::of(b"x"), EntryKind::Plain);
        let new = NewFile { entry, size: 1, content: Content::Bytes((*b"x").into()) };
        request.changes.push(Change::new(0, rel(path), None, Some(new)));
        let error = world.home.lock_alone("deploy").unwrap().apply(&request).unwrap_err();
        assert_eq!(error.code(), code, "{path}: {error}");
        assert!(error.to_string().contains(part), "{path}: {error}");
        assert_eq!(fs.tree("/p"), before);
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_not_followed_and_comes_back() {
    let fs = scene();
    fs.put_file("/elsewhere/secret", b"untouched");
    fs.put_link("/p/a.md", "/elsewhere/secret");
    let id = world(&fs).deploy(&[want(&[("a.md", "ours")])], 1).unwrap().snapshot_id.unwrap();
    assert_eq!(fs.tree("/p")["a.md"], file("ours"));
    assert_eq!(fs.tree("/elsewhere")["secret"], file("untouched"));
    let locked = world(&fs).home;
    let locked = locked.lock_alone("rollback").unwrap();
    locked.rollback(&crewkit_pack::state::rollback::RollbackTo::Before(id), at(2)).unwrap();
    assert_eq!(fs.tree("/p")["a.md"], Node::Link(b"/elsewhere/secret".to_vec()));
}

#[test]
fn a_full_disk_leaves_the_old_tree_and_says_how_much_is_missing() {
    let fs = scene();
    world(&fs).deploy(&[want(&[("a.md", "one")])], 1).unwrap();
    let before = fs.tree("/p");
    let large = "x".repeat(10_000);
    let wants = [want(&[("a.md", &large)])];
    for room in [0, 500, 9_000, 12_000, 20_000] {
        let full = fs.fork();
        let used: usize = full
            .tree("/")
            .values()
            .map(|node| if let Node::File { text, .. } = node { text.len() } else { 0 })
            .sum();
        full.set_capacity((used + room) as u64);
        let error = world(&full).deploy(&wants, 2).unwrap_err();
        let TxnError::NoSpace { needed, .. } = &error else { panic!("{room}: {error}") };
        assert!(*needed > 20_000, "both the file and its copy in the store count: {needed}");
        assert_eq!(error.code(), Code::IoNoSpace);
        assert_eq!(full.tree("/p"), before, "with room for {room}");
        full.set_capacity(u64::MAX);
        world(&full).deploy(&wants, 3).unwrap();
        assert_eq!(full.tree("/p")["a.md"], file(&large));
    }
}

#[test]
fn a_read_only_disk_is_named() {
    let fs = scene();
    world(&fs).deploy(&[want(&[("a.md", "one")])], 1).unwrap();
    let before = fs.tree("/");
    fs.set_read_only(true);
    let error = world(&fs).deploy(&[want(&[("a.md", "two")])], 2).unwrap_err();
    assert_eq!(error.code(), Code::IoReadOnly, "{error}");
    assert_eq!(fs.tree("/"), before);
}

#[test]
fn readers_report_a_command_that_was_cut_short_and_write_nothing() {
    use crate::sim::Fault;
    let fs = scene();
    world(&fs).deploy(&[want(&[("a.md", "one")])], 1).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for n in 1.. {
        let cut = fs.fork();
        cut.set_fault_in_changes(Fault::Kill { at: n });
        if world(&cut).deploy(&[want(&[("a.md", "two"), ("c/d", "new")])], 2).is_ok() {
            break;
        }
        cut.set_fault(Fault::None);
        let before = cut.tree("/");
        for pending in world(&cut).home.pending().unwrap() {
            assert_eq!(pending.command, "deploy");
            seen.insert(pending.stage);
        }
        world(&cut).home.snapshots().unwrap();
        assert_eq!(cut.tree("/"), before, "killed at {n}");
    }
    assert_eq!(seen.len(), 2, "both stages were met");
}

#[test]
fn edits_made_between_a_kill_and_the_recovery_are_kept_and_reported() {
    use crate::sim::Fault;
    let fs = scene();
    fs.put_file("/p/keep.md", b"keep");
    world(&fs).deploy(&[want(&[("a.md", "one"), ("gone.md", "x"), ("d/e", "1")])], 1).unwrap();
    let mut reported = 0;
    for n in 1.. {
        let cut = fs.fork();
        cut.set_fault_in_changes(Fault::Kill { at: n });
        if world(&cut).deploy(&[want(&[("a.md", "two"), ("new.md", "new"), ("t/u", "tree")])], 2).is_ok() {
            break;
        }
        cut.set_fault(Fault::None);
        let edits = [("a.md", "edit a"), ("gone.md", "edit gone"), ("new.md", "edit new"), ("t/u", "edit t")];
        for (path, text) in edits {
            cut.put_file(&format!("/p/{path}"), text.as_bytes());
        }
        let world = world(&cut);
        let locked = world.home.lock_alone("deploy").unwrap();
        let tree = cut.tree("/p");
        for (path, text) in edits {
            assert_eq!(tree[path], file(text), "killed at {n}");
        }
        assert_eq!(tree["keep.md"], file("keep"));
        assert!(tree.keys().all(|path| !path.contains(".crewkit-")), "killed at {n}: {tree:?}");
        reported += locked.recovered().iter().map(|recovered| recovered.kept.len()).sum::<usize>();
    }
    assert!(reported > 0);
}

#[test]
fn a_plan_that_does_not_know_what_is_managed_is_refused() {
    let fs = scene();
    let world = world(&fs);
    let stale = world.request(&[want(&[("a.md", "a")])], at(1)).unwrap();
    world.deploy(&[want(&[("b.md", "b")])], 2).unwrap();
    let error = world.home.lock_alone("deploy").unwrap().apply(&stale).unwrap_err();
    assert!(matches!(error, TxnError::Changed { .. }), "{error}");
    assert_eq!(fs.tree("/p")["b.md"], file("b"));
}

/// Stands for a disk that ignores case, which this machine may not be able to mount.
#[test]
fn two_spellings_of_one_place_count_once() {
    let fs = scene();
    fs.ignore_case();
    let world = World::new(fs.clone(), "/home", &[("codex", Path::new("/p")), ("zed", Path::new("/P"))]);
    world.deploy(&[want(&[("a.md", "same")]), want(&[("a.md", "same")])], 1).unwrap();
    assert_eq!(fs.tree("/p")["a.md"], file("same"));
    let error = world.deploy(&[want(&[("a.md", "one")]), want(&[("a.md", "two")])], 2).unwrap_err();
    assert!(matches!(error, TxnError::Twice { .. }), "{error}");
    // Where the spelling of a file itself differs, nothing is half done.
    let both = [want(&[("a.md", "same"), ("new.md", "1")]), want(&[("a.md", "same"), ("NEW.md", "2")])];
    let before = fs.tree("/p");
    world.deploy(&both, 3).unwrap_err();
    assert_eq!(fs.tree("/p"), before);
}

#[test]
fn two_names_of_one_place_count_once() {
    let fs = scene();
    fs.put_link("/q", "/p");
    let world = World::new(fs.clone(), "/home", &[("codex", Path::new("/p")), ("zed", Path::new("/q"))]);
    world.deploy(&[want(&[("a.md", "same")]), want(&[("a.md", "same")])], 1).unwrap();
    assert_eq!(fs.tree("/p")["a.md"], file("same"));
    let error = world.deploy(&[want(&[("a.md", "one")]), want(&[("a.md", "two")])], 2).unwrap_err();
    assert!(matches!(error, TxnError::Twice { .. }), "{error}");
    assert_eq!(fs.tree("/p")["a.md"], file("same"));
}

#[test]
fn directories_made_for_files_go_with_the_last_of_them_and_others_stay() {
    let fs = scene();
    fs.make_dir("/p/users");
    let world = world(&fs);
    world.deploy(&[want(&[("users/a", "1"), ("ours/deep/b", "2"), ("mixed/c", "3")])], 1).unwrap();
    fs.put_file("/p/mixed/own", b"user's");
    world.deploy(&[Want::new()], 2).unwrap();
    let tree = fs.tree("/p");
    let dirs: Vec<_> = tree.keys().filter(|path| !path.starts_with(".agentpack")).collect();
    assert_eq!(dirs, ["mixed", "mixed/own", "users"]);
}

/// Another process makes the same home, or a part of it, at every possible moment of making it.
#[test]
fn a_home_that_somebody_else_makes_meanwhile_is_used() {
    for made in ["/deep", "/deep/home", "/deep/home/state/crewkit/journal"] {
        for n in 1.. {
            let fs = SimFs::new();
            fs.meddle(n, move |fs| fs.make_dir(made));
            let world = World::new(fs.clone(), "/deep/home", &[("codex", Path::new("/p"))]);
            let locked = world.home.lock_alone("deploy").map(drop);
            assert!(locked.is_ok(), "{made} before call {n}: {locked:?}");
            if fs.calls() < n {
                break;
            }
        }
    }
}

/// An editor saves at every possible moment of a deploy: what it saved stays, or is in a backup a snapshot lists.
#[test]
fn an_edit_at_any_moment_survives() {
    type Edit = (&'static str, &'static str);
    const EDITS: [Edit; 4] =
        [("a.md", "update"), ("gone.md", "delete"), ("new.md", "create"), ("t/u", "tree")];
    let fs = scene();
    world(&fs).deploy(&[want(&[("a.md", "one"), ("gone.md", "x"), ("b.md", "one")])], 1).unwrap();
    let wants = [want(&[("a.md", "two"), ("b.md", "two"), ("new.md", "new"), ("t/u", "tree"), ("t/v", "v")])];
    for (path, what) in EDITS {
        let mut refused = 0;
        for n in 1.. {
            let run = fs.fork();
            let place = format!("/p/{path}");
            run.meddle(n, {
                let place = place.clone();
                move |run| run.put_file(&place, b"edited")
            });
            let before = run.tree("/p");
            let outcome = world(&run).deploy(&wants, 2);
            let untouched = run.calls() < n;
            let tree = run.tree("/p");
            let context = format!("{what}, edited before call {n}: {outcome:?}");
            assert!(tree.keys().all(|path| !path.contains(".crewkit-")), "{context}");
            if untouched {
                break;
            }
            let digest = Digest::of(b"edited");
            let kept =
                outcome.as_ref().ok().and_then(|applied| applied.snapshot_id.as_ref()).is_some_and(|id| {
                    let details = world(&run).home.snapshot(id).unwrap();
                    let listed = |change: &crewkit_pack::state::history::ChangeInfo| {
                        change.backup && change.before.is_some_and(|before| before.sha256 == digest)
                    };
                    details.changes.iter().any(listed)
                });
            assert!(tree.get(path) == Some(&file("edited")) || kept, "{context}: {:?}", tree.get(path));
            if outcome.is_err() {
                refused += 1;
                // All or nothing: apart from the edit the tree is the old one.
                let mut expected = before;
                expected.insert(path.to_owned(), file("edited"));
                if path == "t/u" {
                    expected.insert("t".to_owned(), Node::Dir);
                }
                assert_eq!(tree, expected, "{context}");
            }
        }
        assert!(refused > 0, "{what}: no moment in which the edit was noticed");
    }
}

/// An adopted file is edited while its deploy fails, or is killed, and is taken back: the original must not be lost.
#[test]
fn two_mishaps_at_once_do_not_lose_an_adopted_original() {
    use crate::sim::Fault;
    let mut kept_aside = 0;
    let fs = scene();
    world(&fs).deploy(&[want(&[("gone.md", "ours")])], 1).unwrap();
    fs.put_file("/p/a.md", b"original");
    fs.put_file("/p/gone.md", b"original too");
    let wants = [want(&[("a.md", "adopted"), ("z.md", "last")])];
    let calls = {
        let run = fs.fork();
        run.set_fault(Fault::None);
        world(&run).deploy(&wants, 2).unwrap();
        run.calls()
    };
    for place in ["a.md", "gone.md"] {
        for edit in 1..=calls {
            for fail in edit + 1..=calls {
                for kill in [false, true] {
                    // Near each other is where they matter; far apart a sample does.
                    if fail > edit + 12 && !(fail + edit).is_multiple_of(7) {
                        continue;
                    }
                    let run = fs.fork();
                    let original = format!("original{}", if place == "a.md" { "" } else { " too" });
                    let overwritten = Arc::new(AtomicBool::new(false));
                    let (was, seen) = (file(&original), overwritten.clone());
                    run.meddle(edit, move |run| {
                        seen.store(run.tree("/p").get(place) == Some(&was), Ordering::SeqCst);
                        run.put_file(&format!("/p/{place}"), b"edited");
                    });
                    run.set_fault(if kill {
                        Fault::Kill { at: fail }
                    } else {
                        Fault::Once { at: fail, errno: 5 }
                    });
                    let outcome = world(&run).deploy(&wants, 2);
                    run.set_fault(Fault::None);
                    let locked = world(&run).home.lock_alone("deploy").map(drop);
                    let context =
                        format!("{place} edited before {edit}, fault at {fail}, kill {kill}: {outcome:?}");
                    locked.unwrap_or_else(|error| panic!("{context}: {error}"));
                    let tree = run.tree("/p");
                    let blobs = world(&run).home.blobs().unwrap();
                    for text in ["original", "original too", "edited"] {
                        // What the editor itself replaced is the editor's business.
                        let theirs = text == original && overwritten.load(Ordering::SeqCst);
                        let here = tree.values().any(|node| *node == file(text));
                        let stored = blobs.contains(&Digest::of(text.as_bytes()));
                        assert!(here || stored || theirs, "{context}: {text:?} is lost: {tree:?}");
                    }
                    let aside = tree.keys().filter(|path| path.contains(".kept-")).count();
                    kept_aside += aside;
                    assert!(tree.keys().all(|path| !path.contains(".crewkit-")), "{context}: {tree:?}");
                    assert!(run.tree("/home/state/crewkit/journal").is_empty(), "{context}");
                }
            }
        }
    }
    assert!(kept_aside > 0, "no run came to the case this is about");
}
