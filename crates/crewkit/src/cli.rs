//! The command line of `crewkit`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use crewkit_server::Services;
use crewkit_server::services::Agents;

use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::fleet::args::FleetArgs;
use crate::fleet::metadata::MetadataCommand;
use crate::pack::args::PackArgs;
use crate::{agent, config_show, fleet, home, local, logging, mcp, output, pack, serve};

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
    Mcp(SelectionArgs),
    /// Deploy agent assets: the same commands as `agentpack`.
    #[command(disable_help_subcommand = true)]
    Pack(PackArgs),
    /// Run agents in workspaces of their own.
    Fleet(FleetArgs),
    /// Say what a workspace is about.
    #[command(subcommand)]
    Metadata(MetadataCommand),
    /// Run contracts: start agents, follow them, fetch what they made.
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Look at the configuration.
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
            Command::Mcp(args) => args.settings(),
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
    if arguments.get(1).is_some_and(|first| first == local::SHIM) {
        return local::shim(arguments.get(2));
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
    let config = Config::load(home::resolve(cli.common.home)?, |name| std::env::var(name).ok(), &flags)?;
    logging::start(cli.common.verbose, config.text("log.format") == Some("json"));
    match cli.command {
        Command::Serve(_) => serve::run(&config)?,
        Command::Mcp(_) => {
            let catalog = mcp::catalog()?;
            let selection = mcp::selection(&config, &catalog)?;
            let base = config.text("server.public_url").unwrap_or("http://localhost:8101");
            let services = services(&config, ServedAt { base, ports: &[], socket: None })?;
            mcp::serve(catalog, &Arc::new(services), selection, &config.limits())?;
        }
        Command::Fleet(arguments) => return fleet::run(&config, arguments, cli.common.json),
        Command::Metadata(command) => fleet::metadata::run(command, config.limits())?,
        Command::Agent(command) => return agent::run(command, &config, cli.common.json),
        Command::Config(ConfigCommand::Show) => output::data(&config_show::render(&config, cli.common.json)),
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
}

/// The services of this process.
pub fn services(config: &Config, at: ServedAt<'_>) -> Result<Services, Failure> {
    let pack = Arc::new(pack::service(config.limits())?);
    let mut options = agent::options(config, at.base, at.ports)?;
    options.server_socket = at.socket;
    let agents = Agents::lazy(options).or_forward(agent::forward(config));
    let agents = Arc::new(agents);
    let fleet = match fleet::service(config, &pack)? {
        Some(coder) => coder,
        None => local::fleet(config, &pack, &agents)?,
    };
    Ok(Services { pack: Some(pack), fleet: Some(fleet), agents })
}
