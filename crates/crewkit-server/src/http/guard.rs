//! Who may speak to this server: the checks that come before any route.
//!
//! A web page anywhere can make a browser send requests to a loopback address, under a host name that resolves to it.
//! Hence Host and Origin are checked on every route, whether or not a token is asked for.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use crewkit_core::{Code, Secret};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};
use subtle::ConstantTimeEq as _;

use super::problem::HttpProblem;

/// What the server takes for its own name, and whether it asks for a token.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Host names beside the loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Origins beside the server's own, complete: `https://crew.example`.
    pub allowed_origins: Vec<String>,
    /// Whom to let in.
    pub trust: Trust,
}

/// Whom the server lets in.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// Whoever can connect; for loopback only.
    #[default]
    Everyone,
    /// Whoever has the token.
    Token(Secret),
}

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Routes that tell nothing and that probes must reach.
const OPEN_ROUTES: [&str; 2] = ["/healthz", "/api/health"];

impl Guard {
    /// Whether a request with these headers may pass.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), HttpProblem> {
        let host = host_of(uri, headers)?;
        if !self.knows_host(host.host()) {
            return Err(refuse_host(format!(
                "the Host header names `{}`, which this server does not go by",
                host.host()
            )));
        }
        if headers.contains_key(ORIGIN) {
            let origins: Vec<_> = headers.get_all(ORIGIN).iter().collect();
            let origin = match origins.as_slice() {
                [only] => only.to_str().ok(),
                _ => None,
            };
            if !origin.is_some_and(|origin| self.knows_origin(origin, &host)) {
                return Err(refuse_host(format!(
                    "the Origin header names `{}`, a foreign place",
                    origin.unwrap_or("?")
                )));
            }
        }
        if OPEN_ROUTES.contains(&uri.path()) {
            return Ok(());
        }
        self.check_token(headers)
    }

    fn knows_host(&self, name: &str) -> bool {
        let same = |known: &str| known.eq_ignore_ascii_case(name);
        LOOPBACK_NAMES.iter().any(|known| same(known)) || self.allowed_hosts.iter().any(|known| same(known))
    }

    /// An origin is known when it is this very server under any of its names, or when it is configured.
    fn knows_origin(&self, origin: &str, host: &Authority) -> bool {
        if self.allowed_origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some(authority) = origin.strip_prefix("http://").and_then(|rest| rest.parse::<Authority>().ok())
        else {
            return false;
        };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(80);
        self.knows_host(authority.host()) && port(&authority) == port(host)
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), HttpProblem> {
        let Trust::Token(token) = &self.trust else { return Ok(()) };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        match given {
            Some(given) if bool::from(given.as_bytes().ct_eq(token.expose().as_bytes())) => Ok(()),
            _ => Err(HttpProblem::new(
                StatusCode::UNAUTHORIZED,
                Code::Unauthorized,
                "a valid bearer token is required",
            )),
        }
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
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

/// The guard as a layer around every route, unknown ones included.
pub async fn stand_guard(
    State(guard): State<std::sync::Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            tracing::warn!(code = %problem.code, reason = problem.message, "refused a request");
            problem.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, target: &str, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        guard.check(&target.parse().unwrap(), &map).map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_this_server_is_trusted() {
        let guard = Guard {
            allowed_hosts: vec!["crew.example".to_owned()],
            allowed_origins: vec!["https://crew.example".to_owned()],
            trust: Trust::Everyone,
        };
        let here = ("host", "localhost:8101");
        for (expected, headers) in [
            (200, vec![here]),
            (200, vec![("host", "127.0.0.1:8101")]),
            (200, vec![("host", "[::1]:8101")]),
            (200, vec![("host", "LOCALHOST")]),
            (200, vec![("host", "crew.example")]),
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

    #[test]
    fn a_token_is_asked_for_everywhere_but_on_health() {
        let guard = Guard { trust: Trust::Token(Secret::new("right")), ..Guard::default() };
        let here = ("host", "localhost:8101");
        for (path, expected) in [
            ("/mcp", 401),
            ("/api/ops/plan", 401),
            ("/metrics", 401),
            ("/nowhere", 401),
            ("/healthz", 200),
            ("/api/health", 200),
        ] {
            assert_eq!(check(&guard, path, &[here]), expected, "{path}");
        }
        for (value, expected) in [
            ("Bearer right", 200),
            ("bearer right", 200),
            ("Bearer wrong", 401),
            ("right", 401),
            ("Basic right", 401),
            ("Bearer rightx", 401),
            ("Bearer ", 401),
        ] {
            assert_eq!(check(&guard, "/mcp", &[here, ("authorization", value)]), expected, "{value}");
        }
        assert_eq!(
            check(&guard, "/healthz", &[("host", "evil.example")]),
            403,
            "health is guarded against rebinding too"
        );
    }
}
