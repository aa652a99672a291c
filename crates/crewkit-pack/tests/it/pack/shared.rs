//! Places with several names, and places several targets want.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crewkit_core::Code;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Consent, Deploy, Pack};

use super::place::{Place, SKILL, adopt, all, apply, changes, code, snapshot_id};

const BOTH: &str = "{codex: {mode: files, scope: user}, claude_code: {mode: files, scope: user, options: {write_user_skills: true}}}";

fn skill(id: &str, targets: &str) -> String {
    format!(
        "{{id: 'skill:{id}', type: skill, tags: [base], targets: {targets}, source: {{local_path: {{path: {id}}}}}}}"
    )
}

/// Makes `~/.claude/skills` and `~/.codex/skills` one directory; the second way is for root alone.
fn alias(place: &Place, how: &str) -> Option<Mounted> {
    let (real, other) = (place.path("home/.codex/skills"), place.path("home/.claude/skills"));
    fs::create_dir_all(&real).unwrap();
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    if how == "link" {
        symlink(&real, &other).unwrap();
        return Some(Mounted(None));
    }
    fs::create_dir_all(&other).unwrap();
    let mounted = Command::new("mount").arg("--bind").args([&real, &other]).output().unwrap();
    if mounted.status.success() {
        return Some(Mounted(Some(other)));
    }
    eprintln!("NOT TRIED: aliases by bind mount: {}", String::from_utf8_lossy(&mounted.stderr));
    None
}

/// Takes a mount away again.
struct Mounted(Option<std::path::PathBuf>);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            assert!(Command::new("umount").arg(path).status().unwrap().success());
        }
    }
}

#[track_caller]
fn assert_clean(pack: &Pack, what: &str) {
    let status = pack.status(&all(), &[]).unwrap();
    assert_eq!(status.data.drift, [], "{what}");
    assert!(pack.plan(&all()).unwrap().data.changes.changes.is_empty(), "{what}");
}

fn deploy_target(pack: &Pack, target: &str) {
    let select = Select { target: target.to_owned(), ..all() };
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    pack.deploy(&select, &deploy).unwrap();
}

#[test]
fn a_file_that_two_targets_share_stays_until_both_let_go_of_it() {
    for how in ["link", "bind mount"] {
        let place = Place::with(BOTH, &[&skill("a", "[]"), &skill("b", "[]")]);
        place.source("a/SKILL.md", SKILL);
        place.source("b/SKILL.md", SKILL);
        let Some(_mounted) = alias(&place, how) else { continue };
        let pack = place.pack();
        let first = snapshot_id(&apply(&pack).unwrap());
        let shared = "home/.codex/skills/b/SKILL.md";
        assert_eq!(place.read(shared), SKILL);
        assert_clean(&pack, how);

        // One of them stops wanting it, in a deploy of both, and the file stays.
        place.manifest(BOTH, &[&skill("a", "[]"), &skill("b", "[claude_code]")]);
        assert_eq!(changes(&pack.plan(&all()).unwrap(), &place.base()), Vec::<String>::new(), "{how}");
        apply(&pack).unwrap();
        assert_eq!(place.read(shared), SKILL, "{how}");
        assert_clean(&pack, how);
        // Then the other, in a deploy that knows only itself.
        place.manifest(BOTH, &[&skill("a", "[]"), &skill("b", "[codex]")]);
        deploy_target(&pack, "claude_code");
        deploy_target(&pack, "codex");
        assert_eq!(place.read(shared), SKILL, "{how}");
        assert_clean(&pack, how);
        deploy_target(&pack, "claude_code");
        assert_eq!(place.read(shared), SKILL, "{how}");

        // And when nobody wants it any more, it goes.
        place.manifest(BOTH, &[&skill("a", "[]")]);
        let last = snapshot_id(&apply(&pack).unwrap());
        assert!(!place.path(shared).exists(), "{how}");
        assert_clean(&pack, how);

        // The way back and forth agrees.
        pack.rollback(&all(), &first, Consent::Given).unwrap();
        assert_eq!(place.read(shared), SKILL, "{how}");
        pack.rollback(&all(), &last, Consent::Given).unwrap();
        assert!(!place.path(shared).exists(), "{how}");
        assert_eq!(place.read("home/.codex/skills/a/SKILL.md"), SKILL, "{how}");
        assert_clean(&pack, how);
    }
}

