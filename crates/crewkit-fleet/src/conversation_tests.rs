use super::*;
use crate::model::TaskSource;

fn at(second: i64) -> Moment {
    Moment::new(jiff::Timestamp::from_second(1_000_000 + second).unwrap())
}

fn said(second: i64, kind: LogKind, text: &str) -> LogEntry {
    LogEntry { id: second, kind, content: text.to_owned(), time: Some(at(second)), truncated: false }
}

fn told(second: i64, text: &str) -> LogEntry {
    said(second, LogKind::Input, text)
}

fn answered(second: i64, text: &str) -> LogEntry {
    said(second, LogKind::Output, text)
}

fn reports(rows: &[(i64, &str, &str)]) -> Vec<Report> {
    let report = |(second, state, message): &(i64, &str, &str)| Report {
        id: format!("r{second}"),
        at: at(*second),
        state: (*state).to_owned(),
        message: (*message).to_owned(),
        uri: String::new(),
        needs_attention: false,
    };
    rows.iter().map(report).collect()
}

fn context(busy: bool) -> Context<'static> {
    Context {
        agent_name: "papi",
        workspace_id: "w",
        created_at: at(-10),
        spec: "spec\nwith more",
        since: at(0),
        is_first_build: true,
        doing: if busy { Doing::Works } else { Doing::Rests },
        interventions: &[],
    }
}

/// `summary status start-end` per task, newest first.
fn shown(tasks: &[Task]) -> Vec<String> {
    let second = |moment: Moment| (moment.timestamp().as_second() - 1_000_000).to_string();
    let moment = |moment: Option<Moment>| moment.map_or_else(|| "…".to_owned(), second);
    tasks
        .iter()
        .map(|task| {
            let (start, end) = (moment(task.started_at), moment(task.completed_at));
            format!("{} {:?} {start}-{end}", task.summary, task.status).to_lowercase()
        })
        .collect()
}

/// What a real Coder with its usual reporter has after two tasks: four reports without a word.
#[test]
fn every_message_is_a_task_that_ends_with_the_report_of_rest() {
    let entries = [
        answered(5, "ready"),
        told(10, "spec  with more "),
        answered(18, "done"),
        told(30, "second"),
        answered(31, ""),
    ];
    let rows = reports(&[(12, "working", ""), (20, "idle", ""), (32, "working", "")]);
    let busy = tasks(&entries, &rows, &context(true));
    assert_eq!(shown(&busy), ["second running 30-…", "spec completed 10-20"]);
    assert_eq!((busy[1].id.as_str(), busy[0].id.as_str()), ("w:999990000", "w:1000030000"));
    assert_eq!((busy[1].message.as_str(), busy[0].source), ("spec", TaskSource::Human));

    let rows = reports(&[(12, "working", ""), (20, "idle", ""), (32, "working", ""), (40, "idle", "")]);
    assert_eq!(shown(&tasks(&entries, &rows, &context(false)))[0], "second completed 30-40");
    let silent = tasks(&entries, &[], &context(false));
    assert_eq!(shown(&silent), ["second completed 30-31", "spec completed 10-18"], "by what it said");
}

#[test]
fn the_words_of_reports_are_what_the_agent_said_about_its_task() {
    let entries = [told(10, "spec with more"), told(30, "second")];
    let rows = reports(&[(12, "working", "reading"), (20, "complete", "read it"), (32, "failure", "stuck")]);
    let all = tasks(&entries, &rows, &context(false));
    assert_eq!(shown(&all), ["second failed 30-32", "spec completed 10-20"]);
    assert_eq!((all[1].message.as_str(), all[0].message.as_str()), ("read it", "stuck"));
    assert!(all[0].needs_user_attention && !all[1].needs_user_attention);
}

#[test]
fn a_spec_has_one_row_before_and_after_it_was_read() {
    let pending = tasks(&[], &[], &Context { doing: Doing::MayNotHaveBegun, ..context(false) });
    assert_eq!(shown(&pending), ["spec pending …-…"]);
    let read = tasks(&[told(10, "spec with more")], &[], &context(true));
    assert_eq!(shown(&read), ["spec running 10-…"]);
    assert_eq!(pending[0].id, read[0].id);
    assert_eq!(shown(&tasks(&[], &[], &context(true))), ["spec running -10-…"], "given by argument");
    assert_eq!(shown(&tasks(&[], &[], &context(false))), ["spec completed -10--10"], "never reported");
    assert_eq!(tasks(&[], &[], &Context { spec: "", ..context(false) }), []);
}

#[test]
fn a_task_whose_workspace_was_stopped_is_stopped() {
    let entries = [told(10, "spec with more"), told(30, "second")];
    let rows = reports(&[(12, "working", ""), (20, "idle", ""), (32, "working", "")]);
    let off = Context { doing: Doing::Nothing, since: at(50), is_first_build: false, ..context(false) };
    assert_eq!(shown(&tasks(&entries, &rows, &off))[0], "second stopped 30-50");
    let again = Context { doing: Doing::Rests, ..off };
    assert_eq!(shown(&tasks(&entries, &rows, &again))[0], "second stopped 30-50", "restored, not resumed");
}

#[test]
fn who_gave_a_task_and_who_ended_it_is_what_was_noted() {
    let source = TaskSource::AiController;
    let given = |second, text: &str, id: Option<&str>| Intervention::Started {
        at: at(second),
        text: fingerprint(text),
        source,
        id: id.map(str::to_owned),
    };
    let notes = [
        given(-10, "spec with more", None),
        given(29, "second", Some("kept")),
        Intervention::Stopped { at: at(35) },
    ];
    let entries = [told(10, "spec with more"), told(30, "second"), told(60, "third")];
    let rows = reports(&[(12, "working", ""), (20, "idle", ""), (32, "working", ""), (36, "idle", "")]);
    let all = tasks(&entries, &rows, &Context { interventions: &notes, ..context(false) });
    assert_eq!(shown(&all), ["third completed 60-60", "second stopped 30-35", "spec completed 10-20"]);
    assert_eq!(all.iter().map(|task| task.source).collect::<Vec<_>>(), [TaskSource::Human, source, source]);
    assert_eq!(all[1].id, "kept");
}
