//! The log: on standard error, never on standard output.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Starts the log on standard error. crewkit's own words are shown, libraries only when something is wrong: some of them would
/// print whole messages, and those can hold what a user considers private.
pub fn start(verbosity: u8, json: bool) {
    let own = match verbosity {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let colour =
        std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    init(std::io::stderr, own, json, colour);
}

/// Starts the log of a process without standard error in `writer`. Panics are part of it.
pub fn start_in(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, json: bool) {
    init(writer, "info", json, false);
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

fn init(writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static, own: &str, json: bool, colour: bool) {
    let filter = EnvFilter::new(format!(
        "warn,rmcp=error,crewkit={own},crewkit_server={own},crewkit_pack={own},crewkit_agent={own},crewkit_fleet={own}"
    ));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // A second start, as in tests, keeps the first log.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(colour).with_target(false).try_init()
    };
}
