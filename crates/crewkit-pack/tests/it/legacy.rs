//! Homes that agentpack 0.9.1 left behind: its snapshots are listed, returned to and pruned.

use std::path::Path;

use crewkit_core::Code;
use crewkit_pack::fs::hash::Digest;
use crewkit_pack::state::history::PruneMode;
use crewkit_pack::state::rollback::RollbackTo;
use crewkit_pack::state::transaction::SnapshotKind;
use serde_json::{Value, json};

use crate::sim::{Node, SimFs};
use crate::world::{World, at, want};

const FIRST: &str = "1794766910211534778";
const SECOND: &str = "1794766999000000000";

/// Writes what 0.9.1 writes: the tree, the manifest, and a snapshot with its copies.
struct Tool<'a> {
    fs: &'a SimFs,
    kept: Vec<(String, String)>,
}

fn key(path: &str) -> String {
    Digest::of(path.as_bytes()).short(16)
}

impl Tool<'_> {
    fn deploy(&mut self, id: &str, files: &[(&str, &str)]) {
        let manifest = "/p/.agentpack.manifest.codex.json".to_owned();
        let entries: Vec<Value> = files
            .iter()
            .map(|(path, text)| {
                json!({"path": path, "sha256": Digest::of(text.as_bytes()), "module_ids": ["skill:x"]})
            })
            .collect();
        let document = json!({"schema_version": 1, "generated_at": "2026-11-15T18:21:50Z", "tool": "codex",
            "snapshot_id": id, "managed_files": entries});
        let mut after: Vec<(String, String)> =
            files.iter().map(|(path, text)| (format!("/p/{path}"), (*text).to_owned())).collect();
        after.push((manifest.clone(), document.to_string()));
        let dir = format!("/home/state/snapshots/{id}");
        let mut changes = Vec::new();
        for (path, text) in &after {
            let old = match self.fs.tree("/p").get(&path["/p/".len()..]) {
                Some(Node::File { text, .. }) => Some(text.clone()),
                _ => None,
            };
            if old.as_deref() != Some(text.as_bytes()) {
                let mut change = json!({"target": "codex", "op": "create", "path": path,
                    "after_sha256": Digest::of(text.as_bytes())});
                if let Some(old) = old {
                    change["op"] = "update".into();
                    change["before_sha256"] = Digest::of(&old).to_string().into();
                    change["backup_path"] = format!("{dir}/backup/codex/{}", key(path)).into();
                    self.fs.put_file(&format!("{dir}/backup/codex/{}", key(path)), &old);
                }
                changes.push(change);
            }
            self.fs.put_file(path, text.as_bytes());
            self.fs.put_file(&format!("{dir}/state/codex/{}", key(path)), text.as_bytes());
        }
        for (path, text) in std::mem::take(&mut self.kept) {
            if path != manifest && !after.iter().any(|(kept, _)| *kept == path) {
                self.fs.put_file(&format!("{dir}/backup/codex/{}", key(&path)), text.as_bytes());
                self.fs.remove(&path);
                changes.push(json!({"target": "codex", "op": "delete", "path": path,
                    "before_sha256": Digest::of(text.as_bytes())}));
            }
        }
        let managed: Vec<Value> = files
            .iter()
            .map(|(path, text)| {
                json!({"target": "codex", "path": format!("/p/{path}"), "sha256": Digest::of(text.as_bytes())})
            })
            .collect();
        let snapshot = json!({"kind": "deploy", "id": id, "created_at": "2026-11-15T18:21:50Z",
            "targets": ["codex"], "managed_files": managed, "changes": changes, "lockfile_sha256": null,
            "backup_root": format!("{dir}/backup")});
        self.fs.put_file(&format!("{dir}.json"), snapshot.to_string().as_bytes());
        self.kept = after;
    }
}

fn scene() -> SimFs {
    let fs = SimFs::new();
    fs.make_dir("/home");
    fs.put_file("/p/own.md", b"user's");
    fs.put_file("/p/AGENTS.md", b"written by hand");
    let mut tool = Tool { fs: &fs, kept: Vec::new() };
    tool.deploy(FIRST, &[("AGENTS.md", "one"), ("s/SKILL.md", "skill"), ("old.md", "old")]);
    tool.deploy(SECOND, &[("AGENTS.md", "two"), ("s/SKILL.md", "skill"), ("new.md", "new")]);
    fs
}

fn world(fs: &SimFs) -> World<SimFs> {
    World::new(fs.clone(), "/home", &[("codex", Path::new("/p"))])
}

fn texts(fs: &SimFs) -> Vec<String> {
    let files = fs.tree("/p").into_iter().filter_map(|(path, node)| match node {
        Node::File { text, .. } if !path.starts_with(".agentpack") => {
            Some(format!("{path}={}", String::from_utf8(text).unwrap()))
        }
        _ => None,
    });
    files.collect()
}

fn rollback(fs: &SimFs, to: &RollbackTo) {
    let world = world(fs);
    world.home.lock_alone("rollback").unwrap().rollback(to, at(1_900_000_000)).unwrap();
}

