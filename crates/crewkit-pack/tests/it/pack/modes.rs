//! Permissions: what was closed to others stays closed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crewkit_pack::commands::Consent;

use super::place::{Place, SKILL, adopt, all, apply, snapshot_id};

fn mode(place: &Place, path: &str) -> u32 {
    fs::metadata(place.path(path)).unwrap().permissions().mode() & 0o777
}

fn chmod(place: &Place, path: &str, bits: u32) {
    fs::set_permissions(place.path(path), fs::Permissions::from_mode(bits)).unwrap();
}

fn instructions(text: &str) -> Place {
    let place = Place::with(
        "{codex: {mode: files, scope: project}}",
        &["{id: 'instructions:b', type: instructions, tags: [base], source: {local_path: {path: b}}}"],
    );
    place.source("b/AGENTS.md", text);
    place
}

#[test]
fn an_adopted_file_keeps_its_permissions_and_gets_them_back() {
    for bits in [0o600, 0o640, 0o400, 0o660] {
        let place = instructions("ours\n");
        place.write("proj/AGENTS.md", "the user's\n");
        chmod(&place, "proj/AGENTS.md", bits);
        let pack = place.pack();
        let id = snapshot_id(&adopt(&pack).unwrap());
        assert_eq!((place.read("proj/AGENTS.md").as_str(), mode(&place, "proj/AGENTS.md")), ("ours\n", bits));
        place.source("b/AGENTS.md", "ours, newer\n");
        apply(&pack).unwrap();
        assert_eq!(mode(&place, "proj/AGENTS.md"), bits, "an update widened {bits:o}");
        // Also when there is nothing left to take them from.
        fs::remove_file(place.path("proj/AGENTS.md")).unwrap();
        pack.rollback(&all(), &format!("before:{id}"), Consent::Given).unwrap();
        let back = (place.read("proj/AGENTS.md"), mode(&place, "proj/AGENTS.md"));
        assert_eq!(back, ("the user's\n".to_owned(), bits));
    }
}

#[test]
fn a_file_that_was_deleted_returns_with_its_permissions() {
    let place = instructions("ours\n");
    let pack = place.pack();
    let id = snapshot_id(&apply(&pack).unwrap());
    chmod(&place, "proj/AGENTS.md", 0o600);
    place.manifest("{codex: {mode: files, scope: project}}", &[]);
    apply(&pack).unwrap();
    assert!(!place.path("proj/AGENTS.md").exists());
    pack.rollback(&all(), &id, Consent::Given).unwrap();
    assert_eq!(mode(&place, "proj/AGENTS.md"), 0o600);
}

#[test]
fn the_module_decides_who_may_execute_and_nothing_else() {
    let place = Place::with(
        "{codex: {mode: files, scope: project}}",
        &["{id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}"],
    );
    place.source("a/SKILL.md", SKILL);
    let script = place.source("a/run", "#!/bin/sh\n");
    let pack = place.pack();
    apply(&pack).unwrap();
    let deployed = "proj/.codex/skills/a/run";
    let fresh = mode(&place, "proj/.codex/skills/a/SKILL.md");
    assert_eq!(mode(&place, deployed), fresh, "a plain file gets what the umask leaves");
    chmod(&place, deployed, 0o640);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    apply(&pack).unwrap();
    assert_eq!(mode(&place, deployed), 0o750, "whoever may read may execute");
    fs::write(&script, "#!/bin/sh\ntrue\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644)).unwrap();
    apply(&pack).unwrap();
    assert_eq!(mode(&place, deployed), 0o640);
}
