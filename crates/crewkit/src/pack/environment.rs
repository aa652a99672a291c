//! Reads the surroundings of the pack service: the one place where its environment variables are looked at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crewkit_core::{Code, Limits};
use crewkit_pack::commands::Pack;
use crewkit_pack::env::{Env, Progress, Silent};

use crate::failure::Failure;

/// The pack service of this process.
pub fn service(limits: Limits) -> Result<Pack, Failure> {
    Ok(Pack::new(environment(limits, Arc::new(Silent))?))
}

/// The pack service of an asker, by its environment and working directory.
pub fn service_of(
    limits: Limits,
    variables: &BTreeMap<String, String>,
    directory: &Path,
) -> Result<Pack, Failure> {
    let var = |name: &str| variables.get(name).cloned();
    Ok(Pack::new(environment_of(limits, Arc::new(Silent), var, directory.to_owned())?))
}

/// The surroundings of this process.
pub(super) fn environment(limits: Limits, progress: Arc<dyn Progress>) -> Result<Env, Failure> {
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::new(Code::StateUnusable, format!("the working directory: {error}")))?;
    environment_of(limits, progress, |name| std::env::var(name).ok(), cwd)
}

fn environment_of(
    limits: Limits,
    progress: Arc<dyn Progress>,
    variable: impl Fn(&str) -> Option<String>,
    cwd: PathBuf,
) -> Result<Env, Failure> {
    let var = |name: &str| variable(name).filter(|value| !value.is_empty());
    let home = var("HOME").map(PathBuf::from).or_else(std::env::home_dir);
    let home =
        home.ok_or_else(|| Failure::new(Code::SettingInvalid, "no home directory is known; set HOME"))?;
    let agentpack_home = match var("AGENTPACK_HOME") {
        Some(text) => cwd.join(expand(&text, &home)),
        None => home.join(".agentpack"),
    };
    Ok(Env {
        agentpack_home,
        client_dirs: crewkit_pack::client::variables()
            .filter_map(|name| Some((name, cwd.join(expand(&var(name)?, &home)))))
            .collect(),
        machine_names: machine_names(var),
        git: PathBuf::from("git"),
        clock: Arc::new(SystemTime::now),
        progress,
        workspace_state: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        limits,
        home,
        cwd,
    })
}

fn expand(text: &str, home: &Path) -> PathBuf {
    text.strip_prefix("~/").map_or_else(|| PathBuf::from(text), |rest| home.join(rest))
}

fn machine_names(var: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut names: Vec<String> =
        ["AGENTPACK_MACHINE_ID", "HOSTNAME", "COMPUTERNAME"].iter().filter_map(|name| var(name)).collect();
    if names.is_empty() {
        names.extend(host_name());
    }
    names
}

fn host_name() -> Option<String> {
    if let Ok(name) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        return Some(name);
    }
    let output = std::process::Command::new("hostname").output().ok()?;
    String::from_utf8(output.stdout).ok()
}
