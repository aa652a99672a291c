use serde_json::{Value, json};

use super::*;

/// A running workspace with one connected process and one app; `change` edits its JSON.
fn workspace(change: impl FnOnce(&mut Value)) -> Workspace {
    let id = |n: u8| format!("00000000-0000-0000-0000-0000000000{n:02}");
    let mut json = json!({
        "id": id(1), "name": "papi", "owner_id": id(2), "owner_name": "me", "organization_name": "acme",
        "template_id": id(3), "template_name": "setup", "template_display_name": "Setup",
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        "latest_app_status": null,
        "latest_build": {
            "id": id(4), "status": "running", "created_at": "2026-01-01T01:00:00Z",
            "updated_at": "2026-01-01T01:01:00Z", "template_version_id": id(5),
            "resources": [{"agents": [{
                "id": id(6), "name": "main", "parent_id": null, "status": "connected", "lifecycle_state": "ready",
                "apps": [{"id": id(7), "slug": "ccw", "health": "healthy", "statuses": []}],
            }]}],
        },
    });
    change(&mut json);
    serde_json::from_value(json).unwrap()
}

const AGENT: &str = "/latest_build/resources/0/agents/0";

fn set(json: &mut Value, pointer: &str, value: Value) {
    *json.pointer_mut(pointer).unwrap() = value;
}

fn reported(json: &mut Value, time: &str, state: &str) {
    let status = json!({"id": "00000000-0000-0000-0000-000000000099", "created_at": time,
        "app_id": "00000000-0000-0000-0000-000000000007", "state": state, "message": "m"});
    set(json, &format!("{AGENT}/apps/0/statuses"), json!([status]));
}

fn verdict(change: impl FnOnce(&mut Value)) -> Verdict {
    let workspace = workspace(change);
    judge(&workspace, &reports(&workspace))
}

#[test]
fn build_words_pass_through_and_unknown_ones_too() {
    for word in [
        "pending",
        "starting",
        "stopping",
        "stopped",
        "failed",
        "canceling",
        "canceled",
        "deleting",
        "deleted",
    ] {
        let verdict = verdict(|json| {
            // A working report sticks when a workspace stops; it must not count.
            reported(json, "2026-01-01T02:00:00Z", "working");
            set(json, "/latest_build/status", json!(word));
        });
        assert_eq!(verdict.status.as_str(), word);
        assert_eq!(verdict.needs_attention, word == "failed");
    }
    let verdict = verdict(|json| set(json, "/latest_build/status", json!("hibernating")));
    assert_eq!(verdict.status, StatusWord::Foreign("hibernating".to_owned()));
}

#[test]
fn a_running_workspace_is_judged_by_its_processes() {
    let cases = [
        ("connected", "ready", "healthy", "idle", false),
        ("connecting", "created", "healthy", "starting", false),
        ("connected", "starting", "initializing", "starting", false),
        ("disconnected", "ready", "healthy", "failed", true),
        ("timeout", "created", "healthy", "failed", true),
        ("timeout", "ready", "healthy", "failed", true),
        ("connected", "start_error", "unhealthy", "failed", true),
        ("connected", "start_error", "healthy", "idle", false),
        ("connected", "start_error", "disabled", "idle", true),
        ("connected", "start_timeout", "healthy", "idle", true),
        ("connected", "shutting_down", "healthy", "failed", true),
        ("connected", "off", "healthy", "failed", true),
        ("connected", "ready", "unhealthy", "idle", true),
        ("connected", "ready", "disabled", "idle", false),
    ];
    for (status, lifecycle, health, expected, attention) in cases {
        let verdict = verdict(|json| {
            set(json, &format!("{AGENT}/status"), json!(status));
            set(json, &format!("{AGENT}/lifecycle_state"), json!(lifecycle));
            set(json, &format!("{AGENT}/apps/0/health"), json!(health));
        });
        let case = format!("{status} {lifecycle} {health}");
        assert_eq!((verdict.status.as_str(), verdict.needs_attention), (expected, attention), "{case}");
        assert_eq!(verdict.health.healthy, !attention, "{case}");
    }
    let without = verdict(|json| set(json, "/latest_build/resources", Value::Null));
    assert_eq!(without.status, AgentStatus::Starting);
    let child = verdict(|json| {
        let mut child = json.pointer(AGENT).unwrap().clone();
        set(&mut child, "/parent_id", json!("00000000-0000-0000-0000-000000000006"));
        set(&mut child, "/status", json!("disconnected"));
        json.pointer_mut("/latest_build/resources/0/agents").unwrap().as_array_mut().unwrap().push(child);
    });
    assert_eq!(child.status, AgentStatus::Idle, "processes inside processes do not count");
}

#[test]
fn only_a_fresh_working_report_means_busy() {
    let cases = [
        ("2026-01-01T02:00:00Z", "working", "busy", false),
        ("2026-01-01T00:30:00Z", "working", "idle", false),
        ("2026-01-01T02:00:00Z", "idle", "idle", false),
        ("2026-01-01T02:00:00Z", "complete", "idle", false),
        ("2026-01-01T02:00:00Z", "failure", "idle", true),
        ("2026-01-01T00:30:00Z", "failure", "idle", false),
    ];
    for (time, state, expected, attention) in cases {
        let verdict = verdict(|json| reported(json, time, state));
        assert_eq!(
            (verdict.status.as_str(), verdict.needs_attention),
            (expected, attention),
            "{time} {state}"
        );
    }
}

fn plain(json: &mut Value) {
    set(json, &format!("{AGENT}/apps/0/slug"), json!("code-server"));
}

#[test]
fn agents_are_told_from_other_workspaces() {
    let is = |change: fn(&mut Value)| membership(&workspace(change));
    assert_eq!(is(|_| {}), Membership::Agent, "slug of its app");
    assert!(matches!(is(plain), Membership::AskTemplate { .. }));
    assert_eq!(
        is(|json| {
            plain(json);
            json["task_id"] = json!("00000000-0000-0000-0000-000000000008");
        }),
        Membership::Agent
    );
    assert_eq!(
        is(|json| {
            plain(json);
            json["latest_build"]["has_ai_task"] = json!(true);
        }),
        Membership::Agent
    );
    assert_eq!(
        is(|json| {
            plain(json);
            reported(json, "2026-01-01T02:00:00Z", "idle");
        }),
        Membership::Agent
    );
    assert_eq!(is(|json| json["is_prebuild"] = json!(true)), Membership::Other);
    assert!(matches!(
        is(|json| set(json, &format!("{AGENT}/apps/0/slug"), json!("claude-code-cli"))),
        Membership::AskTemplate { .. }
    ));
}

#[test]
fn the_newest_report_moves_the_time_of_change() {
    let workspace = workspace(|json| {
        json["latest_app_status"] = json!({"id": "00000000-0000-0000-0000-000000000099",
            "created_at": "2026-01-02T00:00:00+01:00", "app_id": "00000000-0000-0000-0000-000000000007",
            "state": "idle", "message": ""});
    });
    assert_eq!(last_change(&workspace).to_string(), "2026-01-01T23:00:00Z");
    assert_eq!(reports(&workspace).len(), 1, "the newest report counts although its app no longer lists it");
}
