//! Sending one request and reading its answer, with a bound on everything.

use std::time::Duration;

use bytes::Bytes;
use crewkit_core::Limits;
use futures_util::StreamExt;
use http_body_util::Full;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;

use super::endpoint::{Dialect, Endpoint, wall_clock};
use super::failure::{Failure, Sent, classify};
use super::retry::parse_retry_after;
use super::sse::SseParser;

/// An error text is read no further than this.
const ERROR_BYTES: usize = 16 * 1024;

/// A client for one endpoint.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    idle: Duration,
    reply_bytes: usize,
}

/// What came back.
pub(super) enum Answer {
    /// One JSON document.
    Whole(Value),
    /// Events, all of which were handed over.
    Streamed,
}

impl Http {
    pub(super) fn new(endpoint: &Endpoint, limits: &Limits) -> Result<Self, String> {
        let url: reqwest::Url =
            endpoint.url.parse().map_err(|bad| format!("the address of model `{}`: {bad}", endpoint.name))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "the address of model `{}` must begin with http:// or https://",
                endpoint.name
            ));
        }
        let mut builder = crate::http_client()
            .connect_timeout(Duration::from_secs(limits.llm_connect_seconds))
            // As many as there are runs at work, and not for long after.
            .pool_max_idle_per_host(usize::MAX)
            .pool_idle_timeout(Duration::from_secs(limits.llm_keep_alive_seconds))
            .tcp_nodelay(true);
        if let Some(proxy) = &endpoint.proxy {
            let proxy =
                reqwest::Proxy::all(proxy).map_err(|bad| format!("proxy of `{}`: {bad}", endpoint.name))?;
            builder = builder.proxy(proxy);
        }
        Ok(Self {
            client: builder.build().map_err(|bad| format!("model `{}`: {bad}", endpoint.name))?,
            url,
            headers: headers(endpoint)?,
            idle: Duration::from_secs(limits.llm_idle_seconds.max(1)),
            reply_bytes: usize::try_from(limits.llm_reply_bytes).unwrap_or(usize::MAX),
        })
    }

    /// Host and path, without anything secret.
    pub(super) fn place(&self) -> String {
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}{}", self.url.host_str().unwrap_or_default(), self.url.path())
    }

    /// Posts `body`. Events of a streamed answer go to `event` as they arrive; its error ends the reading.
    pub(super) async fn post(
        &self,
        body: Vec<u8>,
        sent: Sent,
        event: &mut (dyn FnMut(&str) -> Result<(), Failure> + Send),
    ) -> Result<Answer, Failure> {
        // A body that cannot be copied is let go once it is sent. Otherwise the whole conversation stays in memory a second time
        // for as long as the model thinks, in case the client would like to send it again, which is decided here.
        let body = reqwest::Body::wrap(Full::new(Bytes::from(body)));
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let response = self.within_idle(request.send()).await?.map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let retry_after = retry_after.and_then(|value| parse_retry_after(value, wall_clock()));
            let text = self.read_error(response).await;
            return Err(classify(status, &text, sent, retry_after));
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            self.read_events(response, event).await?;
            return Ok(Answer::Streamed);
        }
        let bytes = self.read_whole(response).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Answer::Whole(value)),
            Err(bad) => Err(Failure::transient(format!("the reply is not valid JSON: {bad}"))),
        }
    }

    async fn within_idle<T>(&self, future: impl Future<Output = T>) -> Result<T, Failure> {
        let silent = |_| Failure::transient(format!("nothing heard for {} seconds", self.idle.as_secs()));
        tokio::time::timeout(self.idle, future).await.map_err(silent)
    }

    async fn read_whole(&self, response: reqwest::Response) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        self.read(response, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .await?;
        Ok(bytes)
    }

    async fn read_events(
        &self,
        response: reqwest::Response,
        event: &mut (dyn FnMut(&str) -> Result<(), Failure> + Send),
    ) -> Result<(), Failure> {
        let mut parser = SseParser::default();
        let not_text = |_| Failure::transient("the stream is not valid UTF-8");
        let mut failed = None;
        let mut hear = |data: &str| {
            if failed.is_none() {
                failed = event(data).err();
            }
        };
        let read = self
            .read(response, &mut |piece| parser.feed(piece, &mut hear).map_err(not_text))
            .await
            .and_then(|()| parser.finish(&mut hear).map_err(not_text));
        match failed {
            Some(failure) => Err(failure),
            None => read,
        }
    }

    async fn read(
        &self,
        response: reqwest::Response,
        piece: &mut (dyn FnMut(&[u8]) -> Result<(), Failure> + Send),
    ) -> Result<(), Failure> {
        let mut stream = response.bytes_stream();
        let mut total = 0;
        while let Some(next) = self.within_idle(stream.next()).await? {
            let bytes = next.map_err(|error| unreachable(&error))?;
            total += bytes.len();
            if total > self.reply_bytes {
                return Err(Failure::Fatal(format!("the reply is larger than {} bytes", self.reply_bytes)));
            }
            piece(&bytes)?;
        }
        Ok(())
    }

    async fn read_error(&self, response: reqwest::Response) -> String {
        let mut stream = response.bytes_stream();
        let mut bytes = Vec::new();
        while bytes.len() < ERROR_BYTES {
            match self.within_idle(stream.next()).await {
                Ok(Some(Ok(piece))) => bytes.extend_from_slice(&piece),
                _ => break,
            }
        }
        bytes.truncate(ERROR_BYTES);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn headers(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(reqwest::header::ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if endpoint.dialect == Dialect::Anthropic {
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
    }
    let Some(key) = endpoint.api_key.as_ref().filter(|key| !key.is_empty()) else { return Ok(headers) };
    let (name, value) = match endpoint.dialect {
        Dialect::OpenAi => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.expose())),
        Dialect::Anthropic => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
    };
    let mut value = HeaderValue::from_str(&value).map_err(|_| {
        format!("the API key of model `{}` has characters a header cannot hold", endpoint.name)
    })?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(headers)
}

/// The innermost cause says the most: "connection refused" rather than "error sending request".
fn unreachable(error: &reqwest::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let stage = if error.is_connect() {
        "cannot connect"
    } else if error.is_timeout() {
        "timed out"
    } else if error.is_body() || error.is_decode() {
        "the reply was cut off"
    } else {
        "the request failed"
    };
    Failure::transient(format!("{stage}: {cause}"))
}
