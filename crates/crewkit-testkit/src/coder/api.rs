//! The routes of the simulated Coder.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, State, WebSocketUpgrade};
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::faults::{json as json_text, page};
use super::world::{Said, SimWorkspace, Template, User, World};
use super::{Profile, Sim, apps, lock, render, terminal};

type Answer = Response<Body>;

/// What a request amounts to.
struct Call<'a> {
    method: &'a str,
    path: Vec<&'a str>,
    query: HashMap<String, String>,
    body: &'a [u8],
    user: User,
}

/// Answers any request.
pub(super) async fn dispatch(State(sim): State<Arc<Sim>>, request: Request<Body>) -> Answer {
    let (mut parts, body) = request.into_parts();
    let host =
        parts.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let path = parts.uri.path().to_owned();
    let Ok(body) = axum::body::to_bytes(body, 16 * 1024 * 1024).await else {
        return refuse(StatusCode::BAD_REQUEST, "Request body must be valid JSON.");
    };
    let token =
        parts.headers.get("coder-session-token").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let user = lock(&sim.world).users.iter().find(|user| !token.is_empty() && user.token == token).cloned();

    if let Some(app) = apps::App::of(&sim, &host, &path) {
        let Some(user) = user else { return see_other() };
        return apps::answer(&sim, &user, &app, &parts.method, &body).await;
    }
    if path == "/healthz" {
        return Response::new(Body::from("OK"));
    }
    if path == "/api/v2/buildinfo" {
        return good(
            &json!({"version": sim.profile.version(), "dashboard_url": format!("http://{}", sim.address)}),
        );
    }
    if !path.starts_with("/api/") {
        return page(StatusCode::OK, "Dashboard");
    }
    let Some(user) = user else {
        let message = "You are signed out or your session has expired. Please sign in again to continue.";
        return refuse(StatusCode::UNAUTHORIZED, message);
    };
    let decoded = |text: &str| url_decode(text);
    let query = parts.uri.query().unwrap_or_default();
    let query: HashMap<String, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (decoded(key), decoded(value)))
        .collect();
    let call = Call {
        method: parts.method.as_str(),
        path: path.trim_start_matches('/').split('/').collect(),
        query,
        body: &body,
        user,
    };
    if let ("GET", ["api", "v2", "workspaceagents", agent, "pty"]) = (call.method, call.path.as_slice()) {
        let command = call.query.get("command").cloned().unwrap_or_default();
        let Some(place) = terminal::place(&sim, &call.user, agent) else { return not_found() };
        let trouble = parts.extensions.get::<super::Trouble>().copied();
        return match WebSocketUpgrade::from_request_parts(&mut parts, &sim).await {
            Ok(upgrade) => {
                let sim = Arc::clone(&sim);
                upgrade.on_upgrade(move |socket| terminal::run(sim, socket, place, command, trouble))
            }
            Err(_) => refuse(StatusCode::BAD_REQUEST, "Failed to accept websocket."),
        };
    }
    if let ("GET", ["api", "v2", "workspaces", id, "watch"]) = (call.method, call.path.as_slice()) {
        return watch(&sim, id);
    }
    answer(&sim, &call)
}

