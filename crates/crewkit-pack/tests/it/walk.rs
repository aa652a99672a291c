//! Random walks of a user and the tool over the same tree: nothing the user wrote is ever lost.
//!
//! About 6000 steps here; `CREWKIT_WALK_STEPS=10000` walks further.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crewkit_pack::fs::hash::Digest;
use crewkit_pack::state::rollback::RollbackTo;
use proptest::prelude::*;

use crate::sim::{Fault, Node, SimFs};
use crate::world::{Want, World, at};

const PATHS: [&str; 6] = ["a.md", "b.md", "s/SKILL.md", "s/x/run", "t/SKILL.md", "own.md"];

#[derive(Debug, Clone)]
enum Move {
    /// The user saves a file.
    Edit { path: usize, text: u8, in_place: bool },
    /// The user gives a file other permissions.
    Chmod { path: usize, mode: u16 },
    /// The user removes a file.
    Remove { path: usize },
    /// A deploy of the files in `mask`, killed at some call or not.
    Deploy { mask: u8, text: u8, kill: Option<u8> },
    /// A return to an earlier state, killed at some call or not.
    Rollback { snapshot: u8, before: bool, kill: Option<u8> },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let kill = || proptest::option::weighted(0.3, any::<u8>());
    let one = prop_oneof![
        (0..PATHS.len(), any::<u8>(), any::<bool>()).prop_map(|(path, text, in_place)| Move::Edit {
            path,
            text,
            in_place
        }),
        (0..PATHS.len()).prop_map(|path| Move::Remove { path }),
        (0..PATHS.len(), prop_oneof![Just(0o600), Just(0o640), Just(0o400)])
            .prop_map(|(path, mode)| Move::Chmod { path, mode }),
        (0_u8..32, 0_u8..4, kill()).prop_map(|(mask, text, kill)| Move::Deploy { mask, text, kill }),
        (any::<u8>(), any::<bool>(), kill()).prop_map(|(snapshot, before, kill)| Move::Rollback {
            snapshot,
            before,
            kill
        }),
    ];
    proptest::collection::vec(one, 1..40)
}

struct Walk {
    fs: SimFs,
    world: World<SimFs>,
    seconds: i64,
    /// What the user saved last at a path, unless the user removed it again.
    saved: BTreeMap<&'static str, Vec<u8>>,
    /// Every permissions the user gave a content at a path.
    modes: BTreeMap<(&'static str, Vec<u8>), BTreeSet<u16>>,
}

impl Walk {
    fn new() -> Self {
        let fs = SimFs::new();
        fs.make_dir("/home");
        fs.make_dir("/p");
        let world = World::new(fs.clone(), "/home", &[("codex", Path::new("/p"))]);
        Self { fs, world, seconds: 0, saved: BTreeMap::new(), modes: BTreeMap::new() }
    }

    fn step(&mut self, step: &Move) {
        self.seconds += 1;
        match step {
            Move::Edit { path, text, in_place } => {
                let (path, text) = (PATHS[*path], format!("user {text}").into_bytes());
                let mut mode = 0o644;
                match self.fs.tree("/p").get(path) {
                    Some(Node::File { mode: present, .. }) if *in_place => {
                        self.fs.overwrite(&format!("/p/{path}"), &text);
                        mode = *present;
                    }
                    _ => self.fs.put_file(&format!("/p/{path}"), &text),
                }
                self.modes.entry((path, text.clone())).or_default().insert(mode);
                self.saved.insert(path, text);
            }
            Move::Chmod { path, mode } => {
                let path = PATHS[*path];
                let Some(Node::File { text, .. }) = self.fs.tree("/p").remove(path) else { return };
                self.fs.chmod(&format!("/p/{path}"), *mode);
                self.modes.entry((path, text)).or_default().insert(*mode);
            }
            Move::Remove { path } => {
                let path = PATHS[*path];
                if self.fs.tree("/p").contains_key(path) {
                    self.fs.remove(&format!("/p/{path}"));
                }
                self.saved.remove(path);
            }
            Move::Deploy { mask, text, kill } => {
                let chosen = (0..5).filter(|bit| mask & (1 << bit) != 0);
                let wants: Want =
                    chosen.map(|bit| (PATHS[bit].to_owned(), format!("#!{bit} ours {text}"))).collect();
                self.killed(*kill, |walk| {
                    let _ = walk.world.deploy(std::slice::from_ref(&wants), walk.seconds);
                });
            }
            Move::Rollback { snapshot, before, kill } => {
                let list = self.world.home.snapshots().unwrap().snapshots;
                if list.is_empty() {
                    return;
                }
                let id = list[usize::from(*snapshot) % list.len()].id.clone();
                let to = if *before { RollbackTo::Before(id) } else { RollbackTo::After(id) };
                self.killed(*kill, |walk| {
                    let Ok(locked) = walk.world.home.lock_alone("rollback") else { return };
                    let outcome = locked.rollback(&to, at(walk.seconds));
                    assert!(kill.is_some() || outcome.is_ok(), "{outcome:?}");
                });
            }
        }
    }

