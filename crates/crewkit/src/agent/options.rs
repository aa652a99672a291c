//! From settings to the engine's options.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_agent::driver::{Format, ProcessDriver};
use crewkit_agent::engine::ON_OTHERS;
use crewkit_agent::model::{Dialect, Endpoint, Streaming};
use crewkit_agent::tools::CommandPolicy;
use crewkit_agent::tools::mcp::{self, ServerConfig};
use crewkit_agent::{Options, RunSettings};
use crewkit_core::{Code, Secret};
use toml::{Table, Value};

use super::EXEC_CONFINED;
use crate::config::Config;
use crate::failure::Failure;
use crate::secrets;
use crate::settings::{Kind, SETTINGS};

/// Variables that are no child's business, beside crewkit's own and those of settings that are secret: an address may hold a
/// password, and a Coder workspace hands its token to everything in it.
const WITHHELD: [&str; 2] = ["LLM_ENDPOINT", "CODER_AGENT_TOKEN"];
/// What commands of agents are given of the environment, beside `LC_*` and what `agents.commands_env` names: nothing that is
/// secret on some machine.
const FOR_COMMANDS: [&str; 14] = [
    "PATH",
    "LANG",
    "LANGUAGE",
    "TERM",
    "NO_COLOR",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUSTUP_HOME",
    "GOROOT",
    "JAVA_HOME",
];

/// Variables of whoever asks that every driver and tool server gets, beside those for commands. A star stands for any ending.
const FOR_EVERY_DRIVER: &[&str] = &[
    "HOME",
    "TMPDIR",
    "HOSTNAME",
    "XDG_*",
    "*_proxy",
    "*_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GIT_AUTHOR_*",
    "GIT_COMMITTER_*",
    "SSH_AUTH_SOCK",
    "CARGO_HOME",
    "GOPATH",
    "NVM_DIR",
    "VIRTUAL_ENV",
];
/// Variables that a preset driver, and any other that prints the same, takes beside those: keys of its providers and its own
/// directories.
const FOR_PRESETS: &[(&str, Format, &[&str])] = &[
    (
        "claude",
        Format::Claude,
        &["ANTHROPIC_*", "CLAUDE_*", "AWS_*", "GOOGLE_*", "CLOUD_ML_REGION", "VERTEX_*"],
    ),
    ("codex", Format::Codex, &["OPENAI_*", "CODEX_*", "AZURE_OPENAI_*"]),
];
/// Variables that decide where the kit of an agent comes from.
const FOR_PACK: [&str; 2] = ["AGENTPACK_HOME", "AGENTPACK_MACHINE_ID"];

/// The options the settings ask for, for a server that can be reached at `public_base` and listens on `ports`.
pub fn options(config: &Config, public_base: &str, ports: &[u16]) -> Result<Options, Failure> {
    let mut options = Options::new(&config.home);
    options.limits = Arc::new(config.limits());
    options.settings = Arc::new(run_settings(config, std::env::vars_os())?);
    options.secrets = secrets::values(&config.home);
    options.helper = helper();
    options.server_ports = ports.to_vec();
    options.may = may(config)?;
    public_base.clone_into(&mut options.public_base);
    Ok(options)
}

