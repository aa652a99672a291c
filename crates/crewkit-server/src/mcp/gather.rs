//! Sends a quick answer in one piece.
//!
//! In a session every answer is an event stream: an event to resume from, the answer, the end. Each becomes ready on its
//! own, a moment after the other, and would be a packet, a system call and a client woken up. For a call that is answered
//! at once it pays to wait that moment.

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::{FutureExt as _, StreamExt as _, stream};

/// How often the other tasks get their turn before the stream goes out as it is. A call that is answered without waiting
/// for anything outside takes one or two.
const TURNS: usize = 4;

/// What is gathered at most; more than this is no quick answer.
const MOST_BYTES: usize = 64 * 1024;

/// Gathers what is there almost at once; a stream that has ended by then becomes a plain body.
pub(super) async fn gather(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let mut stream = body.into_data_stream();
    let mut gathered = Vec::new();
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        while gathered.len() < MOST_BYTES
            && let Some(piece) = stream.next().now_or_never()
        {
            match piece {
                Some(Ok(bytes)) => gathered.extend_from_slice(&bytes),
                Some(Err(_)) | None => return Response::from_parts(parts, Body::from(gathered)),
            }
        }
    }
    let begun = stream::once(std::future::ready(Ok(Bytes::from(gathered))));
    Response::from_parts(parts, Body::from_stream(begun.chain(stream)))
}

#[cfg(test)]
mod tests {
    use super::*;

    use hyper::body::Body as _;
    use tokio::sync::oneshot;

    type Piece = Result<&'static str, std::io::Error>;

    fn streamed(stream: impl futures_util::Stream<Item = Piece> + Send + 'static) -> Response {
        Response::new(Body::from_stream(stream))
    }

    #[tokio::test]
    async fn what_is_ready_within_a_few_turns_is_one_piece() {
        let (answer, answered) = oneshot::channel();
        let later = stream::once(async move { Ok(answered.await.unwrap_or("")) });
        tokio::spawn(async move { answer.send("answer") });
        let gathered = gather(streamed(stream::iter([Ok("begin ")]).chain(later))).await;
        assert_eq!(gathered.body().size_hint().exact(), Some(12), "its length is known, so it is complete");
        let bytes = axum::body::to_bytes(gathered.into_body(), usize::MAX).await.unwrap();
        assert_eq!(bytes, "begin answer");
    }

    #[tokio::test]
    async fn what_takes_longer_is_passed_on_as_it_comes() {
        let (answer, answered) = oneshot::channel();
        let later = stream::once(async move { Ok(answered.await.unwrap_or("")) });
        let gathered = gather(streamed(stream::iter([Ok("begin")]).chain(later))).await;
        let mut pieces = gathered.into_body().into_data_stream();
        assert_eq!(pieces.next().await.unwrap().unwrap(), "begin");
        assert!(pieces.next().now_or_never().is_none(), "nothing more yet");
        answer.send("answer").unwrap();
        assert_eq!(pieces.next().await.unwrap().unwrap(), "answer");
        assert!(pieces.next().await.is_none());
    }
}