#[test]
fn a_rollback_leaves_what_another_target_still_wants() {
    let place = Place::with(BOTH, &[&skill("a", "[claude_code]"), &skill("b", "[]")]);
    place.source("a/SKILL.md", SKILL);
    place.source("b/SKILL.md", SKILL);
    let _mounted = alias(&place, "link");
    let pack = place.pack();
    deploy_target(&pack, "claude_code");
    let select = Select { target: "codex".to_owned(), ..all() };
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    let id = snapshot_id(&pack.deploy(&select, &deploy).unwrap());
    pack.rollback(&all(), &format!("before:{id}"), Consent::Given).unwrap();
    assert_eq!(place.read("home/.claude/skills/b/SKILL.md"), SKILL);
    deploy_target(&pack, "codex");
    assert_clean(&pack, "deployed again");
}

#[test]
fn what_one_target_manages_is_no_users_file_for_another() {
    let place = Place::with(BOTH, &[&skill("a", "[codex]")]);
    place.source("a/SKILL.md", SKILL);
    let _mounted = alias(&place, "link");
    let pack = place.pack();
    apply(&pack).unwrap();
    place.manifest(BOTH, &[&skill("a", "[]")]);
    place.source("a/SKILL.md", &format!("{SKILL}more\n"));
    apply(&pack).unwrap();
    assert_eq!(place.read("home/.claude/skills/a/SKILL.md"), format!("{SKILL}more\n"));
}

#[test]
fn two_targets_that_disagree_about_a_place_are_told() {
    let place = Place::with(
        "{codex: {mode: files, scope: user}, cursor: {mode: files, scope: project}, vscode: {mode: files, scope: project}, \
         jetbrains: {mode: files, scope: project}}",
        &[
            "{id: 'instructions:a', type: instructions, tags: [base], targets: [jetbrains], source: {local_path: {path: a}}}",
            "{id: 'instructions:b', type: instructions, tags: [base], targets: [vscode], source: {local_path: {path: b}}}",
            "{id: 'prompt:guidelines', type: prompt, tags: [base], targets: [vscode], source: {local_path: {path: guidelines.prompt.md}}}",
        ],
    );
    place.source("a/AGENTS.md", "one\n");
    place.source("b/AGENTS.md", "two\n");
    place.source("guidelines.prompt.md", "three\n");
    fs::create_dir_all(place.path("proj/.github")).unwrap();
    // `.junie/guidelines.md` and `.github/copilot-instructions.md` become one file's directory, but not one file.
    symlink(".github", place.path("proj/.junie")).unwrap();
    let pack = place.pack();
    apply(&pack).unwrap();
    assert_eq!(
        (place.read("proj/.github/guidelines.md"), place.read("proj/.github/copilot-instructions.md")),
        ("one\n".into(), "two\n".into())
    );
    let place = Place::with(BOTH, &[&skill("a", "[]")]);
    place.source("a/SKILL.md", SKILL);
    let _mounted = alias(&place, "link");
    let mut manifest = place.read("home/.agentpack/repo/agentpack.yaml");
    manifest = manifest.replace(&skill("a", "[]"), &skill("a", "[codex]"));
    manifest.push_str("  - {id: 'skills:a', type: skill, tags: [base], targets: [claude_code], source: {local_path: {path: b}}}\n");
    place.source("agentpack.yaml", &manifest);
    place.source("b/SKILL.md", &format!("{SKILL}different\n"));
    assert_eq!(code(place.pack().plan(&all())), Code::DesiredStateConflict);
}

/// Roots in each other, in every order their paths can sort in.
#[test]
fn an_export_beside_the_skills_of_another_target_is_deployed() {
    for root in ["~/.claude", "~/.claude/skills", "~/.claude/zkills", "~/.claude/askills", "~", "~/.codex"] {
        let targets = format!(
            "{{claude_code: {{mode: files, scope: user, options: {{write_user_skills: true}}}}, codex: {{mode: files, scope: user}}, \
             export_dir: {{mode: files, scope: user, options: {{root: '{root}', scan_extras: false}}}}}}"
        );
        let modules = ["a", "a-b", "a.b", "b"].map(|name| skill(name, "[]"));
        let place = Place::with(&targets, &modules.each_ref().map(String::as_str));
        for name in ["a", "a-b", "a.b", "b"] {
            place.source(&format!("{name}/SKILL.md"), SKILL);
            place.source(&format!("{name}/z/notes.md"), "n");
        }
        for dir in [".claude/skills", ".codex/skills", ".claude/zkills"] {
            fs::create_dir_all(place.path("home").join(dir)).unwrap();
        }
        let pack = place.pack();
        apply(&pack).unwrap_or_else(|error| panic!("{root}: {error}"));
        assert!(pack.plan(&all()).unwrap().data.changes.changes.is_empty(), "{root}");
        place.manifest(&targets, &[&skill("a", "[]")]);
        place.source("a/SKILL.md", &format!("{SKILL}more\n"));
        place.source("a/new/x.md", "x");
        apply(&pack).unwrap_or_else(|error| panic!("{root}: {error}"));
        assert!(!place.path("home/.claude/skills/b").exists(), "{root}");
        assert!(pack.plan(&all()).unwrap().data.changes.changes.is_empty(), "{root}");
    }
}

