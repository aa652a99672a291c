//! The least a program can do to answer JSON-RPC lines; the benchmark compares with it.
//!
//! Parses each line and answers every request with the result given as its argument.

#![expect(clippy::unwrap_used, reason = "a measuring stick, not a product")]

use std::io::{BufRead as _, Write as _};

use serde_json::Value;

fn main() {
    let result = std::env::args().nth(1).unwrap_or_else(|| "{}".to_owned());
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(id) = message.get("id") {
            writeln!(output, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).unwrap();
            output.flush().unwrap();
        }
    }
}
