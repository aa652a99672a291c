//! What an agent has changed, as it is shown: whatever it put into its workspace.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crewkit_fleet::ErrorKind;
use crewkit_fleet::changes::{AgentDiff, DiffQuery, FileDiff, FileStatus, LineKind};

use super::local::{World, git};
use super::support::{detail, refused};

fn query(agent: &str) -> DiffQuery {
    DiffQuery { agent_name: agent.to_owned(), ..DiffQuery::default() }
}

async fn world() -> World {
    let world = World::new().await;
    world.create("papi", "first thing").await;
    world.until("papi", "idle").await;
    world
}

async fn diff(world: &World) -> AgentDiff {
    world.fleet.backend().diff(query("papi")).await.unwrap()
}

fn file<'a>(diff: &'a AgentDiff, path: &str) -> &'a FileDiff {
    let found = diff.files.iter().find(|file| file.path == path);
    found.unwrap_or_else(|| panic!("{path} is not in {diff:#?}"))
}

fn scratch_is_empty(world: &World) -> bool {
    let home = world.repository().with_file_name("home").join("fleet/snapshots");
    std::fs::read_dir(home).map_or(0, Iterator::count) == 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_and_uncommitted_work_is_shown_against_the_base_and_nothing_is_left_or_changed() {
    let world = world().await;
    let workspace = world.workspace("papi");
    std::fs::write(workspace.join("README.md"), "# One\nmore\n").unwrap();
    git(&workspace, &["mv", "README.md", "READ.md"]);
    git(&workspace, &["commit", "-q", "-a", "-m", "renamed"]);
    std::fs::write(workspace.join("staged"), "1\n").unwrap();
    git(&workspace, &["add", "staged"]);
    std::fs::write(workspace.join("binary"), [0, 1, 2]).unwrap();
    // What the base gains meanwhile is no change of the agent.
    std::fs::write(world.repository().join("elsewhere"), "x").unwrap();
    git(&world.repository(), &["add", "."]);
    git(&world.repository(), &["commit", "-q", "-m", "meanwhile"]);
    let before = (git(&workspace, &["status", "--porcelain"]), git(&workspace, &["count-objects"]));
    let diff = diff(&world).await;
    assert_eq!(diff.base.branch.as_deref(), Some("main"));
    assert_eq!(diff.base.commit, Some(git(&world.repository(), &["rev-parse", "main~1"])));
    assert_eq!(diff.head, Some(git(&workspace, &["rev-parse", "HEAD"])));
    assert!(diff.uncommitted && diff.next.is_none() && diff.unreadable.is_empty(), "{diff:#?}");
    let paths: Vec<_> = diff.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["READ.md", "binary", "done.txt", "staged"]);
    let renamed = file(&diff, "READ.md");
    assert_eq!((renamed.status, renamed.old_path.as_deref()), (FileStatus::Renamed, Some("README.md")));
    let lines: Vec<_> = renamed.lines.iter().map(|line| (line.kind, line.new, line.text.as_str())).collect();
    assert_eq!(lines, [(LineKind::Context, Some(1), "# One"), (LineKind::Added, Some(2), "more")]);
    let binary = file(&diff, "binary");
    assert_eq!((binary.binary, binary.size, binary.lines.len()), (true, Some(3), 0));
    assert_eq!((diff.total_files, diff.additions, diff.deletions), (4, 3, 0));
    let after = (git(&workspace, &["status", "--porcelain"]), git(&workspace, &["count-objects"]));
    assert_eq!(before, after, "looking changes neither the index nor the objects of the repository");
    for _ in 0..200 {
        if scratch_is_empty(&world) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("something is left in the home");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_change_comes_in_parts_that_are_the_whole_and_ids_outlive_other_changes() {
    let world = world().await;
    let workspace = world.workspace("papi");
    let lines = |range: std::ops::Range<u32>| {
        range.map(|n| format!("line {n} {}\n", "x".repeat(60))).collect::<String>()
    };
    std::fs::write(workspace.join("a"), lines(0..2000)).unwrap();
    std::fs::write(workspace.join("b"), lines(0..500)).unwrap();
    std::fs::write(workspace.join("long"), "y".repeat(1_000_000)).unwrap();
    let (mut after, mut found, mut answers) = (None, Vec::new(), 0);
    loop {
        let part =
            world.fleet.backend().diff(DiffQuery { after: after.clone(), ..query("papi") }).await.unwrap();
        assert!(serde_json::to_string(&part).unwrap().len() < 150_000);
        answers += 1;
        for file in part.files {
            found.extend(file.lines.into_iter().map(|line| (file.path.clone(), line)));
        }
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert!(answers > 3, "{answers}");
    let of =
        |path: &str| found.iter().filter(|(name, _)| name == path).map(|(_, line)| line).collect::<Vec<_>>();
    assert_eq!((of("a").len(), of("b").len(), of("long").len()), (2000, 500, 1));
    assert!(of("a").iter().zip(1..).all(|(line, number)| line.new == Some(number)));
    assert!(of("long")[0].cut && of("long")[0].text.len() == 2048);
    let first = world.fleet.backend().diff(query("papi")).await.unwrap();
    let cursor = first.next.clone();
    let names = DiffQuery { names_only: Some(true), ..query("papi") };
    let names = world.fleet.backend().diff(names).await.unwrap();
    assert!(
        names.files.len() == 4
            && names.next.is_none()
            && names.files.iter().all(|file| file.lines.is_empty())
    );
    // One line more at the top: the others keep their ids.
    let id = of("a")[7].id.clone();
    std::fs::write(workspace.join("a"), format!("new\n{}", lines(0..2000))).unwrap();
    let only = DiffQuery { file: Some("a".to_owned()), ..query("papi") };
    let moved = world.fleet.backend().diff(only).await.unwrap();
    assert_eq!((moved.files.len(), &moved.files[0].lines[8].id), (1, &id));
    assert_ne!(moved.diff_id, first.diff_id);
    let stale = world.fleet.backend().diff(DiffQuery { after: cursor, ..query("papi") }).await;
    let error = stale.unwrap_err();
    assert_eq!((error.kind(), detail(&error, "reason")), (ErrorKind::Conflict, &"diff_moved".into()));
    let wrong = world.fleet.backend().diff(DiffQuery { after: Some("x".to_owned()), ..query("papi") }).await;
    assert_eq!(detail(&wrong.unwrap_err(), "field"), "after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_an_agent_leaves_holds_up_a_look_or_is_run_by_it() {
    let world = world().await;
    let workspace = world.workspace("papi");
    let ran = world.repository().with_file_name("ran");
    let evil = world.repository().with_file_name("evil");
    std::fs::write(&evil, format!("#!/bin/sh\ntouch '{}'\ncat\n", ran.display())).unwrap();
    std::fs::set_permissions(&evil, PermissionsExt::from_mode(0o755)).unwrap();
    let evil = evil.to_str().unwrap();
    for name in [
        "filter.x.clean",
        "filter.x.smudge",
        "diff.x.textconv",
        "diff.x.command",
        "diff.external",
        "core.fsmonitor",
    ] {
        git(&workspace, &["config", name, evil]);
    }
    git(&workspace, &["config", "color.ui", "always"]);
    std::fs::write(workspace.join(".gitattributes"), "* filter=x diff=x\n").unwrap();
    let fifo = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    std::fs::remove_file(workspace.join("README.md")).unwrap();
    fifo(&workspace.join("README.md"));
    fifo(&workspace.join("pipe"));
    symlink("/dev/zero", workspace.join("endless")).unwrap();
    symlink("/etc/passwd", workspace.join("outside")).unwrap();
    std::fs::write(workspace.join("secret"), "s").unwrap();
    std::fs::set_permissions(workspace.join("secret"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::File::create(workspace.join("huge")).unwrap().set_len(50_000_000).unwrap();
    std::fs::write(workspace.join("text"), "a\u{1b}[31m\n".repeat(1_000_000)).unwrap();
    std::fs::write(workspace.join(std::ffi::OsStr::from_bytes(b"no\xfftext")), b"\xff\xfe\n").unwrap();
    for name in ["a\nb", "-rf", ":(top)x", "*", "\u{1b}]0;x\u{7}", "@@ -1 +1 @@"] {
        std::fs::write(workspace.join(name), "one\n").unwrap();
    }
    let look = world.fleet.backend().diff(DiffQuery { names_only: Some(true), ..query("papi") });
    let diff = tokio::time::timeout(std::time::Duration::from_mins(1), look).await.unwrap().unwrap();
    assert!(!ran.exists(), "a program of the agent was run");
    assert!(diff.unreadable.iter().any(|line| line.contains("README.md")), "{:?}", diff.unreadable);
    assert!(diff.files.iter().all(|file| file.path != "pipe" && file.path != "README.md"));
    for large in ["huge", "text"] {
        let large = file(&diff, large);
        assert!(large.binary && large.size.is_some_and(|size| size > 4_000_000), "{large:?}");
    }
    let bytes = file(&diff, "no\u{fffd}text");
    for word in
        ["a\nb", "-rf", ":(top)x", "*", "\u{1b}]0;x\u{7}", "@@ -1 +1 @@", "outside", bytes.id.as_str()]
    {
        let only = DiffQuery { file: Some(word.to_owned()), ..query("papi") };
        let only = world.fleet.backend().diff(only).await.unwrap();
        assert_eq!((only.files.len(), only.files[0].lines.len()), (1, 1), "{word:?}");
        let text = only.files[0].lines[0].text.as_str();
        let expected = match word {
            "outside" => "/etc/passwd",
            _ if word == bytes.id => "\u{fffd}\u{fffd}",
            _ => "one",
        };
        assert_eq!(text, expected, "{word:?}");
    }
    let none = DiffQuery { file: Some("nothing".to_owned()), ..query("papi") };
    assert_eq!(detail(&world.fleet.backend().diff(none).await.unwrap_err(), "field"), "file");
    // A pipe where git reads by itself is named before git waits for it.
    std::fs::remove_file(workspace.join(".gitattributes")).unwrap();
    fifo(&workspace.join(".gitattributes"));
    let error = world.fleet.backend().diff(query("papi")).await.unwrap_err();
    assert_eq!((error.kind(), detail(&error, "reason")), (ErrorKind::Unavailable, &"hazard".into()));
    assert!(!ran.exists(), "a program of the agent was run");
    let nobody = world
        .fleet
        .backend()
        .diff(query("nobody"))
        .await
        .map_err(|error| error.with("operation", "agent_diff"));
    refused(ErrorKind::NotFound, nobody);
}