fn answer(sim: &Sim, call: &Call<'_>) -> Answer {
    let profile = sim.profile;
    let mut world = lock(&sim.world);
    let world = &mut *world;
    match (call.method, call.path.as_slice()) {
        ("GET", ["api", "v2", "users", user]) => match find_user(world, call, user) {
            Some(user) => good(&render::user(&user)),
            None => not_found(),
        },
        ("GET", ["api", "v2", "organizations"]) => {
            good(&world.organizations.iter().map(render::organization).collect())
        }
        ("GET", ["api", "v2", "applications", "host"]) => good(&json!({"host": world.app_host})),
        ("GET", ["api", "v2", "templates"]) => templates(world, call),
        ("GET", ["api", "v2", "templateversions", version, "presets"]) => {
            with_version(world, version, |made_of| render::presets(&made_of.presets))
        }
        ("GET", ["api", "v2", "templateversions", version, "rich-parameters"]) => {
            with_version(world, version, render::parameters)
        }
        ("GET", ["api", "v2", "workspaces"]) => list(world, profile, call),
        ("GET", ["api", "v2", "workspaces", id]) => match id.parse::<Uuid>() {
            Err(_) => bad_uuid(id),
            Ok(id) => {
                match world.workspaces.iter().find(|workspace| workspace.id == id && may(call, workspace)) {
                    Some(workspace) if workspace.status == "deleted" => {
                        refuse(StatusCode::GONE, "Workspace was deleted.")
                    }
                    Some(workspace) => raw(render::workspace(world, profile, workspace)),
                    None => not_found(),
                }
            }
        },
        ("GET", ["api", "v2", "users", user, "workspace", name]) => by_name(world, profile, call, user, name),
        ("GET", ["api", "v2", "users", user, "workspace", name, "builds", "1"]) => {
            match find(world, call, user, name) {
                Some(workspace) => good(&json!({"id": workspace.first_build_id, "build_number": 1})),
                None => not_found(),
            }
        }
        ("GET", ["api", "v2", "workspacebuilds", id, "parameters"]) => build_parameters(world, call, id),
        ("PATCH", ["api", "v2", "workspacebuilds", id, "cancel"]) => cancel(world, call, id),
        ("POST", ["api", "v2", "users", user, "workspaces"]) => create(world, profile, call, user),
        ("POST", ["api", "v2", "workspaces", id, "builds"]) => transition(world, profile, call, id),
        ("PUT", ["api", "v2", "workspaces", id, "dormant"]) => wake(world, profile, call, id),
        ("GET", ["api", "v2", "workspaceagents", id, "watch-metadata"]) => agent_metadata(world, call, id),
        ("GET", ["api", "experimental", "chats"]) if profile >= Profile::V2_36 => good(&json!([])),
        (_, ["api", area @ ("v2" | "experimental"), "tasks", rest @ ..]) if has_tasks(profile, area) => {
            tasks(world, profile, call, rest)
        }
        _ => refuse(StatusCode::NOT_FOUND, "Route not found."),
    }
}

fn has_tasks(profile: Profile, area: &str) -> bool {
    profile < Profile::V2_37 && (area == "experimental" || profile >= Profile::V2_29)
}

// Answers.

pub(super) fn good(value: &Value) -> Answer {
    json_text(StatusCode::OK, value.to_string())
}

fn raw(bytes: Bytes) -> Answer {
    let mut answer = json_text(StatusCode::OK, String::new());
    *answer.body_mut() = Body::from(bytes);
    answer
}

pub(super) fn refuse(status: StatusCode, message: &str) -> Answer {
    json_text(status, json!({"message": message}).to_string())
}

fn invalid(field: &str, detail: &str) -> Answer {
    let body = json!({"message": "Validation failed.", "validations": [{"field": field, "detail": detail}]});
    json_text(StatusCode::BAD_REQUEST, body.to_string())
}

fn not_found() -> Answer {
    refuse(StatusCode::NOT_FOUND, "Resource not found or you do not have access to this resource")
}

fn bad_uuid(text: &str) -> Answer {
    let body = json!({
        "message": format!("Invalid UUID {text:?}."), "detail": format!("invalid UUID length: {}", text.len()),
    });
    json_text(StatusCode::BAD_REQUEST, body.to_string())
}

fn see_other() -> Answer {
    let mut answer = page(StatusCode::SEE_OTHER, "Login");
    answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/login"));
    answer
}

fn url_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// Who may see what.

fn find_user(world: &World, call: &Call<'_>, name: &str) -> Option<User> {
    if name == "me" {
        return Some(call.user.clone());
    }
    let found = world.user_named(name).cloned();
    found.filter(|user| call.user.is_admin || user.id == call.user.id)
}

fn may(call: &Call<'_>, workspace: &SimWorkspace) -> bool {
    !workspace.hidden && (call.user.is_admin || workspace.owner == call.user.id)
}

