//! Nothing is lost, and nobody else's files are touched.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crewkit_core::Code;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{
    Add, Consent, Deploy, Init, OverlayEdit, OverlayRef, OverlayScope, Prune, Update,
};
use serde_json::json;

use super::place::{Place, SKILL, adopt, all, apply, changes, code, snapshot_id};

const CODEX: &str = "{codex: {mode: files, scope: both}}";
const CODEX_PROJECT: &str = "{codex: {mode: files, scope: project}}";
const INSTRUCTIONS: &str =
    "{id: \"instructions:a\", type: instructions, tags: [base], source: {local_path: {path: i}}}";
const SKILL_MODULE: &str = "{id: \"skill:s\", type: skill, tags: [base], source: {local_path: {path: s}}}";

fn project_place() -> Place {
    let place = Place::with(CODEX_PROJECT, &[INSTRUCTIONS, SKILL_MODULE]);
    place.source("i/AGENTS.md", "# hi\n");
    place.source("s/SKILL.md", SKILL);
    place
}

/// Without a manifest of its own, a project used to inherit the files of the newest snapshot, and delete them.
#[test]
fn a_deploy_in_one_project_leaves_another_alone() {
    let place = project_place();
    let (a, b) = (place.pack_in("a"), place.pack_in("b"));
    apply(&a).unwrap();
    let before = place.read("a/AGENTS.md");
    let plan = b.plan(&all()).unwrap();
    assert!(changes(&plan, &place.base()).iter().all(|change| change.starts_with("create b/")), "{plan:?}");
    apply(&b).unwrap();
    assert_eq!(place.read("a/AGENTS.md"), before);
    assert_eq!(a.plan(&all()).unwrap().json()["changes"], json!([]));
}

#[test]
fn rollback_in_one_project_leaves_another_alone() {
    let place = project_place();
    let (a, b) = (place.pack_in("a"), place.pack_in("b"));
    let first = snapshot_id(&apply(&a).unwrap());
    apply(&b).unwrap();
    place.source("i/AGENTS.md", "# new\n");
    apply(&a).unwrap();
    a.rollback(&all(), &first, Consent::Given).unwrap();
    assert_eq!(
        (place.read("a/AGENTS.md").as_str(), place.read("b/AGENTS.md").as_str()),
        ("# hi\n", "# hi\n")
    );
}

#[test]
fn what_bootstrap_installed_stays() {
    let place = project_place();
    let manifest = json!({
        "schema_version": 1, "generated_at": "t", "tool": "codex", "snapshot_id": "1",
        "managed_files": [
            {"path": "agentpack-operator/SKILL.md", "sha256": "a".repeat(64), "module_ids": ["skill:agentpack-operator"]},
            {"path": "gone/SKILL.md", "sha256": "a".repeat(64), "module_ids": ["skill:gone"]},
        ]
    });
    place.write("proj/.codex/skills/.agentpack.manifest.codex.json", &manifest.to_string());
    place.write("proj/.codex/skills/agentpack-operator/SKILL.md", "operator");
    place.write("proj/.codex/skills/gone/SKILL.md", "gone");
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("proj/.codex/skills/agentpack-operator/SKILL.md"), "operator");
    assert!(
        !place.path("proj/.codex/skills/gone").exists(),
        "a deleted file takes its empty directory with it"
    );
    let listed = place.read("proj/.codex/skills/.agentpack.manifest.codex.json");
    assert!(
        listed.contains("agentpack-operator") && listed.contains("s/SKILL.md") && !listed.contains("gone")
    );
    assert_eq!(apply(&place.pack()).unwrap().data.reason, Some("no_changes"));
}

#[test]
fn an_adoption_can_be_undone() {
    let place = project_place();
    place.write("proj/AGENTS.md", "mine\n");
    let error = apply(&place.pack()).unwrap_err();
    assert_eq!(error.code(), Code::AdoptConfirmRequired);
    assert_eq!(error.details().unwrap()["adopt_updates"], 1);
    assert_eq!(place.read("proj/AGENTS.md"), "mine\n");
    let id = snapshot_id(&adopt(&place.pack()).unwrap());
    assert_eq!(place.read("proj/AGENTS.md"), "# hi\n");
    place.pack().rollback(&all(), &format!("before:{id}"), Consent::Given).unwrap();
    assert_eq!(place.read("proj/AGENTS.md"), "mine\n");
    assert!(!place.path("proj/.codex").exists(), "what the deploy created is gone again");
}

