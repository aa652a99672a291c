//! The simulated Coder's JSON, with the field names and oddities of the real one.

use axum::body::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Profile;
use super::world::{
    Organization, Parameter, Preset, Report, SimTemplate, SimWorkspace, Template, User, World,
};

/// What a workspace keeps secret; must never be seen outside.
pub(super) const SECRET: &str = "CANARY-workspace-secret";

/// A time as Coder writes it: in the server's own offset, with a fraction.
pub(super) fn time(at: Timestamp) -> String {
    let local = at + SignedDuration::from_hours(1);
    format!("{}+01:00", local.strftime("%Y-%m-%dT%H:%M:%S%.6f"))
}

pub(super) fn user(user: &User) -> Value {
    json!({
        "id": user.id, "username": user.name, "name": "", "email": format!("{}@example.com", user.name),
        "created_at": "2026-08-17T19:59:05.207995+01:00", "status": "active", "login_type": "password",
        "organization_ids": [], "roles": if user.is_admin { json!([{"name": "owner"}]) } else { json!([]) },
    })
}

pub(super) fn organization(organization: &Organization) -> Value {
    json!({
        "id": organization.id, "name": organization.name, "display_name": organization.name, "icon": "",
        "description": "", "created_at": "2026-08-17T19:59:05.207995+01:00",
        "updated_at": "2026-08-17T19:59:05.207995+01:00", "is_default": organization.is_default,
    })
}

pub(super) fn template(world: &World, template: &SimTemplate) -> Value {
    let made_of = template.active();
    let organization = world.organizations.iter().find(|candidate| candidate.name == made_of.organization);
    json!({
        "id": template.id,
        "created_at": "2026-09-16T19:59:05.207995+01:00", "updated_at": "2026-11-12T19:59:05.207995+01:00",
        "organization_id": organization.map(|organization| organization.id),
        "organization_name": made_of.organization, "organization_display_name": made_of.organization,
        "organization_icon": "", "name": made_of.name, "display_name": made_of.display_name,
        "provisioner": "terraform", "active_version_id": template.active_version, "active_user_count": 1,
        "build_time_stats": {"start": {"P50": 23000, "P95": 97000}},
        "description": format!("About {}", made_of.name), "deprecated": made_of.deprecated,
        "deprecation_message": "", "icon": "", "default_ttl_ms": 0,
        "allow_user_cancel_workspace_jobs": made_of.allow_cancel, "require_active_version": false,
        "use_classic_parameter_flow": false,
    })
}

/// Presets carry the field names of Coder's source, and an empty list is `null`.
pub(super) fn presets(presets: &[Preset]) -> Value {
    if presets.is_empty() {
        return Value::Null;
    }
    let parameters = |preset: &Preset| {
        if preset.parameters.is_empty() {
            return Value::Null;
        }
        preset.parameters.iter().map(|(name, value)| json!({"Name": name, "Value": value})).collect()
    };
    let preset = |preset: &Preset| {
        json!({
            "ID": preset.id, "Name": preset.name, "Parameters": parameters(preset), "Default": preset.default,
            "DesiredPrebuildInstances": null, "Description": format!("Works as {}", preset.name), "Icon": "",
        })
    };
    presets.iter().map(preset).collect()
}

pub(super) fn parameters(template: &Template) -> Value {
    let option = |(name, value): &(String, String)| json!({"name": name, "value": value, "description": format!("Works as {name}"), "icon": ""});
    let parameter = |parameter: &Parameter| {
        json!({
            "name": parameter.name, "description": "", "description_plaintext": "", "type": "string",
            "form_type": "input", "mutable": true, "default_value": parameter.default_value, "icon": "",
            "options": parameter.options.iter().map(option).collect::<Value>(), "required": false, "ephemeral": false,
        })
    };
    template.parameters.iter().map(parameter).collect()
}

fn report(workspace: &SimWorkspace, report: &Report) -> Value {
    json!({
        "id": report.id, "created_at": time(report.at), "workspace_id": workspace.id,
        "agent_id": workspace.agent_id, "app_id": workspace.app_id, "state": report.state,
        "message": report.message, "uri": report.uri, "icon": "", "needs_user_attention": false,
    })
}