fn find<'a>(world: &'a mut World, call: &Call<'_>, user: &str, name: &str) -> Option<&'a mut SimWorkspace> {
    let owner = find_user(world, call, user)?.id;
    world.workspaces.iter_mut().find(|workspace| {
        workspace.owner == owner
            && workspace.status != "deleted"
            && workspace.name.eq_ignore_ascii_case(name)
            && may(call, workspace)
    })
}

/// Lets a build in progress come nearer to its end each time its workspace is read.
fn note_read(workspace: &mut SimWorkspace) {
    match &mut workspace.reads_left {
        Some(0) => {
            workspace.rendered = None;
            workspace.finish();
        }
        Some(reads) => *reads -= 1,
        None => {}
    }
}

// Reading.

fn by_name(world: &mut World, profile: Profile, call: &Call<'_>, user: &str, name: &str) -> Answer {
    let Some(workspace) = find(world, call, user, name) else { return not_found() };
    note_read(workspace);
    let id = workspace.id;
    match world.workspaces.iter().find(|workspace| workspace.id == id) {
        Some(workspace) if workspace.status != "deleted" => raw(render::workspace(world, profile, workspace)),
        _ => not_found(),
    }
}

fn list(world: &mut World, profile: Profile, call: &Call<'_>) -> Answer {
    let number = |key: &str| call.query.get(key).map_or(Ok(0), |text| text.parse::<usize>());
    let (Ok(limit), Ok(offset)) = (number("limit"), number("offset")) else {
        return refuse(StatusCode::BAD_REQUEST, "Query parameters have invalid values.");
    };
    let mut filters = Vec::new();
    for word in call.query.get("q").map(String::as_str).unwrap_or_default().split_whitespace() {
        match word.split_once(':').unwrap_or(("name", word)) {
            (key @ ("owner" | "name" | "status" | "template"), value) => {
                filters.push((key, value.to_lowercase()));
            }
            (key, _) => {
                let detail = format!("{key:?} is not a valid query param");
                let body = json!({
                    "message": "Invalid workspace search query.",
                    "validations": [{"field": "q", "detail": detail}],
                });
                return json_text(StatusCode::BAD_REQUEST, body.to_string());
            }
        }
    }
    world.workspaces.iter_mut().for_each(note_read);
    let passes = |workspace: &SimWorkspace| {
        filters.iter().all(|(key, value)| match *key {
            "owner" if value == "me" => workspace.owner == call.user.id,
            "owner" => render::owner_name(world, workspace).to_lowercase() == *value,
            "name" => workspace.name.to_lowercase().contains(value.as_str()),
            "status" => workspace.status == *value,
            _ => world.template(workspace.template).is_some_and(|template| template.active().name == *value),
        })
    };
    let mut found: Vec<usize> = world
        .workspaces
        .iter()
        .enumerate()
        .filter(|(_, workspace)| workspace.status != "deleted" && may(call, workspace) && passes(workspace))
        .map(|(index, _)| index)
        .collect();
    found.sort_by_cached_key(|index| {
        let workspace = &world.workspaces[*index];
        (workspace.status != "running", workspace.name.to_lowercase())
    });
    let count = found.len();
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut chunks = vec![Bytes::from_static(b"{\"workspaces\":[")];
    for (position, index) in found.into_iter().skip(offset).take(limit).enumerate() {
        if position > 0 {
            chunks.push(Bytes::from_static(b","));
        }
        let rendered = match &world.workspaces[index].rendered {
            Some(rendered) => rendered.clone(),
            None => render::workspace(world, profile, &world.workspaces[index]),
        };
        // A build in progress changes with each look; nothing else does without a call.
        if !world.workspaces[index].is_building() {
            world.workspaces[index].rendered = Some(rendered.clone());
        }
        chunks.push(rendered);
    }
    chunks.push(Bytes::from(format!("],\"count\":{count}}}")));
    let mut answer = json_text(StatusCode::OK, String::new());
    *answer.body_mut() = Body::from_stream(stream::iter(chunks).map(Ok::<_, std::convert::Infallible>));
    answer
}

