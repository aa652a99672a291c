//! The command line of `crewkit`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use crewkit_agent::StoreLock;
use crewkit_fleet::backend::coder::Intents;
use crewkit_fleet::{AnyFleet, FleetError};
use crewkit_server::Services;
use crewkit_server::services::Agents;

use crate::commands::fleet::FleetCommand;
use crate::commands::runs::{RunArgs, RunsCommand};
use crate::commands::service::ServiceCommand;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::fleet::metadata::MetadataCommand;
use crate::pack::args::PackArgs;
use crate::secrets::SecretCommand;
use crate::{
    agent, commands, config_show, fleet, home, local, logging, mcp, output, pack, secrets, serve, server,
};

/// Equips, runs and supervises coding agents.
#[derive(Debug, Parser)]
#[command(name = "crewkit", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Common {
    /// Directory of configuration and state.
    #[arg(long, global = true, env = "CREWKIT_HOME", value_name = "DIR")]
    home: Option<PathBuf>,
    /// Say more on standard error; twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Form of the log.
    #[arg(long, global = true, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// Answer in JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP and REST over HTTP.
    Serve(ServeArgs),
    /// Serve MCP on standard input and output.
    Mcp(McpArgs),
    /// Deploy agent assets: the same commands as `agentpack`.
    #[command(disable_help_subcommand = true)]
    Pack(PackArgs),
    /// Run a contract: work that is done once.
    ///
    /// The run is carried out by the server of the home, which is started if needed, and followed until it ends. Ctrl-C
    /// leaves it working; a second Ctrl-C stops it.
    #[command(after_help = "Example:\n  crewkit run \"Describe this project in SUMMARY.md\" --dir .")]
    Run {
        #[command(flatten)]
        run: RunArgs,
        /// Print the id of the run and leave it working.
        #[arg(long)]
        detach: bool,
    },
    /// Show, wait for, stop and delete runs.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Same as `runs`, with `start`.
    #[command(subcommand, hide = true)]
    Agent(RunsCommand),
    /// Manage the fleet: named agents in workspaces of their own.
    #[command(
        subcommand,
        after_help = "Example:\n  crewkit fleet create hello \"Say hello in HELLO.md\" --project demo"
    )]
    Fleet(FleetCommand),
    /// Show events: what happened to runs, agents, tasks and projects.
    Events {
        /// Show what comes after this number.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        /// Show new events as they happen.
        #[arg(short, long)]
        follow: bool,
    },
    /// Show whether the home has a server, what it does, and the settings in use.
    Status,
    /// Stop the server of the home and all of its work.
    Stop {
        /// Do not ask.
        #[arg(short, long)]
        yes: bool,
    },
    /// Let the system's service manager run `crewkit serve` (systemd, launchd).
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Serve workspace metadata.
    #[command(subcommand)]
    Metadata(MetadataCommand),
    /// Show the configuration, and keep secrets.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page.
    Man,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
struct ServeArgs {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Ask for the bearer token also on loopback.
    #[arg(long)]
    auth: bool,
    /// Serve MCP without sessions.
    #[arg(long)]
    stateless: bool,
    /// Start in the background, for clients of the home's socket alone.
    #[arg(long, hide = true)]
    background: bool,
    /// Be the server that `--background` starts.
    #[arg(long, hide = true, requires = "background")]
    detached: bool,
    #[command(flatten)]
    selection: SelectionArgs,
}

#[derive(Debug, Args)]
struct McpArgs {
    /// Own the home and work in this process; refused if another process owns the home.
    #[arg(long)]
    in_process: bool,
    #[command(flatten)]
    selection: SelectionArgs,
}

#[derive(Debug, Args)]
struct SelectionArgs {
    /// Toolsets to show: pack, fleet, agents.
    #[arg(long, value_name = "NAME,…")]
    toolsets: Option<String>,
    /// Single tools to show, beside the toolsets.
    #[arg(long, value_name = "NAME,…")]
    tools: Option<String>,
    /// Tools never to show.
    #[arg(long, value_name = "NAME,…")]
    exclude_tools: Option<String>,
    /// Show only tools that change nothing.
    #[arg(long)]
    read_only: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings in force, with their origin; secrets are masked.
    Show,
    /// Keep secrets for work that goes on after a restart of the server.
    #[command(subcommand)]
    Secret(SecretCommand),
}

impl SelectionArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut flags = Vec::new();
        flags.extend(self.toolsets.clone().map(|value| ("mcp.toolsets", value)));
        flags.extend(self.tools.clone().map(|value| ("mcp.tools", value)));
        flags.extend(self.exclude_tools.clone().map(|value| ("mcp.exclude_tools", value)));
        flags.extend(self.read_only.then(|| ("mcp.read_only", "true".to_owned())));
        flags
    }
}

impl ServeArgs {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut flags = self.selection.settings();
        flags.extend(self.listen.clone().map(|value| ("server.listen", value)));
        flags.extend(self.auth.then(|| ("server.auth", "true".to_owned())));
        flags.extend(self.stateless.then(|| ("server.stateless", "true".to_owned())));
        flags
    }
}

