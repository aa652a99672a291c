//! What goes wrong before an operation is reached, as an HTTP answer.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::response::{IntoResponse, Response};
use crewkit_core::Code;
use futures_util::StreamExt as _;
use http::header::EXPECT;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::Serialize;

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

    /// A fault of crewkit itself.
    pub fn internal(why: &impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, why.to_string())
    }
}

/// A problem as its answer shows it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProblemBody {
    error: Code,
    message: String,
    details: ProblemDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ProblemDetails {
    next_step: &'static str,
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let details = ProblemDetails { next_step: self.code.next_step() };
        let body = ProblemBody { error: self.code, message: self.message, details };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(
                http::header::WWW_AUTHENTICATE,
                http::HeaderValue::from_static("Bearer realm=\"crewkit\""),
            );
        }
        response
    }
}

/// How long a client that sends too much may take to come to its end.
const DISCARD_TIME: Duration = Duration::from_secs(10);

/// Reads a whole body of at most `most` bytes; `headers` are those it came with.
pub async fn read_body(headers: &HeaderMap, body: Body, most: u64) -> Result<Vec<u8>, HttpProblem> {
    let announced = body.size_hint().lower();
    let mut pieces = body.into_data_stream();
    if announced > most {
        // Who asks before sending, or would send without end, is told at once.
        if !headers.contains_key(EXPECT) && announced <= most.saturating_mul(2) {
            discard(pieces, announced).await;
        }
        return Err(too_large(most));
    }
    let mut whole = Vec::with_capacity(usize::try_from(announced).unwrap_or(0));
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            let message = format!("the body could not be read to its end: {error}");
            HttpProblem::new(StatusCode::BAD_REQUEST, Code::BodyInvalid, message)
        })?;
        if (whole.len() + piece.len()) as u64 > most {
            discard(pieces, most).await;
            return Err(too_large(most));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

fn too_large(most: u64) -> HttpProblem {
    let message = format!("the body is larger than {most} bytes (limits.http_body_bytes)");
    HttpProblem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message)
}

/// Takes in what a client is still sending, up to `most` bytes. Many read no answer before they have sent everything, and see a
/// broken connection instead of the reason.
async fn discard(mut pieces: BodyDataStream, most: u64) {
    let reading = async {
        let mut left = most;
        while let Some(Ok(piece)) = pieces.next().await {
            left = left.checked_sub(piece.len() as u64)?;
        }
        Some(())
    };
    let _ = tokio::time::timeout(DISCARD_TIME, reading).await;
}
