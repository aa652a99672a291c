//! `crewkit config secret`: secrets that servers of the home have although no client brings them, in a file only its owner can
//! read.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Secret};
use serde_json::json;

use crate::config::Config;
use crate::failure::Failure;
use crate::server::{self, lock};
use crate::{commands, output, token};

/// Longest name and longest value, in bytes.
const NAME_BYTES: usize = 200;
const VALUE_BYTES: u64 = 64 * 1024;

/// What to do with the secrets of the home.
#[derive(Debug, clap::Subcommand)]
pub enum SecretCommand {
    /// Keep a secret, read from standard input or asked for without showing it. Work that waits for it goes on.
    Set {
        /// Name of the secret, as the run that waits for it tells it.
        name: String,
    },
    /// List the names of the secrets that are kept.
    List,
    /// Remove a secret.
    Remove {
        /// Name of the secret.
        name: String,
    },
}

/// Carries out `crewkit config secret`.
pub fn run(config: &Config, command: SecretCommand, json: bool) -> Result<(), Failure> {
    let home = &config.home;
    let (body, text) = match command {
        SecretCommand::Set { name } => {
            let value = read_value(&name)?;
            change(home, |secrets| drop(secrets.insert(name.clone(), value.expose().to_owned())))?;
            tell_server(config)?;
            (json!({"set": name}), format!("The secret `{name}` is kept in {}.", file(home).display()))
        }
        SecretCommand::List => {
            let names: Vec<String> = load(home)?.into_keys().collect();
            (json!({"secrets": names}), names.join("\n"))
        }
        SecretCommand::Remove { name } => {
            let mut is_gone = false;
            change(home, |secrets| is_gone = secrets.remove(&name).is_some())?;
            if !is_gone {
                let message = format!("There is no secret `{name}` in {}", file(home).display());
                return Err(Failure::new(Code::ArgumentInvalid, message));
            }
            (json!({"removed": name}), format!("The secret `{name}` is removed."))
        }
    };
    commands::show(&body, json, || text);
    Ok(())
}

fn file(home: &Path) -> PathBuf {
    home.join("secrets.json")
}

/// The secrets that are kept, by name.
pub fn load(home: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let path = file(home);
    let unusable = |what: String| Failure::new(Code::StateUnusable, format!("{}: {what}", path.display()));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unusable(error.to_string())),
    };
    token::refuse_if_others_can_read(&path)?;
    // The error of the parser may quote the file.
    serde_json::from_str(&text).map_err(|_| unusable("is not an object of texts".to_owned()))
}

/// The values that are kept, for a server: a file that cannot be used is logged.
pub fn values(home: &Path) -> Vec<Secret> {
    match load(home) {
        Ok(secrets) => secrets.into_values().map(Secret::new).collect(),
        Err(failure) => {
            tracing::warn!("{}", failure.message);
            Vec::new()
        }
    }
}

/// Changes the file in one step; two commands at once do so one after the other.
fn change(home: &Path, change: impl FnOnce(&mut BTreeMap<String, String>)) -> Result<(), Failure> {
    let (path, draft) = (file(home), home.join("secrets.json.new"));
    let unusable =
        |error: std::io::Error| Failure::new(Code::StateUnusable, format!("{}: {error}", path.display()));
    let private = |path: &Path| {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(path)
    };
    let lock =
        private(&lock::run_directory(home).map_err(unusable)?.join("secrets.lock")).map_err(unusable)?;
    lock.lock().map_err(unusable)?;
    let mut secrets = load(home)?;
    change(&mut secrets);
    let write = || {
        // One that is left of a command that was killed may have other permissions.
        let _ = std::fs::remove_file(&draft);
        let mut file = private(&draft)?;
        file.write_all(format!("{:#}\n", json!(secrets)).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)
    };
    write().map_err(unusable)
}

/// Reads the value of a secret. It never is an argument: those can be seen by everybody.
fn read_value(name: &str) -> Result<Secret, Failure> {
    let wrong = |what: &str| Err(Failure::new(Code::ArgumentInvalid, what.to_owned()));
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
        return wrong("The name of a secret has 1 to 200 bytes and no control characters");
    }
    let stdin = std::io::stdin();
    let mut value = String::new();
    let read = if stdin.is_terminal() {
        read_silently(name, &mut value)
    } else {
        stdin.lock().take(VALUE_BYTES + 1).read_to_string(&mut value).map(drop)
    };
    read.map_err(|error| Failure::new(Code::ArgumentInvalid, format!("standard input: {error}")))?;
    let value = value.trim_end_matches(['\r', '\n']);
    if value.is_empty() || value.len() as u64 > VALUE_BYTES {
        return wrong("The value of a secret has 1 to 65536 bytes; give it on standard input");
    }
    Ok(Secret::new(value))
}

/// Asks for a line on the terminal, which does not show it.
#[cfg(unix)]
fn read_silently(name: &str, line: &mut String) -> std::io::Result<()> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    let shown = tcgetattr(&stdin)?;
    let mut silent = shown.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    output::talk(&format!("Value of `{name}` (it is not shown):"));
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let read = stdin.read_line(line);
    tcsetattr(&stdin, OptionalActions::Flush, &shown)?;
    read.map(drop)
}

#[cfg(not(unix))]
fn read_silently(_: &str, _: &mut String) -> std::io::Result<()> {
    Err(std::io::Error::other("give the value through a pipe"))
}

/// A server of the home reads the file when a client says hello.
fn tell_server(config: &Config) -> Result<(), Failure> {
    commands::runtime()?.block_on(async {
        if let Err(failure) = server::connect(config).await {
            output::talk(&format!("The server could not be told: {}", failure.message));
        }
        Ok(())
    })
}
