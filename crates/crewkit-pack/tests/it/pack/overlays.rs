//! Overlays: layers, patches, baselines and rebasing.

use std::fs;

use crewkit_core::Code;
use crewkit_pack::PackError;
use crewkit_pack::commands::{
    Consent, OverlayEdit, OverlayEdited, OverlayRebased, OverlayRef, OverlayScope, Pack,
};
use crewkit_pack::envelope::Answer;
use proptest::prelude::*;

use super::place::{Place, all, apply, code};

const TARGETS: &str = "{codex: {mode: files, scope: user}}";
const MODULE: &str = "{id: \"skill:foo\", type: skill, tags: [base], source: {local_path: {path: s}}}";
const KEY: &str = "skill_foo--22d3caa4ab";
const BODY: &str = "---\nname: foo\ndescription: d\n---\none\ntwo\nthree\nfour\nfive\n";

/// A repo under version control with one skill.
fn place() -> Place {
    let place = Place::with(TARGETS, &[MODULE]);
    place.source("s/SKILL.md", BODY);
    place.source("s/extra.txt", "upstream\n");
    place.git_repo("home/.agentpack/repo", &[]);
    place
}

fn which(scope: OverlayScope) -> OverlayRef {
    OverlayRef { module_id: "skill:foo".to_owned(), scope }
}

fn edit(pack: &Pack, how: OverlayEdit) -> Result<Answer<OverlayEdited>, PackError> {
    pack.overlay_edit(&all(), &which(OverlayScope::Global), how, Consent::Given)
}

fn rebase(pack: &Pack, sparsify: bool) -> Result<Answer<OverlayRebased>, PackError> {
    pack.overlay_rebase(&all(), &which(OverlayScope::Global), sparsify, Consent::Given)
}

fn deployed(place: &Place, file: &str) -> String {
    apply(&place.pack()).unwrap();
    place.read(&format!("home/.codex/skills/foo/{file}"))
}

#[test]
fn later_layers_win() {
    let place = place();
    let project_id = {
        let answer = place.pack().overlay_path(&all(), &which(OverlayScope::Project)).unwrap();
        let dir = answer.data.overlay_dir.display().to_string();
        dir.split("projects/").nth(1).unwrap().split('/').next().unwrap().to_owned()
    };
    let layers = [
        format!("overlays/{KEY}"),
        format!("overlays/machines/box/{KEY}"),
        format!("projects/{project_id}/overlays/{KEY}"),
    ];
    for (index, layer) in layers.iter().enumerate() {
        place.source(&format!("{layer}/extra.txt"), &format!("layer {index}\n"));
        place.source(&format!("{layer}/added-{index}.txt"), "added");
        assert_eq!(deployed(&place, "extra.txt"), format!("layer {index}\n"));
    }
    assert_eq!(deployed(&place, "added-0.txt"), "added");
    place.source("overlays/machines/other/skill_foo--22d3caa4ab/extra.txt", "not mine\n");
    assert_eq!(deployed(&place, "extra.txt"), "layer 2\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_strongest_layer_that_has_a_file_decides(present in proptest::array::uniform3(any::<bool>())) {
        let place = Place::with(TARGETS, &[MODULE]);
        place.source("s/SKILL.md", BODY);
        let layers = [
            "s".to_owned(),
            format!("overlays/{KEY}"),
            format!("overlays/machines/box/{KEY}"),
        ];
        for (layer, present) in layers.iter().zip(present) {
            if present {
                place.source(&format!("{layer}/f.txt"), layer);
            }
        }
        let want = layers.iter().zip(present).rev().find(|(_, present)| *present).map(|(layer, _)| layer.clone());
        prop_assert_eq!(deployed(&place, "f.txt"), want.unwrap_or_else(|| "<entity not found>".to_owned()));
    }
}