/// What runs are carried out with, for an asker with this environment. Variables that are no text are left out.
pub fn run_settings(
    config: &Config,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<RunSettings, Failure> {
    let named = config.list("agents.commands_env");
    let variables: Vec<(OsString, OsString)> =
        environment.filter(|(name, value)| name.to_str().is_some() && value.to_str().is_some()).collect();
    let taken = |takes: &dyn Fn(&OsStr) -> bool| {
        variables.iter().filter(|(name, _)| takes(name)).cloned().collect::<Vec<_>>()
    };
    let mut drivers = drivers(config)?;
    for driver in &mut drivers {
        let patterns = driver_patterns(config, driver);
        let own = taken(&|name| is_taken(name, &patterns) && !is_for_every_driver(name));
        // What the configuration says about a variable goes before what the asker has.
        driver.environment.splice(0..0, own);
    }
    Ok(RunSettings {
        models: models(config)?,
        drivers,
        tool_servers: tool_servers(config)?,
        commands: commands(config, taken(&|name| is_for_commands(name, &named)))?,
        environment: taken(&is_for_every_driver),
    })
}

/// What a driver takes of the environment beside what every driver takes: the list of its preset, and `env_from` of
/// `[agents.drivers.NAME]`.
fn driver_patterns(config: &Config, driver: &ProcessDriver) -> Vec<String> {
    let of_preset = FOR_PRESETS
        .iter()
        .filter(|(name, format, _)| driver.name == *name || driver.format == *format)
        .flat_map(|(_, _, patterns)| *patterns);
    let configured = config
        .table("agents.drivers")
        .and_then(|drivers| drivers.get(&driver.name)?.as_table()?.get("env_from")?.as_array());
    let configured = configured.into_iter().flatten().filter_map(Value::as_str);
    of_preset.copied().chain(configured).map(str::to_owned).collect()
}

/// The variables that this process, as a client, brings to the server of its home.
pub fn client_environment(config: &Config) -> BTreeMap<String, String> {
    let named = config.list("agents.commands_env");
    // A table that cannot be used is refused by the server, by name.
    let drivers = drivers(config).unwrap_or_default();
    let patterns: Vec<String> = drivers.iter().flat_map(|driver| driver_patterns(config, driver)).collect();
    let is_for_pack = |name: &OsStr| FOR_PACK.iter().any(|known| name == *known);
    std::env::vars_os()
        .filter(|(name, _)| {
            is_for_every_driver(name)
                || is_taken(name, &patterns)
                || is_for_commands(name, &named)
                || is_for_pack(name)
        })
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Whether every driver and tool server sees the variable.
fn is_for_every_driver(name: &OsStr) -> bool {
    is_taken(name, &FOR_COMMANDS) || is_taken(name, FOR_EVERY_DRIVER) || is_taken(name, &["LC_*"])
}

/// Whether the variable fits one of the patterns. What is withheld from everybody never does.
fn is_taken(name: &OsStr, patterns: &[impl AsRef<str>]) -> bool {
    let Some(text) = name.to_str().filter(|_| !is_withheld(name)) else { return false };
    let fits = |pattern: &str| match pattern.split_once('*') {
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
        None => pattern == text,
    };
    patterns.iter().any(|pattern| fits(pattern.as_ref()))
}

/// What processes of runs may ask of the server.
fn may(config: &Config) -> Result<Vec<String>, Failure> {
    let may = config.list("agents.may");
    match may.iter().find(|name| !ON_OTHERS.contains(&name.as_str())) {
        None => Ok(may),
        Some(name) => Err(wrong(
            "agents.may",
            &format!("names `{name}`, which cannot be granted; choose from {}", ON_OTHERS.join(", ")),
        )),
    }
}

fn is_withheld(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let mut secrets = SETTINGS.iter().filter(|setting| setting.kind == Kind::Secret);
    name.starts_with("CREWKIT_")
        || WITHHELD.contains(&name.as_ref())
        || secrets.any(|secret| secret.alias == Some(&*name))
}

/// This program as the helper of agents, whatever has become of its file since it was started.
fn helper() -> Vec<OsString> {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() {
        vec![running.into(), EXEC_CONFINED.into()]
    } else {
        Vec::new()
    }
}

fn wrong(key: &str, what: &str) -> Failure {
    Failure::new(Code::SettingInvalid, format!("`{key}` {what}"))
}

/// The endpoint of `[llm]` comes first, then those of `[llm.endpoints.NAME]`.
fn models(config: &Config) -> Result<Vec<Endpoint>, Failure> {
    let mut models = Vec::new();
    if let Some(url) = config.text("llm.endpoint") {
        let model = config
            .text("llm.model")
            .ok_or_else(|| wrong("llm.model", "must be set beside `llm.endpoint`"))?;
        let number = |key: &str| {
            let value = config.values.get(key).and_then(|effective| effective.value.as_integer());
            value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
        };
        models.push(Endpoint {
            api_key: config.secret("llm.api_key"),
            dialect: dialect("llm.dialect", config.text("llm.dialect").unwrap_or("openai"))?,
            streaming: if config.flag("llm.stream") { Streaming::Auto } else { Streaming::Off },
            window: number("llm.window"),
            max_output_tokens: number("llm.max_output_tokens"),
            proxy: config.text("llm.proxy").map(str::to_owned),
            ..Endpoint::new("default", url, model)
        });
    }
    for (name, value) in config.table("llm.endpoints").into_iter().flatten() {
        let key = format!("llm.endpoints.{name}");
        let table = value.as_table().ok_or_else(|| wrong(&key, "must be a table"))?;
        refuse_unknown(
            &key,
            table,
            &[
                "endpoint",
                "model",
                "api_key",
                "dialect",
                "stream",
                "window",
                "max_output_tokens",
                "concurrency",
                "proxy",
            ],
        )?;
        let text = |name: &str| table.get(name).and_then(Value::as_str);
        let needed = |name: &str| text(name).ok_or_else(|| wrong(&format!("{key}.{name}"), "must be a text"));
        let number = |name: &str| {
            table.get(name).and_then(Value::as_integer).and_then(|number| u64::try_from(number).ok())
        };
        let streams = table.get("stream").and_then(Value::as_bool).unwrap_or(true);
        models.push(Endpoint {
            api_key: text("api_key").map(Secret::new),
            dialect: dialect(&format!("{key}.dialect"), text("dialect").unwrap_or("openai"))?,
            streaming: if streams { Streaming::Auto } else { Streaming::Off },
            window: number("window"),
            max_output_tokens: number("max_output_tokens"),
            concurrency: number("concurrency"),
            proxy: text("proxy").map(str::to_owned),
            ..Endpoint::new(name, needed("endpoint")?, needed("model")?)
        });
    }
    Ok(models)
}

fn dialect(key: &str, word: &str) -> Result<Dialect, Failure> {
    match word {
        "openai" => Ok(Dialect::OpenAi),
        "anthropic" => Ok(Dialect::Anthropic),
        _ => Err(wrong(key, "must be openai or anthropic")),
    }
}

fn refuse_unknown(key: &str, table: &Table, known: &[&str]) -> Result<(), Failure> {
    match table.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            Err(wrong(&format!("{key}.{name}"), &format!("is unknown; known are {}", known.join(", "))))
        }
    }
}

