//! The rules of the house that a compiler does not know.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::docs;
use crate::shell::{cargo, read, root};

/// Whether documents are compared or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Say what is wrong.
    Check,
    /// Write the generated documents, then say what else is wrong.
    Fix,
}

/// Which crate may depend on which of ours. What is not here is forbidden.
const EDGES: &[(&str, &[&str])] = &[
    ("crewkit-core", &[]),
    ("crewkit-pack", &["crewkit-core"]),
    ("crewkit-agent", &["crewkit-core"]),
    ("crewkit-fleet", &["crewkit-core", "crewkit-agent"]),
    ("crewkit-server", &["crewkit-core", "crewkit-pack", "crewkit-agent", "crewkit-fleet"]),
    ("crewkit", &["crewkit-core", "crewkit-pack", "crewkit-agent", "crewkit-fleet", "crewkit-server"]),
    ("crewkit-testkit", &["crewkit-core"]),
    (
        "xtask",
        &[
            "crewkit",
            "crewkit-core",
            "crewkit-pack",
            "crewkit-agent",
            "crewkit-fleet",
            "crewkit-server",
            "crewkit-testkit",
        ],
    ),
];

/// What core may use: words and decisions need no more.
const CORE_MAY_USE: &[&str] = &["jiff", "schemars", "serde", "thiserror"];

/// Crates that never see the event loop.
const SYNCHRONOUS: &[&str] = &["crewkit-core", "crewkit-pack"];

/// Crates to which everything is passed in, and what they must therefore not call.
const LIBRARIES: &[&str] = &[
    "crates/crewkit-core/",
    "crates/crewkit-pack/",
    "crates/crewkit-agent/",
    "crates/crewkit-fleet/",
    "crates/crewkit-server/",
];
const NOT_IN_LIBRARIES: &[&str] = &["env::var", "home_dir(", "process::exit("];

/// A source file beyond this has more than one idea.
const MOST_LINES: usize = 800;

/// A tree larger than this is no longer reviewed by anybody.
const MOST_PACKAGES: usize = 250;

/// Checks every rule and reports all that are broken.
pub(crate) fn run(mode: Mode) -> Result<()> {
    let mut wrong = Vec::new();
    generated_documents(mode, &mut wrong)?;
    let metadata = metadata()?;
    dependency_edges(&metadata, &mut wrong);
    licences(&metadata, &mut wrong)?;
    release_tree(&mut wrong)?;
    files(&mut wrong)?;
    if wrong.is_empty() {
        println!("tidy");
        return Ok(());
    }
    for line in &wrong {
        eprintln!("untidy: {line}");
    }
    bail!("{} rules are broken", wrong.len())
}

fn metadata() -> Result<Value> {
    let text = read(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    serde_json::from_str(&text).context("cargo metadata is not JSON")
}

fn generated_documents(mode: Mode, wrong: &mut Vec<String>) -> Result<()> {
    for (path, text) in docs::all()? {
        let file = root().join(path);
        if std::fs::read_to_string(&file).unwrap_or_default() == text {
            continue;
        }
        match mode {
            Mode::Check => {
                wrong.push(format!("{path} is not what its table says; run `cargo xtask tidy --fix`"));
            }
            Mode::Fix => {
                std::fs::write(&file, text).with_context(|| path.to_owned())?;
                println!("wrote {path}");
            }
        }
    }
    Ok(())
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// The names of a package's dependencies of one kind; `null` is an ordinary one.
fn dependencies<'package>(
    package: &'package Value,
    kind: Option<&str>,
) -> impl Iterator<Item = &'package str> {
    let kind = kind.map(ToOwned::to_owned);
    package["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(move |dependency| dependency["kind"].as_str() == kind.as_deref())
        .filter_map(|dependency| dependency["name"].as_str())
}

fn dependency_edges(metadata: &Value, wrong: &mut Vec<String>) {
    let ours = |name: &str| EDGES.iter().any(|(known, _)| *known == name);
    for package in packages(metadata).filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("crate `{name}` is not in the table of dependency edges"));
            continue;
        };
        for dependency in dependencies(package, None) {
            if ours(dependency) && !allowed.contains(&dependency) {
                wrong.push(format!("`{name}` must not depend on `{dependency}`"));
            }
            if name == "crewkit-core" && !CORE_MAY_USE.contains(&dependency) {
                wrong.push(format!("`crewkit-core` must not depend on `{dependency}`"));
            }
            if SYNCHRONOUS.contains(&name) && dependency.starts_with("tokio") {
                wrong.push(format!("`{name}` is synchronous and must not depend on `{dependency}`"));
            }
            if dependency == "crewkit-testkit" && name != "xtask" {
                wrong.push(format!("`{name}` may use `crewkit-testkit` in tests only"));
            }
        }
    }
}

