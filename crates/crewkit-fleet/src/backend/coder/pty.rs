//! Runs commands in a workspace through Coder's web terminal, which needs no helper inside.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Upgraded;
use serde_json::json;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use uuid::Uuid;

use super::client::Client;
use super::error::CoderError;
use super::wire::WorkspaceAgent;

/// Printed by a script before and after what matters; a terminal may print other things around it.
pub(super) const BEGIN: &str = "crewkit-begin";
pub(super) const END: &str = "crewkit-end";

/// Runs `script` with `sh` where the process `agent` lives, and gives the lines between [`BEGIN`] and [`END`].
pub(super) async fn run(
    client: &Client,
    agent: &WorkspaceAgent,
    script: &str,
    until: Instant,
) -> Result<Vec<String>, CoderError> {
    // An address has its limits in proxies, so that a long script is typed in.
    if script.len() > LONGEST_COMMAND {
        let mut shell = Shell::open(client, agent, until).await?;
        return shell.type_in(script, b"").await.map_err(|lost| lost.error);
    }
    let directory = &agent.expanded_directory;
    let change = if directory.is_empty() { String::new() } else { format!("cd {} && ", quoted(directory)) };
    let command = format!("{change}exec sh -c {}", quoted(script));
    Terminal::open(client, agent.id, &command, until).await?.lines().await
}

/// The same for a script that prints line by line: gives what it has printed when the time is over.
pub(super) async fn run_for(
    client: &Client,
    agent: &WorkspaceAgent,
    script: &str,
    until: Instant,
) -> Result<Vec<String>, CoderError> {
    let mut shell = Shell::open(client, agent, until).await?;
    match shell.type_in(script, b"").await {
        Ok(lines) => Ok(lines),
        Err(Lost { error, .. }) => shell.0.as_ref().and_then(Terminal::so_far).ok_or(error),
    }
}

/// Longest script that goes into the address.
const LONGEST_COMMAND: usize = 1500;

/// A terminal in a workspace.
struct Terminal {
    socket: WebSocketStream<Upgraded>,
    printed: Vec<u8>,
    most: usize,
    begun: Instant,
    until: Instant,
}

impl Terminal {
    async fn open(client: &Client, agent: Uuid, command: &str, until: Instant) -> Result<Self, CoderError> {
        let begun = Instant::now();
        let most =
            usize::try_from(client.limits().fleet_metadata_bytes).unwrap_or(usize::MAX).saturating_mul(2);
        let reconnect = Uuid::now_v7().to_string();
        let query = [
            ("reconnect", reconnect.as_str()),
            ("width", "250"),
            ("height", "80"),
            ("backend_type", "buffered"),
            ("command", command),
        ];
        let path = format!("/api/v2/workspaceagents/{agent}/pty");
        let upgraded = client.upgrade(&path, &query, &generate_key(), until).await?;
        let config = WebSocketConfig::default().max_message_size(Some(most)).max_frame_size(Some(most));
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
        Ok(Self { socket, printed: Vec::new(), most, begun, until })
    }

    /// Waits for the next piece of output; tells whether there was one.
    async fn more(&mut self) -> Result<bool, CoderError> {
        loop {
            let bytes = match timeout_at(self.until, self.socket.next()).await {
                Err(_) => return Err(self.late()),
                Ok(Some(Ok(Message::Binary(bytes)))) => bytes,
                Ok(Some(Ok(Message::Text(text)))) => text.into(),
                Ok(Some(Ok(_))) => continue,
                // The server closes when the command has ended.
                Ok(None | Some(Err(_))) => return Ok(false),
            };
            self.printed.extend_from_slice(&bytes);
            return if self.printed.len() <= self.most { Ok(true) } else { Err(closed()) };
        }
    }

    /// The lines between the next two marks; what was printed so far is done with.
    async fn lines(&mut self) -> Result<Vec<String>, CoderError> {
        loop {
            if let Some(lines) = between(&self.printed) {
                self.printed.clear();
                return Ok(lines);
            }
            if !self.more().await? {
                return Err(closed());
            }
        }
    }

    /// The whole lines since the first mark.
    fn so_far(&self) -> Option<Vec<String>> {
        let text = String::from_utf8_lossy(&self.printed);
        let whole = &text[..text.rfind('\n')?];
        let mut lines = whole.lines().map(|line| line.trim_end_matches('\r'));
        lines.find(|line| *line == BEGIN)?;
        Some(lines.map(str::to_owned).collect())
    }

    /// Types `text`, in pieces that every proxy lets through.
    async fn send(&mut self, text: &str) -> Result<(), CoderError> {
        for piece in text.as_bytes().chunks(PIECE) {
            // Coder takes what is typed as bytes of JSON; a frame of text would end the session.
            let typed = json!({"data": String::from_utf8_lossy(piece)}).to_string();
            match timeout_at(self.until, self.socket.send(Message::Binary(typed.into()))).await {
                Err(_) => return Err(self.late()),
                Ok(Err(_)) => return Err(closed()),
                Ok(Ok(())) => {}
            }
        }
        Ok(())
    }