/// A link in the place of a directory whose files nobody wants any more is the user's business.
#[test]
fn a_link_where_nothing_is_wanted_blocks_nothing() {
    let place = Place::with(BOTH, &[&skill("a", "[]"), &skill("b", "[]")]);
    place.source("a/SKILL.md", SKILL);
    place.source("b/SKILL.md", SKILL);
    let pack = place.pack();
    apply(&pack).unwrap();
    let (dir, elsewhere) = (place.path("home/.codex/skills/b"), place.path("elsewhere"));
    fs::rename(&dir, &elsewhere).unwrap();
    symlink(&elsewhere, &dir).unwrap();
    assert_eq!(code(pack.plan(&all())), Code::TargetEscape, "what is wanted there is still refused");
    place.manifest(BOTH, &[&skill("a", "[]")]);
    apply(&pack).unwrap();
    assert_eq!(
        fs::read_to_string(elsewhere.join("SKILL.md")).unwrap(),
        SKILL,
        "what the link leads to is not ours"
    );
    assert!(fs::symlink_metadata(&dir).unwrap().is_symlink());
    assert!(pack.plan(&all()).unwrap().data.changes.changes.is_empty());
    let status = pack.status(&all(), &[]).unwrap();
    assert_eq!(status.data.summary.modified, 0, "{status:?}");

    // The same with a file in the way.
    let place = Place::with(BOTH, &[&skill("a", "[]")]);
    place.source("a/SKILL.md", SKILL);
    let pack = place.pack();
    apply(&pack).unwrap();
    fs::remove_dir_all(place.path("home/.codex/skills/a")).unwrap();
    place.write("home/.codex/skills/a", "a file");
    place.manifest(BOTH, &[]);
    apply(&pack).unwrap();
    assert_eq!(place.read("home/.codex/skills/a"), "a file");
}

/// A file system on which `A` and `a` are one name.
struct CaseBlind {
    at: std::path::PathBuf,
}

impl CaseBlind {
    fn mount(place: &Place) -> Option<Self> {
        let (image, at) = (place.path("vfat.img"), place.path("vfat"));
        fs::create_dir_all(&at).unwrap();
        let run = |program: &str, args: &[&Path]| {
            let output = Command::new(program).args(args).output();
            output.map_err(|error| error.to_string()).and_then(|output| {
                if output.status.success() {
                    Ok(())
                } else {
                    Err(String::from_utf8_lossy(&output.stderr).into_owned())
                }
            })
        };
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let made = run("mkfs.vfat", &[&image])
            .and_then(|()| run("mount", &[Path::new("-o"), Path::new("loop"), &image, &at]));
        match made {
            Ok(()) => Some(Self { at }),
            Err(why) => {
                eprintln!("NOT TRIED: aliases by case on vfat: {why}");
                None
            }
        }
    }
}

impl Drop for CaseBlind {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(&self.at).status().unwrap().success());
    }
}

#[test]
fn names_that_differ_by_case_are_one_place_where_the_disk_says_so() {
    let place = Place::new();
    let Some(disk) = CaseBlind::mount(&place) else { return };
    let targets = format!(
        "{{codex: {{mode: files, scope: user, options: {{codex_home: '{0}/codex'}}}}, \
          export_dir: {{mode: files, scope: user, options: {{root: '{0}/CODEX'}}}}}}",
        disk.at.display()
    );
    let module = |targets: &str| skill("a", targets);
    place.manifest(&targets, &[&module("[]"), &skill("b", "[]")]);
    place.source("a/SKILL.md", SKILL);
    place.source("b/SKILL.md", SKILL);
    fs::create_dir_all(disk.at.join("codex/skills")).unwrap();
    let pack = place.pack();
    adopt(&pack).unwrap();
    assert_clean(&pack, "vfat");
    place.manifest(&targets, &[&module("[export_dir]")]);
    apply(&pack).unwrap();
    assert_eq!(fs::read_to_string(disk.at.join("codex/skills/a/SKILL.md")).unwrap(), SKILL);
    assert!(!disk.at.join("codex/skills/b/SKILL.md").exists());
    assert_clean(&pack, "vfat");
}