/// Licences outside the list in `deny.toml` need a decision, not a shrug.
fn licences(metadata: &Value, wrong: &mut Vec<String>) -> Result<()> {
    let text = std::fs::read_to_string(root().join("deny.toml")).context("deny.toml")?;
    let deny: toml::Table = text.parse().context("deny.toml")?;
    let allowed: BTreeSet<&str> =
        deny["licenses"]["allow"].as_array().into_iter().flatten().filter_map(toml::Value::as_str).collect();
    for package in packages(metadata).filter(|package| !package["source"].is_null()) {
        let licence = package["license"].as_str().unwrap_or("none");
        let fits = licence.replace('/', " OR ").split(" OR ").any(|choice| {
            choice
                .split(" AND ")
                .all(|part| allowed.contains(part.trim_matches(|c: char| c == '(' || c == ')' || c == ' ')))
        });
        if !fits {
            let name = package["name"].as_str().unwrap_or_default();
            wrong.push(format!("licence `{licence}` of `{name}` is not among those deny.toml allows"));
        }
    }
    Ok(())
}

fn release_tree(wrong: &mut Vec<String>) -> Result<()> {
    let tree = read(cargo().args([
        "tree",
        "--package",
        "crewkit",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--locked",
    ]))?;
    let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    println!("{} packages in the release tree", packages.len());
    if packages.len() > MOST_PACKAGES {
        wrong.push(format!("the release tree has {} packages, more than {MOST_PACKAGES}", packages.len()));
    }
    Ok(())
}

fn files(wrong: &mut Vec<String>) -> Result<()> {
    let listing = read(std::process::Command::new("git").current_dir(root()).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    for name in listing.lines() {
        let path = Path::new(name);
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        let kind = path.extension().and_then(|extension| extension.to_str());
        if kind == Some("rs") {
            let is_test =
                path.components().any(|part| part.as_os_str() == "tests") || name.ends_with("tests.rs");
            let lines = text.lines().count();
            if !is_test && lines > MOST_LINES {
                wrong.push(format!("{name} has {lines} lines; more than {MOST_LINES} is more than one idea"));
            }
            if !is_test && LIBRARIES.iter().any(|library| name.starts_with(library)) && name.contains("/src/")
            {
                for call in NOT_IN_LIBRARIES.iter().filter(|call| text.contains(**call)) {
                    wrong.push(format!("{name} calls `{call}`; a library is told what it needs to know"));
                }
            }
            for marker in ["todo!(", "unimplemented!(", "dbg!(", "FIXME", "XXX"] {
                if text.contains(marker) && name != "xtask/src/tidy.rs" {
                    wrong.push(format!("{name} contains `{marker}`"));
                }
            }
        }
        if name.ends_with("Cargo.toml") && name != "Cargo.toml" && !name.starts_with("fuzz/") {
            let manifest: toml::Table = text.parse().with_context(|| name.to_owned())?;
            let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"))
                == Some(&toml::Value::Boolean(true));
            if !inherits {
                wrong.push(format!("{name} does not inherit the workspace's lints"));
            }
        }
        if matches!(kind, Some("rs" | "md")) {
            for (number, line) in text.lines().enumerate() {
                // Two spaces at a line's end mean a break in Markdown; nothing else may hang there.
                if line.ends_with([' ', '\t']) && !(kind == Some("md") && line.ends_with("  ")) {
                    wrong.push(format!("{name}:{} ends in white space", number + 1));
                }
            }
        }
    }
    Ok(())
}
