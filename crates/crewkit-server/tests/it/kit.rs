//! The kit of an agent's workspace, as the fleet asks for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use crewkit_fleet::kit::{Kit as _, KitPlace};
use crewkit_pack::Env;
use crewkit_pack::commands::Pack;
use crewkit_server::kit::PackKit;

const MANIFEST: &str = "version: 1
profiles: {default: {include_tags: [base]}}
targets:
  codex: {mode: files, scope: project}
  claude_code: {mode: files, scope: project, options: {write_repo_skills: true}}
modules:
  - {id: 'skill:a', type: skill, tags: [base], source: {local_path: {path: a}}}
";

fn kit(base: &Path) -> (PackKit, KitPlace) {
    let repo = base.join("home/.agentpack/repo");
    fs::create_dir_all(repo.join("a")).unwrap();
    fs::create_dir_all(base.join("workspace")).unwrap();
    fs::write(repo.join("agentpack.yaml"), MANIFEST).unwrap();
    fs::write(repo.join("a/SKILL.md"), "---\nname: a\ndescription: d\n---\n").unwrap();
    let pack = Pack::new(Env::at_home(base.join("home")));
    let place = KitPlace {
        workspace: base.join("workspace"),
        state: base.join("state"),
        profile: "default".to_owned(),
    };
    (PackKit::new(Arc::new(pack)), place)
}

#[tokio::test]
async fn a_root_that_leads_out_of_the_workspace_is_refused_and_nothing_outside_is_touched() {
    for linked in [".codex", ".codex/skills", ".claude", ".claude/skills"] {
        let temp = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(temp.path()).unwrap();
        let (kit, place) = kit(&base);
        let equipped = kit.equip(place.clone()).await.unwrap();
        let snapshot = equipped.snapshot_id.expect("a first kit changes something");

        let root = place.workspace.join(linked);
        fs::rename(&root, base.join("moved")).unwrap();
        let own = base.join("users/skills/a/SKILL.md");
        for own in [&own, &base.join("users/a/SKILL.md")] {
            fs::create_dir_all(own.parent().unwrap()).unwrap();
            fs::write(own, "the user's own").unwrap();
        }
        symlink(base.join("users"), &root).unwrap();

        let refused = [
            kit.equip(place.clone()).await.unwrap_err(),
            kit.rollback(place.clone(), snapshot).await.unwrap_err(),
            kit.drift(place.clone()).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.code, "E_TARGET_ESCAPE", "{linked}: {error}");
        }
        assert_eq!(kit.finish(place.clone()).await, Ok(None));
        for own in ["skills/a/SKILL.md", "a/SKILL.md"] {
            assert_eq!(fs::read_to_string(base.join("users").join(own)).unwrap(), "the user's own");
        }
        assert_eq!(fs::read_dir(base.join("users")).unwrap().count(), 2, "{linked}: something was added");
    }
}
