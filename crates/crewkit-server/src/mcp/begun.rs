//! A tool call that a front has begun.
//!
//! Most calls ask for something that is in memory, and carrying them through rmcp (a task, two channels and a stream each)
//! costs several times what they cost themselves. So a front begins a call and takes its first step; what is answered by
//! then is answered there. Any other call goes on from where it stands: the begun work travels with its request into rmcp,
//! which knows about streams, progress and cancellation.

use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage, ClientRequest, Extensions,
    GetMeta as _, ProgressNotificationParam, RequestMetaObject, ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::audience::Audience;
use super::message::Message;
use crate::ops::{Answer, Progress, ProgressUpdate};

/// What stands behind a front.
pub trait Handler: ServerHandler + Clone + Sync {
    /// Begins a tool call of `audience`. `None` leaves the call to [`ServerHandler::call_tool`].
    fn begin(
        &self,
        _call: &mut CallToolRequestParams,
        _audience: &Audience,
        _watcher: Watcher,
    ) -> Option<Begun> {
        None
    }
}

/// Whether the client of a call wants to hear of its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watcher {
    /// It gave a token for that.
    Wants,
    /// It waits for the answer alone.
    Waits,
}

impl From<&RequestMetaObject> for Watcher {
    fn from(meta: &RequestMetaObject) -> Self {
        if meta.get_progress_token().is_some() { Self::Wants } else { Self::Waits }
    }
}

/// Work on a tool call. Dropping it cancels the work.
pub struct Begun {
    work: BoxFuture<'static, Answer>,
    updates: mpsc::UnboundedReceiver<ProgressUpdate>,
    cancel: DropGuard,
}

/// A begun call on its way through rmcp, which wants to be able to copy what travels with a request.
#[derive(Clone)]
pub struct Carried(Arc<Mutex<Option<Begun>>>);

impl Begun {
    /// Takes up a call; `work` is given where to tell its progress, and how to notice that nobody waits any more.
    pub fn new(
        watcher: Watcher,
        work: impl FnOnce(Progress, CancellationToken) -> BoxFuture<'static, Answer>,
    ) -> Self {
        let (sender, updates) = mpsc::unbounded_channel();
        let progress = match watcher {
            Watcher::Wants => Progress::to(sender),
            Watcher::Waits => Progress::default(),
        };
        let cancel = CancellationToken::new();
        Self { work: work(progress, cancel.clone()), updates, cancel: cancel.drop_guard() }
    }

    /// What was begun for this request by the front it came through.
    pub fn carried(extensions: &Extensions) -> Option<Self> {
        let here = extensions.get::<Carried>();
        let carried =
            here.or_else(|| extensions.get::<http::request::Parts>()?.extensions.get::<Carried>())?;
        carried.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Goes on to the end, telling the client of progress on the way.
    pub async fn finish(
        mut self,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let answer = loop {
            tokio::select! {
                biased;
                Some(update) = self.updates.recv() => notify(context, update).await,
                // Nobody reads this answer; leaving drops the work.
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("cancelled by the client", None));
                }
                answer = &mut self.work => break answer,
            }
        };
        while let Ok(update) = self.updates.try_recv() {
            notify(context, update).await;
        }
        self.cancel.disarm();
        Ok(result(answer).into())
    }
}

/// Where a message stands after its first step.
pub enum FirstStep {
    /// It is answered.
    Answered(Box<ServerJsonRpcMessage>),
    /// It is begun, and this has to travel on with it.
    Begun(Carried),
    /// It is no call that a front begins.
    NotBegun,
}

/// Begins `message` if it is a tool call of a client that has said `initialize`.
pub fn first_step(
    message: &mut Message,
    begin: impl FnOnce(&mut CallToolRequestParams, Watcher) -> Option<Begun>,
) -> FirstStep {
    let ClientJsonRpcMessage::Request(request) = &mut message.inner else { return FirstStep::NotBegun };
    // A request of the stateless revision speaks for itself, and rmcp checks what it says.
    let meta = request.request.get_meta();
    if meta.protocol_version().is_some() {
        return FirstStep::NotBegun;
    }
    let watcher = Watcher::from(meta);
    let ClientRequest::CallToolRequest(call) = &mut request.request else { return FirstStep::NotBegun };
    let Some(mut call) = begin(&mut call.params, watcher) else { return FirstStep::NotBegun };
    if let Some(answer) = call.work.as_mut().now_or_never() {
        if call.updates.is_empty() {
            call.cancel.disarm();
            let mut result = result(answer);
            // The revisions with `initialize` do not know this field.
            result.result_type = None;
            let result = ServerResult::CallToolResult(result);
            let answer = ServerJsonRpcMessage::response(result, request.id.clone());
            return FirstStep::Answered(Box::new(answer));
        }
        // What was told on the way comes before the answer, and only rmcp can send it.
        call.work = ready(answer).boxed();
    }
    FirstStep::Begun(Carried(Arc::new(Mutex::new(Some(call)))))
}

fn result(answer: Answer) -> CallToolResult {
    if answer.failed() {
        CallToolResult::structured_error(answer.body)
    } else {
        CallToolResult::structured(answer.body)
    }
}

async fn notify(context: &RequestContext<RoleServer>, update: ProgressUpdate) {
    let Some(token) = context.meta.get_progress_token() else { return };
    let mut param = ProgressNotificationParam::new(token, update.done);
    param.total = update.total;
    param.message = update.message;
    // A client that went away also cancels; the work ends by that.
    let _ = context.peer.notify_progress(param).await;
}
