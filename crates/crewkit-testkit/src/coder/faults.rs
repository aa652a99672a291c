//! What can be wrong with a Coder: everything between a request and its answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use futures_util::stream;
use tower::Service;

use super::{Recorded, Sim, Trouble, lock};

/// Something that goes wrong with some requests.
#[derive(Debug, Clone)]
pub struct Fault {
    method: Option<&'static str>,
    path: String,
    times: Option<usize>,
    kind: Kind,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An error of Coder's with this status.
    Status(u16),
    /// An error with this status whose words repeat the token of the request, as a proxy that shows headers does.
    Echo(u16),
    /// A rate limit that asks to wait this many seconds.
    RateLimit(u64),
    /// No answer, ever.
    Hang,
    /// An answer that is not JSON.
    Malformed,
    /// The first half of the right answer, and a proper end.
    Truncated,
    /// A web page with status 200.
    Html,
    /// `null` with status 200.
    Null,
    /// The connection closes before anything is done.
    Drop,
    /// The request is carried out, then the connection closes.
    DropAnswer,
    /// The right answer, this much later.
    Delay(Duration),
    /// The right answer, byte by byte over this time.
    Drip(Duration),
    /// The right answer about somebody else.
    WrongName,
    /// A redirect to somewhere else.
    Redirect(String),
    /// The request is carried out and confirmed, and what it made cannot be found.
    SuccessThen404,
    /// An endless list of workspaces.
    Endless,
    /// A terminal that opens and then has this trouble.
    Terminal(Trouble),
}

impl Fault {
    /// Affects requests whose path contains `path`.
    pub fn on(path: impl Into<String>, kind: Kind) -> Self {
        Self { method: None, path: path.into(), times: None, kind }
    }

    /// Only requests with this method.
    #[must_use]
    pub fn method(self, method: &'static str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Only the next `times` requests.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times: Some(times), ..self }
    }
}

/// Requests per path within the current minute.
#[derive(Debug, Default)]
pub(super) struct Rates {
    minute: u64,
    counts: HashMap<String, u32>,
}

const RATE_LIMIT: u32 = 512;

/// Records a request, applies delays, limits and faults, and lets the router answer.
pub(super) async fn gate(sim: &Sim, router: Router, request: Request<Body>) -> io::Result<Response<Body>> {
    let method = request.method().as_str().to_owned();
    let path = request.uri().path().to_owned();
    let full = request.uri().path_and_query().map_or_else(|| path.clone(), ToString::to_string);
    let http2 = request.version() == axum::http::Version::HTTP_2;
    lock(&sim.requests).push(Recorded { method: method.clone(), path: full.clone(), http2 });

    let delays = *lock(&sim.delays);
    let pause =
        if path.ends_with("/metadata") { delays.metadata.max(delays.request) } else { delays.request };
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let rate = rate_headers(sim, &path);
    let mut response = match take(sim, &method, &full) {
        None if rate.is_err() => limited(60),
        None => answer(router, request).await,
        Some(kind) => apply(sim, kind, router, request).await?,
    };
    let headers = response.headers_mut();
    let (Ok(rate) | Err(rate)) = rate;
    headers.extend(rate);
    if let Ok(version) = HeaderValue::from_str(&sim.profile.version()) {
        headers.insert("x-coder-build-version", version);
    }
    headers.insert("x-coder-request-id", HeaderValue::from_static("0198c0de-0000-7000-8000-000000000001"));
    Ok(response)
}

fn take(sim: &Sim, method: &str, path: &str) -> Option<Kind> {
    let mut faults = lock(&sim.faults);
    let index = faults.iter().position(|fault| {
        fault.times != Some(0)
            && path.contains(&fault.path)
            && fault.method.is_none_or(|wanted| wanted == method)
    })?;
    let fault = faults.get_mut(index)?;
    if let Some(times) = &mut fault.times {
        *times -= 1;
    }
    Some(fault.kind.clone())
}

