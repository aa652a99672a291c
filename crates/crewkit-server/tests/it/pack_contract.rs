//! The input schemas of the pack tools are those of the contract, member for member.

use crewkit_server::ops::Catalog;
use serde_json::Value;

/// As the contract prints them. `diff` is "same as plan".
const CONTRACT: [(&str, &str); 6] = [
    (
        "plan",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#,
    ),
    (
        "diff",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#,
    ),
    (
        "status",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "only": { "type": "array", "items": { "type": "string", "enum": ["missing", "modified", "extra"] } },
    "dry_run": { "type": "boolean", "default": false }
  }
}"#,
    ),
    (
        "doctor",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] }
  }
}"#,
    ),
    (
        "deploy_apply",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "required": ["yes"],
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "profile": { "type": "string", "default": "default" },
    "target": { "type": "string", "default": "all", "enum": ["all", "codex", "claude_code", "cursor", "vscode"] },
    "machine": { "type": "string", "description": "Machine id for machine overlays. Omit to auto-detect." },
    "adopt": { "type": "boolean", "default": false, "description": "Allow overwriting existing unmanaged files (adopt updates)." },
    "dry_run": { "type": "boolean", "default": false, "description": "Force dry-run behavior (do not apply even if this tool is the apply variant)." },
    "yes": { "const": true, "description": "Required explicit approval for mutating operations." }
  }
}"#,
    ),
    (
        "rollback",
        r#"{
  "type": "object",
  "additionalProperties": false,
  "required": ["to", "yes"],
  "properties": {
    "repo": { "type": "string", "description": "Path to the agentpack config repo (default: $AGENTPACK_HOME/repo)." },
    "to": { "type": "string", "description": "Snapshot id to rollback to." },
    "yes": { "const": true, "description": "Required explicit approval for mutating operations." }
  }
}"#,
    ),
];

#[test]
fn input_schemas_are_the_contracts() {
    let catalog = Catalog::product().unwrap();
    for (name, text) in CONTRACT {
        let expected: Value = serde_json::from_str(text).unwrap();
        let entry = catalog.get(name).unwrap_or_else(|| panic!("there is no tool `{name}`"));
        let actual = Value::Object(entry.input.as_ref().clone());
        // Compared as text as well: the order of members is what a reader of the contract expects.
        assert_eq!(actual.to_string(), expected.to_string(), "{name}");
    }
}