#[test]
fn rollback_keeps_what_was_edited_by_hand() {
    let place = project_place();
    let first = snapshot_id(&apply(&place.pack()).unwrap());
    place.source("i/AGENTS.md", "# second\n");
    apply(&place.pack()).unwrap();
    place.write("proj/AGENTS.md", "edited by hand\n");
    let answer = place.pack().rollback(&all(), &first, Consent::Given).unwrap();
    assert_eq!(place.read("proj/AGENTS.md"), "# hi\n");
    assert!(answer.warnings.iter().any(|warning| warning.contains("AGENTS.md")), "{:?}", answer.warnings);
    let event = &answer.data.event_snapshot_id.unwrap();
    let kept = place.pack().snapshots_show(event).unwrap();
    assert!(kept.data.changes[0].backup, "{kept:?}");
}

#[test]
fn scripts_stay_executable_and_modes_follow_the_umask() {
    let place = project_place();
    let script = place.source("s/run.sh", "#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    apply(&place.pack()).unwrap();
    let mode = |path: &str| fs::metadata(place.path(path)).unwrap().permissions().mode() & 0o777;
    let ordinary = place.write("ordinary", "");
    let umasked = fs::metadata(ordinary).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("proj/.codex/skills/s/run.sh"), 0o755 & (umasked | 0o111));
    assert_eq!(mode("proj/AGENTS.md"), umasked);

    // What an earlier version deployed without the bit is repaired.
    fs::set_permissions(place.path("proj/.codex/skills/s/run.sh"), fs::Permissions::from_mode(0o600))
        .unwrap();
    let plan = place.pack().plan(&all()).unwrap();
    assert_eq!(plan.data.changes.changes[0].reason, "not executable");
    apply(&place.pack()).unwrap();
    assert_eq!(mode("proj/.codex/skills/s/run.sh") & 0o100, 0o100);
}

/// Files that were desired but never deployed used to be missing from the report.
#[test]
fn status_and_plan_agree_about_what_is_missing() {
    let place = project_place();
    apply(&place.pack()).unwrap();
    place.source("s/more.md", "more");
    let status = place.pack().status(&all(), &[]).unwrap();
    assert_eq!(status.json()["summary"], json!({"modified": 0, "missing": 1, "extra": 0}));
    assert_eq!(
        changes(&place.pack().plan(&all()).unwrap(), &place.base()),
        ["create proj/.codex/skills/s/more.md"]
    );
}

#[test]
fn a_second_deploy_changes_nothing_at_all() {
    let place = project_place();
    apply(&place.pack()).unwrap();
    let before = place.everything();
    let answer = apply(&place.pack()).unwrap();
    assert_eq!((answer.data.applied, answer.data.reason), (Some(false), Some("no_changes")));
    assert_eq!(place.everything(), before);
}

#[test]
fn a_dry_run_writes_nothing_in_any_command() {
    let place = project_place();
    place.git_repo("upstream", &[("SKILL.md", SKILL)]);
    let id = snapshot_id(&apply(&place.pack()).unwrap());
    place.source("i/AGENTS.md", "# changed\n");
    apply(&place.pack()).unwrap();
    place.source("i/AGENTS.md", "# changed again\n");
    let select = Select { dry_run: true, ..all() };
    let (pack, consent) = (place.pack(), Consent::Missing);
    let which = OverlayRef { module_id: "skill:s".to_owned(), scope: OverlayScope::Global };
    let add = Add {
        kind: "skill".to_owned(),
        source: "local:s2".to_owned(),
        id: None,
        tags: Vec::new(),
        targets: Vec::new(),
    };
    let new_repo = Select { repo: Some(place.path("new-repo")), ..select.clone() };
    let deploy =
        crewkit_pack::commands::Deploy { apply: Some(Consent::Given), adopt: true, confirm_token: None };
    let before = place.everything();
    for (name, result) in [
        ("plan", pack.plan(&select).map(drop)),
        ("preview", pack.preview(&select, true).map(drop)),
        ("status", pack.status(&select, &[]).map(drop)),
        ("doctor --fix", pack.doctor(&select, Some(consent)).map(drop)),
        ("deploy", pack.deploy(&select, &deploy).map(drop)),
        ("rollback", pack.rollback(&select, &id, consent).map(drop)),
        ("lock", pack.lock_modules(&select, consent).map(drop)),
        ("update", pack.update(&select, Update::default(), consent).map(drop)),
        ("init", pack.init(&new_repo, Init { git: true }, consent).map(drop)),
        ("add", pack.add(&select, &add, consent).map(drop)),
        ("remove", pack.remove(&select, "skill:s", consent).map(drop)),
        ("overlay edit", pack.overlay_edit(&select, &which, OverlayEdit::default(), consent).map(drop)),
        ("snapshots prune", pack.snapshots_prune(&select, Prune { keep: Some(1) }, consent).map(drop)),
    ] {
        assert!(result.is_ok(), "{name}: {result:?}");
        assert_eq!(place.everything(), before, "{name}");
    }
    assert_eq!(place.read("proj/AGENTS.md"), "# changed\n");
}

