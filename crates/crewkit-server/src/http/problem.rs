//! What goes wrong before an operation is reached, as an HTTP answer.

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::{IntoResponse, Response};
use crewkit_core::Code;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::json;

/// A refusal with its status, code and reason.
#[derive(Debug, Clone)]
pub struct HttpProblem {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code.
    pub code: Code,
    /// What is wrong.
    pub message: String,
}

impl HttpProblem {
    /// A problem with its reason.
    pub fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let body = json!({"error": self.code, "message": self.message, "details": {"next_step": self.code.next_step()}});
        let mut response =
            (self.status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(
                http::header::WWW_AUTHENTICATE,
                http::HeaderValue::from_static("Bearer realm=\"crewkit\""),
            );
        }
        response
    }
}

/// Reads a whole body of at most `most` bytes.
pub async fn read_body(body: Body, most: u64) -> Result<Bytes, HttpProblem> {
    let too_large = || {
        let message = format!("the body is larger than {most} bytes (limits.http_body_bytes)");
        HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message)
    };
    // A client that announces too much is told before it has sent it.
    if body.size_hint().lower() > most {
        return Err(too_large());
    }
    match Limited::new(body, usize::try_from(most).unwrap_or(usize::MAX)).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(HttpProblem::new(
            StatusCode::BAD_REQUEST,
            Code::BodyInvalid,
            format!("the body could not be read to its end: {error}"),
        )),
    }
}