fn templates(world: &World, call: &Call<'_>) -> Answer {
    let only_tasks = match call.query.get("q").map(String::as_str) {
        None | Some("") => false,
        Some("has-ai-task:true") => true,
        Some(_) => return refuse(StatusCode::BAD_REQUEST, "Invalid template search query."),
    };
    let shown = world.templates.iter().filter(|template| !only_tasks || template.active().ai_task);
    good(&shown.map(|template| render::template(world, template)).collect())
}

fn with_version(world: &World, id: &str, shown: impl FnOnce(&Template) -> Value) -> Answer {
    match id.parse::<Uuid>() {
        Err(_) => bad_uuid(id),
        Ok(id) => world.version(id).map_or_else(not_found, |made_of| good(&shown(made_of))),
    }
}

fn build_parameters(world: &World, call: &Call<'_>, id: &str) -> Answer {
    let found = world.workspaces.iter().find(|workspace| {
        may(call, workspace)
            && [workspace.first_build_id, workspace.build_id].iter().any(|it| it.to_string() == id)
    });
    let Some(workspace) = found else { return not_found() };
    good(&workspace.parameters.iter().map(|(name, value)| json!({"name": name, "value": value})).collect())
}

fn agent_metadata(world: &World, call: &Call<'_>, id: &str) -> Answer {
    let found = world.workspaces.iter().find(|it| may(call, it) && it.agent_id.to_string() == id);
    let Some(workspace) = found else { return not_found() };
    let values: Value = workspace
        .agent_metadata
        .iter()
        .map(|(key, value)| {
            json!({
                "result": {"collected_at": render::time(Timestamp::now()), "age": 1, "value": value, "error": ""},
                "description": {"display_name": key, "key": key, "script": "CANARY-script", "interval": 10, "timeout": 1},
            })
        })
        .collect();
    let first = format!("event: ping\n\nevent: data\ndata: {values}\n\n");
    // The stream stays open, as the real one does.
    events(stream::iter([first]).chain(stream::pending()))
}

fn events(texts: impl stream::Stream<Item = String> + Send + 'static) -> Answer {
    let mut answer = Response::new(Body::from_stream(texts.map(Ok::<_, std::convert::Infallible>)));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer
}

/// Tells of every change of a workspace, and from 2.30 on how it is to begin with.
fn watch(sim: &Arc<Sim>, id: &str) -> Answer {
    let Ok(id) = id.parse::<Uuid>() else { return bad_uuid(id) };
    let sim_profile = sim.profile;
    let sim = Arc::clone(sim);
    let look = move || {
        let world = lock(&sim.world);
        let workspace = world.workspaces.iter().find(|workspace| workspace.id == id)?;
        Some(render::workspace(&world, sim.profile, workspace))
    };
    let before = if sim_profile < Profile::V2_30 { look() } else { None };
    let changes = stream::unfold((before, look), |(before, look)| async move {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            let now = look();
            if now != before {
                let mut event = "event: data\ndata: ".to_owned();
                let _ = write!(event, "{}\n\n", String::from_utf8_lossy(now.as_deref().unwrap_or(b"null")));
                return Some((event, (now, look)));
            }
        }
    });
    events(stream::iter(["event: ping\n\n".to_owned()]).chain(changes))
}

// Writing.

fn body(call: &Call<'_>) -> Result<serde_json::Map<String, Value>, Box<Answer>> {
    serde_json::from_slice(call.body)
        .map_err(|_| Box::new(refuse(StatusCode::BAD_REQUEST, "Request body must be valid JSON.")))
}

fn is_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name
            .split('-')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        && !["new", "create"].contains(&name)
}