#[test]
fn a_patch_changes_lines_and_says_when_it_does_not_fit() {
    let place = place();
    let how = OverlayEdit { patch: Some(true), ..OverlayEdit::default() };
    let answer = edit(&place.pack(), how).unwrap();
    assert_eq!(answer.data.overlay_kind, "patch");
    let patch = "--- a/extra.txt\n+++ b/extra.txt\n@@ -1 +1 @@\n-upstream\n+patched\n";
    place.source(&format!("overlays/{KEY}/.agentpack/patches/extra.txt.patch"), patch);
    assert_eq!(deployed(&place, "extra.txt"), "patched\n");

    place.source("s/extra.txt", "something else\n");
    let error = place.pack().plan(&all()).unwrap_err();
    assert_eq!(error.code(), Code::OverlayPatchApplyFailed);
    assert_eq!(error.details().unwrap()["relpath"], "extra.txt");

    place.source(&format!("overlays/{KEY}/whole.txt"), "mixed");
    assert_eq!(code(place.pack().plan(&all())), Code::ConfigInvalid);
}

/// With the default home, every path has a `.agentpack` component; overlays used to be blind there.
#[test]
fn rebase_carries_changes_over_below_the_default_home() {
    let place = place();
    edit(&place.pack(), OverlayEdit::default()).unwrap();
    place.source(&format!("overlays/{KEY}/SKILL.md"), &BODY.replace("one", "ONE"));
    place.source("s/SKILL.md", &BODY.replace("five", "FIVE"));
    let plan = place.pack().plan(&all()).unwrap();
    assert!(plan.warnings.iter().any(|warning| warning.contains("SKILL.md")), "{:?}", plan.warnings);
    let answer = rebase(&place.pack(), true).unwrap();
    assert_eq!(answer.data.report.updated, ["SKILL.md"]);
    assert_eq!(answer.data.report.deleted, ["extra.txt"]);
    assert_eq!(deployed(&place, "SKILL.md"), BODY.replace("one", "ONE").replace("five", "FIVE"));
    assert_eq!(place.pack().plan(&all()).unwrap().warnings, Vec::<String>::new());
}

/// A conflict used to count as resolved, and its markers were deployed.
#[test]
fn a_conflict_stays_one_until_it_is_resolved() {
    let place = place();
    edit(&place.pack(), OverlayEdit::default()).unwrap();
    place.source(&format!("overlays/{KEY}/SKILL.md"), &BODY.replace("one", "mine"));
    place.source("s/SKILL.md", &BODY.replace("one", "theirs"));
    for _ in 0..2 {
        let error = rebase(&place.pack(), false).unwrap_err();
        assert_eq!(error.code(), Code::OverlayRebaseConflict);
        assert_eq!(error.details().unwrap()["conflicts"], serde_json::json!(["SKILL.md"]));
        assert!(!deployed(&place, "SKILL.md").contains("<<<<<<<"));
    }
    let conflict = format!("overlays/{KEY}/.agentpack/conflicts/SKILL.md");
    let text = fs::read_to_string(place.repo(&conflict)).unwrap();
    assert!(text.contains("<<<<<<< overlay\nmine\n=======\ntheirs\n>>>>>>> upstream\n"), "{text}");
    place.source(&conflict, &BODY.replace("one", "both"));
    rebase(&place.pack(), false).unwrap();
    assert_eq!(deployed(&place, "SKILL.md"), BODY.replace("one", "both"));
    assert!(!place.repo(&conflict).exists());
    rebase(&place.pack(), false).unwrap();
}

#[test]
fn a_patch_overlay_is_rebased_too() {
    let place = place();
    edit(&place.pack(), OverlayEdit { patch: Some(true), ..OverlayEdit::default() }).unwrap();
    let patch = crewkit_pack::overlay::patch::make("SKILL.md", BODY, &BODY.replace("one", "ONE"));
    place.source(&format!("overlays/{KEY}/.agentpack/patches/SKILL.md.patch"), &patch);
    place.source("s/SKILL.md", &format!("{}six\n", BODY.replace("five", "FIVE")));
    rebase(&place.pack(), false).unwrap();
    let want = format!("{}six\n", BODY.replace("five", "FIVE").replace("one", "ONE"));
    assert_eq!(deployed(&place, "SKILL.md"), want);
}

