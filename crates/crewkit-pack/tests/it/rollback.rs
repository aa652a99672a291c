//! Returning to earlier states.

use std::path::Path;

use crewkit_core::Code;
use crewkit_pack::state::history::PruneMode;
use crewkit_pack::state::rollback::RollbackTo;
use crewkit_pack::state::snapshot::Op;
use crewkit_pack::state::transaction::TxnError;

use crate::sim::{Node, SimFs, Tree};
use crate::world::{Want, World, at, want};

fn world(fs: &SimFs) -> World<SimFs> {
    World::new(fs.clone(), "/home", &[("codex", Path::new("/p")), ("cursor", Path::new("/made/rules"))])
}

fn scene() -> SimFs {
    let fs = SimFs::new();
    fs.make_dir("/home");
    fs.put_file("/p/own.md", b"user's own");
    fs
}

fn rollback(world: &World<SimFs>, to: &RollbackTo, seconds: i64) -> Vec<String> {
    let locked = world.home.lock_alone("rollback").unwrap();
    let (plan, _) = locked.rollback(to, at(seconds)).unwrap();
    plan.backups.iter().map(|path| path.display().to_string()).collect()
}

/// Everything outside the home; of manifests only that they are there.
fn trees(fs: &SimFs) -> Tree {
    let mut tree = fs.tree("/");
    tree.retain(|path, _| !path.starts_with("home"));
    for (path, node) in &mut tree {
        if path.contains(".agentpack.manifest") {
            *node = Node::Special;
        }
    }
    tree
}

fn generations() -> Vec<[Want; 2]> {
    vec![
        [want(&[("a.md", "a1"), ("s/SKILL.md", "s1")]), Want::new()],
        [want(&[("a.md", "a2"), ("s/SKILL.md", "s1"), ("s/run", "#!1")]), want(&[("r.mdc", "r1")])],
        [want(&[("t/SKILL.md", "t1")]), want(&[("r.mdc", "r2"), ("x/y.mdc", "y")])],
        [Want::new(), Want::new()],
        [want(&[("a.md", "#!a5"), ("s/SKILL.md", "s5")]), want(&[("r.mdc", "r1")])],
    ]
}

#[test]
fn every_kept_generation_can_be_restored_and_left_again() {
    let fs = scene();
    let world = world(&fs);
    let mut states = Vec::new();
    for (wants, seconds) in generations().iter().zip(1..) {
        let id = world.deploy(wants, seconds).unwrap().snapshot_id.unwrap();
        states.push((id, trees(&fs)));
    }
    let newest = states.len() - 1;
    let mut seconds = 100;
    for (id, tree) in &states {
        rollback(&world, &RollbackTo::After(id.clone()), seconds);
        assert_eq!(trees(&fs), *tree, "to {id}");
        rollback(&world, &RollbackTo::After(states[newest].0.clone()), seconds + 1);
        assert_eq!(trees(&fs), states[newest].1, "forward from {id}");
        seconds += 10;
    }
    // In any order, without going forward in between.
    for index in [3, 0, 4, 1, 2] {
        rollback(&world, &RollbackTo::After(states[index].0.clone()), seconds);
        assert_eq!(trees(&fs), states[index].1, "straight to {index}");
        seconds += 1;
    }
}

#[test]
fn before_the_first_deploy_there_is_nothing_of_ours() {
    let fs = scene();
    let untouched = trees(&fs);
    let world = world(&fs);
    let first = world.deploy(&generations()[1], 1).unwrap().snapshot_id.unwrap();
    let second = world.deploy(&generations()[2], 2).unwrap().snapshot_id.unwrap();
    let deployed = trees(&fs);
    rollback(&world, &RollbackTo::Before(first), 3);
    assert_eq!(trees(&fs), untouched);
    rollback(&world, &RollbackTo::After(second), 4);
    assert_eq!(trees(&fs), deployed);
}