/// Checks what a new workspace and a new task have in common; gives template, version and preset.
fn check_new(
    world: &World,
    call: &Call<'_>,
    fields: &serde_json::Map<String, Value>,
) -> Result<(Uuid, Uuid, Option<Uuid>), Box<Answer>> {
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    if !is_name(name) {
        return Err(Box::new(invalid("name", "Validation failed for tag \"workspace_name\" with value")));
    }
    let id = |key: &str| match fields.get(key).and_then(Value::as_str) {
        None => Ok(None),
        Some(text) => text.parse::<Uuid>().map(Some).map_err(|_| Box::new(bad_uuid(text))),
    };
    let (template, version) = match (id("template_id")?, id("template_version_id")?) {
        (Some(template), None) => world.template(template).map(|it| (it.id, it.active_version)),
        (None, Some(version)) => {
            world.templates.iter().find(|it| it.versions.contains_key(&version)).map(|it| (it.id, version))
        }
        _ => {
            return Err(Box::new(invalid(
                "template_id",
                "exactly one of template_id and template_version_id",
            )));
        }
    }
    .ok_or_else(|| Box::new(invalid("template_id", "template not found")))?;
    let taken = world.workspaces.iter().any(|workspace| {
        workspace.owner == call.user.id
            && workspace.status != "deleted"
            && workspace.name.eq_ignore_ascii_case(name)
    });
    if taken {
        let answer = json!({
            "message": format!("Workspace {name:?} already exists."),
            "validations": [{"field": "name", "detail": "This value is already in use and should be unique."}],
        });
        return Err(Box::new(json_text(StatusCode::CONFLICT, answer.to_string())));
    }
    let preset = id("template_version_preset_id")?;
    let knows = |preset: Uuid| {
        world
            .templates
            .iter()
            .flat_map(|it| it.versions.values())
            .flat_map(|it| &it.presets)
            .any(|it| it.id == preset)
    };
    if preset.is_some_and(|preset| !knows(preset)) {
        return Err(Box::new(refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal error: foreign key violation.",
        )));
    }
    Ok((template, version, preset))
}

fn create(world: &mut World, profile: Profile, call: &Call<'_>, user: &str) -> Answer {
    let Some(owner) = find_user(world, call, user) else { return not_found() };
    let fields = match body(call) {
        Ok(fields) => fields,
        Err(answer) => return *answer,
    };
    let (template, version, preset) = match check_new(world, call, &fields) {
        Ok(found) => found,
        Err(answer) => return *answer,
    };
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut workspace = world.blank(name, owner.id, template, version, preset, Timestamp::now());
    let Some(made_of) = world.version(version) else { return not_found() };
    if made_of.deprecated {
        return refuse(StatusCode::BAD_REQUEST, "Template \"x\" has been deprecated");
    }
    let given = fields.get("rich_parameter_values").and_then(Value::as_array).cloned().unwrap_or_default();
    for value in given {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        // Names the template does not know are dropped without a word.
        if made_of.parameters.iter().any(|parameter| parameter.name == text("name")) {
            workspace.parameters.push((text("name"), text("value")));
        }
    }
    apply_preset(&mut workspace, made_of, preset);
    workspace.has_ai_task = made_of.ai_task;
    workspace.app_slug = made_of.ai_task.then(|| "ccw".to_owned());
    if profile < Profile::V2_28 && made_of.ai_task {
        workspace.prompt =
            workspace.parameters.iter().find(|(name, _)| name == "AI Prompt").map(|(_, value)| value.clone());
    }
    let shown = render::workspace(world, profile, &workspace);
    world.workspaces.push(workspace);
    let mut answer = raw(shown);
    *answer.status_mut() = StatusCode::CREATED;
    answer
}

/// What a preset sets wins over what was asked for.
fn apply_preset(workspace: &mut SimWorkspace, made_of: &Template, preset: Option<Uuid>) {
    for (name, value) in
        made_of.presets.iter().filter(|it| Some(it.id) == preset).flat_map(|it| &it.parameters)
    {
        workspace.parameters.retain(|(existing, _)| existing != name);
        workspace.parameters.push((name.clone(), value.clone()));
    }
}