/// Reports of an app: in no order before 2.30, newest first from then on.
fn reports(profile: Profile, workspace: &SimWorkspace) -> Value {
    let mut rows: Vec<&Report> = workspace.reports.iter().collect();
    if profile >= Profile::V2_30 {
        rows.sort_by_key(|report| std::cmp::Reverse(report.at));
    }
    rows.into_iter().map(|row| report(workspace, row)).collect()
}

fn app(workspace: &SimWorkspace, slug: &str, owner: &str, more: Value) -> Value {
    let mut app = json!({
        "id": workspace.agent_id, "url": "http://localhost:3284/", "external": false, "slug": slug,
        "display_name": slug, "icon": "/icon/x.svg", "subdomain": workspace.subdomain, "sharing_level": "owner",
        "healthcheck": {"url": "", "interval": 0, "threshold": 0}, "health": "disabled", "hidden": false,
        "open_in": "slim-window", "statuses": [],
    });
    if workspace.subdomain {
        app["subdomain_name"] = format!("{slug}--main--{}--{owner}", workspace.name).to_lowercase().into();
    }
    if let (Some(app), Value::Object(more)) = (app.as_object_mut(), more) {
        app.extend(more);
    }
    app
}

fn apps(world: &World, profile: Profile, workspace: &SimWorkspace) -> Value {
    let owner = owner_name(world, workspace);
    let mut apps = vec![app(
        workspace,
        "ccw-cli",
        &owner,
        json!({"id": uuid::Uuid::from_u128(workspace.agent_id.as_u128() ^ 1), "command": "agentapi attach"}),
    )];
    if !matches!(workspace.metadata, super::MetadataApp::Absent) {
        apps.push(app(
            workspace,
            "fleet-mcp",
            &owner,
            json!({"id": uuid::Uuid::from_u128(workspace.agent_id.as_u128() ^ 2), "health": "healthy"}),
        ));
    }
    if let Some(slug) = &workspace.app_slug {
        apps.push(app(
            workspace,
            slug,
            &owner,
            json!({"id": workspace.app_id, "health": workspace.app_health, "statuses": reports(profile, workspace)}),
        ));
    }
    apps.into()
}

pub(super) fn owner_name(world: &World, workspace: &SimWorkspace) -> String {
    let owner = world.users.iter().find(|user| user.id == workspace.owner);
    owner.map(|user| user.name.clone()).unwrap_or_default()
}

fn resources(world: &World, profile: Profile, workspace: &SimWorkspace) -> Value {
    let has_resources = !matches!(workspace.status.as_str(), "pending" | "starting" | "stopped" | "deleted");
    if !has_resources {
        return json!([]);
    }
    // Real workspaces carry scripts of this size, and tokens in their environment.
    let padding = "# a line of a start script with \"quotes\" and \\ slashes\n".repeat(world.padding / 56);
    json!([
        {
            "id": workspace.build_id, "created_at": time(workspace.build_at), "type": "docker_container",
            "name": "workspace", "hide": false, "icon": "", "daily_cost": 0,
            "agents": [{
                "id": workspace.agent_id, "parent_id": null, "created_at": time(workspace.build_at),
                "status": workspace.agent_status, "lifecycle_state": workspace.lifecycle, "name": "main",
                "architecture": "amd64", "operating_system": "linux",
                "environment_variables": {
                    "CODER_URL": "http://simulated", "GH_TOKEN": SECRET, "CLAUDE_CODE_OAUTH_TOKEN": SECRET,
                },
                "directory": workspace.directory, "expanded_directory": workspace.directory.clone().unwrap_or_default(),
                "apps": apps(world, profile, workspace),
                "health": {"healthy": workspace.agent_status == "connected"},
                "scripts": [{"script": format!("#!/bin/sh\nexport TOKEN={SECRET}\n{padding}"), "run_on_start": true}],
                "startup_script_behavior": "blocking",
            }],
            "metadata": [{"key": "image", "value": SECRET, "sensitive": true}],
        },
        {"id": workspace.first_build_id, "type": "docker_volume", "name": "home", "hide": false, "icon": ""},
    ])
}

