//! Roots that were removed, replaced or restored behind our back, and rollbacks that bring them back.

use std::fs;

use crewkit_pack::commands::Consent;

use super::place::{Place, SKILL, all, apply, snapshot_id};

fn place() -> Place {
    let place = Place::with(
        "{codex: {mode: files, scope: project}}",
        &["{id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}"],
    );
    place.source("a/SKILL.md", SKILL);
    place.source("a/notes.md", "one");
    place
}

const ROOT: &str = "proj/.codex/skills";

#[test]
fn a_rollback_brings_back_a_root_that_was_removed() {
    for in_between in [false, true] {
        let place = place();
        let pack = place.pack();
        let first = snapshot_id(&apply(&pack).unwrap());
        place.source("a/notes.md", "two");
        place.source("a/more.md", "more");
        let second = snapshot_id(&apply(&pack).unwrap());
        fs::remove_dir_all(place.path("proj/.codex")).unwrap();
        if in_between {
            apply(&pack).unwrap();
            assert_eq!(place.read(&format!("{ROOT}/a/notes.md")), "two");
        }
        let shown = |what: &str| {
            let read = |name: &str| place.read(&format!("{ROOT}/a/{name}"));
            (what.to_owned(), read("SKILL.md"), read("notes.md"), read("more.md"))
        };
        let want = |what: &str, notes: &str, more: &str| {
            (what.to_owned(), SKILL.to_owned(), notes.to_owned(), more.to_owned())
        };
        let back = pack.rollback(&all(), &second, Consent::Given).unwrap();
        assert_eq!(shown("to the second"), want("to the second", "two", "more"), "{in_between}: {back:?}");
        pack.rollback(&all(), &first, Consent::Given).unwrap();
        assert_eq!(shown("to the first"), want("to the first", "one", "<entity not found>"), "{in_between}");
        pack.rollback(&all(), &second, Consent::Given).unwrap();
        assert_eq!(shown("forth again"), want("forth again", "two", "more"), "{in_between}");
        pack.rollback(&all(), &format!("before:{first}"), Consent::Given).unwrap();
        assert!(!place.path(ROOT).exists(), "{in_between}");
        // What is managed is known again too.
        apply(&pack).unwrap();
        let status = pack.status(&all(), &[]).unwrap();
        assert_eq!(status.data.drift, []);
    }
}

#[test]
fn a_root_of_which_an_older_state_was_restored_follows_the_history() {
    let place = place();
    let pack = place.pack();
    let first = snapshot_id(&apply(&pack).unwrap());
    let copy = place.path("copy");
    let copied =
        std::process::Command::new("cp").arg("-a").arg(place.path(ROOT)).arg(&copy).status().unwrap();
    assert!(copied.success());
    place.source("a/notes.md", "two");
    apply(&pack).unwrap();
    fs::remove_dir_all(place.path(ROOT)).unwrap();
    fs::rename(&copy, place.path(ROOT)).unwrap();
    place.source("a/notes.md", "three");
    let third = snapshot_id(&apply(&pack).unwrap());
    pack.rollback(&all(), &format!("before:{third}"), Consent::Given).unwrap();
    assert_eq!(
        place.read(&format!("{ROOT}/a/notes.md")),
        "two",
        "the second deploy is what was before the third"
    );
    pack.rollback(&all(), &first, Consent::Given).unwrap();
    assert_eq!(place.read(&format!("{ROOT}/a/notes.md")), "one");
}

#[test]
fn what_is_needed_to_bring_a_root_back_survives_pruning() {
    let place = place();
    let pack = place.pack();
    apply(&pack).unwrap();
    place.source("a/notes.md", "two");
    let second = snapshot_id(&apply(&pack).unwrap());
    fs::remove_dir_all(place.path("proj/.codex")).unwrap();
    let prune = crewkit_pack::commands::Prune { keep: Some(1) };
    pack.snapshots_prune(&all(), prune, Consent::Given).unwrap();
    pack.rollback(&all(), &second, Consent::Given).unwrap();
    assert_eq!(place.read(&format!("{ROOT}/a/SKILL.md")), SKILL);
    assert_eq!(place.read(&format!("{ROOT}/a/notes.md")), "two");
}

#[test]
fn old_snapshots_go_by_themselves_and_the_others_stay_whole() {
    let mut place = place();
    place.env.limits.pack_snapshots_kept = 3;
    let pack = place.pack();
    let mut ids = Vec::new();
    for round in 0..8 {
        place.source("a/notes.md", &format!("round {round}"));
        ids.push((round, snapshot_id(&apply(&pack).unwrap())));
        let list = pack.snapshots_list().unwrap();
        assert_eq!(list.data.snapshots.len(), ids.len().min(3));
    }
    let prune = crewkit_pack::commands::Prune { keep: Some(50) };
    let dry = crewkit_pack::commands::Select { dry_run: true, ..all() };
    let told = pack.snapshots_prune(&dry, prune, Consent::Missing).unwrap();
    assert_eq!(told.json(), serde_json::json!({"removed": [], "kept": 3}));
    // Each rollback makes one more, so the oldest of those left is gone after the first.
    for (round, id) in ids.iter().rev().take(2) {
        pack.rollback(&all(), id, Consent::Given).unwrap();
        assert_eq!(place.read(&format!("{ROOT}/a/notes.md")), format!("round {round}"));
    }
}
