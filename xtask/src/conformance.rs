//! `cargo xtask conformance`: the official MCP conformance suite and the inspector, against crewkit itself.
//!
//! Two things are tested apart. The product, with every scenario that applies to any server with tools; and the fixture
//! toolset of the feature `conformance`, with every scenario there is, on the same front, sessions, guard and HTTP server.
//! There is no list of expected failures. The npm packages go into the target directory; nothing is installed elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::process::{self, Server};

const SUITE: (&str, &str) = ("@modelcontextprotocol/conformance", "0.1.16");
/// The preview of the next suite knows the requirements of each revision.
const NEXT_SUITE: (&str, &str) = ("conformance-next", "0.2.0-alpha.12");
const INSPECTOR: (&str, &str) = ("@modelcontextprotocol/inspector", "2.12.0");
/// Installed when the machine has no Node, or one before [`NODE_AT_LEAST`].
const NODE: (&str, &str) = ("node", "24.21.0");
const NODE_AT_LEAST: u32 = 22;

/// Scenarios for any server with tools. Not here: those that call tools of the fixture, and those that a server without
/// resources, prompts or completion could pass only by answering where it should refuse.
const ANY_SERVER: &[&str] =
    &["server-initialize", "ping", "tools-list", "server-sse-multiple-streams", "dns-rebinding-protection"];
const ANY_SERVER_NEXT: &[&str] = &["server-session-lifecycle", "input-required-result-unsupported-methods"];
/// Calls some tool of the server, so there has to be one.
const ANY_TOOL_NEXT: &[&str] = &["http-header-validation"];
/// The revisions whose requirements the fixture is held against.
const REVISIONS: &[&str] = &["2025-11-25", "2026-07-28"];
/// Extensions we do not offer; the suite runs them beside a revision without scoring them.
const EXTENSIONS: &[&str] = &["tasks-", "sep-2640-"];

/// The length of the time the suite puts behind a scenario's name: `-2026-11-15T20-20-54-223Z`.
const TIME_CHARS: usize = 25;

const INSTALL_LIMIT: Duration = Duration::from_mins(5);
const SUITE_LIMIT: Duration = Duration::from_mins(5);

/// Runs everything; fails when anything fails.
pub(crate) fn run() -> Result<()> {
    let place = process::target()?.join("conformance");
    fs::create_dir_all(&place)?;
    let tools = Tools::install(&place)?;
    let product = build(&place, "product", &[])?;
    let fixture = build(&place, "fixture", &["--features", "conformance"])?;

    let server = Server::start(&product, &[], &place.join("product.log"))?;
    let tool_count = tools.inspect(&product, &server)?;
    let needing_tools = if tool_count == 0 { &[] } else { ANY_TOOL_NEXT };
    let mut of_product = Tally::default();
    for scenario in ANY_SERVER {
        of_product.add(tools.suite(SUITE, &server, &["--scenario", scenario])?);
    }
    for scenario in ANY_SERVER_NEXT.iter().chain(needing_tools) {
        of_product.add(tools.suite(NEXT_SUITE, &server, &["--scenario", scenario])?);
    }
    drop(server);

    let server = Server::start(&fixture, &["--toolsets", "conformance"], &place.join("fixture.log"))?;
    let mut of_fixture = Tally::default();
    of_fixture.add(tools.suite(SUITE, &server, &["--suite", "all"])?);
    let mut of_revisions = Tally::default();
    for revision in REVISIONS {
        of_revisions.add(tools.suite(NEXT_SUITE, &server, &["--requirements", revision])?);
    }
    drop(server);

    of_product.report("product, scenarios for any server");
    of_fixture.report("fixture, whole suite");
    of_revisions.report("fixture, requirements of each revision");
    println!("inspector: {tool_count} tools over stdio and HTTP, nothing to report");
    if tool_count == 0 {
        println!(
            "note: this build shows no tools: tools-list saw an empty list, and {} was left out",
            ANY_TOOL_NEXT.join(", ")
        );
    }
    let tallies = [of_product, of_fixture, of_revisions];
    if !tallies.iter().all(Tally::is_clean) {
        bail!("crewkit does not conform");
    }
    Ok(())
}

