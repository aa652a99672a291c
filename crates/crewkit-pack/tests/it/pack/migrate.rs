//! From version 1 to version 2 and back.

use std::fs;

use crewkit_core::Code;
use crewkit_pack::commands::{Consent, Migrate};

use super::place::{Place, all, apply, code};

const TARGETS: &str = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: both}}";

fn module(kind: &str, path: &str) -> String {
    let name = path.trim_end_matches(".md");
    format!("{{id: '{kind}:{name}', type: {kind}, tags: [base], source: {{local_path: {{path: {path}}}}}}}")
}

/// A repo of version 1, deployed.
fn place() -> Place {
    let modules =
        [("instructions", "i"), ("skill", "s"), ("skill", "t"), ("prompt", "p.md"), ("command", "c.md")]
            .map(|(kind, path)| module(kind, path));
    let place = Place::with(TARGETS, &modules.each_ref().map(String::as_str));
    place.source("i/AGENTS.md", "be kind\n");
    place.source("s/SKILL.md", "---\nname: s\ndescription: d\n---\n");
    place.source("t/SKILL.md", "---\nname: t\ndescription: d\n---\n");
    place.source("p.md", "# p\n");
    place.source("c.md", "---\ndescription: d\n---\n");
    apply(&place.pack()).unwrap();
    place
}

fn asked(apply: Option<Consent>) -> Migrate {
    Migrate { apply, adopt: false, scope: None }
}

/// The user's directories and the config file, without what names snapshots and times.
fn trees(place: &Place) -> Vec<(String, Vec<u8>)> {
    let keep = |path: &String| {
        !path.contains("/.agentpack/state") && !path.contains(".agentpack.manifest") && !path.ends_with('/')
    };
    let all = place.everything().into_iter().filter(|(path, _)| keep(path));
    all.map(|(path, (_, text))| (path, text)).collect()
}

#[test]
fn a_migration_is_planned_applied_and_taken_back() {
    let place = place();
    let before = trees(&place);
    let plan = place.pack().migrate(&all(), asked(None)).unwrap();
    assert_eq!(trees(&place), before, "a plan writes nothing");
    assert!(plan.data.config.as_ref().unwrap().contains("version: 2\n"));
    assert_eq!(plan.data.planned.applied, Some(false));
    assert_eq!(code(place.pack().migrate(&all(), asked(Some(Consent::Missing)))), Code::ConfirmRequired);

    let done = place.pack().migrate(&all(), asked(Some(Consent::Given))).unwrap();
    assert_eq!(done.data.planned.changes.changes, plan.data.planned.changes.changes);
    let text = fs::read_to_string(place.repo("agentpack.yaml")).unwrap();
    assert_eq!(Some(&text), done.data.config.as_ref());
    assert_eq!(place.read("proj/CLAUDE.md"), "@AGENTS.md\n");
    assert!(place.path("proj/.agents/skills/p/SKILL.md").exists());
    for gone in [
        "home/.codex/AGENTS.md",
        "home/.codex/prompts/p.md",
        "proj/.codex/skills/s",
        "home/.claude/commands/c.md",
    ] {
        assert!(!place.path(gone).exists(), "{gone}");
    }
    // Nothing is left to do, and a second time changes nothing.
    assert_eq!(place.pack().plan(&all()).unwrap().data.changes.changes, []);
    assert_eq!(place.pack().status(&all(), &[]).unwrap().data.drift, []);
    let again = place.pack().migrate(&all(), asked(Some(Consent::Given))).unwrap();
    assert_eq!((again.data.planned.reason, again.data.config), (Some("no_changes"), None));

    place.pack().undo_migration(&all(), Consent::Given).unwrap();
    assert_eq!(trees(&place), before);
    assert_eq!(place.pack().plan(&all()).unwrap().data.changes.changes, []);
    assert_eq!(code(place.pack().undo_migration(&all(), Consent::Given)), Code::SnapshotNotFound);
}

#[test]
fn what_people_changed_stays_where_it_is() {
    let place = place();
    place.write("proj/AGENTS.md", "be kind, and brief\n");
    place.write("home/.codex/skills/s/SKILL.md", "---\nname: s\ndescription: mine\n---\n");
    place.write("home/.codex/prompts/own.md", "own\n");
    let done = place.pack().migrate(&all(), asked(Some(Consent::Given))).unwrap();
    assert_eq!(place.read("proj/AGENTS.md"), "be kind, and brief\n");
    assert!(place.read("home/.codex/skills/s/SKILL.md").contains("mine"));
    assert_eq!(place.read("home/.codex/prompts/own.md"), "own\n");
    assert!(!place.path("home/.codex/skills/t").exists());
    assert_eq!(
        done.data.left_alone,
        [place.path("proj/AGENTS.md"), place.path("home/.codex/skills/s/SKILL.md")]
    );
    assert_eq!(done.warnings.iter().filter(|warning| warning.contains("is left as it is")).count(), 2);
}

#[test]
fn files_of_the_user_at_the_new_places_are_not_overwritten_unless_asked() {
    let place = place();
    place.write("proj/CLAUDE.md", "my own\n");
    let before = trees(&place);
    assert_eq!(code(place.pack().migrate(&all(), asked(Some(Consent::Given)))), Code::AdoptConfirmRequired);
    assert_eq!(trees(&place), before);
    let adopt = Migrate { adopt: true, ..asked(Some(Consent::Given)) };
    place.pack().migrate(&all(), adopt).unwrap();
    assert_eq!(place.read("proj/CLAUDE.md"), "@AGENTS.md\n");
    place.pack().undo_migration(&all(), Consent::Given).unwrap();
    assert_eq!(trees(&place), before);

    // A file that says the same already is adopted without a question.
    place.write("proj/CLAUDE.md", "@AGENTS.md\n");
    place.pack().migrate(&all(), asked(Some(Consent::Given))).unwrap();
    let listed = place.read("proj/.agentpack.manifest.claude_code.json");
    assert!(listed.contains("CLAUDE.md"), "{listed}");
}

#[test]
fn what_cannot_be_rewritten_or_was_off_is_told() {
    let place = place();
    let text = fs::read_to_string(place.repo("agentpack.yaml")).unwrap();
    let off = text.replace(
        "{codex: {mode: files, scope: both}",
        "{codex: {mode: files, scope: both, options: {write_agents_repo_root: false}}",
    );
    place.source("agentpack.yaml", &off);
    let plan = place.pack().migrate(&all(), asked(None)).unwrap();
    assert!(
        plan.warnings.iter().any(|warning| warning.contains("write_agents_repo_root")),
        "{:?}",
        plan.warnings
    );
    place.source("agentpack.yaml", &text.replace("version: 1", "\"version\": 1"));
    assert_eq!(code(place.pack().migrate(&all(), asked(None))), Code::ConfigInvalid);
    fs::rename(place.repo("agentpack.yaml"), place.repo("real.yaml")).unwrap();
    place.source("real.yaml", &text);
    std::os::unix::fs::symlink("real.yaml", place.repo("agentpack.yaml")).unwrap();
    assert_eq!(code(place.pack().migrate(&all(), asked(None))), Code::TargetNotAFile);
}