    fn killed(&mut self, kill: Option<u8>, act: impl FnOnce(&Self)) {
        if let Some(n) = kill {
            self.fs.set_fault_in_changes(Fault::Kill { at: 1 + u64::from(n) });
        }
        act(self);
        self.fs.set_fault(Fault::None);
        self.world.recover().unwrap();
        self.fs.settle();
    }

    /// Whatever the user saved is where it was saved, or in a backup that a snapshot lists.
    fn check(&self) {
        let tree = self.fs.tree("/p");
        let blobs = self.world.home.blobs().unwrap();
        let mut listed: BTreeSet<(String, Digest)> = BTreeSet::new();
        for info in self.world.home.snapshots().unwrap().snapshots {
            for change in self.world.home.snapshot(&info.id).unwrap().changes {
                if let (Some(before), Ok(path)) = (change.before, change.path.strip_prefix("/p")) {
                    listed.insert((path.display().to_string(), before.sha256));
                }
            }
        }
        for (path, text) in &self.saved {
            let here = match tree.get(*path) {
                Some(Node::File { text: found, mode }) if found == text => {
                    let modes = &self.modes[&(*path, text.clone())];
                    assert!(modes.contains(mode), "{path} has {mode:o}, which nobody gave it");
                    true
                }
                _ => false,
            };
            let digest = Digest::of(text);
            let kept = listed.contains(&((*path).to_owned(), digest)) && blobs.contains(&digest);
            assert!(here || kept, "{path} with {:?} is lost", String::from_utf8_lossy(text));
        }
        if let Some(text) = self.saved.get("own.md") {
            assert!(matches!(tree.get("own.md"), Some(Node::File { text: found, .. }) if found == text));
        }
        assert!(tree.keys().all(|path| !path.contains(".crewkit-")), "{tree:?}");
        assert!(self.fs.tree("/home/state/crewkit/journal").is_empty());
    }
}

/// A walk has twenty steps on average.
fn walks() -> u32 {
    let steps = std::env::var("CREWKIT_WALK_STEPS").ok().and_then(|text| text.parse::<u32>().ok());
    steps.map_or(300, |steps| steps.div_ceil(20).max(1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: walks(), ..ProptestConfig::default() })]

    #[test]
    fn nothing_a_user_wrote_is_lost(moves in moves()) {
        let mut walk = Walk::new();
        for step in &moves {
            walk.step(step);
            walk.check();
        }
        // And from wherever it ended, a deploy reaches exactly what is wanted.
        let wants: Want = [("a.md", "final"), ("s/x/run", "#!final")]
            .map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        walk.world.deploy(std::slice::from_ref(&wants), walk.seconds + 1).unwrap();
        let tree = walk.fs.tree("/p");
        for (path, text) in &wants {
            let found = matches!(&tree[path], Node::File { text: found, .. } if found == text.as_bytes());
            prop_assert!(found, "{path}");
        }
    }
}