impl Cli {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut flags = match &self.command {
            Command::Serve(args) => args.settings(),
            Command::Mcp(args) => args.selection.settings(),
            _ => Vec::new(),
        };
        let form = self.common.log_format.map(|format| match format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        });
        flags.extend(form.map(|form| ("log.format", form.to_owned())));
        flags
    }
}

/// Runs `crewkit` with the process's arguments.
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == agent::EXEC_CONFINED) {
        return agent::exec_confined(arguments.into_iter().skip(2));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        // Pack answers in its own envelope, whatever goes wrong.
        Err(error) if arguments.get(1).is_some_and(|first| first == "pack") => {
            return pack::usage_error(&error, &arguments).into();
        }
        Err(error) => error.exit(),
    };
    let json = cli.common.json;
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(json).into(),
    }
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    let flags = cli.settings();
    match cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "crewkit", &mut script);
            output::data(&String::from_utf8_lossy(&script));
            return Ok(Exit::Ok);
        }
        Command::Man => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| Failure::new(crewkit_core::Code::Internal, error.to_string()))?;
            output::data(&String::from_utf8_lossy(&page));
            return Ok(Exit::Ok);
        }
        _ => {}
    }
    if let Command::Pack(arguments) = cli.command {
        return Ok(pack::run(arguments, cli.common.json, "crewkit pack", cli.common.home));
    }
    #[cfg(unix)]
    if let Command::Serve(ServeArgs { background: true, detached, .. }) = &cli.command {
        let home = home::resolve(cli.common.home)?;
        return if *detached { serve::run_detached(home) } else { server::launch::detach(&home) }
            .map(|()| Exit::Ok);
    }
    let config = Config::load(home::resolve(cli.common.home)?, |name| std::env::var(name).ok(), &flags)?;
    logging::start(cli.common.verbose, config.text("log.format") == Some("json"));
    match cli.command {
        Command::Serve(_) => serve::run(&config)?,
        Command::Mcp(args) => mcp::run(&config, args.in_process)?,
        Command::Run { run, detach } => return commands::runs::start(&config, &run, detach, cli.common.json),
        Command::Runs(command) | Command::Agent(command) => {
            return commands::runs::run(&config, command, cli.common.json);
        }
        Command::Fleet(command) => return commands::fleet::run(&config, command, cli.common.json),
        Command::Events { after, follow } => {
            return commands::server::events(&config, after, follow, cli.common.json);
        }
        Command::Status => return commands::server::status(&config, cli.common.json),
        Command::Stop { yes } => return commands::server::stop(&config, yes, cli.common.json),
        Command::Service(command) => return commands::service::run(&config, command, cli.common.json),
        Command::Metadata(command) => fleet::metadata::run(command, config.limits())?,
        Command::Config(ConfigCommand::Show) => output::data(&config_show::render(&config, cli.common.json)),
        Command::Config(ConfigCommand::Secret(command)) => secrets::run(&config, command, cli.common.json)?,
        Command::Pack(_) | Command::Completions { .. } | Command::Man => {}
    }
    Ok(Exit::Ok)
}

/// Where this process is reached; one that serves nobody has neither ports nor a socket.
pub struct ServedAt<'a> {
    /// Base of the links handed to clients.
    pub base: &'a str,
    /// TCP ports it listens on.
    pub ports: &'a [u16],
    /// The socket of the home.
    pub socket: Option<PathBuf>,
    /// The lock of the home, if this process has it.
    pub lock: Option<Arc<StoreLock>>,
    /// What is under way on Coder.
    pub intents: Arc<Intents>,
}

/// The services of this process.
pub fn services(config: &Config, at: ServedAt<'_>) -> Result<Services, Failure> {
    let pack = Arc::new(pack::service(config.limits())?);
    let mut options = agent::options(config, at.base, at.ports)?;
    options.server_socket = at.socket;
    options.lock = at.lock;
    let agents = Arc::new(Agents::lazy(options));
    let engine = Arc::clone(&agents);
    at.intents.keep_in(move || {
        let agents = Arc::clone(&engine);
        Box::pin(async move {
            let engine = agents.engine().await.map_err(|error| FleetError::unavailable(error.to_string()))?;
            Ok(engine.documents())
        })
    });
    let fleet = match fleet::service(config, &pack, &at.intents)? {
        Some(coder) => coder,
        None => AnyFleet::Local(local::fleet(config, &pack, &agents)?),
    };
    Ok(Services { pack: Some(pack), fleet: Some(fleet), agents, ..Services::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_that_has_a_command_is_a_command() {
        let catalog = crewkit_server::ops::Catalog::product().unwrap();
        for entry in catalog.entries() {
            let Some(cli) = entry.operation.doors.cli else { continue };
            let root = Cli::command();
            let mut command = &root;
            for word in cli.path {
                let below = command.find_subcommand(word);
                command = below.unwrap_or_else(|| panic!("there is no `crewkit {}`", cli.path.join(" ")));
            }
        }
    }
}
