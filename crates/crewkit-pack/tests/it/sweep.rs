//! Fails, or kills, at every single call of a transaction, and looks at what remains.

use std::path::Path;

use crate::sim::{Fault, SimFs, Tree};
use crate::world::{Want, World, want};

const ERRNOS: [i32; 6] = [28, 5, 122, 13, 30, 24];

/// Roots: one that exists, one behind a link, one that does not exist yet, one inside another.
fn world(fs: SimFs) -> World<SimFs> {
    let roots = [
        ("codex", Path::new("/p")),
        ("claude_code", Path::new("/linked")),
        ("cursor", Path::new("/new/deep/rules")),
        ("codex", Path::new("/p/skills")),
    ];
    World::new(fs, "/home/.agentpack", &roots)
}

fn scene() -> SimFs {
    let fs = SimFs::new();
    fs.make_dir("/home");
    fs.put_file("/p/mine.txt", b"user's own");
    fs.put_file("/p/skills/mine/SKILL.md", b"user's own skill");
    fs.put_file("/real/notes", b"n");
    fs.put_link("/linked", "/real");
    fs
}

fn first() -> [Want; 4] {
    [
        want(&[("AGENTS.md", "one"), ("docs/a.md", "a"), ("docs/b.md", "b")]),
        want(&[("cmd/x.md", "x"), ("cmd/run.sh", "#!/bin/sh")]),
        want(&[("r1.mdc", "rule"), ("sub/r2.mdc", "rule two")]),
        want(&[("foo/SKILL.md", "foo"), ("foo/bin/go", "#!go"), ("old/SKILL.md", "old")]),
    ]
}

/// Updates, mode changes, creates in old and new directories, deletes that empty directories.
fn second() -> [Want; 4] {
    [
        want(&[("AGENTS.md", "two"), ("docs/a.md", "#!a"), ("docs/c/d.md", "new dir")]),
        want(&[("cmd/x.md", "x"), ("cmd/run.sh", "#!/bin/bash")]),
        want(&[("r1.mdc", "rule changed")]),
        want(&[("foo/SKILL.md", "foo 2"), ("foo/bin/go", "#!go"), ("bar/SKILL.md", "bar"), ("bar/x/y", "z")]),
    ]
}

/// The user's side: everything but the home, with the parts of manifests that carry times and ids taken out.
fn trees(fs: &SimFs) -> Tree {
    let mut tree = Tree::new();
    for root in ["/p", "/real", "/new"] {
        for (path, node) in fs.tree(root) {
            let node = match node {
                crate::sim::Node::File { text, mode } if path.contains(".agentpack.manifest") => {
                    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
                    json["generated_at"].take();
                    json["snapshot_id"].take();
                    crate::sim::Node::File { text: json.to_string().into_bytes(), mode }
                }
                node => node,
            };
            tree.insert(format!("{root}/{path}"), node);
        }
    }
    tree
}

/// Nothing staged is left anywhere, and no journal.
#[track_caller]
fn assert_tidy(fs: &SimFs, context: &str) {
    for path in fs.tree("/").keys() {
        assert!(!path.contains(".crewkit-"), "{context}: stray {path}");
        assert!(!path.contains("crewkit/journal/"), "{context}: journal left: {path}");
    }
}

struct Scenario {
    name: &'static str,
    before: SimFs,
    wants: [Want; 4],
}

fn scenarios() -> Vec<Scenario> {
    let deployed = scene();
    world(deployed.clone()).deploy(&first(), 100).unwrap();
    deployed.settle();
    let adopting = scene();
    adopting.put_file("/p/AGENTS.md", b"written by hand");
    adopting.put_link("/p/docs", "/real");
    adopting.remove("/p/docs");
    adopting.put_link("/real/cmd/x.md", "/real/notes");
    vec![
        Scenario { name: "create", before: scene(), wants: first() },
        Scenario { name: "update", before: deployed.fork(), wants: second() },
        Scenario { name: "delete", before: deployed.fork(), wants: [const { Want::new() }; 4] },
        Scenario { name: "adopt", before: adopting, wants: first() },
    ]
}

