use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

const ID: &str = "01980000-0000-7000-8000-000000000001";
const OTHER: &str = "01980000-0000-7000-8000-000000000002";
const AT: &str = "2026-11-14T20:01:20.407995+01:00";

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A workspace with every field in use, and some that must be passed over.
fn workspace() -> Value {
    let app = json!({
        "id": OTHER, "slug": "ccw", "external": false, "subdomain": true, "subdomain_name": "a--b", "health": "healthy",
        "healthcheck": {"url": "", "interval": 0, "threshold": 0},
        "statuses": [{"id": ID, "created_at": AT, "workspace_id": ID, "agent_id": ID, "app_id": OTHER,
            "state": "working", "message": "m", "uri": "", "icon": "", "needs_user_attention": false}],
    });
    let agent = json!({
        "id": ID, "parent_id": null, "name": "main", "status": "connected", "lifecycle_state": "ready",
        "environment_variables": {"TOKEN": "CANARY"}, "latency": {"x": {"preferred": true}}, "apps": [app],
        "scripts": [{"script": "export TOKEN=CANARY"}],
    });
    let build = json!({
        "id": ID, "created_at": AT, "updated_at": AT, "template_version_id": ID, "build_number": 1,
        "transition": "start", "status": "running", "template_version_preset_id": OTHER, "has_ai_task": true,
        "ai_task_sidebar_app_id": OTHER, "job": {"id": ID, "status": "succeeded", "tags": {"owner": ""}},
        "resources": [
            {"id": ID, "type": "docker_volume", "daily_cost": 0},
            {"id": ID, "type": "docker_container", "agents": [agent]},
        ],
    });
    json!({
        "id": ID, "created_at": AT, "updated_at": AT, "owner_id": ID, "owner_name": "me", "owner_avatar_url": "",
        "organization_id": ID, "organization_name": "acme", "template_id": ID, "template_name": "t",
        "template_display_name": "T", "template_allow_user_cancel_workspace_jobs": true, "name": "papi",
        "latest_build": build, "latest_app_status": null, "task_id": OTHER, "dormant_at": null, "is_prebuild": false,
    })
}

#[test]
fn a_workspace_is_read_without_its_secrets() {
    let read: Workspace = read(workspace());
    assert_eq!((read.apps().count(), read.top_agents().count()), (1, 1));
    assert!(!format!("{read:?}").contains("CANARY"));
    let app = read.apps().next().unwrap().1;
    assert_eq!((app.statuses.len(), app.subdomain_name.as_deref()), (1, Some("a--b")));
}

#[test]
fn fields_that_come_and_go_between_versions_are_optional() {
    let mut old = workspace();
    for (parent, key) in [
        ("", "task_id"),
        ("", "latest_app_status"),
        ("", "is_prebuild"),
        ("/latest_build", "ai_task_sidebar_app_id"),
        ("/latest_build", "has_ai_task"),
        ("/latest_build", "template_version_preset_id"),
        ("/latest_build", "job"),
        ("/latest_build/resources/1/agents/0/apps/0", "subdomain_name"),
        ("/latest_build/resources/1/agents/0/apps/0", "statuses"),
    ] {
        old.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
        read::<Workspace>(old.clone());
    }
    for pointer in [
        "/latest_build/resources/1/agents/0/apps",
        "/latest_build/resources/1/agents",
        "/latest_build/resources",
    ] {
        *old.pointer_mut(pointer).unwrap() = Value::Null;
        read::<Workspace>(old.clone());
    }
    *old.pointer_mut("/id").unwrap() = "../../users".into();
    assert!(serde_json::from_value::<Workspace>(old).is_err(), "an id is a UUID");
}

#[test]
fn presets_are_read_in_either_case_and_none_is_null() {
    let source_case = json!([{"ID": ID, "Name": "Coder", "Parameters": [{"Name": "a", "Value": "b"}], "Default": true,
        "DesiredPrebuildInstances": null, "Description": "d", "Icon": ""}]);
    let documented = json!([{"id": ID, "name": "Coder", "parameters": null, "default": true, "desiredPrebuildInstances": 0}]);
    for presets in [source_case, documented] {
        let presets = read::<NullableList<Preset>>(presets).into_vec();
        assert_eq!((presets[0].name.as_str(), presets[0].default), ("Coder", true));
    }
    assert_eq!(read::<NullableList<Preset>>(Value::Null).into_vec().len(), 0);
}

#[test]
fn tasks_are_read_with_and_without_ids_of_their_own() {
    let task = json!({"id": ID, "owner_name": "me", "workspace_id": OTHER, "initial_prompt": "p", "current_state": null,
        "status": "active"});
    let list: TaskList = read(json!({"tasks": [task], "count": 1}));
    assert_eq!(
        (list.tasks[0].workspace_id.unwrap().to_string().as_str(), list.tasks[0].initial_prompt.as_str()),
        (OTHER, "p")
    );
    assert_eq!(read::<TaskList>(json!({"tasks": null, "count": 0})).tasks.len(), 0);
}

/// Decodes recorded answers of real servers, one folder per version, when `CREWKIT_CODER_SAMPLES` names where they are.
#[test]
fn recorded_answers_are_read() {
    let Some(samples) = std::env::var_os("CREWKIT_CODER_SAMPLES") else { return };
    let mut count = 0;
    for version in std::fs::read_dir(samples).unwrap() {
        for file in std::fs::read_dir(version.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            decode_sample(&path, &std::fs::read(&path).unwrap());
            count += 1;
        }
    }
    assert!(count > 0);
}

fn decode_sample(path: &Path, bytes: &[u8]) {
    fn check<T: DeserializeOwned>(path: &Path, bytes: &[u8]) {
        if let Err(error) = serde_json::from_slice::<T>(bytes) {
            panic!("{}: {error}", path.display());
        }
    }
    #[derive(Deserialize)]
    struct Workspaces {
        #[serde(rename = "workspaces")]
        _workspaces: Vec<Workspace>,
    }
    let is_refusal =
        serde_json::from_slice::<Refusal>(bytes).is_ok_and(|refusal| !refusal.message.is_empty());
    match path.file_stem().and_then(|name| name.to_str()).unwrap_or_default() {
        _ if is_refusal => check::<Refusal>(path, bytes),
        "workspaces" => check::<Workspaces>(path, bytes),
        "templates" => check::<NullableList<Template>>(path, bytes),
        "presets" => check::<NullableList<Preset>>(path, bytes),
        "rich-parameters" => check::<NullableList<RichParameter>>(path, bytes),
        "organizations" => check::<NullableList<Organization>>(path, bytes),
        "users-me" => check::<User>(path, bytes),
        "applications-host" => check::<ApplicationHost>(path, bytes),
        name if name.starts_with("tasks") => check::<TaskList>(path, bytes),
        "buildinfo" => check::<Value>(path, bytes),
        other => panic!("nobody reads {other}"),
    }
}
