//! A kit never leaves the workspace, whatever an agent puts in the place of its directories and files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crewkit_core::Code;
use crewkit_pack::commands::Pack;

use super::place::{Place, SKILL, all, code};

const TARGETS: &str = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: both, options: {write_repo_skills: true}}, \
                       cursor: {mode: files, scope: project}, vscode: {mode: files, scope: project}}";

/// Every directory a kit of these targets has in a workspace.
const DIRECTORIES: [&str; 10] = [
    ".codex",
    ".codex/skills",
    ".claude",
    ".claude/commands",
    ".claude/skills",
    ".cursor",
    ".cursor/rules",
    ".github",
    ".github/prompts",
    ".codex/skills/a",
];

struct Scene {
    place: Place,
    pack: Pack,
}

impl Scene {
    fn new() -> Self {
        let place = Place::with(
            TARGETS,
            &[
                "{id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}",
                "{id: 'instructions:b', type: instructions, tags: [base], source: {local_path: {path: b}}}",
                "{id: 'prompt:p', type: prompt, tags: [base], source: {local_path: {path: p.md}}}",
                "{id: 'command:c', type: command, tags: [base], source: {local_path: {path: c.md}}}",
            ],
        );
        place.source("a/SKILL.md", SKILL);
        place.source("b/AGENTS.md", "be kind\n");
        place.source("p.md", "prompt\n");
        place.source("c.md", "---\ndescription: d\n---\n");
        let pack = place.pack().in_workspace(&place.path("proj"), &place.path("state"));
        Self { place, pack }
    }

    /// A directory of the user's that has, wherever a kit could be, files of the user's.
    fn users(&self) -> PathBuf {
        let users = self.place.path("users");
        for dir in ["", "skills", "skills/a", "rules", "commands", "prompts", "a"] {
            fs::create_dir_all(users.join(dir)).unwrap();
            for name in ["SKILL.md", "AGENTS.md", "c.md", "p.prompt.md", "copilot-instructions.md"] {
                fs::write(users.join(dir).join(name), "the user's own").unwrap();
            }
        }
        users
    }

    fn outside(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut all = self.place.everything();
        all.retain(|path, _| path.starts_with("users"));
        all
    }
}

/// Puts a link to `target` in the place of `dir`.
fn replace(dir: &Path, target: &Path) {
    if dir.is_dir() {
        fs::rename(dir, dir.with_file_name("moved-away")).unwrap();
    }
    fs::create_dir_all(dir.parent().unwrap()).unwrap();
    symlink(target, dir).unwrap();
}

#[test]
fn a_directory_that_became_a_link_out_of_the_workspace_is_refused() {
    for dir in DIRECTORIES {
        for equipped in [false, true] {
            let scene = Scene::new();
            let users = scene.users();
            let snapshot = equipped.then(|| scene.pack.equip(&all()).unwrap().snapshot_id.unwrap());
            replace(&scene.place.path("proj").join(dir), &users);
            let (before, workspace) = (scene.outside(), scene.place.everything());

            let what = format!("{dir}, equipped before: {equipped}");
            let refused = scene.pack.equip(&all()).unwrap_err();
            assert_eq!(refused.code(), Code::TargetEscape, "{what}: {refused}");
            assert_eq!(code(scene.pack.kit_drift(&all())), Code::TargetEscape, "{what}");
            if let Some(snapshot) = snapshot {
                if dir == ".codex/skills/a" {
                    // Below a root: taking the kit back wants nothing there, so the link stays and the rest goes.
                    scene.pack.unequip(&snapshot).unwrap();
                    assert_eq!(scene.outside(), before, "{what}");
                    assert!(fs::symlink_metadata(scene.place.path("proj").join(dir)).unwrap().is_symlink());
                    continue;
                }
                assert_eq!(code(scene.pack.unequip(&snapshot)), Code::TargetEscape, "{what}");
            }
            assert_eq!(scene.outside(), before, "{what}");
            let mut after = scene.place.everything();
            after.retain(|path, _| workspace.contains_key(path) || path.starts_with("proj"));
            assert!(
                workspace
                    .iter()
                    .filter(|(path, _)| path.starts_with("proj"))
                    .eq(after.iter().filter(|(path, _)| path.starts_with("proj"))),
                "{what}"
            );
        }
    }
}