fn transition(world: &mut World, profile: Profile, call: &Call<'_>, id: &str) -> Answer {
    let Ok(id) = id.parse::<Uuid>() else { return bad_uuid(id) };
    let fields = match body(call) {
        Ok(fields) => fields,
        Err(answer) => return *answer,
    };
    let status = match fields.get("transition").and_then(Value::as_str) {
        Some("start") => "starting",
        Some("stop") => "stopping",
        Some("delete") => "deleting",
        _ => return invalid("transition", "Validation failed for tag \"oneof\""),
    };
    let reads = world.builds_end_after_reads;
    let Some(index) = world.workspaces.iter().position(|it| it.id == id && may(call, it)) else {
        return not_found();
    };
    let workspace = &mut world.workspaces[index];
    if workspace.status == "deleted" {
        return refuse(StatusCode::GONE, "Workspace was deleted.");
    }
    if workspace.is_building() {
        let text = "A workspace build is already active.";
        return json_text(StatusCode::CONFLICT, json!({"message": text, "detail": text}).to_string());
    }
    if workspace.dormant_at.is_some() && status == "starting" {
        if profile < Profile::V2_30 {
            return refuse(StatusCode::BAD_REQUEST, "Workspace is dormant.");
        }
        workspace.dormant_at = None;
    }
    workspace.rendered = None;
    workspace.begin(status, reads);
    // A chained start (`on_success`) of a task's workspace fails later, three times, and nobody is told; versions before
    // 2.36 do not know the field. Either way nothing comes of it.
    let shown = render::build(world, profile, &world.workspaces[index]);
    json_text(StatusCode::CREATED, shown.to_string())
}

fn cancel(world: &mut World, call: &Call<'_>, id: &str) -> Answer {
    let found = world.workspaces.iter().position(|it| it.build_id.to_string() == id && may(call, it));
    let Some(index) = found else { return not_found() };
    let template = world.template(world.workspaces[index].template);
    if !template.is_some_and(|template| template.active().allow_cancel) {
        return refuse(StatusCode::FORBIDDEN, "User is not allowed to cancel workspace builds.");
    }
    world.workspaces[index].rendered = None;
    "canceled".clone_into(&mut world.workspaces[index].status);
    good(&json!({"message": "Job has been marked as canceled..."}))
}

fn wake(world: &mut World, profile: Profile, call: &Call<'_>, id: &str) -> Answer {
    let Some(index) = world.workspaces.iter().position(|it| it.id.to_string() == id && may(call, it)) else {
        return not_found();
    };
    world.workspaces[index].rendered = None;
    world.workspaces[index].dormant_at = None;
    raw(render::workspace(world, profile, &world.workspaces[index]))
}

// Tasks.

fn tasks(world: &mut World, profile: Profile, call: &Call<'_>, rest: &[&str]) -> Answer {
    match (call.method, rest) {
        ("GET", []) => {
            let mine = world.workspaces.iter().filter(|it| {
                it.owner == call.user.id && it.status != "deleted" && render::task_id(profile, it).is_some()
            });
            let tasks: Vec<Value> = mine.map(|workspace| render::task(world, profile, workspace)).collect();
            good(&json!({"count": tasks.len(), "tasks": tasks}))
        }
        ("POST", [user]) => create_task(world, profile, call, user),
        (method, [user, task, action @ ..]) => {
            let Some(owner) = find_user(world, call, user) else { return not_found() };
            if profile < Profile::V2_29 && task.parse::<Uuid>().is_err() {
                return bad_uuid(task);
            }
            let found = world.workspaces.iter().position(|it| {
                let by_name = profile >= Profile::V2_29 && it.name.eq_ignore_ascii_case(task);
                let by_id = render::task_id(profile, it).is_some_and(|id| id.to_string() == *task);
                it.owner == owner.id && it.status != "deleted" && (by_id || by_name) && may(call, it)
            });
            let Some(index) = found else { return not_found() };
            match (method, action) {
                ("GET", []) => good(&render::task(world, profile, &world.workspaces[index])),
                ("POST", ["send"]) => send(&mut world.workspaces[index], profile, call),
                ("GET", ["logs"]) => logs(&world.workspaces[index], profile),
                _ => refuse(StatusCode::NOT_FOUND, "Route not found."),
            }
        }
        _ => refuse(StatusCode::NOT_FOUND, "Route not found."),
    }
}