struct Expected {
    old: Tree,
    new: Tree,
    calls: u64,
}

impl Expected {
    #[track_caller]
    fn assert_either(&self, tree: &Tree, context: &str) {
        let difference = |expected: &Tree| {
            let paths: std::collections::BTreeSet<_> = tree.keys().chain(expected.keys()).collect();
            let differing = paths.into_iter().filter(|path| tree.get(*path) != expected.get(*path));
            let line = |path| format!("  {path}: {:?} instead of {:?}\n", tree.get(path), expected.get(path));
            differing.map(line).collect::<String>()
        };
        let (old, new) = (difference(&self.old), difference(&self.new));
        assert!(old.is_empty() || new.is_empty(), "{context}\nagainst old:\n{old}against new:\n{new}");
    }
}

fn expect(scenario: &Scenario) -> Expected {
    let fs = scenario.before.fork();
    let old = trees(&fs);
    fs.set_fault(Fault::None);
    world(fs.clone()).deploy(&scenario.wants, 200).unwrap();
    let calls = fs.calls();
    assert_tidy(&fs, scenario.name);
    let new = trees(&fs);
    assert_ne!(old, new, "{}", scenario.name);
    Expected { old, new, calls }
}

#[test]
fn one_failing_call_gives_an_error_and_the_old_tree_or_success_and_the_new_one() {
    for scenario in scenarios() {
        let expected = expect(&scenario);
        for n in 1..=expected.calls {
            let errno = ERRNOS[usize::try_from(n).unwrap() % ERRNOS.len()];
            let fs = scenario.before.fork();
            fs.set_fault(Fault::Once { at: n, errno });
            let outcome = world(fs.clone()).deploy(&scenario.wants, 200);
            let context = format!("{} call {n} errno {errno}: {outcome:?}", scenario.name);
            fs.set_fault(Fault::None);
            match outcome {
                Ok(applied) => {
                    assert!(applied.untidy.is_none(), "{context}");
                    assert_eq!(trees(&fs), expected.new, "{context}");
                }
                Err(error) => {
                    assert!(error.path().is_some(), "{context}");
                    assert_eq!(trees(&fs), expected.old, "{context}");
                }
            }
            assert_tidy(&fs, &context);
            // And the next try works.
            world(fs.clone()).deploy(&scenario.wants, 300).unwrap();
            assert_eq!(trees(&fs), expected.new, "{context}");
        }
    }
}

#[test]
fn when_everything_fails_from_some_call_on_recovery_reaches_one_of_the_two() {
    for scenario in scenarios() {
        let expected = expect(&scenario);
        for n in 1..=expected.calls {
            let fs = scenario.before.fork();
            fs.set_fault(Fault::From { at: n, errno: ERRNOS[usize::try_from(n).unwrap() % ERRNOS.len()] });
            let outcome = world(fs.clone()).deploy(&scenario.wants, 200);
            let context = format!("{} from call {n}: {outcome:?}", scenario.name);
            fs.set_fault(Fault::None);
            world(fs.clone()).recover().unwrap();
            let tree = trees(&fs);
            expected.assert_either(&tree, &context);
            assert!(outcome.is_err() || tree == expected.new, "{context}");
            assert_tidy(&fs, &context);
        }
    }
}

#[test]
fn killed_at_any_call_and_killed_again_while_recovering() {
    for scenario in scenarios() {
        let expected = expect(&scenario);
        // A kill while reading leaves what the call before it left, so only calls that change something count.
        for n in 1.. {
            let fs = scenario.before.fork();
            fs.set_fault_in_changes(Fault::Kill { at: n });
            if world(fs.clone()).deploy(&scenario.wants, 200).is_ok() {
                break;
            }
            // Every point of the recovery, not only of the command.
            for m in 1.. {
                let again = fs.fork();
                again.set_fault_in_changes(Fault::Kill { at: m });
                let finished = world(again.clone()).recover().is_ok();
                again.set_fault(Fault::None);
                world(again.clone()).recover().unwrap();
                let context = format!("{} killed at {n}, recovery at {m}", scenario.name);
                let tree = trees(&again);
                expected.assert_either(&tree, &context);
                assert_tidy(&again, &context);
                if finished {
                    break;
                }
            }
        }
    }
}

