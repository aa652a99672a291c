//! Runs a command in a workspace through Coder's web terminal, which needs no helper inside.

use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use uuid::Uuid;

use super::client::Client;
use super::error::CoderError;

/// Printed by a script before and after what matters; a terminal may print other things around it.
pub(super) const BEGIN: &str = "crewkit-begin";
pub(super) const END: &str = "crewkit-end";

/// Runs `script` with `sh` where the process `agent` lives, and gives the lines between [`BEGIN`] and [`END`].
pub(super) async fn run(
    client: &Client,
    agent: Uuid,
    script: &str,
    until: Instant,
) -> Result<Vec<String>, CoderError> {
    let most = usize::try_from(client.limits().fleet_metadata_bytes).unwrap_or(usize::MAX).saturating_mul(2);
    let command = format!("exec sh -c {}", quoted(script));
    let reconnect = Uuid::now_v7().to_string();
    let query = [
        ("reconnect", reconnect.as_str()),
        ("width", "250"),
        ("height", "80"),
        ("backend_type", "buffered"),
        ("command", command.as_str()),
    ];
    let path = format!("/api/v2/workspaceagents/{agent}/pty");
    let upgraded = client.upgrade(&path, &query, &generate_key(), until).await?;
    let config = WebSocketConfig::default().max_message_size(Some(most)).max_frame_size(Some(most));
    let mut terminal = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;

    let mut printed = Vec::new();
    while printed.len() <= most {
        match timeout_at(until, terminal.next()).await {
            Err(_) => return Err(CoderError::TimedOut { ms: 0 }),
            Ok(Some(Ok(Message::Binary(bytes)))) => printed.extend_from_slice(&bytes),
            Ok(Some(Ok(Message::Text(text)))) => printed.extend_from_slice(text.as_bytes()),
            Ok(Some(Ok(_))) => continue,
            // The server closes when the command has ended.
            Ok(None | Some(Err(_))) => break,
        }
        if let Some(lines) = between(&printed) {
            return Ok(lines);
        }
    }
    between(&printed).ok_or_else(|| CoderError::Malformed {
        reason: "the terminal closed before the command was done".to_owned(),
        request_id: None,
    })
}

/// The lines between the two marks, once both are there.
fn between(printed: &[u8]) -> Option<Vec<String>> {
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