#[test]
fn adoption_can_be_undone() {
    let fs = scene();
    fs.put_file("/p/a.md", b"written by hand");
    fs.put_file("/p/same.md", b"same");
    let untouched = trees(&fs);
    let world = world(&fs);
    let wants = [want(&[("a.md", "ours"), ("same.md", "same")]), Want::new()];
    let id = world.deploy(&wants, 1).unwrap().snapshot_id.unwrap();
    let details = world.home.snapshot(&id).unwrap();
    let kept: Vec<_> =
        details.changes.iter().filter(|change| change.backup).map(|change| &change.path).collect();
    assert_eq!(kept, [Path::new("/p/a.md")]);
    assert_eq!(details.changes.iter().filter(|change| change.op == Op::Manage).count(), 1);
    rollback(&world, &RollbackTo::Before(id), 2);
    assert_eq!(trees(&fs), untouched);
}

#[test]
fn edits_by_hand_are_replaced_only_with_a_backup() {
    let fs = scene();
    let world = world(&fs);
    let id = world.deploy(&generations()[0], 1).unwrap().snapshot_id.unwrap();
    let deployed = trees(&fs);
    fs.overwrite("/p/a.md", b"edited in place");
    fs.remove("/p/s/SKILL.md");
    let backups = rollback(&world, &RollbackTo::After(id), 2);
    assert_eq!(backups, ["/p/a.md"]);
    assert_eq!(trees(&fs), deployed);
    let list = world.home.snapshots().unwrap();
    let newest = world.home.snapshot(&list.snapshots.last().unwrap().id).unwrap();
    let change = newest.changes.iter().find(|change| change.backup).unwrap();
    let text = world.home.blobs().unwrap().read_to_vec(&fs, &change.before.unwrap().sha256).unwrap();
    assert_eq!(text.unwrap(), b"edited in place");
}

#[test]
fn a_rollback_touches_only_the_roots_of_its_snapshot() {
    let fs = scene();
    let one = World::new(fs.clone(), "/home", &[("codex", Path::new("/p"))]);
    let other = World::new(fs.clone(), "/home", &[("codex", Path::new("/q"))]);
    let id = one.deploy(&[want(&[("a", "1")])], 1).unwrap().snapshot_id.unwrap();
    other.deploy(&[want(&[("b", "1")])], 2).unwrap();
    one.deploy(&[want(&[("a", "2")])], 3).unwrap();
    other.deploy(&[want(&[("b", "2")])], 4).unwrap();
    let others = fs.tree("/q");
    rollback(&one, &RollbackTo::After(id), 5);
    assert_eq!(fs.tree("/q"), others);
    assert_eq!(fs.tree("/p")["a"], Node::File { text: b"1".to_vec(), mode: 0o644 });
}

#[test]
fn unknown_and_damaged_snapshots_are_named_and_block_nothing_else() {
    let fs = scene();
    let world = world(&fs);
    let first = world.deploy(&generations()[0], 1).unwrap().snapshot_id.unwrap();
    let second = world.deploy(&generations()[1], 2).unwrap().snapshot_id.unwrap();
    for unknown in ["", "7", "../x", "before:", "latest", "00"] {
        let error = world.home.plan_rollback(&RollbackTo::parse(unknown), at(3)).unwrap_err();
        assert_eq!(error.code(), Code::SnapshotNotFound, "{unknown}");
        assert!(matches!(world.home.snapshot(unknown), Err(TxnError::SnapshotNotFound { .. })));
    }
    fs.put_file(&format!("/home/state/crewkit/snapshots/{first}.jsonl"), b"{broken");
    let list = world.home.snapshots().unwrap();
    assert_eq!(list.snapshots.len(), 1);
    assert!(list.warnings[0].contains(&first), "{:?}", list.warnings);
    assert_eq!(world.home.snapshot(&first).unwrap_err().code(), Code::SnapshotInvalid);
    assert!(world.home.plan_rollback(&RollbackTo::After(second), at(3)).is_ok());
}

