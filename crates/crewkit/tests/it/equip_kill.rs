//! A server killed while it equips its agents: every workspace has the old kit or the new one.
//!
//! A few kills with every test; `CREWKIT_EQUIP_KILLS` makes more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::support::Served;
use crate::walk::{Mcp, repository};

const AGENTS: [&str; 4] = ["ann", "bob", "cem", "dan"];
const FILES: u32 = 30;
const USUAL_KILLS: u32 = 6;

/// A kit whose every file says which version it is.
fn write_kit(home: &Path, version: u32) {
    let repo = home.join(".agentpack/repo");
    let skill = repo.join("modules/skill");
    std::fs::create_dir_all(&skill).unwrap();
    for number in 0..FILES {
        std::fs::write(skill.join(format!("part-{number}.md")), format!("version {version}\n")).unwrap();
    }
    let head = "---\nname: skill\ndescription: Many files\n---\n";
    std::fs::write(skill.join("SKILL.md"), format!("{head}version {version}\n")).unwrap();
    let manifest = "version: 1\nprofiles: {default: {include_tags: [base]}}\ntargets: {codex: {mode: files, scope: both}}\n\
                    modules: [{id: 'skill:skill', type: skill, tags: [base], source: {local_path: {path: modules/skill}}}]\n";
    std::fs::write(repo.join("agentpack.yaml"), manifest).unwrap();
}

/// The one version of all files of the kit in a workspace.
fn version_in(workspace: &Path) -> u32 {
    let skill = workspace.join(".codex/skills/skill");
    let mut versions = BTreeSet::new();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&skill).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.lines().last().unwrap_or_default();
        versions.insert(last.strip_prefix("version ").unwrap_or(last).to_owned());
        names.push(path);
    }
    assert_eq!(names.len(), FILES as usize + 1, "{names:?}");
    assert_eq!(versions.len(), 1, "{} is between two kits: {versions:?}", workspace.display());
    versions.first().unwrap().parse().unwrap()
}

#[tokio::test]
async fn each_workspace_has_the_old_kit_or_the_new_one() {
    let kills: u32 =
        std::env::var("CREWKIT_EQUIP_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL_KILLS);
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let (home, repository) = (root.join("home"), repository(&root));
    std::fs::create_dir(&home).unwrap();
    write_kit(&home, 0);
    let mut served = Served::start_in(&home, &repository, &[]);
    let mut mcp = Mcp::connect(&served.base).await;
    for name in AGENTS {
        mcp.call("create_agent", json!({"name": name, "project": "demo", "spec": "Look around"})).await;
        mcp.until(name, "idle").await;
    }
    let workspaces: Vec<PathBuf> = std::fs::read_dir(home.join("fleet/workspaces"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(workspaces.len(), AGENTS.len());

    // One that is let to its end says where there is something to kill.
    let everybody = json!({"all": true, "yes": true});
    write_kit(&home, 1);
    let began = Instant::now();
    mcp.call("equip_agents", everybody.clone()).await;
    let whole = began.elapsed();
    let mut versions: Vec<u32> = workspaces.iter().map(|workspace| version_in(workspace)).collect();
    assert_eq!(versions, [1; AGENTS.len()]);

    for kill in 1..=kills {
        let new = kill + 1;
        write_kit(&home, new);
        let equipping = tokio::spawn(mcp.request("equip_agents", &everybody).send());
        tokio::time::sleep(whole * kill / (kills + 1)).await;
        drop(served);
        drop(equipping.await.unwrap());
        served = Served::start_in(&home, &repository, &[]);
        mcp = Mcp::connect(&served.base).await;
        for (workspace, old) in workspaces.iter().zip(&mut versions) {
            let now = version_in(workspace);
            assert!(now == *old || now == new, "kill {kill}: {now} after {old}");
            *old = now;
        }
    }
    // What is noted about a kit that was finished after the kill is true, too: taking it back works.
    write_kit(&home, kills + 2);
    mcp.call("equip_agents", everybody.clone()).await;
    let drift = mcp.call("fleet_drift", json!({})).await;
    assert_eq!(
        (&drift["drifted"], drift["agents"].as_array().map(Vec::len)),
        (&json!(0), Some(AGENTS.len())),
        "{drift}"
    );
}
