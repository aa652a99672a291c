//! Shows what a run says and does, to its end if that is asked for.

use std::time::Duration;

use crewkit_core::Code;
use serde_json::{Value, json};

use super::{Session, runs_text};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::serve::Signals;
use crate::style::Style;
use crate::text::field;

/// Longest time that one question for new events waits.
pub(super) const EVENT_WAIT_SECONDS: u64 = 60;
/// How long after the first Ctrl-C a second one stops the run.
const STOP_WINDOW: Duration = Duration::from_secs(5);

/// What interrupts a command that follows a run, from its creation on.
///
/// For a client that is Ctrl-C; other signals end the process, and the run goes on. A process that owns the home ends in good
/// order whatever the signal.
pub(super) enum Interrupts {
    #[cfg(unix)]
    CtrlC(tokio::signal::unix::Signal),
    Any(Signals),
}

impl Interrupts {
    pub(super) fn of(session: &Session) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Code::StateUnusable, format!("signals: {error}"));
        #[cfg(unix)]
        if !session.is_in_process() {
            use tokio::signal::unix::{SignalKind, signal};
            return signal(SignalKind::interrupt()).map(Self::CtrlC).map_err(failed);
        }
        let _ = session;
        Signals::new().map(Self::Any).map_err(failed)
    }

    async fn next(&mut self) {
        match self {
            #[cfg(unix)]
            Self::CtrlC(signal) => {
                signal.recv().await;
            }
            Self::Any(signals) => signals.next().await,
        }
    }
}

/// Prints the transcript of a run with `print`; with `follow`, until the run has ended.
pub(super) async fn transcript(
    session: &Session,
    id: &str,
    follow: bool,
    mut print: impl FnMut(&Value),
) -> Result<(), Failure> {
    let mut after = 0;
    let mut cursor = if follow { session.newest_event().await? } else { 0 };
    loop {
        let wish = json!({"agent_id": id, "after": after, "limit": 500, "max_chars": 100_000});
        let page = session.watch("agent_output", wish).await?;
        for entry in page["entries"].as_array().into_iter().flatten() {
            after = entry["seq"].as_u64().unwrap_or(after);
            print(entry);
        }
        if page["next"].is_null() {
            let has_ended = matches!(page["status"].as_str(), Some("completed" | "stopped"));
            if !follow || has_ended {
                return Ok(());
            }
            cursor = session.wait_for_event(cursor, Some(id), EVENT_WAIT_SECONDS).await?;
        }
    }
}

/// Follows a run to its end, progress on standard error and the result as data. Ctrl-C leaves it running, a second one
/// stops it.
pub(super) async fn to_end(
    session: &Session,
    id: &str,
    mut interrupts: Interrupts,
    json: bool,
) -> Result<Exit, Failure> {
    let style = Style::of_stderr();
    if !json {
        let status = status(session, id).await?;
        output::coloured_talk(&runs_text::header(&status));
    }
    let mut turn = 0;
    let following = transcript(session, id, true, |entry| {
        if !json {
            for line in runs_text::progress_lines(entry, &mut turn, style) {
                output::coloured_talk(&line);
            }
        }
    });
    tokio::select! {
        followed = following => followed?,
        () = interrupts.next() => return interrupted(session, id, interrupts, json).await,
    }
    result(session, id, json).await
}

/// Tells how the run ended.
async fn result(session: &Session, id: &str, json: bool) -> Result<Exit, Failure> {
    let status = status(session, id).await?;
    if json {
        output::data_line(&status.to_string());
    } else {
        output::coloured_talk(&runs_text::result_line(&status, Style::of_stderr()));
        let said = ["summary", "error"].iter().find_map(|key| status[*key].as_str()).unwrap_or_default();
        if !said.trim().is_empty() {
            output::data_line(said.trim_end());
        }
        output::talk(&format!("Output: crewkit runs output {}", runs_text::short(id)));
    }
    Ok(if status["status"] == "completed" { Exit::Ok } else { Exit::Failed })
}

/// Leaves the run working after the first Ctrl-C; stops it if a second one comes. A run of this process ends with it.
async fn interrupted(
    session: &Session,
    id: &str,
    mut interrupts: Interrupts,
    json: bool,
) -> Result<Exit, Failure> {
    let short = runs_text::short(id);
    if session.is_in_process() {
        output::talk(&format!(
            "Stopping run {short}, which works in this process. Go on with it: crewkit runs resume {short}"
        ));
        return Ok(Exit::Interrupted);
    }
    output::talk(&format!(
        "Still working in the background. Follow: crewkit runs output {short} --follow · stop: press Ctrl-C again"
    ));
    tokio::select! {
        () = tokio::time::sleep(STOP_WINDOW) => return Ok(Exit::Interrupted),
        () = interrupts.next() => {}
    }
    session.run("agent_stop", json!({"agent_id": id})).await?;
    result(session, id, json).await
}

async fn status(session: &Session, id: &str) -> Result<Value, Failure> {
    let mut body = session.run("agent_status", json!({"agent_ids": [id]})).await?;
    let status = body["result"][0].take();
    if status["status"].is_null() {
        return Err(Failure::new(Code::AgentNotFound, field(&status, "error")));
    }
    Ok(status)
}