/// Builds crewkit and puts the binary aside, since the next build would overwrite it.
fn build(place: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    process::build(&[&["--package", "crewkit", "--bin", "crewkit"], flags].concat())?;
    let built = process::target()?.join("debug").join(format!("crewkit{}", std::env::consts::EXE_SUFFIX));
    let kept = place.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    fs::copy(&built, &kept).with_context(|| built.display().to_string())?;
    Ok(kept)
}

/// The programs from npm.
struct Tools {
    place: PathBuf,
    node: PathBuf,
}

impl Tools {
    /// Installs what is missing under `place`.
    fn install(place: &Path) -> Result<Self> {
        let own_node = place.join("node_modules/node/bin/node");
        let machine_node = node_version("node").filter(|&version| version >= NODE_AT_LEAST);
        let mut wanted = vec![SUITE, NEXT_SUITE, INSPECTOR];
        if machine_node.is_none() {
            wanted.push(NODE);
        }
        if wanted.iter().any(|&(name, version)| installed(place, name).as_deref() != Some(version)) {
            println!("installing {} into {}", names(&wanted), place.display());
            npm_install(place, &wanted)?;
        }
        let node = if machine_node.is_some() { PathBuf::from("node") } else { own_node };
        if node_version(&node).is_none_or(|version| version < NODE_AT_LEAST) {
            bail!("{} does not run, or is older than {NODE_AT_LEAST}", node.display());
        }
        Ok(Self { place: place.to_owned(), node })
    }

    /// Runs a suite and reads the checks it wrote.
    fn suite(&self, (name, _): (&str, &str), server: &Server, what: &[&str]) -> Result<Tally> {
        let results = tempfile::tempdir()?;
        let mut command = Command::new(&self.node);
        command
            .arg(self.place.join("node_modules").join(name).join("dist/index.js"))
            .args(["server", "--url", &server.url, "--output-dir"])
            .arg(results.path())
            .args(what);
        let ended = process::run(&mut command, SUITE_LIMIT)?;
        let mut tally = Tally::read(results.path())?;
        if !ended.status.success() && tally.failures.is_empty() {
            tally.failures.push(format!("{}: {}\n{}", what.join(" "), ended.status, ended.stderr.trim()));
        }
        if tally.scenarios == 0 {
            tally.failures.push(format!("{}: no scenario was run\n{}", what.join(" "), ended.stdout.trim()));
        }
        Ok(tally)
    }

    /// Lets the inspector look at the tools over both transports; any word of complaint is a failure.
    fn inspect(&self, product: &Path, server: &Server) -> Result<usize> {
        let home = tempfile::tempdir()?;
        let home_for_crewkit = format!("CREWKIT_HOME={}", home.path().display());
        let over_stdio = self.inspector(home.path(), &["-e", &home_for_crewkit], Some(product), "mcp")?;
        let over_http = self.inspector(home.path(), &[], None, &server.url)?;
        if over_stdio != over_http {
            bail!("the inspector sees {over_stdio} tools over stdio and {over_http} over HTTP");
        }
        Ok(over_stdio)
    }

    fn inspector(&self, home: &Path, options: &[&str], binary: Option<&Path>, target: &str) -> Result<usize> {
        let mut command = Command::new(&self.node);
        command
            .arg(self.place.join("node_modules").join(INSPECTOR.0).join("clients/launcher/build/index.js"))
            .arg("--cli")
            .args(binary)
            .arg(target)
            .args(["--method", "tools/list", "--strict"])
            .args(options)
            .env("HOME", home);
        let ended = process::run(&mut command, SUITE_LIMIT)?;
        if !ended.status.success() || !ended.stderr.trim().is_empty() {
            bail!("inspector {target}: {}\n{}", ended.status, ended.stderr.trim());
        }
        let answer: Value = serde_json::from_str(&ended.stdout)?;
        let tools = answer["tools"].as_array().context("the inspector printed no list of tools")?;
        Ok(tools.len())
    }
}

/// The major version of a Node program, if it runs.
fn node_version(program: impl AsRef<std::ffi::OsStr>) -> Option<u32> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().trim_start_matches('v').split('.').next()?.parse().ok()
}