#[test]
fn they_are_listed_and_shown_beside_ours() {
    let fs = scene();
    let ours =
        world(&fs).deploy(&[want(&[("AGENTS.md", "three")])], 1_900_000_000).unwrap().snapshot_id.unwrap();
    let list = world(&fs).home.snapshots().unwrap();
    let ids: Vec<_> = list.snapshots.iter().map(|info| (info.id.as_str(), info.legacy)).collect();
    assert_eq!(ids, [(FIRST, true), (SECOND, true), (&ours, false)]);
    assert_eq!((list.snapshots[0].counts.create, list.snapshots[0].counts.update), (2, 1));
    let details = world(&fs).home.snapshot(SECOND).unwrap();
    assert_eq!(details.info.kind, SnapshotKind::Deploy);
    assert!(details.changes.iter().any(|change| change.path == Path::new("/p/old.md")));
}

#[test]
fn a_state_of_0_9_1_comes_back_directly_and_from_later_states_of_ours() {
    let first = ["AGENTS.md=one", "old.md=old", "own.md=user's", "s/SKILL.md=skill"];
    let second = ["AGENTS.md=two", "new.md=new", "own.md=user's", "s/SKILL.md=skill"];
    let fs = scene();
    rollback(&fs, &RollbackTo::After(FIRST.to_owned()));
    assert_eq!(texts(&fs), first);
    rollback(&fs, &RollbackTo::After(SECOND.to_owned()));
    assert_eq!(texts(&fs), second);
    world(&fs).deploy(&[want(&[("AGENTS.md", "#!three"), ("extra/x", "x")])], 1_900_000_010).unwrap();
    fs.put_file("/p/extra/x", b"edited");
    rollback(&fs, &RollbackTo::After(FIRST.to_owned()));
    assert_eq!(texts(&fs), first);
    // Our manifest then lists exactly what 0.9.1's did.
    let Node::File { text, .. } = fs.tree("/p")[".agentpack.manifest.codex.json"].clone() else { panic!() };
    let manifest: Value = serde_json::from_slice(&text).unwrap();
    let listed: Vec<_> =
        manifest["managed_files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(listed, ["AGENTS.md", "old.md", "s/SKILL.md"]);
    assert_eq!(manifest["managed_files"][0]["module_ids"], json!(["skill:x"]));
}

#[test]
fn its_adoption_and_its_first_deploy_can_be_undone() {
    let fs = scene();
    world(&fs).deploy(&[want(&[("AGENTS.md", "three")])], 1_900_000_000).unwrap();
    rollback(&fs, &RollbackTo::Before(FIRST.to_owned()));
    assert_eq!(texts(&fs), ["AGENTS.md=written by hand", "own.md=user's"]);
    assert!(!fs.tree("/p").contains_key(".agentpack.manifest.codex.json"));
    let fs = scene();
    rollback(&fs, &RollbackTo::Before(SECOND.to_owned()));
    assert_eq!(texts(&fs), ["AGENTS.md=one", "old.md=old", "own.md=user's", "s/SKILL.md=skill"]);
}

#[test]
fn a_file_it_deployed_is_restored_from_its_copies_after_an_edit() {
    let fs = scene();
    let world = world(&fs);
    let wants = [want(&[("AGENTS.md", "three"), ("s/SKILL.md", "skill"), ("new.md", "new")])];
    let id = world.deploy(&wants, 1_900_000_000).unwrap().snapshot_id.unwrap();
    fs.put_file("/p/s/SKILL.md", b"edited");
    rollback(&fs, &RollbackTo::After(id));
    assert_eq!(texts(&fs), ["AGENTS.md=three", "new.md=new", "own.md=user's", "s/SKILL.md=skill"]);
    // Pruning its snapshots first saves what is still deployed.
    let fs = scene();
    let id = self::world(&fs).deploy(&wants, 1_900_000_000).unwrap().snapshot_id.unwrap();
    self::world(&fs).home.lock_alone("prune").unwrap().prune(1, PruneMode::Remove).unwrap();
    assert!(fs.tree("/home/state/snapshots").is_empty());
    fs.put_file("/p/s/SKILL.md", b"edited");
    rollback(&fs, &RollbackTo::After(id));
    assert_eq!(texts(&fs), ["AGENTS.md=three", "new.md=new", "own.md=user's", "s/SKILL.md=skill"]);
}

#[test]
fn a_damaged_copy_is_refused_before_anything_changes() {
    let fs = scene();
    let copy = format!("/home/state/snapshots/{FIRST}/state/codex/{}", key("/p/AGENTS.md"));
    fs.put_file(&copy, b"tampered");
    let backup = format!("/home/state/snapshots/{SECOND}/backup/codex/{}", key("/p/AGENTS.md"));
    fs.put_file(&backup, b"tampered");
    let before = texts(&fs);
    let world = world(&fs);
    let locked = world.home.lock_alone("rollback").unwrap();
    let error = locked.rollback(&RollbackTo::After(FIRST.to_owned()), at(1_900_000_000)).unwrap_err();
    assert_eq!(error.code(), Code::SourceMismatch, "{error}");
    assert_eq!(texts(&fs), before);
}

#[test]
fn a_damaged_snapshot_of_its_blocks_nothing() {
    let fs = scene();
    fs.put_file(&format!("/home/state/snapshots/{SECOND}.json"), b"{");
    let list = world(&fs).home.snapshots().unwrap();
    assert_eq!((list.snapshots.len(), list.warnings.len()), (1, 1));
    rollback(&fs, &RollbackTo::After(FIRST.to_owned()));
    assert_eq!(texts(&fs), ["AGENTS.md=one", "old.md=old", "own.md=user's", "s/SKILL.md=skill"]);
}