pub(super) fn build(world: &World, profile: Profile, workspace: &SimWorkspace) -> Value {
    let transition = match workspace.status.as_str() {
        "stopping" | "stopped" => "stop",
        "deleting" | "deleted" => "delete",
        _ => "start",
    };
    let mut build = json!({
        "id": workspace.build_id, "created_at": time(workspace.build_at),
        "updated_at": time(workspace.build_at + SignedDuration::from_secs(25)), "workspace_id": workspace.id,
        "workspace_name": workspace.name, "workspace_owner_id": workspace.owner,
        "template_version_id": workspace.version, "build_number": workspace.build_number,
        "transition": transition, "reason": "initiator",
        "job": {"status": if workspace.status == "pending" { "pending" } else if workspace.is_building() { "running" } else { "succeeded" }, "queue_position": 0},
        "resources": resources(world, profile, workspace), "deadline": null, "max_deadline": null,
        "status": workspace.status, "daily_cost": 0, "template_version_preset_id": workspace.preset,
        "has_external_agent": false,
    });
    if !workspace.is_building() {
        build["has_ai_task"] = workspace.has_ai_task.into();
        if profile < Profile::V2_28 && workspace.has_ai_task {
            build["ai_task_sidebar_app_id"] = json!(workspace.app_id);
        }
    }
    if workspace.status == "failed" {
        build["job"]["error"] = "terraform: no space left".into();
    }
    build
}

/// A workspace; remembered until it changes, because a list of a thousand would cost seconds otherwise.
pub(super) fn workspace(world: &World, profile: Profile, workspace: &SimWorkspace) -> Bytes {
    let template = world.template(workspace.template);
    let active = template.map(SimTemplate::active);
    let text =
        |field: fn(&Template) -> &String| active.map(|made_of| field(made_of).clone()).unwrap_or_default();
    let mut json = json!({
        "id": workspace.id, "created_at": time(workspace.created_at), "updated_at": time(workspace.created_at),
        "owner_id": workspace.owner, "owner_name": owner_name(world, workspace), "owner_avatar_url": "",
        "organization_id": null, "organization_name": text(|made_of| &made_of.organization),
        "template_id": workspace.template, "template_name": text(|made_of| &made_of.name),
        "template_display_name": text(|made_of| &made_of.display_name), "template_icon": "",
        "template_allow_user_cancel_workspace_jobs": active.is_some_and(|made_of| made_of.allow_cancel),
        "template_active_version_id": template.map(|template| template.active_version),
        "latest_build": build(world, profile, workspace),
        "latest_app_status": workspace.newest_report().map(|newest| report(workspace, newest)),
        "outdated": false, "name": workspace.name, "last_used_at": time(workspace.created_at), "deleting_at": null,
        "dormant_at": workspace.dormant_at.map(time), "health": {"healthy": true, "failing_agents": []},
        "automatic_updates": "never", "favorite": false, "is_prebuild": workspace.is_prebuild,
    });
    if profile >= Profile::V2_28 {
        json["task_id"] = json!(workspace.task_id);
    }
    Bytes::from(json.to_string())
}

pub(super) fn task(world: &World, profile: Profile, workspace: &SimWorkspace) -> Value {
    let state = workspace.newest_report().map(|newest| {
        json!({"timestamp": time(newest.at), "state": newest.state, "message": newest.message, "uri": newest.uri})
    });
    json!({
        "id": task_id(profile, workspace), "owner_id": workspace.owner, "owner_name": owner_name(world, workspace),
        "name": workspace.name, "template_id": workspace.template, "workspace_id": workspace.id,
        "workspace_name": workspace.name, "workspace_agent_id": workspace.agent_id,
        "workspace_app_id": workspace.app_id, "initial_prompt": workspace.prompt.clone().unwrap_or_default(),
        "status": if profile < Profile::V2_28 { workspace.status.as_str() } else { "active" },
        "current_state": state, "created_at": time(workspace.created_at), "updated_at": time(workspace.created_at),
    })
}

/// The id of the task of a workspace: its own from 2.28 on, that of the workspace before.
pub(super) fn task_id(profile: Profile, workspace: &SimWorkspace) -> Option<uuid::Uuid> {
    if profile < Profile::V2_28 { workspace.has_ai_task.then_some(workspace.id) } else { workspace.task_id }
}
