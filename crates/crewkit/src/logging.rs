//! The log: on standard error, never on standard output.

use tracing_subscriber::EnvFilter;

/// Starts the log. crewkit's own words are shown, libraries only when something is wrong: some of them would
/// print whole messages, and those can hold what a user considers private.
pub fn start(verbosity: u8, json: bool) {
    let own = match verbosity {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::new(format!(
        "warn,rmcp=error,crewkit={own},crewkit_server={own},crewkit_pack={own},crewkit_agent={own},crewkit_fleet={own}"
    ));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colour =
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    // A second start, as in tests, keeps the first log.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(colour).with_target(false).try_init()
    };
}