#[test]
fn without_approval_nothing_changes() {
    let place = project_place();
    let before = place.everything();
    let (pack, select, consent) = (place.pack(), all(), Consent::Missing);
    let deploy = crewkit_pack::commands::Deploy { apply: Some(consent), adopt: false, confirm_token: None };
    for result in [
        pack.deploy(&select, &deploy).map(drop),
        pack.rollback(&select, "1", consent).map(drop),
        pack.lock_modules(&select, consent).map(drop),
        pack.fetch(&select, consent).map(drop),
        pack.update(&select, Update::default(), consent).map(drop),
        pack.remove(&select, "skill:s", consent).map(drop),
        pack.doctor(&select, Some(consent)).map(drop),
        pack.snapshots_prune(&select, Prune { keep: None }, consent).map(drop),
    ] {
        assert_eq!(code(result), Code::ConfirmRequired);
    }
    assert_eq!(place.everything(), before);
}

#[test]
fn a_conflict_between_targets_that_share_a_file_is_told() {
    let targets = "{codex: {mode: files, scope: project}, export_dir: {mode: files, scope: project, options: {root: .}}}";
    let only_codex = "{id: \"instructions:b\", type: instructions, tags: [base], targets: [codex], source: {local_path: {path: i}}}";
    let place = Place::with(targets, &[INSTRUCTIONS]);
    place.source("i/AGENTS.md", "# hi\n");
    place.pack().plan(&all()).unwrap();
    place.manifest(targets, &[INSTRUCTIONS, only_codex]);
    assert_eq!(code(place.pack().plan(&all())), Code::DesiredStateConflict);
}

#[test]
fn an_unreadable_snapshot_blocks_nothing() {
    let place = Place::with(CODEX, &[INSTRUCTIONS]);
    place.source("i/AGENTS.md", "# hi\n");
    place.write("home/.agentpack/state/snapshots/1700000000000000000.json", "{broken");
    apply(&place.pack()).unwrap();
    place.pack().status(&all(), &[]).unwrap();
    let list = place.pack().snapshots_list().unwrap();
    assert_eq!(list.data.snapshots.len(), 1);
    assert!(list.warnings[0].contains("1700000000000000000"), "{:?}", list.warnings);
}

/// A service that is asked again has target manifests in memory; they must never be older than the files.
#[test]
fn a_manifest_edited_between_two_looks_is_read_again() {
    let place = project_place();
    let pack = place.pack_in("a");
    apply(&pack).unwrap();
    place.source("i/AGENTS.md", "# new\n");
    place.wait(10);
    let kind = || {
        let plan = pack.plan(&all()).unwrap().json();
        assert_eq!(plan["changes"].as_array().unwrap().len(), 1, "{plan}");
        plan["changes"][0]["update_kind"].as_str().unwrap().to_owned()
    };
    assert_eq!((kind().as_str(), kind().as_str()), ("managed_update", "managed_update"));

    let path = place.path("a/.agentpack.manifest.codex.json");
    let (text, before) = (place.read("a/.agentpack.manifest.codex.json"), fs::metadata(&path).unwrap());
    let edited = text.replace("\"AGENTS.md\"", "\"OTHERS.md\"");
    assert_eq!((edited.len(), edited == text), (text.len(), false));
    // Same file, same length, same time of the last change to its content; until the clock of the file system has moved.
    while ctime(&fs::metadata(&path).unwrap()) == ctime(&before) {
        fs::write(&path, &edited).unwrap();
        fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(before.modified().unwrap())
            .unwrap();
    }
    assert_eq!(kind(), "adopt_update");
}

