//! What `serve` prints: where it listens, and entries to paste into the common clients.

use std::path::Path;

/// The greeting of a running server.
pub fn greeting(base: &str, token_file: Option<&Path>) -> String {
    let url = format!("{base}/mcp");
    let header = token_file.map(|file| format!("\"Authorization: Bearer $(cat '{}')\"", file.display()));
    let claude_header = header.as_ref().map(|header| format!(" --header {header}")).unwrap_or_default();
    let json_headers =
        if token_file.is_some() { ", \"headers\": {\"Authorization\": \"Bearer <token>\"}" } else { "" };
    let codex_token =
        if token_file.is_some() { "\n    bearer_token_env_var = \"CREWKIT_TOKEN\"" } else { "" };
    let curl_header = header.as_ref().map(|header| format!(" -H {header}")).unwrap_or_default();
    let token_note = token_file
        .map(|file| format!("\nClients need the bearer token in {}.\n", file.display()))
        .unwrap_or_default();
    format!(
        "crewkit {version} serves MCP at {url}
{token_note}
Connect a client:
  Claude Code   claude mcp add --transport http crewkit {url}{claude_header}
  Codex         in ~/.codex/config.toml:
    [mcp_servers.crewkit]
    url = \"{url}\"{codex_token}
  VS Code       in .vscode/mcp.json:
    {{\"servers\": {{\"crewkit\": {{\"type\": \"http\", \"url\": \"{url}\"{json_headers}}}}}}}
  Cursor        in .cursor/mcp.json:
    {{\"mcpServers\": {{\"crewkit\": {{\"url\": \"{url}\"{json_headers}}}}}}}

Try it without a client:
  curl -s{curl_header} -H 'content-type: application/json' -d '{{\"contract\": \"Say hello\"}}' {base}/api/ops/agent_start

Stop with Ctrl-C.
",
        version = env!("CARGO_PKG_VERSION"),
    )
}
