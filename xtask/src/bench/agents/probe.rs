//! Somebody who looks at two servers in turn from a thread of their own.
//!
//! Plain sockets and no runtime: a client that shares its threads with the one that sends fifty megabytes would measure itself.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Asks ours, then the bare one.
pub(super) struct Pair(Probe, Probe);

impl Pair {
    pub(super) fn open(ours: &str, bare: &str, question: &Value) -> Result<Self> {
        Ok(Self(Probe::open(ours, question)?, Probe::open(bare, question)?))
    }

    /// What both took, in milliseconds.
    pub(super) fn look(&mut self) -> Result<(f64, f64)> {
        Ok((self.0.look()?, self.1.look()?))
    }

    /// Looks without a pause until told to end.
    pub(super) fn look_on(mut self) -> Looking {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut looked = (Vec::new(), Vec::new());
            while !told.load(Ordering::Relaxed) {
                let (ours, bare) = self.look()?;
                looked.0.push(ours);
                looked.1.push(bare);
            }
            Ok(looked)
        });
        Looking { over, thread }
    }
}

type Looked = (Vec<f64>, Vec<f64>);

pub(super) struct Looking {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Looked>>,
}

impl Looking {
    /// What each look took, of ours and of the bare one.
    pub(super) fn end(self) -> Result<Looked> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the looking thread broke")?
    }
}

struct Probe {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Probe {
    fn open(url: &str, question: &Value) -> Result<Self> {
        let place = url.strip_prefix("http://").context("no plain address")?;
        let (host, path) = place.split_once('/').context("no path")?;
        let body = question.to_string();
        let request = format!(
            "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: request.into_bytes(), answer: Vec::new() })
    }

    fn look(&mut self) -> Result<f64> {
        let began = Instant::now();
        self.stream.write_all(&self.request)?;
        self.answer.clear();
        let mut part = [0; 16 * 1024];
        while !is_whole(&self.answer)? {
            let length = self.stream.read(&mut part)?;
            ensure!(length > 0, "the server hung up");
            self.answer.extend_from_slice(&part[..length]);
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// Whether the answer is there to its last byte.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(false) };
    let head = std::str::from_utf8(&answer[..end])?.to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("no length")?.trim().parse()?;
    Ok(answer.len() >= end + 4 + length)
}