#[test]
fn one_changed_file_among_many_costs_little() {
    let fs = scene();
    let world = world(&fs);
    let many = |changed: &str| {
        let mut files: Want = (0..2000).map(|n| (format!("s{n}/SKILL.md"), format!("skill {n}"))).collect();
        files.insert("s7/SKILL.md".to_owned(), changed.to_owned());
        [files, Want::new()]
    };
    world.deploy(&many("one"), 1).unwrap();
    let size = || -> usize {
        let tree = fs.tree("/home");
        tree.values().map(|node| if let Node::File { text, .. } = node { text.len() } else { 0 }).sum()
    };
    let before = size();
    world.deploy(&many("two"), 2).unwrap();
    let cost = size() - before;
    assert!(cost < 2_000, "{cost} bytes");
}

#[test]
fn pruning_keeps_the_newest_and_everything_they_need() {
    let fs = scene();
    let world = world(&fs);
    let mut states = Vec::new();
    for (wants, seconds) in generations().iter().zip(1..) {
        let id = world.deploy(wants, seconds).unwrap().snapshot_id.unwrap();
        states.push((id, trees(&fs)));
    }
    let locked = world.home.lock_alone("prune").unwrap();
    let pruned = locked.prune(2, PruneMode::Remove).unwrap();
    assert_eq!(pruned.removed, states[..3].iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    drop(locked);
    assert_eq!(world.home.snapshots().unwrap().snapshots.len(), 2);
    fs.overwrite("/p/a.md", b"edited");
    let mut seconds = 100;
    for (id, tree) in &states[3..] {
        rollback(&world, &RollbackTo::After(id.clone()), seconds);
        assert_eq!(trees(&fs), *tree, "{id}");
        seconds += 1;
    }
    rollback(&world, &RollbackTo::Before(states[3].0.clone()), seconds);
    assert_eq!(trees(&fs), states[2].1, "the state the oldest kept snapshot found");
    let error = world.home.plan_rollback(&RollbackTo::After(states[0].0.clone()), at(300)).unwrap_err();
    assert_eq!(error.code(), Code::SnapshotNotFound);
    // Nothing but the newest: contents of generations long gone are gone too.
    let locked = world.home.lock_alone("prune").unwrap();
    locked.prune(0, PruneMode::Remove).unwrap();
    let packs = fs.tree("/home/state/crewkit/packs");
    assert!(packs.is_empty(), "{packs:?}");
}

#[test]
fn what_a_pruned_snapshot_deployed_can_still_be_repaired() {
    let fs = scene();
    let world = world(&fs);
    let wants = |text: &str| [want(&[("stays.md", "since the first"), ("changes.md", text)]), Want::new()];
    world.deploy(&wants("1"), 1).unwrap();
    world.deploy(&wants("2"), 2).unwrap();
    let id = world.deploy(&wants("3"), 3).unwrap().snapshot_id.unwrap();
    let deployed = trees(&fs);
    world.home.lock_alone("prune").unwrap().prune(1, PruneMode::Remove).unwrap();
    fs.overwrite("/p/stays.md", b"edited");
    rollback(&world, &RollbackTo::After(id), 4);
    assert_eq!(trees(&fs), deployed);
}

#[test]
fn a_pruning_that_is_cut_short_loses_nothing_that_stays() {
    use crate::sim::Fault;
    let fs = scene();
    let mut states = Vec::new();
    for (wants, seconds) in generations().iter().zip(1..) {
        let id = world(&fs).deploy(wants, seconds).unwrap().snapshot_id.unwrap();
        states.push((id, trees(&fs)));
    }
    for n in 1.. {
        let cut = fs.fork();
        cut.set_fault_in_changes(Fault::Kill { at: n });
        let pruned =
            world(&cut).home.lock_alone("prune").and_then(|locked| locked.prune(3, PruneMode::Remove));
        cut.set_fault(Fault::None);
        for (index, (id, tree)) in states.iter().enumerate().skip(2) {
            let again = cut.fork();
            rollback(&world(&again), &RollbackTo::After(id.clone()), 100);
            assert_eq!(trees(&again), *tree, "killed at {n}, generation {index}");
            assert!(again.tree("/").keys().all(|path| !path.contains(".crewkit-")));
        }
        if pruned.is_ok() {
            break;
        }
    }
}
