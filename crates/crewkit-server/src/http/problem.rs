//! What goes wrong before an operation is reached, as an HTTP answer.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse, Response};
use crewkit_core::Code;
use futures_util::StreamExt as _;
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

/// Bytes taken in before the others have their turn: a body that arrives as fast as it is read is always ready.
const TURN_BYTES: usize = 256 * 1024;
/// Bytes taken in before other threads have theirs, which takes about a millisecond: a worker that is never without work keeps
/// its core.
const REST_BYTES: usize = 1 << 20;
const REST: Duration = Duration::from_millis(1);

/// Reads a whole body of at most `most` bytes.
pub async fn read_body(body: Body, most: u64) -> Result<Vec<u8>, HttpProblem> {
    let too_large = || {
        let message = format!("the body is larger than {most} bytes (limits.http_body_bytes)");
        HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message)
    };
    // A client that announces too much is told before it has sent it.
    if body.size_hint().lower() > most {
        return Err(too_large());
    }
    // Put together piece by piece as they arrive: one copy of everything at the end would hold up a worker for as long as
    // others should wait at most.
    let mut whole = Vec::with_capacity(usize::try_from(body.size_hint().lower()).unwrap_or(0));
    let mut pieces = Limited::new(body, usize::try_from(most).unwrap_or(usize::MAX)).into_data_stream();
    let (mut taken, mut rested) = (0, 0);
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => {
                whole.extend_from_slice(&piece);
                taken += piece.len();
                if whole.len() - rested > REST_BYTES {
                    (rested, taken) = (whole.len(), 0);
                    tokio::time::sleep(REST).await;
                } else if taken > TURN_BYTES {
                    taken = 0;
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
            Err(error) => {
                return Err(HttpProblem::new(
                    StatusCode::BAD_REQUEST,
                    Code::BodyInvalid,
                    format!("the body could not be read to its end: {error}"),
                ));
            }
        }
    }
    Ok(whole)
}