fn ctime(metadata: &fs::Metadata) -> (i64, i64) {
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Inode, change time and modification time of everything below a directory.
fn traces(
    dir: &std::path::Path,
) -> std::collections::BTreeMap<std::path::PathBuf, (u64, i64, i64, i64, i64)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let data = fs::symlink_metadata(&path).unwrap();
        if data.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let trace = (data.ino(), data.ctime(), data.ctime_nsec(), data.mtime(), data.mtime_nsec());
        found.insert(path, trace);
    }
    found
}

#[test]
fn a_second_deploy_writes_nothing_at_all() {
    let place = project_place();
    // More files than are worth saving hashes for.
    for number in 0..50 {
        place.source(&format!("s/{number}.md"), "text");
    }
    apply(&place.pack()).unwrap();
    let before = traces(&place.base());
    let answer = apply(&place.pack()).unwrap();
    assert_eq!(answer.data.reason, Some("no_changes"));
    assert_eq!(traces(&place.base()), before);
}

#[test]
fn rollback_to_a_snapshot_of_one_target_leaves_the_others_alone() {
    let both = "{codex: {mode: files, scope: project}, vscode: {mode: files, scope: project}}";
    let place = Place::with(both, &[INSTRUCTIONS, SKILL_MODULE]);
    place.source("i/AGENTS.md", "# one\n");
    place.source("s/SKILL.md", SKILL);
    let codex = Select { target: "codex".to_owned(), ..all() };
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    let first = snapshot_id(&place.pack().deploy(&codex, &deploy).unwrap());
    assert!(!place.path("proj/.github").exists());
    place.source("i/AGENTS.md", "# two\n");
    apply(&place.pack()).unwrap();
    let vscode = place.read("proj/.github/copilot-instructions.md");
    assert!(vscode.contains("# two"));

    place.pack().rollback(&all(), &first, Consent::Given).unwrap();
    assert_eq!(place.read("proj/AGENTS.md"), "# one\n");
    assert_eq!(place.read("proj/.github/copilot-instructions.md"), vscode);
}

#[test]
fn a_state_directory_that_is_a_link_is_used() {
    let place = Place::with("{codex: {mode: files, scope: project}}", &[]);
    fs::create_dir_all(place.path("other-disk")).unwrap();
    fs::create_dir_all(place.path("home/.agentpack")).unwrap();
    std::os::unix::fs::symlink(place.path("other-disk"), place.path("home/.agentpack/state")).unwrap();
    place.manifest(
        "{codex: {mode: files, scope: project}}",
        &["{id: 'instructions:b', type: instructions, tags: [base], source: {local_path: {path: b}}}"],
    );
    place.source("b/AGENTS.md", "x");
    let pack = place.pack();
    let id = super::place::snapshot_id(&super::place::apply(&pack).unwrap());
    assert!(place.path("other-disk/crewkit/snapshots").is_dir());
    pack.rollback(&super::place::all(), &format!("before:{id}"), Consent::Given).unwrap();
    assert!(!place.path("proj/AGENTS.md").exists());
}

#[test]
fn what_doctor_suggests_can_be_pasted() {
    let mut place = Place::with("{codex: {mode: files, scope: project}}", &[]);
    place.env.cwd = place.path("a project's dir; with words");
    fs::create_dir_all(&place.env.cwd).unwrap();
    let answer = place.pack().doctor(&super::place::all(), None).unwrap();
    let actions = answer.data.next_actions;
    assert!(!actions.is_empty());
    for action in actions {
        let done = std::process::Command::new("sh").args(["-ec", &action]).current_dir("/").status().unwrap();
        assert!(done.success(), "{action}");
    }
    assert!(place.env.cwd.join(".codex/skills").is_dir());
}
