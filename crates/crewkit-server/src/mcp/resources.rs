//! Runs and agents as MCP resources, and the notifications of those who subscribe to them.
//!
//! A resource is read with the operation it stands for, so narrowing and the rights of the caller hold for it as they do for
//! tools. Notifications come from the event log of the home: each connection that listed or subscribed reads it with a cursor of
//! its own, which goes on where it was after a restart of the server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crewkit_agent::engine::payload_resource;
use crewkit_core::{Code, Limits};
use crewkit_fleet::LOCAL;
use rmcp::RoleServer;
use rmcp::model::{
    ErrorData, Extensions, ListResourcesResult, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate, ResourceUpdatedNotificationParam, SubscriptionFilter,
    SubscriptionsListenRequestMethod,
};
use rmcp::service::{NotificationContext, Peer, SubscriptionContext, SubscriptionSink};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::audience::Audience;
use super::handler::McpServer;
use super::sessions::SessionRecords;
use crate::Services;
use crate::ops::{self, Answer, Catalog, JsonObject, Progress, Source};

const SCHEME: &str = "crewkit://";
/// Resources in one page of a list.
const PAGE: usize = 100;
/// Events fetched at a time.
const EVENT_PAGE: u64 = 500;
/// How long one question for new events waits for an answer.
const WAIT_SECONDS: u64 = 60;
/// Pause before events that could not be had are asked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What a URI stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject<'a> {
    Run(&'a str),
    Payload(&'a str),
    Agent { place: &'a str, name: &'a str },
}

impl<'a> Subject<'a> {
    fn of_uri(uri: &'a str) -> Option<Self> {
        let parts: Vec<&str> = uri.strip_prefix(SCHEME)?.split('/').collect();
        match *parts.as_slice() {
            ["runs", id] if !id.is_empty() => Some(Self::Run(id)),
            ["runs", id, "payload"] if !id.is_empty() => Some(Self::Payload(id)),
            ["agents", place, name] if !place.is_empty() && !name.is_empty() => {
                Some(Self::Agent { place, name })
            }
            _ => None,
        }
    }

    /// The operation that reads it, with its arguments.
    fn reading(self) -> (&'static str, Value) {
        match self {
            Self::Run(id) => ("run_show", json!({"run_id": id})),
            Self::Payload(id) => ("run_payload", json!({"run_id": id, "text": true})),
            Self::Agent { place, name } => ("show_agent", json!({"agent_name": format!("{place}/{name}")})),
        }
    }
}

/// The URI of a run.
fn run_uri(id: &str) -> String {
    format!("{SCHEME}runs/{id}")
}

fn agent_uri(place_and_name: &str) -> String {
    format!("{SCHEME}agents/{place_and_name}")
}

/// What one connection or session is notified of.
pub(super) struct Subscriptions {
    most: usize,
    /// Where they are remembered, if the session outlives the server.
    records: Option<Arc<SessionRecords>>,
    uris: Mutex<BTreeSet<String>>,
    /// Set once the event log is followed.
    following: OnceCell<()>,
    stop: CancellationToken,
    _stop_at_end: DropGuard,
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self::new(&Limits::default(), None)
    }
}

impl Subscriptions {
    pub(super) fn new(limits: &Limits, records: Option<Arc<SessionRecords>>) -> Self {
        let stop = CancellationToken::new();
        Self {
            most: usize::try_from(limits.mcp_subscriptions).unwrap_or(usize::MAX),
            records,
            uris: Mutex::default(),
            following: OnceCell::new(),
            _stop_at_end: stop.clone().drop_guard(),
            stop,
        }
    }

    fn uris(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, uri: String) -> Result<(), ErrorData> {
        let mut uris = self.uris();
        if uris.len() >= self.most && !uris.contains(&uri) {
            let most = self.most;
            let text =
                format!("{}: {most} resources are subscribed to (limits.mcp_subscriptions)", Code::Busy);
            return Err(ErrorData::invalid_request(text, None));
        }
        uris.insert(uri);
        Ok(())
    }

    pub(super) fn remove(&self, uri: &str) {
        self.uris().remove(uri);
    }

    /// As much of a filter as the limit allows.
    pub(super) fn bounded(&self, requested: &SubscriptionFilter) -> SubscriptionFilter {
        let mut filter = requested.clone();
        if let Some(uris) = &mut filter.resource_subscriptions {
            uris.truncate(self.most);
        }
        filter
    }