    fn late(&self) -> CoderError {
        let time = self.until.saturating_duration_since(self.begun);
        CoderError::TimedOut { ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// Bytes typed in one frame.
const PIECE: usize = 16 * 1024;
/// Length of a typed line: a terminal loses what is beyond its own limit, which is 1024 on some systems.
const LINE: usize = 512;
/// How long a shell that is no longer needed may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Printed when a shell is ready to be typed into.
const READY: &str = "crewkit-ready";

/// Takes scripts one after the other: a line with the length of the script as it is typed, then the script in base64.
const BOOTSTRAP: &str = "exec sh -c 'stty -echo 2>/dev/null; echo crewkit-ready; \
     while IFS= read -r n && [ \"$n\" -gt 0 ]; do s=$(head -c \"$n\" | base64 -d) || exit; eval \"$s\"; done'";

/// A script whose answer did not come.
pub(super) struct Lost {
    pub(super) error: CoderError,
    /// Whether all of it was typed, so that it may be running.
    pub(super) may_run: bool,
}

/// A shell in a workspace that is given scripts one after the other.
pub(super) struct Shell(Option<Terminal>);

/// Ends the shell in the workspace. Coder keeps one whose connection ended for five minutes, as use of the workspace.
impl Drop for Shell {
    fn drop(&mut self) {
        let (Some(mut terminal), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        terminal.until = Instant::now() + END_WITHIN;
        runtime.spawn(async move {
            // A script that still runs is left to end; the shell reads this afterwards.
            if terminal.send("0\n").await.is_ok() {
                while let Ok(true) = terminal.more().await {}
            }
        });
    }
}

impl Shell {
    /// Opens a shell in the directory the agent works in.
    pub(super) async fn open(
        client: &Client,
        agent: &WorkspaceAgent,
        until: Instant,
    ) -> Result<Self, CoderError> {
        let directory = &agent.expanded_directory;
        let change =
            if directory.is_empty() { String::new() } else { format!("cd {} && ", quoted(directory)) };
        let mut terminal = Terminal::open(client, agent.id, &format!("{change}{BOOTSTRAP}"), until).await?;
        while !terminal.printed.windows(READY.len()).any(|text| text == READY.as_bytes()) {
            if !terminal.more().await? {
                return Err(closed());
            }
        }
        Ok(Self(Some(terminal)))
    }

    /// Runs `script`, which may call `input` to read `data`, and gives the lines between [`BEGIN`] and [`END`].
    pub(super) async fn type_in(&mut self, script: &str, data: &[u8]) -> Result<Vec<String>, Lost> {
        let data = typed(data);
        let script = typed(format!("input() {{ head -c {} | base64 -d; }}\n{script}", data.len()).as_bytes());
        let all = format!("{}\n{script}{data}", script.len());
        let Some(terminal) = &mut self.0 else { return Err(Lost { error: closed(), may_run: false }) };
        terminal.send(&all).await.map_err(|error| Lost { error, may_run: false })?;
        terminal.lines().await.map_err(|error| Lost { error, may_run: true })
    }
}

/// Bytes as lines of base64.
fn typed(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| DIGITS.get((bits & 63) as usize).map_or('=', |digit| char::from(*digit));
    let mut text = String::with_capacity(bytes.len() / 3 * 4 + bytes.len() / 300 + 8);
    for line in bytes.chunks(LINE / 4 * 3) {
        for group in line.chunks(3) {
            let at = |index: usize| u32::from(group.get(index).copied().unwrap_or_default());
            let bits = at(0) << 16 | at(1) << 8 | at(2);
            text.push(digit(bits >> 18));
            text.push(digit(bits >> 12));
            text.push(if group.len() > 1 { digit(bits >> 6) } else { '=' });
            text.push(if group.len() > 2 { digit(bits) } else { '=' });
        }
        text.push('\n');
    }
    text
}

fn closed() -> CoderError {
    CoderError::Malformed {
        reason: "the terminal closed before the command was done".to_owned(),
        request_id: None,
    }
}

/// The lines between the two marks, once both are there.
fn between(printed: &[u8]) -> Option<Vec<String>> {
    // Looked for at the end only: the whole is read once, however many pieces it comes in.
    let tail = printed.get(printed.len().saturating_sub(2048)..).unwrap_or_default();
    if !tail.windows(END.len()).any(|text| text == END.as_bytes()) {
        return None;
    }
    let text = String::from_utf8_lossy(printed);
    let mut lines = text.lines().map(|line| line.trim_end_matches('\r'));
    lines.find(|line| *line == BEGIN)?;
    let mut found = Vec::new();
    for line in lines {
        if line == END {
            return Some(found);
        }
        found.push(line.to_owned());
    }
    None
}

/// `text` as one word of any shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Reads base64, in which scripts send what a terminal would spoil; anything else is none.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_u8);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(digit)) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_typed_in_lines() {
        assert_eq!(typed(b""), "");
        assert_eq!(
            (typed(b"f"), typed(b"fo"), typed(b"foo")),
            ("Zg==\n".into(), "Zm8=\n".into(), "Zm9v\n".into())
        );
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let text = typed(&bytes);
        assert!(text.lines().all(|line| line.len() <= LINE));
        let read: Vec<u8> = text.lines().flat_map(|line| from_base64(line).unwrap()).collect();
        assert_eq!(read, bytes);
    }

    #[test]
    fn base64_is_read_back() {
        let cases = [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFyw6k=", "foobaré")];
        for (encoded, plain) in cases {
            assert_eq!(from_base64(encoded).as_deref(), Some(plain.as_bytes()), "{encoded}");
        }
        assert_eq!(from_base64("a b"), None);
    }

    #[test]
    fn only_what_stands_between_the_marks_counts() {
        let printed = b"motd\r\ncrewkit-begin\r\na\r\nb c\r\ncrewkit-end\r\n$ ";
        assert_eq!(between(printed), Some(vec!["a".to_owned(), "b c".to_owned()]));
        assert_eq!(between(b"crewkit-begin\r\na"), None);
        assert_eq!(between(b"crewkit-end\r\n"), None);
    }

    #[test]
    fn quotes_survive_quoting() {
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