#[test]
fn what_a_rebase_needs() {
    let place = place();
    assert_eq!(code(rebase(&place.pack(), false)), Code::OverlayNotFound);
    place.source(&format!("overlays/{KEY}/extra.txt"), "x");
    assert_eq!(code(rebase(&place.pack(), false)), Code::OverlayBaselineMissing);

    // Made without a commit: the baseline cannot be found again once the upstream has moved on.
    fs::remove_dir_all(place.repo("overlays")).unwrap();
    fs::remove_dir_all(place.repo(".git")).unwrap();
    edit(&place.pack(), OverlayEdit::default()).unwrap();
    rebase(&place.pack(), false).unwrap();
    place.source("s/extra.txt", "moved on\n");
    assert_eq!(code(rebase(&place.pack(), false)), Code::OverlayBaselineUnsupported);
}

#[test]
fn editing_again_keeps_what_is_there() {
    let place = place();
    let sparse = OverlayEdit { sparse: true, ..OverlayEdit::default() };
    assert!(edit(&place.pack(), sparse).unwrap().data.created);
    assert!(!place.repo(&format!("overlays/{KEY}/extra.txt")).exists());
    place.source(&format!("overlays/{KEY}/extra.txt"), "mine");
    let fill = OverlayEdit { materialize: true, ..OverlayEdit::default() };
    assert!(!edit(&place.pack(), fill).unwrap().data.created);
    assert_eq!(fs::read_to_string(place.repo(&format!("overlays/{KEY}/extra.txt"))).unwrap(), "mine");
    assert_eq!(fs::read_to_string(place.repo(&format!("overlays/{KEY}/SKILL.md"))).unwrap(), BODY);
    let other = OverlayEdit { patch: Some(true), ..OverlayEdit::default() };
    assert_eq!(code(edit(&place.pack(), other)), Code::ConfigInvalid);
}

/// A file that is not text cannot be merged: the person chooses a version, of whatever bytes.
#[test]
fn a_conflict_of_a_file_that_is_not_text_is_resolved_by_a_choice() {
    let bytes = |side: &str| [side.as_bytes(), &[0, 0xff, 0xfe, 0x80]].concat();
    for (chosen, deleted) in [("overlay", false), ("upstream", false), ("overlay", true)] {
        let place = place();
        fs::write(place.repo("s/logo.png"), bytes("base")).unwrap();
        place.git_repo("home/.agentpack/repo", &[("x", "")]);
        let pack = place.pack();
        edit(&pack, OverlayEdit::default()).unwrap();
        fs::write(place.repo(&format!("overlays/{KEY}/logo.png")), bytes("overlay")).unwrap();
        if deleted {
            fs::remove_file(place.repo("s/logo.png")).unwrap();
        } else {
            fs::write(place.repo("s/logo.png"), bytes("upstream")).unwrap();
        }
        for _ in 0..2 {
            let error = rebase(&pack, false).unwrap_err();
            assert_eq!(error.code(), Code::OverlayRebaseConflict, "{error}");
            assert_eq!(error.details().unwrap()["conflicts"], serde_json::json!(["logo.png"]));
        }
        let conflicts = place.repo(&format!("overlays/{KEY}/.agentpack/conflicts"));
        assert_eq!(fs::read(conflicts.join("logo.png.overlay")).unwrap(), bytes("overlay"));
        assert_eq!(conflicts.join("logo.png.upstream").exists(), !deleted);
        fs::copy(conflicts.join(format!("logo.png.{chosen}")), conflicts.join("logo.png")).unwrap();
        rebase(&pack, false).unwrap();
        assert!(!conflicts.exists());
        apply(&pack).unwrap();
        let deployed = fs::read(place.path("home/.codex/skills/foo/logo.png")).unwrap();
        assert_eq!(deployed, bytes(chosen), "upstream deleted: {deleted}");
    }
}