    /// Writes down what the session of a request is notified of.
    pub(super) async fn remember(&self, extensions: &Extensions) -> Result<(), ErrorData> {
        let session = extensions.get::<http::request::Parts>().and_then(|parts| {
            parts.headers.get(super::http::SESSION_HEADER)?.to_str().ok().map(ToOwned::to_owned)
        });
        let (Some(records), Some(session)) = (&self.records, session) else { return Ok(()) };
        let uris: Vec<String> = self.uris().iter().cloned().collect();
        let remembered = Arc::clone(records).set_subscriptions(&session, uris).await;
        remembered.map_err(|error| ErrorData::internal_error(format!("the session's record: {error}"), None))
    }
}

impl McpServer {
    fn offers_named(&self, operation: &str, audience: &Audience) -> bool {
        self.catalog.get(operation).is_some_and(|entry| self.offers(&entry.operation, audience))
    }

    /// Whether `audience` sees any resources.
    pub(super) fn has_resources(&self, audience: &Audience) -> bool {
        ["run_list", "list_agents"].iter().any(|name| self.offers_named(name, audience))
    }

    /// Runs an operation that reads, as `audience` may.
    async fn ask(&self, name: &str, arguments: Value, audience: &Audience) -> Result<Value, ErrorData> {
        let entry = self.catalog.get(name).filter(|entry| self.offers(&entry.operation, audience));
        let Some((entry, Value::Object(arguments))) = entry.zip(Some(arguments)) else {
            return Err(ErrorData::resource_not_found("There is no such resource", None));
        };
        let cancelled = CancellationToken::new();
        let _hang_up = cancelled.clone().drop_guard();
        let (caller, progress) = (audience.caller.clone(), Progress::default());
        let request = ops::Request { caller, source: Source::Tool, arguments, progress, cancelled };
        let answer = ops::run(Arc::clone(entry), Arc::clone(&self.services), request).await;
        if !answer.failed() {
            return Ok(answer.body);
        }
        let texts = ["message", "error"].iter().find_map(|key| answer.body[*key].as_str());
        let message = texts.unwrap_or("the operation failed").to_owned();
        match answer.status {
            404 => Err(ErrorData::resource_not_found(message, None)),
            400..500 => Err(ErrorData::invalid_params(message, Some(answer.body))),
            _ => Err(ErrorData::internal_error(message, Some(answer.body))),
        }
    }

    /// A page of the resources, ordered by URI; the cursor is the last one of the page before.
    pub(super) async fn resources(
        &self,
        cursor: Option<String>,
        audience: &Audience,
    ) -> Result<ListResourcesResult, ErrorData> {
        if let Some(cursor) = cursor.as_ref().filter(|cursor| Subject::of_uri(cursor).is_none()) {
            return Err(ErrorData::invalid_params(format!("unknown cursor `{cursor}`"), None));
        }
        let mut found = Vec::new();
        let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
        let resource = |uri: String, name: String, description: String| {
            Resource::new(uri, name).with_description(description).with_mime_type("application/json")
        };
        if self.offers_named("run_list", audience) {
            let body = self.ask("run_list", json!({}), audience).await?;
            found.extend(body["runs"].as_array().into_iter().flatten().map(|run| {
                let id = text(run, "id");
                let description = format!("{}: {}", text(run, "status"), text(run, "contract"));
                resource(run_uri(&id), id, description)
            }));
        }
        if self.offers_named("list_agents", audience) {
            match self.ask("list_agents", json!({"include_metadata": false}), audience).await {
                Ok(body) => found.extend(body["agents"].as_array().into_iter().flatten().map(|agent| {
                    let (place, name) = (text(agent, "place"), text(agent, "name"));
                    let description = format!("{}: {}", text(agent, "status"), text(agent, "project"));
                    resource(agent_uri(&format!("{place}/{name}")), name, description)
                })),
                // A fleet that cannot be reached must not hide the runs.
                Err(error) => tracing::warn!(%error, "the agents are missing from the list of resources"),
            }
        }
        found.sort_unstable_by(|one, other| one.uri.cmp(&other.uri));
        found.retain(|resource| cursor.as_ref().is_none_or(|cursor| resource.uri > *cursor));
        let is_last = found.len() <= PAGE;
        found.truncate(PAGE);
        let next = found.last().map(|resource| resource.uri.clone()).filter(|_| !is_last);
        let mut page = ListResourcesResult::with_all_items(found);
        page.next_cursor = next;
        Ok(page)
    }

    pub(super) fn resource_templates(&self, audience: &Audience) -> Vec<ResourceTemplate> {
        let all = [
            ("run_show", run_uri("{id}"), "run", "A run: status, contract and times.", "application/json"),
            ("run_payload", payload_resource("{id}"), "payload", "What a run produced.", "text/plain"),
            (
                "show_agent",
                agent_uri("{place}/{name}"),
                "agent",
                "An agent of the fleet.",
                "application/json",
            ),
        ];
        let offered = all.into_iter().filter(|(operation, ..)| self.offers_named(operation, audience));
        let template = |(_, uri, name, description, media_type): (_, String, &str, &str, &str)| {
            ResourceTemplate::new(uri, name).with_description(description).with_mime_type(media_type)
        };
        offered.map(template).collect()
    }