/// `[agents.drivers.NAME]`: a command line; one named like a preset replaces it.
fn drivers(config: &Config) -> Result<Vec<ProcessDriver>, Failure> {
    let mut drivers = ProcessDriver::presets();
    for (name, value) in config.table("agents.drivers").into_iter().flatten() {
        let key = format!("agents.drivers.{name}");
        let table = value.as_table().ok_or_else(|| wrong(&key, "must be a table"))?;
        refuse_unknown(&key, table, &["command", "stdin", "format", "env", "env_from"])?;
        let command: Option<Vec<String>> = table
            .get("command")
            .and_then(Value::as_array)
            .map(|parts| parts.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        let command = command
            .filter(|command| !command.is_empty())
            .ok_or_else(|| wrong(&format!("{key}.command"), "must be a list of texts"))?;
        let environment = table.get("env").and_then(Value::as_table).into_iter().flatten();
        let environment = environment
            .filter_map(|(name, value)| Some((OsString::from(name), OsString::from(value.as_str()?))))
            .collect();
        let word = |name: &str, default: &str| {
            let text = table.get(name).and_then(Value::as_str).unwrap_or(default).to_owned();
            Value::String(text)
        };
        let driver = ProcessDriver {
            name: name.clone(),
            command,
            stdin: word("stdin", "nothing")
                .try_into()
                .map_err(|_| wrong(&format!("{key}.stdin"), "must be nothing, contract or open"))?,
            format: word("format", "text")
                .try_into()
                .map_err(|_| wrong(&format!("{key}.format"), "must be text, claude or codex"))?,
            environment,
        };
        drivers.retain(|known| known.name != driver.name);
        drivers.push(driver);
    }
    Ok(drivers)
}

/// The working directory is not looked at, not even for a relative path: whoever opens a repository has not asked for its
/// programs to run.
fn tool_servers(config: &Config) -> Result<Vec<ServerConfig>, Failure> {
    let found: Option<PathBuf> = match config.text("agents.mcp_config") {
        Some(path) => Some(config.home.join(path)),
        None => Some(config.home.join("mcp_config.json")).filter(|path| path.is_file()),
    };
    let Some(path) = found else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Failure::new(Code::SettingInvalid, format!("{}: {error}", path.display())))?;
    mcp::parse(&text)
        .map_err(|error| Failure::new(Code::SettingInvalid, format!("{}: {error}", path.display())))
}

