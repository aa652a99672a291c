use super::*;

fn at(second: i64) -> Moment {
    Moment::new(jiff::Timestamp::from_second(1_000_000 + second).unwrap())
}

fn report(second: i64, state: &str, message: &str) -> Report {
    Report {
        id: format!("r{second}"),
        at: at(second),
        state: state.to_owned(),
        message: message.to_owned(),
        uri: String::new(),
        needs_attention: false,
    }
}

fn reports(rows: &[(i64, &str, &str)]) -> Vec<Report> {
    rows.iter().map(|(second, state, message)| report(*second, state, message)).collect()
}

fn context(busy: bool, interventions: &[Intervention]) -> Context<'_> {
    Context {
        agent_name: "papi",
        workspace_id: "w",
        created_at: at(-10),
        spec: "the spec",
        since: at(0),
        is_first_build: true,
        doing: if busy { Doing::Works } else { Doing::Rests },
        interventions,
    }
}

/// `message status start-end` per row, newest first.
fn shown(tasks: &[Task]) -> Vec<String> {
    let second = |moment: Moment| moment.timestamp().as_second() - 1_000_000;
    tasks
        .iter()
        .map(|task| {
            let end = task.completed_at.map_or_else(|| "…".to_owned(), |end| second(end).to_string());
            format!("{} {:?} {}-{end}", task.message, task.status, second(task.created_at)).to_lowercase()
        })
        .collect()
}

#[test]
fn rows_are_sorted_joined_and_ended_by_what_follows() {
    let rows = reports(&[
        (30, "working", "b"),
        (10, "working", ""),
        (20, "working", "a"),
        (25, "idle", "a"),
        (35, "working", ""),
        (40, "complete", "c"),
        (50, "working", "d"),
    ]);
    assert_eq!(
        shown(&tidy(&rows, &context(true, &[]))),
        ["d running 50-…", "c completed 40-40", "b completed 30-40", "a completed 20-25"]
    );
    assert_eq!(raw(&rows, &context(true, &[])).len(), 7);
}

#[test]
fn a_working_row_runs_only_while_the_agent_is_busy_and_the_row_is_fresh() {
    let rows = reports(&[(10, "working", "a")]);
    assert_eq!(shown(&tidy(&rows, &context(true, &[]))), ["a running 10-…"]);
    assert_eq!(shown(&tidy(&rows, &context(false, &[]))), ["a completed 10-10"]);
    let restarted = Context { since: at(11), ..context(true, &[]) };
    assert_eq!(shown(&tidy(&rows, &restarted)), ["a completed 10-10"]);
}

#[test]
fn idle_that_flickers_back_to_working_does_not_end_the_task() {
    let rows = reports(&[(10, "working", "a"), (20, "idle", ""), (30, "working", "")]);
    assert_eq!(shown(&tidy(&rows, &context(true, &[]))), ["a running 10-…"]);
}

#[test]
fn empty_rows_stay_when_there_is_nothing_else() {
    let rows = reports(&[(10, "working", ""), (20, "idle", "")]);
    assert_eq!(shown(&tidy(&rows, &context(false, &[]))), [" completed 10-20"]);
    assert_eq!(tidy(&[], &context(false, &[])), []);
}

#[test]
fn failure_asks_for_a_person() {
    let rows = reports(&[(10, "failure", "broken")]);
    let tasks = tidy(&rows, &context(false, &[]));
    assert_eq!((tasks[0].status, tasks[0].needs_user_attention), (TaskStatus::Failed, true));
}

#[test]
fn a_start_is_a_row_until_a_report_takes_its_place() {
    let source = TaskSource::AiController;
    let start = [Intervention::Started { at: at(15), text: "do it".to_owned(), source, id: None }];
    let before = tidy(&reports(&[(10, "idle", "a")]), &context(true, &start));
    assert_eq!(shown(&before), ["do it running 15-…", "a completed 10-10"]);
    assert_eq!((before[0].source, before[0].id.as_str()), (TaskSource::AiController, "w:1000015000"));

    let after = tidy(&reports(&[(10, "idle", "a"), (20, "working", "doing it")]), &context(true, &start));
    assert_eq!(shown(&after), ["doing it running 20-…", "a completed 10-10"]);
    assert_eq!((after[0].source, &after[0].id), (TaskSource::AiController, &before[0].id));
    let rested = tidy(&reports(&[(10, "idle", "a")]), &context(false, &start));
    assert_eq!(shown(&rested)[0], "do it completed 15-15", "an agent at rest runs nothing");
    assert_eq!(after[1].source, TaskSource::Agent);
}

#[test]
fn an_interrupted_task_is_stopped_not_completed() {
    let stop = [Intervention::Stopped { at: at(15) }];
    let rows = reports(&[(10, "working", "a"), (16, "idle", ""), (30, "working", "b")]);
    assert_eq!(shown(&tidy(&rows, &context(true, &stop))), ["b running 30-…", "a stopped 10-15"]);
}

#[test]
fn two_hundred_fifty_rows_page_without_loss() {
    let rows: Vec<Report> = (0..250).map(|n| report(n + 1, "working", &format!("step {n}"))).collect();
    let all = tidy(&rows, &context(true, &[]));
    assert_eq!(all.len(), 250);
    let pages: Vec<Task> = (1..=13).flat_map(|page| Page::of(all.clone(), page, 20).items).collect();
    assert_eq!(pages, all);
    let last = Page::of(all.clone(), 13, 20);
    assert_eq!(
        (last.items.len(), last.total_pages, last.has_next(), last.has_previous()),
        (10, 13, false, true)
    );
    let beyond = Page::of(all, 99, 20);
    assert!(beyond.items.is_empty() && !beyond.has_next());
}

#[test]
fn pull_requests_are_told_from_other_links() {
    let with_uri = |second, uri: &str| Report { uri: uri.to_owned(), ..report(second, "working", "x") };
    let rows = [
        with_uri(1, "https://git.example/o/r/pull/7"),
        with_uri(3, "https://git.example/o/r/-/merge_requests/12"),
        with_uri(2, "https://git.example/o/r/pull/8"),
        with_uri(9, "https://git.example/o/r/pull/new"),
        with_uri(10, "file:///pull/3"),
    ];
    assert_eq!(pull_request_url(&rows), Some("https://git.example/o/r/-/merge_requests/12"));
}
