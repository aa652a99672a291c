//! The checks that come before any route: names, then the caller.
//!
//! A web page anywhere can make a browser send requests to a loopback address, under a host name that resolves to it.
//! Hence Host and Origin are checked on every route, whoever asks.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use crewkit_core::{Code, Secret};
use http::header::{CONNECTION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};

use super::connections::{Connection, Door};
use super::peer::Peer;
use super::problem::HttpProblem;
use crate::caller::{Caller, Evidence, Refused, bearer_token};
use crate::services::Agents;

/// The names of the server, and whether it asks for a token.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Host names beside the loopback ones and the address a connection came in at.
    pub allowed_hosts: Vec<String>,
    /// How further host names may end.
    pub allowed_host_suffix: Option<String>,
    /// Origins beside the server's own, complete: `https://crew.example`.
    pub allowed_origins: Vec<String>,
    /// The token the owner has to send over TCP, if one is asked for.
    pub token: Option<Secret>,
}

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Routes that probes must reach; they tell strangers nothing.
const OPEN_ROUTES: [&str; 2] = ["/healthz", "/api/health"];

impl Guard {
    /// Checks that a request names this server and comes from no foreign web page. `local` is the address of the server that
    /// the connection came in at: a name that no web page can have.
    pub fn check_names(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<IpAddr>,
    ) -> Result<(), HttpProblem> {
        let host = host_of(uri, headers)?;
        if !self.knows_host(host.host(), local) {
            return Err(refuse_host(format!(
                "Host `{}` is not a name of this server. Add it to `server.allowed_hosts`, or use the address that `serve` printed",
                host.host()
            )));
        }
        if headers.contains_key(ORIGIN) {
            let origins: Vec<_> = headers.get_all(ORIGIN).iter().collect();
            let origin = match origins.as_slice() {
                [only] => only.to_str().ok(),
                _ => None,
            };
            if !origin.is_some_and(|origin| self.knows_origin(origin, &host, local)) {
                return Err(refuse_host(format!(
                    "Requests from origin `{}` are not allowed. Add it to `server.allowed_origins`",
                    origin.unwrap_or("?")
                )));
            }
        }
        Ok(())
    }

    fn knows_host(&self, name: &str, local: Option<IpAddr>) -> bool {
        let same = |known: &str| known.eq_ignore_ascii_case(name);
        let is_local = || {
            let address: Option<IpAddr> = name.trim_start_matches('[').trim_end_matches(']').parse().ok();
            address.is_some() && address.map(|ip| ip.to_canonical()) == local.map(|ip| ip.to_canonical())
        };
        let ends = |suffix: &String| name.to_ascii_lowercase().ends_with(&suffix.to_ascii_lowercase());
        LOOPBACK_NAMES.iter().any(|known| same(known))
            || self.allowed_hosts.iter().any(|known| same(known))
            || self.allowed_host_suffix.as_ref().is_some_and(ends)
            || is_local()
    }

    /// An origin is known when it is this very server under any of its names, or when it is configured.
    fn knows_origin(&self, origin: &str, host: &Authority, local: Option<IpAddr>) -> bool {
        if self.allowed_origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some(authority) = origin.strip_prefix("http://").and_then(|rest| rest.parse::<Authority>().ok())
        else {
            return false;
        };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(80);
        self.knows_host(authority.host(), local) && port(&authority) == port(host)
    }
}

/// The one host a request names. Two different ones are an attack or a mistake; both are refused.
fn host_of(uri: &Uri, headers: &HeaderMap) -> Result<Authority, HttpProblem> {
    let bad = |text: &str| HttpProblem::new(StatusCode::BAD_REQUEST, Code::HostRefused, text);
    let named: Vec<_> = headers.get_all(HOST).iter().collect();
    let from_header = match named.as_slice() {
        [] => None,
        [only] => Some(
            only.to_str()
                .ok()
                .and_then(|text| text.parse::<Authority>().ok())
                .filter(|authority| !authority.as_str().contains('@'))
                .ok_or_else(|| bad("the Host header is malformed"))?,
        ),
        _ => return Err(bad("there is more than one Host header")),
    };
    match (from_header, uri.authority()) {
        (Some(header), Some(target)) if header != *target => {
            Err(bad("the Host header and the request target differ"))
        }
        (Some(host), _) => Ok(host),
        (None, Some(target)) => Ok(target.clone()),
        (None, None) => Err(bad("the Host header is missing")),
    }
}

fn refuse_host(message: String) -> HttpProblem {
    HttpProblem::new(StatusCode::FORBIDDEN, Code::HostRefused, message)
}

/// What the guard needs to know.
pub(super) struct GuardState {
    pub(super) guard: Guard,
    pub(super) agents: Arc<Agents>,
}

impl GuardState {
    /// Who sent `request`, by its connection and its token. Without a connection nobody is known.
    fn caller(&self, connection: Option<&Connection>, headers: &HeaderMap) -> Caller {
        let is_unix = connection.is_some_and(|connection| connection.door() == Door::Unix);
        let evidence = Evidence {
            peer: connection.map_or(Peer::Unknown, Connection::peer),
            // The kernel vouches for the user at the other end of the home's socket.
            owner_token: self.guard.token.as_ref().filter(|_| !is_unix),
            token: bearer_token(headers),
        };
        Caller::identify(evidence, |token| self.agents.opened()?.attempt_by_token(token))
    }
}