async fn apply(sim: &Sim, kind: Kind, router: Router, request: Request<Body>) -> io::Result<Response<Body>> {
    let closed = || io::Error::new(io::ErrorKind::ConnectionReset, "dropped on purpose");
    Ok(match kind {
        Kind::Status(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            json(status, format!("{{\"message\":\"simulated {}\"}}", status.as_u16()))
        }
        Kind::Echo(status) => {
            let token = request.headers().get("coder-session-token");
            let token = token.and_then(|value| value.to_str().ok()).unwrap_or_default();
            let body = serde_json::json!({
                "message": format!("no: {token}"), "detail": token,
                "validations": [{"field": token, "detail": format!("is {token}")}],
            });
            json(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), body.to_string())
        }
        Kind::RateLimit(seconds) => limited(seconds),
        Kind::Hang => std::future::pending().await,
        Kind::Malformed => json(StatusCode::OK, "{\"workspaces\": [{\"id\": tru".to_owned()),
        Kind::Truncated => {
            let (parts, body) = answer(router, request).await.into_parts();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(io::Error::other)?;
            let mut response = Response::from_parts(parts, Body::from(bytes.slice(..bytes.len() / 2)));
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response
        }
        Kind::Html => page(StatusCode::OK, "Coder"),
        Kind::Null => json(StatusCode::OK, "null".to_owned()),
        Kind::Drop => return Err(closed()),
        Kind::DropAnswer => {
            let _ = answer(router, request).await;
            return Err(closed());
        }
        Kind::Delay(time) => {
            tokio::time::sleep(time).await;
            answer(router, request).await
        }
        Kind::Drip(time) => drip(answer(router, request).await, time).await?,
        Kind::WrongName => {
            let (parts, body) = answer(router, request).await.into_parts();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(io::Error::other)?;
            let mut value: serde_json::Value = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
            if let Some(object) = value.as_object_mut() {
                object.insert("name".to_owned(), "somebody-else".into());
            }
            let mut response = Response::from_parts(parts, Body::from(value.to_string()));
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response
        }
        Kind::Redirect(target) => {
            let mut response = page(StatusCode::TEMPORARY_REDIRECT, "elsewhere");
            if let Ok(target) = HeaderValue::from_str(&target) {
                response.headers_mut().insert(header::LOCATION, target);
            }
            response
        }
        Kind::SuccessThen404 => {
            let response = answer(router, request).await;
            lock(&sim.world).hide_newest();
            response
        }
        Kind::Endless => endless(),
        Kind::Terminal(trouble) => {
            let mut request = request;
            request.extensions_mut().insert(trouble);
            answer(router, request).await
        }
    })
}

async fn answer(mut router: Router, request: Request<Body>) -> Response<Body> {
    match Service::<Request<Body>>::call(&mut router, request).await {
        Ok(response) => response,
        Err(never) => {
            let never: Infallible = never;
            match never {}
        }
    }
}

async fn drip(response: Response<Body>, time: Duration) -> io::Result<Response<Body>> {
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(io::Error::other)?;
    let pieces = 60_u32;
    let size = bytes.len().div_ceil(usize::try_from(pieces).unwrap_or(60)).max(1);
    let chunks: Vec<Bytes> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
    let slowly = stream::unfold(chunks.into_iter(), move |mut chunks| async move {
        let chunk = chunks.next()?;
        tokio::time::sleep(time / pieces).await;
        Some((Ok::<_, Infallible>(chunk), chunks))
    });
    let mut response = Response::from_parts(parts, Body::from_stream(slowly));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    Ok(response)
}

fn endless() -> Response<Body> {
    let piece = Bytes::from(vec![b'x'; 64 * 1024]);
    let opening = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"workspaces\":[{\"name\":\""))]);
    let rest = stream::repeat_with(move || Ok(piece.clone()));
    let mut response = Response::new(Body::from_stream(futures_util::StreamExt::chain(opening, rest)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer in Coder's content type.
pub(super) fn json(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A web page, as the dashboard and the app proxy send.
pub(super) fn page(status: StatusCode, title: &str) -> Response<Body> {
    let body = format!("<!doctype html><title>{title}</title><p>CANARY-page {title}</p>");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn limited(seconds: u64) -> Response<Body> {
    let body = "{\"message\":\"You've been rate limited for sending more than 512 requests in 1 minute.\"}";
    let mut response = json(StatusCode::TOO_MANY_REQUESTS, body.to_owned());
    if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// The rate limit headers of every answer; an error when the limit of the path is passed.
fn rate_headers(sim: &Sim, path: &str) -> Result<HeaderMap, HeaderMap> {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default();
    let mut rates = lock(&sim.rates);
    if rates.minute != now / 60 {
        *rates = Rates { minute: now / 60, counts: HashMap::new() };
    }
    let reset = (rates.minute + 1) * 60;
    let count = rates.counts.entry(path.to_owned()).or_default();
    *count += 1;
    let mut headers = HeaderMap::new();
    let left = RATE_LIMIT.saturating_sub(*count);
    for (name, value) in [("limit", u64::from(RATE_LIMIT)), ("remaining", u64::from(left)), ("reset", reset)]
    {
        let name = header::HeaderName::from_bytes(format!("x-ratelimit-{name}").as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value.to_string())) {
            headers.insert(name, value);
        }
    }
    if *count > RATE_LIMIT { Err(headers) } else { Ok(headers) }
}
