//! `GET /api/agents/{id}/payload`: the stored gzip bytes, as they are.

use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use crewkit_core::Code;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::{engine, refused};
use crate::http::context::RequestContext;
use crate::http::problem::HttpProblem;

/// Serves the payload. That there is none is said before that it cannot be sent.
pub(super) async fn get(
    context: RequestContext,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Response> {
    context.permit("run_payload").map_err(IntoResponse::into_response)?;
    let engine = engine(&context).await?;
    let info = engine.payload_info(&id).map_err(refused)?;
    let tag = format!("\"{}\"", info.etag);
    let mut response = if !accepts_gzip(&headers) {
        let message = "the payload is gzip-compressed; send Accept-Encoding: gzip";
        HttpProblem::new(StatusCode::NOT_ACCEPTABLE, Code::PayloadEncoding, message).into_response()
    } else if is_known(&headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let body = match method {
            Method::HEAD => Body::empty(),
            _ => Body::from(engine.payload(&id).await.map_err(refused)?.gzip),
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(CONTENT_LENGTH, info.gzip_size.into());
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
        // What an agent wrote is data; a browser shall not take it for anything else.
        headers
            .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
        response
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Whether gzip is acceptable, by the rules of RFC 9110: named with a weight above zero, or covered by `*`.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let mut named: Option<bool> = None;
    let mut star: Option<bool> = None;
    for value in headers.get_all(ACCEPT_ENCODING) {
        for item in value.to_str().unwrap_or_default().split(',') {
            let mut parts = item.split(';').map(str::trim);
            let coding = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts
                .find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")))
                .map_or(1.0, |weight| weight.trim().parse::<f64>().unwrap_or(0.0));
            let wanted = weight > 0.0;
            match coding.as_str() {
                // Refusing it once outweighs asking for it elsewhere.
                "gzip" | "x-gzip" => named = Some(named.unwrap_or(true) && wanted),
                "*" => star = Some(wanted),
                _ => {}
            }
        }
    }
    named.or(star).unwrap_or(false)
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value
            .split(',')
            .map(str::trim)
            .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_by_the_book() {
        for (values, expected) in [
            (&["gzip"][..], true),
            (&["GZIP"], true),
            (&["x-gzip"], true),
            (&["gzip, deflate, br"], true),
            (&["deflate", "gzip;q=0.5"], true),
            (&["gzip; q=0.001"], true),
            (&["*"], true),
            (&["*;q=0.1"], true),
            (&["br, *"], true),
            (&[], false),
            (&[""], false),
            (&["identity"], false),
            (&["br, deflate"], false),
            (&["gzip;q=0"], false),
            (&["gzip;q=0.000, *"], false),
            (&["*;q=0"], false),
            (&["gzip;q=abc"], false),
            (&["gzipped"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(accepts_gzip(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn a_known_tag_is_recognised() {
        for (value, expected) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"x\", \"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("a", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static(value));
            assert_eq!(is_known(&headers, "\"a\""), expected, "{value}");
        }
    }
}