fn commands(config: &Config, environment: Vec<(OsString, OsString)>) -> Result<CommandPolicy, Failure> {
    match config.text("agents.commands").unwrap_or("confined") {
        "off" => Ok(CommandPolicy::Off),
        "unconfined" => Ok(CommandPolicy::Unconfined { environment }),
        "confined" => {
            if !crewkit_agent::confine::available() || helper().is_empty() {
                tracing::info!("this system cannot confine commands; agents cannot run any");
                return Ok(CommandPolicy::Off);
            }
            Ok(CommandPolicy::Confined {
                readable: config.list("agents.commands_read").iter().map(PathBuf::from).collect(),
                network: config.flag("agents.commands_network"),
                unix_sockets: config.flag("agents.commands_unix_sockets"),
                environment,
            })
        }
        _ => Err(wrong("agents.commands", "must be confined, off or unconfined")),
    }
}

/// Whether commands of agents see the variable. What is withheld from everybody cannot be named either.
fn is_for_commands(name: &OsStr, named: &[String]) -> bool {
    let Some(text) = name.to_str().filter(|_| !is_withheld(name)) else { return false };
    FOR_COMMANDS.contains(&text) || text.starts_with("LC_") || named.iter().any(|known| known == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_sees_its_own_list_and_nobody_sees_secrets_of_crewkit() {
        let home = tempfile::tempdir().unwrap();
        let drivers = "[agents.drivers.mine]\ncommand = [\"x\"]\nenv_from = [\"MINE_*\", \"LLM_API_KEY\"]\n\
                       env = { MINE_MODE = \"set\" }\n\
                       [agents.drivers.other]\ncommand = [\"x\"]\nformat = \"claude\"\n\
                       [agents]\ncommands = \"unconfined\"\n\
                       commands_env = [\"MY_FLAG\", \"LLM_API_KEY\", \"CREWKIT_HOME\"]\n";
        std::fs::write(home.path().join("crewkit.toml"), drivers).unwrap();
        let config = Config::load(home.path().to_owned(), |_| None, &[]).unwrap();
        let all = ["commands", "tools", "mine", "claude", "codex", "other"];
        let cases: &[(&str, &[&str])] = &[
            ("PATH", &all),
            ("LC_TIME", &all),
            ("SSH_AUTH_SOCK", &all[1..]),
            ("http_proxy", &all[1..]),
            ("NO_PROXY", &all[1..]),
            ("MY_FLAG", &["commands"]),
            ("ANTHROPIC_API_KEY", &["claude", "other"]),
            ("OPENAI_API_KEY", &["codex"]),
            ("CODEX_HOME", &["codex"]),
            ("MINE_TOKEN", &["mine"]),
            ("SOME_OTHER_SECRET", &[]),
            ("LLM_API_KEY", &[]),
            ("LLM_ENDPOINT", &[]),
            ("CODER_SESSION_TOKEN", &[]),
            ("CODER_AGENT_TOKEN", &[]),
            ("CREWKIT_HOME", &[]),
            ("CREWKIT_FLEET_CODER_TOKEN", &[]),
            ("CREWKIT_AGENT_TOKEN", &[]),
        ];
        let variables = cases.iter().map(|(name, _)| (OsString::from(name), OsString::from("x")));
        let settings =
            run_settings(&config, variables.chain([("MINE_MODE".into(), "taken".into())])).unwrap();
        let CommandPolicy::Unconfined { environment: commands } = settings.commands else { panic!() };
        let of_driver = |name: &str| {
            let driver = settings.drivers.iter().find(|driver| driver.name == name).unwrap();
            [settings.environment.clone(), driver.environment.clone()].concat()
        };
        let has = |environment: &[(OsString, OsString)], name: &str| {
            environment.iter().any(|(known, _)| known == name)
        };
        for (name, seen_by) in cases {
            let found = all.into_iter().filter(|who| match *who {
                "commands" => has(&commands, name),
                "tools" => has(&settings.environment, name),
                driver => has(&of_driver(driver), name),
            });
            assert_eq!(found.collect::<Vec<_>>(), *seen_by, "{name}");
        }
        let mine = of_driver("mine");
        let last = mine.iter().rfind(|(name, _)| name == "MINE_MODE").unwrap();
        assert_eq!(last.1, "set", "the configuration goes before the asker");
    }
}