#[test]
fn a_link_that_stays_in_the_workspace_is_followed() {
    let scene = Scene::new();
    fs::create_dir_all(scene.place.path("proj/agents")).unwrap();
    symlink("agents", scene.place.path("proj/.claude")).unwrap();
    scene.pack.equip(&all()).unwrap();
    assert_eq!(scene.place.read("proj/agents/skills/a/SKILL.md"), SKILL);
}

#[test]
fn a_workspace_without_git_does_not_become_part_of_what_it_lies_in() {
    let scene = Scene::new();
    scene.place.git_repo("", &[("README", "the user's project")]);
    scene.pack.equip(&all()).unwrap();
    assert!(scene.place.path("proj/AGENTS.md").exists());
    assert!(!scene.place.path("AGENTS.md").exists(), "the project around the workspace was written to");
}

#[test]
fn a_root_configured_elsewhere_is_no_part_of_a_kit() {
    let scene = Scene::new();
    let targets = format!(
        "{}, export_dir: {{mode: files, scope: project, options: {{root: '{}'}}}}}}",
        TARGETS.trim_end_matches('}'),
        scene.place.path("exported").display()
    );
    // The braces of the last target went with the last of all.
    let targets = targets.replacen("scope: project, export_dir", "scope: project}, export_dir", 1);
    scene
        .place
        .manifest(&targets, &["{id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}"]);
    scene.pack.equip(&all()).unwrap();
    assert!(scene.place.path("proj/.codex/skills/a/SKILL.md").exists());
    assert!(!scene.place.path("exported").exists());
}

/// Runs `work`, which must end.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    ended.recv_timeout(Duration::from_mins(1)).unwrap_or_else(|_| panic!("{what} never ended"))
}

#[test]
fn nothing_waits_for_a_pipe() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let places = [
        ".codex",
        ".claude/commands",
        ".cursor/rules",
        "AGENTS.md",
        ".agentpack.manifest.codex.json",
        ".codex/skills/a/SKILL.md",
        ".codex/skills/.agentpack.manifest.codex.json",
        ".git",
        ".git/config",
        ".git/commondir",
    ];
    for equipped in [false, true] {
        for path in places {
            for kind in [FileType::Fifo, FileType::Socket] {
                let scene = Scene::new();
                let snapshot = equipped.then(|| scene.pack.equip(&all()).unwrap().snapshot_id.unwrap());
                let at = scene.place.path("proj").join(path);
                if at.is_dir() {
                    fs::remove_dir_all(&at).unwrap();
                } else if at.exists() {
                    fs::remove_file(&at).unwrap();
                }
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                if path.starts_with(".git/") {
                    fs::write(at.with_file_name("HEAD"), "ref: refs/heads/main\n").unwrap();
                }
                mknodat(CWD, &at, kind, Mode::from_raw_mode(0o666), 0).unwrap();
                let what = format!("{path} as {kind:?}, equipped before: {equipped}");
                let at = ends(&what, move || {
                    // Whether it is refused or the place is left alone depends on the place.
                    let _ = scene.pack.equip(&all());
                    let _ = scene.pack.kit_drift(&all());
                    let _ = snapshot.map(|snapshot| scene.pack.unequip(&snapshot));
                    let kind = fs::symlink_metadata(&at).map(|found| found.is_file());
                    (kind.is_ok_and(|is_file| !is_file), scene)
                });
                assert!(at.0, "{what}: it is not there any more");
            }
        }
    }
}