/// The guard as a layer around every route, unknown ones included. Leaves the [`Caller`] with the request.
pub(super) async fn guard_request(
    State(state): State<Arc<GuardState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let connection = request.extensions().get::<Connection>().cloned();
    let local = connection.as_ref().and_then(Connection::local_address);
    let caller = state.caller(connection.as_ref(), request.headers());
    let version = request.version();
    let checked = state
        .guard
        .check_names(request.uri(), request.headers(), local)
        .and_then(|()| pass(&caller, request.uri().path(), connection.as_ref()));
    let is_stranger = matches!(caller, Caller::Stranger(_));
    let mut response = match checked {
        Ok(()) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => {
            tracing::warn!(code = %problem.code, reason = problem.message, "refused a request");
            problem.into_response()
        }
    };
    // Strangers are answered once; HTTP/2 has no such header, and their time is short there too.
    if is_stranger && version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether `caller` may reach `path`. Known callers get a place for their connection.
fn pass(caller: &Caller, path: &str, connection: Option<&Connection>) -> Result<(), HttpProblem> {
    let refused = |status, code, message: &str| Err(HttpProblem::new(status, code, message));
    if !matches!(caller, Caller::Stranger(_))
        && connection.is_some_and(|connection| connection.admit().is_err())
    {
        let message = "All connections are in use (limits.http_connections)";
        return refused(StatusCode::SERVICE_UNAVAILABLE, Code::Busy, message);
    }
    match caller {
        _ if OPEN_ROUTES.contains(&path) => Ok(()),
        Caller::Owner => Ok(()),
        Caller::Attempt(_) if is_operation(path) => Ok(()),
        Caller::Attempt(_) => {
            refused(StatusCode::FORBIDDEN, Code::AgentRefused, "Agents reach operations alone")
        }
        Caller::Stranger(reason) => Err(HttpProblem::from(*reason)),
    }
}

impl From<Refused> for HttpProblem {
    fn from(reason: Refused) -> Self {
        let status = match reason {
            Refused::Token => StatusCode::UNAUTHORIZED,
            Refused::Agent | Refused::OtherUser | Refused::Unknown => StatusCode::FORBIDDEN,
        };
        Self::new(status, reason.code(), reason.message())
    }
}

/// Whether a path leads to operations, which check what their caller may do.
fn is_operation(path: &str) -> bool {
    path == "/mcp" || path.starts_with("/mcp/") || path.starts_with("/api/ops/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, target: &str, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let local = Some("192.0.2.7".parse().unwrap());
        let checked = guard.check_names(&target.parse().unwrap(), &map, local);
        checked.map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_this_server_is_trusted() {
        let guard = Guard {
            allowed_hosts: vec!["crew.example".to_owned()],
            allowed_host_suffix: Some("--main.apps.example".to_owned()),
            allowed_origins: vec!["https://crew.example".to_owned()],
            token: None,
        };
        let here = ("host", "localhost:8101");
        for (expected, headers) in [
            (200, vec![here]),
            (200, vec![("host", "127.0.0.1:8101")]),
            (200, vec![("host", "[::1]:8101")]),
            (200, vec![("host", "LOCALHOST")]),
            (200, vec![("host", "crew.example")]),
            (200, vec![("host", "192.0.2.7:8101")]),
            (200, vec![("host", "192.0.2.7:8101"), ("origin", "http://192.0.2.7:8101")]),
            (200, vec![("host", "meta--Main.apps.example:443")]),
            (403, vec![("host", "meta--other.apps.example")]),
            (403, vec![("host", "meta--main.apps.example.evil.example")]),
            (403, vec![("host", "192.0.2.8:8101")]),
            (403, vec![("host", "192.0.2.7.evil.example")]),
            (403, vec![("host", "evil.example")]),
            (403, vec![("host", "localhost.evil.com:8101")]),
            (403, vec![("host", "127.0.0.1.evil.com")]),
            (400, vec![("host", "user@localhost:8101")]),
            (400, vec![("host", "local host")]),
            (400, vec![]),
            (400, vec![here, here]),
            (200, vec![here, ("origin", "http://localhost:8101")]),
            (200, vec![here, ("origin", "http://127.0.0.1:8101")]),
            (200, vec![here, ("origin", "https://crew.example")]),
            (403, vec![here, ("origin", "http://localhost:9999")]),
            (403, vec![here, ("origin", "https://localhost:8101")]),
            (403, vec![here, ("origin", "http://evil.example")]),
            (403, vec![here, ("origin", "http://evil.example:8101")]),
            (403, vec![here, ("origin", "null")]),
            (403, vec![here, ("origin", "")]),
            (403, vec![here, ("origin", "http://localhost:8101"), ("origin", "http://evil.example")]),
        ] {
            assert_eq!(check(&guard, "/mcp", &headers), expected, "{headers:?}");
        }
        assert_eq!(
            check(&guard, "http://evil.example/mcp", &[here]),
            400,
            "absolute form names another host"
        );
        assert_eq!(check(&guard, "http://localhost:8101/mcp", &[]), 200, "HTTP/2 has no Host header");
        assert_eq!(check(&guard, "http://evil.example/mcp", &[]), 403);
    }
}
