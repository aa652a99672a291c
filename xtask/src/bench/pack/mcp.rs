//! A client of `agentpack mcp serve`, as small as can be.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::world::World;

/// A running server.
pub(super) struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: u64,
}

impl Session {
    pub(super) fn start(program: &Path, world: &World) -> Result<Self> {
        let mut command = Command::new(program);
        world.prepare(&mut command);
        command.args(["mcp", "serve"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("could not start {}", program.display()))?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut session = Self { child, input, output, next: 1 };
        let client = json!({"name": "bench", "version": "1"});
        session.ask(
            "initialize",
            &json!({"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client}),
        )?;
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(session)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        writeln!(self.input, "{message}")?;
        Ok(self.input.flush()?)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            ensure!(self.output.read_line(&mut line)? > 0, "the server ended during {method}");
            let answer: Value = serde_json::from_str(&line).context("the server does not speak JSON")?;
            if answer["id"] == id {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].clone());
            }
        }
    }

    pub(super) fn call_plan(&mut self, world: &World) -> Result<Duration> {
        let arguments = json!({"repo": world.repo()});
        let began = Instant::now();
        let answer = self.ask("tools/call", &json!({"name": "plan", "arguments": arguments}))?;
        let took = began.elapsed();
        ensure!(answer["isError"] != true, "plan failed: {answer}");
        Ok(took)
    }

    pub(super) fn end(mut self) -> Result<()> {
        drop(self.input);
        self.child.wait()?;
        Ok(())
    }
}