    pub(super) async fn read(
        &self,
        uri: &str,
        audience: &Audience,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let subject = Subject::of_uri(uri).ok_or_else(|| no_such_resource(uri))?;
        let (operation, arguments) = subject.reading();
        let body = self.ask(operation, arguments, audience).await?;
        let (text, media_type) = match subject {
            Subject::Payload(_) => (body["text"].as_str().unwrap_or_default().to_owned(), "text/plain"),
            Subject::Run(_) | Subject::Agent { .. } => (body.to_string(), "application/json"),
        };
        let contents = ResourceContents::text(text, uri).with_mime_type(media_type);
        Ok(ReadResourceResponse::Complete(ReadResourceResult::new(vec![contents])))
    }

    /// Checks that `uri` is there and has events to tell about.
    pub(super) async fn check_subscribable(&self, uri: &str, audience: &Audience) -> Result<(), ErrorData> {
        let (operation, arguments) = match Subject::of_uri(uri).ok_or_else(|| no_such_resource(uri))? {
            // A payload comes with the end of its run.
            Subject::Payload(id) => Subject::Run(id).reading(),
            Subject::Agent { place, .. } if place != LOCAL => {
                let text = "Agents on Coder leave no events here; use `wait_for_agent`";
                return Err(ErrorData::invalid_params(text, None));
            }
            subject => subject.reading(),
        };
        self.ask(operation, arguments, audience).await.map(drop)
    }

    /// Follows the event log from now on, for as long as the connection lasts. Does nothing if it does so already.
    pub(super) async fn follow(&self, audience: &Audience, peer: &Peer<RoleServer>) -> Result<(), ErrorData> {
        let begin = async || {
            let log = self.log(audience);
            let after = log.newest().await.map_err(|answer| {
                ErrorData::internal_error("the event log cannot be read", Some(answer.body))
            })?;
            let subscriptions = Arc::downgrade(&self.subscriptions);
            let stop = self.subscriptions.stop.clone();
            let to = Listener::Connection { peer: peer.clone(), subscriptions };
            tokio::spawn(async move { stop.run_until_cancelled(log.tell(after, &to)).await });
            Ok(())
        };
        self.subscriptions.following.get_or_try_init(begin).await.copied()
    }

    /// Takes up the subscriptions of a session that was brought back. What it subscribed to may have changed meanwhile.
    pub(super) async fn take_up(&self, session: &str, context: &NotificationContext<RoleServer>) {
        let Some(records) = &self.subscriptions.records else { return };
        let uris = records.subscriptions(session).await;
        if uris.is_empty() {
            return;
        }
        self.subscriptions.uris().extend(uris.iter().take(self.subscriptions.most).cloned());
        let audience = Audience::of_extensions(&context.extensions);
        if let Err(error) = self.follow(&audience, &context.peer).await {
            tracing::warn!(%error, "a session cannot be notified any more");
        }
        let to = Listener::Connection {
            peer: context.peer.clone(),
            subscriptions: Arc::downgrade(&self.subscriptions),
        };
        let log = self.log(&audience);
        // The client is answered first.
        tokio::spawn(async move { log.tell_of_everything(&to).await });
    }

    /// Tells a client of the stateless revision until it hangs up.
    pub(super) async fn listen_to_resources(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let audience = Audience::of_context(context.request_context());
        if !self.has_resources(&audience) {
            return Err(ErrorData::method_not_found::<SubscriptionsListenRequestMethod>());
        }
        let log = self.log(&audience);
        let after = log
            .newest()
            .await
            .map_err(|answer| ErrorData::internal_error("the event log cannot be read", Some(answer.body)))?;
        let uris = context.accepted().resource_subscriptions.clone().unwrap_or_default();
        let to = Listener::Stream { sink: context.sink().clone(), uris };
        tokio::select! {
            () = context.cancelled() => {}
            () = self.services.leaving() => {}
            () = log.tell(after, &to) => {}
        }
        Ok(())
    }

    fn log(&self, audience: &Audience) -> EventLog {
        EventLog {
            catalog: Arc::clone(&self.catalog),
            services: Arc::clone(&self.services),
            sees_runs: self.offers_named("run_show", audience),
            sees_agents: self.offers_named("show_agent", audience),
        }
    }
}

fn no_such_resource(uri: &str) -> ErrorData {
    let text = format!("There is no resource `{uri}`");
    ErrorData::resource_not_found(text, Some(json!({"uri": uri})))
}

