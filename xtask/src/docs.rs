//! Documents written from tables: operations, error codes, settings.

use std::fmt::Write as _;

use anyhow::Result;
use crewkit::exit::Exit;
use crewkit::settings::{self, Kind, Row, Scope};
use crewkit_core::{Code, Toolset};
use crewkit_server::ops::{Approval, Catalog, Hints};

const NOTE: &str = "<!-- Written by `cargo xtask tidy --fix`; edit the table in the code instead. -->\n\n";

/// Every generated document: its path and its text.
pub(crate) fn all() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("docs/operations.md", operations()?),
        ("docs/errors.md", errors()),
        ("docs/configuration.md", configuration()),
    ])
}

fn operations() -> Result<String> {
    let catalog = Catalog::product()?;
    let mut page = format!("# Operations\n\n{NOTE}");
    page.push_str(
        "Everything crewkit can do. Each operation is an MCP tool of this name, and `POST /api/ops/{name}` with the arguments \
         as a JSON object.\n",
    );
    for toolset in Toolset::ALL.map(Some).into_iter().chain([None]) {
        match toolset {
            Some(toolset) => writeln!(
                page,
                "\n## {toolset}\n\nServed alone at `/mcp/{}`, as server `{}`.",
                toolset.path_segment(),
                toolset.server_name()
            )?,
            None => writeln!(
                page,
                "\n## server\n\nWhat concerns the server itself. These are no MCP tools, and `--toolsets` does not hide them."
            )?,
        }
        for entry in catalog.entries().filter(|entry| entry.operation.toolset == toolset) {
            let operation = &entry.operation;
            writeln!(
                page,
                "\n### {}\n\n{} {}\n",
                operation.name,
                operation.description,
                effect(operation.hints, operation.approval)
            )?;
            page.push_str(&arguments(&entry.input));
        }
    }
    Ok(page)
}

fn effect(hints: Hints, approval: Approval) -> String {
    let mut text = match (hints.read_only, hints.destructive) {
        (true, _) => "*Changes nothing.*".to_owned(),
        (false, false) => "*Changes something.*".to_owned(),
        (false, true) => "*May remove or overwrite something.*".to_owned(),
    };
    if approval == Approval::Yes {
        text.push_str(" *Needs `yes: true`.*");
    }
    text
}

fn arguments(schema: &crewkit_server::ops::JsonObject) -> String {
    let Some(properties) =
        schema.get("properties").and_then(serde_json::Value::as_object).filter(|p| !p.is_empty())
    else {
        return "Takes no arguments.\n".to_owned();
    };
    let required: Vec<_> = schema
        .get("required")
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str())
        .collect();
    let mut table = "| argument | value | meaning |\n|---|---|---|\n".to_owned();
    for (name, property) in properties {
        let mut value = match (property.get("enum"), property.get("const"), property.get("type")) {
            (Some(allowed), _, _) => format!("one of `{allowed}`"),
            (None, Some(only), _) => format!("`{only}`"),
            (None, None, Some(kind)) => kind.as_str().map_or_else(|| kind.to_string(), ToOwned::to_owned),
            _ => "any".to_owned(),
        };
        if let Some(default) = property.get("default") {
            let _ = write!(value, ", default `{default}`");
        }
        if required.contains(&name.as_str()) {
            value.push_str(", required");
        }
        let meaning = property.get("description").and_then(|text| text.as_str()).unwrap_or("");
        let _ = writeln!(table, "| `{name}` | {} | {meaning} |", value.replace('|', "\\|"));
    }
    table
}

fn errors() -> String {
    let mut page =
        format!("# Errors\n\n{NOTE}Every code crewkit answers with. A code never changes its meaning.\n");
    let mut section = "";
    for code in Code::ALL {
        if code.section() != section {
            section = code.section();
            let _ = write!(page, "\n## {section}\n\n| code | meaning | what to do |\n|---|---|---|\n");
        }
        let _ = writeln!(page, "| `{code}` | {} | {} |", code.meaning(), code.next_step());
    }
    page.push_str("\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (exit, meaning) in Exit::TABLE {
        let _ = writeln!(page, "| {} | {meaning} |", exit.number());
    }
    page
}

fn configuration() -> String {
    let mut page = format!("# Configuration\n\n{NOTE}");
    page.push_str(
        "Settings come from, in rising order: the defaults below, `crewkit.toml` in the home, the environment, and flags. \
         `crewkit config show` prints the values in force and where each comes from.\n\n\
         The home is `--home`, `CREWKIT_HOME`, or the platform's place for such things: `$XDG_DATA_HOME/crewkit` \
         (`~/.local/share/crewkit`) on Linux, `~/Library/Application Support/crewkit` on macOS, `%APPDATA%\\crewkit` on Windows.\n\n\
         A dot in a key is a table in `crewkit.toml`: `server.listen` is `listen` under `[server]`.\n\n\
         Settings of the server hold for everybody: they come from `crewkit.toml` and from how `crewkit serve` was started. A client \
         brings its own values of the others (whose: client), in its environment or its flags; they hold for what it asks for. They are \
         recorded with the work they are for, without their secrets; `crewkit config secret set NAME` keeps one for work that waits for it \
         after a restart of the server ([agents](agents.md), settings and secrets).\n\n\
         | key | environment | default | whose | meaning |\n|---|---|---|---|---|\n",
    );
    for Row { key, scope, kind, default, doc, alias } in settings::all() {
        let variable = settings::variable(&key);
        let variables =
            alias.map_or_else(|| format!("`{variable}`"), |alias| format!("`{variable}`, `{alias}`"));
        let default = match kind {
            Kind::List | Kind::Paths if default.is_empty() => "empty".to_owned(),
            Kind::Secret => "none".to_owned(),
            _ if default.is_empty() => "none".to_owned(),
            _ => format!("`{default}`"),
        };
        let whose = match scope {
            Scope::Server => "server",
            Scope::Asker => "client",
        };
        let _ = writeln!(page, "| `{key}` | {variables} | {default} | {whose} | {doc} |");
    }
    page
}