fn create_task(world: &mut World, profile: Profile, call: &Call<'_>, user: &str) -> Answer {
    let Some(owner) = find_user(world, call, user) else { return not_found() };
    let fields = match body(call) {
        Ok(fields) => fields,
        Err(answer) => return *answer,
    };
    let (template, version, preset) = match check_new(world, call, &fields) {
        Ok(found) => found,
        Err(answer) => return *answer,
    };
    let input = fields.get("input").and_then(Value::as_str).unwrap_or_default();
    let Some(made_of) = world.version(version) else { return not_found() };
    if !made_of.ai_task {
        return refuse(StatusCode::BAD_REQUEST, "Template does not have a valid \"coder_ai_task\" resource.");
    }
    if input.is_empty() {
        return invalid("input", "required");
    }
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut workspace = world.blank(name, owner.id, template, version, preset, Timestamp::now());
    workspace.prompt = Some(input.to_owned());
    workspace.has_ai_task = true;
    workspace.task_id = Some(Uuid::now_v7());
    let fills = profile < Profile::V2_30;
    if fills && made_of.parameters.iter().any(|parameter| parameter.name == "AI Prompt") {
        workspace.parameters.push(("AI Prompt".to_owned(), input.to_owned()));
    }
    apply_preset(&mut workspace, made_of, preset);
    let shown = render::task(world, profile, &workspace);
    world.workspaces.push(workspace);
    json_text(StatusCode::CREATED, shown.to_string())
}

fn send(workspace: &mut SimWorkspace, profile: Profile, call: &Call<'_>) -> Answer {
    let fields = match body(call) {
        Ok(fields) => fields,
        Err(answer) => return *answer,
    };
    let input = fields.get("input").and_then(Value::as_str).unwrap_or_default();
    if input.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "Task input is required.");
    }
    if workspace.status == "stopped" && profile >= Profile::V2_32 {
        let body = json!({"message": "Task is paused.", "detail": "Resume the task to send messages."});
        return json_text(StatusCode::CONFLICT, body.to_string());
    }
    if workspace.status != "running" || !workspace.agent.reachable {
        return refuse(StatusCode::BAD_GATEWAY, "Task app cannot be reached.");
    }
    if workspace.agent.running {
        let status = if profile >= Profile::V2_32 { StatusCode::CONFLICT } else { StatusCode::BAD_GATEWAY };
        let body = json!({"message": "Task app is not ready to accept input.", "detail": "Status: running"});
        return json_text(status, body.to_string());
    }
    apps::tell(workspace, input);
    if workspace.agent.takes_but_fails {
        return refuse(StatusCode::BAD_GATEWAY, "Task app did not confirm.");
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// The conversation; that of a paused task is what a snapshot kept of it, from 2.32 on.
fn logs(workspace: &SimWorkspace, profile: Profile) -> Answer {
    let entry = |(id, said): (usize, &Said)| {
        let kind = if said.role == "user" { "input" } else { "output" };
        json!({"id": id, "content": said.text, "type": kind, "time": render::time(said.at)})
    };
    let entries = |said: &[Said]| said.iter().enumerate().map(entry).collect::<Value>();
    if workspace.status == "running" && workspace.agent.reachable {
        return good(&json!({"logs": entries(&workspace.agent.messages)}));
    }
    if profile < Profile::V2_32 || workspace.status != "stopped" {
        return refuse(StatusCode::BAD_GATEWAY, "Task app cannot be reached.");
    }
    match &workspace.agent.snapshot {
        None => good(&json!({"logs": [], "snapshot": true})),
        Some(kept) => good(&json!({
            "logs": entries(kept), "snapshot": true, "snapshot_at": render::time(workspace.build_at),
        })),
    }
}