/// Who is notified.
enum Listener {
    /// A connection or session. Its subscriptions change.
    Connection { peer: Peer<RoleServer>, subscriptions: Weak<Subscriptions> },
    /// A request of the stateless revision, which says once what it listens to.
    Stream { sink: SubscriptionSink, uris: Vec<String> },
}

impl Listener {
    fn subscribed(&self) -> Vec<String> {
        match self {
            Self::Connection { subscriptions, .. } => {
                let subscriptions = subscriptions.upgrade();
                subscriptions.map(|held| held.uris().iter().cloned().collect()).unwrap_or_default()
            }
            Self::Stream { uris, .. } => uris.clone(),
        }
    }

    /// Returns whether it still listens.
    async fn updated(&self, uri: String) -> bool {
        match self {
            Self::Connection { peer, .. } => {
                peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_ok()
            }
            Self::Stream { sink, .. } => sink.notify_resource_updated(uri).await.is_ok(),
        }
    }

    async fn list_changed(&self) -> bool {
        match self {
            Self::Connection { peer, .. } => peer.notify_resource_list_changed().await.is_ok(),
            // One that did not ask for it still listens.
            Self::Stream { sink, .. } => {
                let _ = sink.notify_resource_list_changed().await;
                true
            }
        }
    }
}

/// The event log of the home, read here or at the server that has it, as far as somebody may know of it.
struct EventLog {
    catalog: Arc<Catalog>,
    services: Arc<Services>,
    sees_runs: bool,
    sees_agents: bool,
}

/// What events say about resources.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    updated: BTreeSet<String>,
    list_changed: bool,
}

impl EventLog {
    /// Runs `events`. With `may_start`, also if the server has to be started for it.
    async fn events(&self, after: u64, wait: u64, may_start: bool) -> Answer {
        let arguments = json!({"after": after, "limit": EVENT_PAGE, "wait_seconds": wait});
        let arguments: JsonObject = arguments.as_object().cloned().unwrap_or_default();
        match (&self.services.remote, self.catalog.get("events")) {
            (Some(remote), _) if !may_start => remote.watch("events", arguments).await,
            (_, Some(entry)) => {
                // The log is read in the server's own name; what the listener may not see is left out by `news`.
                let request = ops::Request::of_owner(Source::Tool, arguments);
                ops::run(Arc::clone(entry), Arc::clone(&self.services), request).await
            }
            (_, None) => Answer { body: Value::Null, status: 404 },
        }
    }

    /// The cursor behind the newest event.
    async fn newest(&self) -> Result<u64, Answer> {
        let answer = self.events(0, 0, true).await;
        answer.body["last"].as_u64().ok_or(answer)
    }

    /// Tells `to` what happens after the cursor, for as long as it listens.
    async fn tell(&self, mut after: u64, to: &Listener) {
        loop {
            let answer = self.events(after, WAIT_SECONDS, false).await;
            let is_expired = answer.body["code"] == Code::CursorExpired.as_str();
            if let Some(next) = answer.body["next"].as_u64() {
                after = next;
                let events = answer.body["events"].as_array().map(Vec::as_slice).unwrap_or_default();
                if !self.pass_on(self.news(events), to).await {
                    return;
                }
            } else if is_expired && let Ok(newest) = self.newest().await {
                after = newest;
                if !self.tell_of_everything(to).await {
                    return;
                }
            } else {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn pass_on(&self, news: News, to: &Listener) -> bool {
        let subscribed = to.subscribed();
        for uri in subscribed.into_iter().filter(|uri| news.updated.contains(uri)) {
            if !to.updated(uri).await {
                return false;
            }
        }
        !news.list_changed || to.list_changed().await
    }

    /// Says that everything may have changed: what happened meanwhile is not known.
    async fn tell_of_everything(&self, to: &Listener) -> bool {
        let updated = to.subscribed().into_iter().collect();
        self.pass_on(News { updated, list_changed: true }, to).await
    }

    fn news(&self, events: &[Value]) -> News {
        let mut news = News::default();
        for event in events {
            let (kind, subject) = (event["kind"].as_str(), event["subject"].as_str());
            let Some((kind, subject)) = kind.zip(subject) else { continue };
            match kind.split_once('.') {
                Some(("run", what)) if self.sees_runs => {
                    news.updated.insert(run_uri(subject));
                    if what == "ended" {
                        news.updated.insert(payload_resource(subject));
                    }
                    news.list_changed |= matches!(what, "queued" | "deleted");
                }
                Some((group @ ("agent" | "task"), what)) if self.sees_agents => {
                    news.updated.insert(agent_uri(subject));
                    news.list_changed |= group == "agent" && matches!(what, "created" | "deleted");
                }
                _ => {}
            }
        }
        news
    }
}
