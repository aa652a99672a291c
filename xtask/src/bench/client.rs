//! MCP clients that do as little as possible, so that what is measured is the server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::process::Running;

/// A request every server here answers.
pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// The request that opens a conversation.
pub(crate) fn initialize() -> String {
    let client = json!({"name": "bench", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    request(0, "initialize", &params)
}

/// One way to reach a server.
pub(crate) trait Client {
    /// Sends one request and returns the text of the answer.
    fn call(&mut self, request: &str) -> Result<String>;
}

/// A server on standard input and output.
pub(crate) struct StdioClient {
    pub process: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StdioClient {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child: Child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { process: Running(child), input, output })
    }
}

impl Client for StdioClient {
    fn call(&mut self, request: &str) -> Result<String> {
        self.input.write_all(format!("{request}\n").as_bytes())?;
        let mut answer = String::new();
        if self.output.read_line(&mut answer)? == 0 {
            bail!("the server ended");
        }
        Ok(answer)
    }
}

/// A server over HTTP, on one connection that stays open.
pub(crate) struct HttpClient {
    stream: BufReader<TcpStream>,
    host: String,
    session: Option<String>,
}

struct Head {
    status: String,
    length: Option<usize>,
    chunked: bool,
    session: Option<String>,
}

impl HttpClient {
    pub(crate) fn connect(url: &str) -> Result<Self> {
        let host = url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        let stream = TcpStream::connect(&host)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), host, session: None })
    }

    /// Opens a session, if the server has such.
    pub(crate) fn open_session(&mut self) -> Result<()> {
        self.call(&initialize()).map(drop)
    }

    fn read_head(&mut self) -> Result<Head> {
        let mut head = Head { status: self.read_line()?, length: None, chunked: false, session: None };
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = Some(value.trim().parse()?),
                "transfer-encoding" => head.chunked = value.trim() == "chunked",
                "mcp-session-id" => head.session = Some(value.trim().to_owned()),
                _ => {}
            }
        }
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    fn read_exactly(&mut self, length: usize, body: &mut Vec<u8>) -> Result<()> {
        let start = body.len();
        body.resize(start + length, 0);
        Ok(self.stream.read_exact(&mut body[start..])?)
    }

    fn read_body(&mut self, head: &Head) -> Result<String> {
        let mut body = Vec::new();
        if !head.chunked {
            self.read_exactly(head.length.context("an answer without a length")?, &mut body)?;
            return Ok(String::from_utf8(body)?);
        }
        loop {
            let length = usize::from_str_radix(&self.read_line()?, 16)?;
            self.read_exactly(length, &mut body)?;
            self.read_line()?;
            if length == 0 {
                return Ok(String::from_utf8(body)?);
            }
        }
    }
}

impl Client for HttpClient {
    fn call(&mut self, request: &str) -> Result<String> {
        let session =
            self.session.as_ref().map(|session| format!("Mcp-Session-Id: {session}\r\n")).unwrap_or_default();
        let message = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n{session}\
             Content-Length: {}\r\n\r\n{request}",
            self.host,
            request.len(),
        );
        self.stream.get_mut().write_all(message.as_bytes())?;
        let head = self.read_head()?;
        let body = self.read_body(&head)?;
        if !head.status.contains(" 200 ") {
            bail!("{}: {body}", head.status);
        }
        self.session = head.session.or_else(|| self.session.take());
        Ok(body)
    }
}