/// A root is away while others go on: a disk that is not mounted, with or without the directory it is mounted on.
#[test]
fn what_was_cut_short_in_a_root_that_is_away_is_ended_when_it_is_back() {
    let mut kept = 0;
    for scenario in scenarios() {
        let expected = expect(&scenario);
        for n in 1.. {
            let fs = scenario.before.fork();
            fs.set_fault_in_changes(Fault::Kill { at: n });
            if world(fs.clone()).deploy(&scenario.wants, 200).is_ok() {
                break;
            }
            fs.set_fault(Fault::None);
            for (away, mount_point) in [("/p", false), ("/p", true), ("/real", false), ("/real", true)] {
                let context =
                    format!("{} killed at {n}, {away} away, mount point {mount_point}", scenario.name);
                let fs = fs.fork();
                fs.move_to(away, "/away");
                if mount_point {
                    fs.make_dir(away);
                }
                let elsewhere = World::new(fs.clone(), "/home/.agentpack", &[("zed", Path::new("/else"))]);
                for seconds in [300, 301] {
                    let text = format!("at {seconds}");
                    elsewhere
                        .deploy(&[want(&[("x.md", &text)])], seconds)
                        .unwrap_or_else(|error| panic!("{context}: {error}"));
                }
                let pending = elsewhere.home.pending().unwrap();
                assert!(pending.iter().all(|one| !one.unreached.is_empty()), "{context}: {pending:?}");
                kept += pending.len();
                if mount_point {
                    fs.remove(away);
                }
                fs.move_to("/away", away);
                world(fs.clone()).recover().unwrap_or_else(|error| panic!("{context}: {error}"));
                expected.assert_either(&trees(&fs), &context);
                assert_tidy(&fs, &context);
            }
        }
    }
    assert!(kept > 100, "only {kept} journals had to wait");
}

/// A small generator of our own: proptest would shrink the seed, which says nothing.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides.max(1)
    }
}

#[test]
fn power_loss_keeps_the_old_tree_or_the_new_one_and_the_new_one_once_it_was_reported() {
    const POINTS: u64 = 10_000;
    let scenarios: Vec<_> = scenarios().into_iter().map(|scenario| (expect(&scenario), scenario)).collect();
    for seed in 0..POINTS {
        let mut dice = Dice::new(seed);
        let (expected, scenario) = &scenarios[usize::try_from(dice.below(scenarios.len() as u64)).unwrap()];
        let fs = scenario.before.fork();
        // A few points beyond the last call: power fails after success was reported.
        let n = 1 + dice.below(expected.calls + expected.calls / 20);
        fs.set_fault(Fault::Kill { at: n });
        let outcome = world(fs.clone()).deploy(&scenario.wants, 200);
        let context = format!("seed {seed}: {} killed at {n}", scenario.name);
        fs.lose_power(|sides| dice.below(sides));
        if dice.below(2) == 0 {
            // Power fails again while recovering.
            fs.set_fault_in_changes(Fault::Kill { at: 1 + dice.below(60) });
            let _ = world(fs.clone()).recover();
            fs.lose_power(|sides| dice.below(sides));
        }
        world(fs.clone()).recover().unwrap_or_else(|error| panic!("{context}: {error}"));
        let tree = trees(&fs);
        expected.assert_either(&tree, &context);
        assert!(outcome.is_err() || tree == expected.new, "{context}: reported but lost");
        assert_tidy(&fs, &context);
    }
}