fn installed(place: &Path, name: &str) -> Option<String> {
    let manifest = fs::read(place.join("node_modules").join(name).join("package.json")).ok()?;
    let manifest: Value = serde_json::from_slice(&manifest).ok()?;
    Some(manifest["version"].as_str()?.to_owned())
}

fn npm_install(place: &Path, wanted: &[(&str, &str)]) -> Result<()> {
    let exact = |&(name, version): &(&str, &str)| {
        // Two versions of one package live side by side under different names.
        let version =
            if name == NEXT_SUITE.0 { format!("npm:{}@{version}", SUITE.0) } else { version.into() };
        (name.to_owned(), Value::String(version))
    };
    let dependencies: serde_json::Map<_, _> = wanted.iter().map(exact).collect();
    let manifest = json!({"private": true, "dependencies": dependencies});
    fs::write(place.join("package.json"), manifest.to_string())?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(place);
    let ended = process::run(&mut npm, INSTALL_LIMIT).context("the conformance suite needs Node with npm")?;
    if !ended.status.success() {
        bail!("npm install ended with {}\n{}", ended.status, ended.stderr.trim());
    }
    Ok(())
}

fn names(packages: &[(&str, &str)]) -> String {
    packages.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
}

/// What a run of a suite found.
#[derive(Debug, Default)]
struct Tally {
    scenarios: usize,
    passed: usize,
    failures: Vec<String>,
}

impl Tally {
    /// Reads the results a suite left: one directory a scenario, named after it, with its checks.
    fn read(results: &Path) -> Result<Self> {
        let mut tally = Self::default();
        for entry in fs::read_dir(results)? {
            let directory = entry?.path();
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.strip_prefix("server-").unwrap_or(&name);
            let name = name.get(..name.len().saturating_sub(TIME_CHARS)).unwrap_or(name);
            if EXTENSIONS.iter().any(|extension| name.starts_with(extension)) {
                continue;
            }
            let checks: Vec<Value> = serde_json::from_slice(&fs::read(directory.join("checks.json"))?)?;
            tally.add_scenario(name, &checks);
        }
        Ok(tally)
    }

    /// A scenario passes when something was checked and nothing was found; a warning is something.
    fn add_scenario(&mut self, name: &str, checks: &[Value]) {
        self.scenarios += 1;
        let passed = checks.iter().filter(|check| check["status"] == "SUCCESS").count();
        self.passed += passed;
        let faults =
            checks.iter().filter(|check| check["status"] == "FAILURE" || check["status"] == "WARNING");
        self.failures.extend(faults.map(|check| {
            format!(
                "{name}: {}: {}",
                check["id"],
                check["errorMessage"].as_str().unwrap_or("no reason given")
            )
        }));
        if passed == 0 {
            self.failures.push(format!("{name}: nothing was checked, so nothing passed"));
        }
    }

    fn add(&mut self, other: Self) {
        self.scenarios += other.scenarios;
        self.passed += other.passed;
        self.failures.extend(other.failures);
    }

    fn is_clean(&self) -> bool {
        self.failures.is_empty()
    }

    fn report(&self, title: &str) {
        println!(
            "{title}: {} scenarios, {} checks passed, {} failed",
            self.scenarios,
            self.passed,
            self.failures.len()
        );
        for failure in &self.failures {
            println!("  {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(checks: &Value) -> Vec<String> {
        let mut tally = Tally::default();
        tally.add_scenario("ping", checks.as_array().unwrap());
        tally.failures
    }

    #[test]
    fn only_a_scenario_that_checked_something_and_found_nothing_passes() {
        let check = |status: &str| json!({"id": "x", "status": status, "errorMessage": "bad"});
        assert!(failures(&json!([check("SUCCESS"), check("INFO")])).is_empty());
        assert_eq!(failures(&json!([check("SUCCESS"), check("FAILURE")])), ["ping: \"x\": bad"]);
        assert_eq!(failures(&json!([check("SUCCESS"), check("WARNING")])), ["ping: \"x\": bad"]);
        assert_eq!(failures(&json!([check("INFO")])), ["ping: nothing was checked, so nothing passed"]);
        assert_eq!(failures(&json!([])), ["ping: nothing was checked, so nothing passed"]);
    }
}
