//! The least an axum server can do to answer JSON-RPC; the benchmark compares with it.
//!
//! Parses each body and answers with the result given as its argument.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measuring stick, not a product")]

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::Value;

fn main() {
    // As many as crewkit takes.
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap();
    runtime.block_on(serve());
}

async fn serve() {
    let result: Arc<str> = std::env::args().nth(1).unwrap_or_else(|| "{}".to_owned()).into();
    let router = Router::new().route("/mcp", post(answer)).with_state(result);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("bare serves MCP at http://{}/mcp", listener.local_addr().unwrap());
    axum::serve(
        axum::serve::ListenerExt::tap_io(listener, |stream| stream.set_nodelay(true).unwrap()),
        router,
    )
    .await
    .unwrap();
}

async fn answer(State(result): State<Arc<str>>, Json(message): Json<Value>) -> impl IntoResponse {
    let id = &message["id"];
    ([(CONTENT_TYPE, "application/json")], format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}
