//! Bringing the work of an agent home: the base is where it was or where it should be, and nobody's file is touched.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crewkit_fleet::backend::local::LocalOptions;
use crewkit_fleet::backend::local::git::Git;
use crewkit_fleet::landing::{LandAgent, LandOutcome, Landing, Move, Strategy};
use crewkit_fleet::{ErrorKind, FleetError};

use super::local::{World, git};
use super::support::detail;

async fn world() -> World {
    world_with(|_| {}).await
}

async fn world_with(adjust: impl FnOnce(&mut LocalOptions)) -> World {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        adjust(options);
    })
    .await;
    let own = "[user]\n\tname = Ada\n\temail = ada@example.org\n";
    std::fs::write(world.repository().with_file_name(".gitconfig"), own).unwrap();
    world.create("papi", "first thing").await;
    world.until("papi", "idle").await;
    world
}

fn input(strategy: Strategy) -> LandAgent {
    LandAgent { agent_name: "papi".to_owned(), strategy: Some(strategy), ..LandAgent::default() }
}

async fn plan(world: &World, strategy: Strategy) -> Landing {
    world.fleet.backend().land(input(strategy)).await.unwrap()
}

async fn apply(world: &World, plan: Landing) -> Result<Landing, FleetError> {
    assert_eq!(plan.outcome, LandOutcome::Planned, "{plan:#?}");
    let again = LandAgent { plan: plan.plan, ..input(plan.strategy) };
    world.fleet.backend().land(again).await
}

async fn land(world: &World, strategy: Strategy) -> Landing {
    let planned = plan(world, strategy).await;
    apply(world, planned).await.unwrap()
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn commit(dir: &Path, name: &str, text: &str) {
    write(dir, name, text);
    git(dir, &["add", name]);
    git(dir, &["commit", "-q", "-m", &format!("add {name}")]);
}

/// Everything of a repository that somebody would miss: branches, files of the checkout and what git says of them.
fn state(repository: &Path) -> (String, String, Vec<PathBuf>) {
    let refs = git(repository, &["for-each-ref", "--format=%(refname) %(objectname)"]);
    let admin = PathBuf::from(git(repository, &["rev-parse", "--absolute-git-dir"]).trim());
    let mut locks: Vec<PathBuf> = std::fs::read_dir(&admin).unwrap().flatten().map(|it| it.path()).collect();
    locks.retain(|path| path.extension().is_some_and(|it| it == "lock") || path.ends_with("MERGE_HEAD"));
    let status = if git(repository, &["rev-parse", "--is-bare-repository"]).trim() == "true" {
        String::new()
    } else {
        git(repository, &["status", "--porcelain", "--ignored"])
    };
    (refs, status, locks)
}

fn parents(repository: &Path) -> usize {
    git(repository, &["rev-list", "--parents", "-n", "1", "main"]).split_whitespace().count() - 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_lands_in_the_users_name_by_each_strategy_and_a_plan_changes_nothing() {
    for (strategy, most_parents, added) in
        [(Strategy::Merge, 2, 4), (Strategy::Squash, 1, 1), (Strategy::Rebase, 1, 3)]
    {
        let world = world().await;
        let (workspace, repository) = (world.workspace("papi"), world.repository());
        commit(&workspace, "one", "1\n");
        commit(&workspace, "two", "2\n");
        commit(&repository, "elsewhere", "x\n");
        let before = state(&repository);
        let objects = git(&repository, &["count-objects"]);
        let planned = plan(&world, strategy).await;
        assert_eq!((before.clone(), objects), (state(&repository), git(&repository, &["count-objects"])));
        assert_eq!((planned.how, planned.commits, planned.uncommitted), (Move::Checkout, 2, true));
        assert_eq!((planned.changed_files, planned.committer.as_str()), (3, "Ada <ada@example.org>"));
        let tip = git(&repository, &["rev-parse", "main"]);
        let landed = apply(&world, planned).await.unwrap();
        assert_eq!(landed.outcome, LandOutcome::Landed, "{landed:#?}");
        let now = git(&repository, &["rev-parse", "main"]);
        assert_eq!(landed.commit.as_deref(), Some(now.trim()));
        let range = format!("{}..main", tip.trim());
        assert_eq!(git(&repository, &["rev-list", &range]).lines().count(), added, "{strategy:?}");
        assert_eq!(parents(&repository), most_parents);
        let names = git(&repository, &["log", "--format=%cn", &range, "--first-parent"]);
        assert!(names.lines().all(|name| name == "Ada"), "{names}");
        for (file, text) in
            [("one", "1\n"), ("two", "2\n"), ("done.txt", "first thing\n"), ("elsewhere", "x\n")]
        {
            assert_eq!(std::fs::read_to_string(repository.join(file)).unwrap(), text, "{strategy:?} {file}");
        }
        assert_eq!(state(&repository).1, "", "the checkout is clean");
        // Asked again it has nothing to do.
        assert_eq!(plan(&world, strategy).await.outcome, LandOutcome::Nothing);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_refused_when_base_or_agent_moved_since() {
    let world = world().await;
    let (workspace, repository) = (world.workspace("papi"), world.repository());
    let planned = plan(&world, Strategy::Merge).await;
    commit(&repository, "meanwhile", "x\n");
    let before = state(&repository);
    let error = apply(&world, planned).await.unwrap_err();
    assert_eq!((error.kind(), detail(&error, "reason")), (ErrorKind::Conflict, &"plan_moved".into()));
    let planned = plan(&world, Strategy::Squash).await;
    write(&workspace, "later", "x\n");
    let error = apply(&world, planned).await.unwrap_err();
    assert_eq!(detail(&error, "reason"), "plan_moved");
    assert_eq!(before, state(&repository));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_moves_at_the_last_moment_is_left_alone() {
    // A git that moves the base right before the base is to be moved.
    let world = world_with(|options| {
        let path = std::env::var_os("PATH").unwrap();
        let root = options.home.parent().unwrap().parent().unwrap().to_owned();
        let script = root.join("racing-git");
        let text = "#!/bin/sh\nfor word in \"$@\"; do case \"$word\" in update-ref|merge)\n\
                    if test -e \"$HOME/race\"; then rm \"$HOME/race\"; cd \"$HOME/Project One\"\n\
                    git update-ref refs/heads/main \"$(git -c user.name=x -c user.email=x@y \
                    commit-tree -p main -m race main^{tree})\"; cd - >/dev/null; fi;; esac; done\nexec git \"$@\"\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let environment = [("PATH".into(), path), ("HOME".into(), root.into_os_string())];
        options.git = Git::new(script, environment, Duration::from_mins(1));
    })
    .await;
    let repository = world.repository();
    for how in [Move::Checkout, Move::Branch] {
        if how == Move::Branch {
            git(&repository, &["switch", "-q", "-c", "other"]);
        }
        let planned = plan(&world, Strategy::Merge).await;
        assert_eq!(planned.how, how);
        let race = repository.with_file_name("race");
        write(&repository.with_file_name(""), "race", "");
        let error = apply(&world, planned).await.unwrap_err();
        assert!(!race.exists(), "the base did not move in time");
        assert_eq!(detail(&error, "reason"), "plan_moved", "{error}");
        assert_eq!(git(&repository, &["log", "-1", "--format=%s", "main"]).trim(), "race");
        assert!(!repository.join("done.txt").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_files_of_a_checkout_are_not_touched_and_the_result_waits_on_a_branch() {
    let world = world().await;
    let (workspace, repository) = (world.workspace("papi"), world.repository());
    write(&workspace, "README.md", "# One\nby the agent\n");
    // Files that the landing does not change may be changed.
    write(&repository, "unrelated", "mine\n");
    assert_eq!(plan(&world, Strategy::Squash).await.how, Move::Checkout);
    let ignored = repository.join(".git/info/exclude");
    for (file, text) in [("README.md", "mine\n"), ("done.txt", "mine too\n")] {
        write(&repository, file, text);
        let main = git(&repository, &["rev-parse", "main"]);
        let landed = land(&world, Strategy::Squash).await;
        assert_eq!((landed.outcome, landed.how), (LandOutcome::KeptAside, Move::Aside), "{landed:#?}");
        assert_eq!(landed.branch.as_deref(), Some("crewkit/landed/papi"));
        assert_eq!(std::fs::read_to_string(repository.join(file)).unwrap(), text);
        assert_eq!(main, git(&repository, &["rev-parse", "main"]));
        // The same again finds the same branch.
        assert_eq!(land(&world, Strategy::Squash).await.branch, landed.branch);
        if file == "README.md" {
            git(&repository, &["checkout", "-q", "README.md"]);
        }
    }
    // An ignored file is somebody's file, too.
    git(&workspace, &["add", "done.txt"]);
    std::fs::write(ignored, "done.txt\n").unwrap();
    let landed = land(&world, Strategy::Squash).await;
    assert_eq!(landed.outcome, LandOutcome::KeptAside, "{landed:#?}");
    assert_eq!(std::fs::read_to_string(repository.join("done.txt")).unwrap(), "mine too\n");
    std::fs::remove_file(repository.join("done.txt")).unwrap();
    // The command does what it says.
    let command = landed.command.unwrap();
    let done = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(done.status.success(), "{command}: {done:?}");
    assert!(repository.join("done.txt").exists() && repository.join("unrelated").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_is_checked_out_elsewhere_nowhere_or_twice_is_moved_where_that_is_safe() {
    let world = world().await;
    let repository = world.repository();
    let elsewhere = repository.with_file_name("elsewhere");
    let path = elsewhere.to_str().unwrap();
    git(&repository, &["switch", "-q", "-c", "other"]);
    git(&repository, &["worktree", "add", "-q", path, "main"]);
    let planned = plan(&world, Strategy::Merge).await;
    assert_eq!(planned.how, Move::Checkout);
    assert!(planned.message.contains(path), "{}", planned.message);
    git(&repository, &["checkout", "-q", "--ignore-other-worktrees", "main"]);
    let twice = plan(&world, Strategy::Merge).await;
    assert_eq!(twice.how, Move::Aside, "{twice:#?}");
    git(&repository, &["checkout", "-q", "--detach"]);
    std::fs::remove_dir_all(&elsewhere).unwrap();
    let gone = plan(&world, Strategy::Merge).await;
    assert_eq!(gone.how, Move::Aside, "{gone:#?}");
    git(&repository, &["worktree", "prune"]);
    let landed = land(&world, Strategy::Merge).await;
    assert_eq!((landed.outcome, landed.how), (LandOutcome::Landed, Move::Branch));
    assert_eq!(git(&repository, &["show", "main:done.txt"]), "first thing");
    assert!(!repository.join("done.txt").exists(), "files of a checkout of something else stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_that_was_on_no_branch_gets_a_branch_with_the_result() {
    let world = world().await;
    let repository = world.repository();
    git(&repository, &["checkout", "-q", "--detach"]);
    world.create("mami", "second thing").await;
    world.until("mami", "idle").await;
    let before = git(&repository, &["rev-parse", "HEAD", "main"]);
    let mami = LandAgent { agent_name: "mami".to_owned(), ..LandAgent::default() };
    let planned = world.fleet.backend().land(mami.clone()).await.unwrap();
    let landed = world.fleet.backend().land(LandAgent { plan: planned.plan, ..mami }).await.unwrap();
    assert_eq!(landed.branch.as_deref(), Some("crewkit/landed/mami"));
    assert_eq!(before, git(&repository, &["rev-parse", "HEAD", "main"]));
    assert_eq!(git(&repository, &["show", "crewkit/landed/mami:done.txt"]), "second thing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_are_told_file_by_file_and_nothing_is_changed() {
    let world = world().await;
    let (workspace, repository) = (world.workspace("papi"), world.repository());
    commit(&workspace, "README.md", "# Two\n");
    commit(&repository, "README.md", "# Three\n");
    git(&repository, &["rm", "-q", "README.md"]);
    git(&repository, &["commit", "-q", "-m", "gone"]);
    write(&repository, "done.txt", "else\n");
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-q", "-m", "both"]);
    let before = state(&repository);
    for strategy in [Strategy::Merge, Strategy::Squash, Strategy::Rebase] {
        let planned = plan(&world, strategy).await;
        assert_eq!((planned.outcome, &planned.plan), (LandOutcome::Conflicts, &None));
        let told: Vec<_> = planned.conflicts.iter().map(|it| (it.path.as_str(), it.kind.as_str())).collect();
        assert!(told.contains(&("README.md", "modify/delete")), "{told:?}");
        assert!(strategy == Strategy::Rebase || told.len() == 2, "{told:?}");
        assert_eq!(planned.conflicts[0].commit.is_some(), strategy == Strategy::Rebase);
        assert!(planned.task.unwrap().contains("README.md"));
    }
    assert_eq!(before, state(&repository));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_the_repository_are_not_run_but_named() {
    let world = world().await;
    let (workspace, repository) = (world.workspace("papi"), world.repository());
    let ran = repository.with_file_name("ran");
    let evil = repository.with_file_name("evil");
    std::fs::write(&evil, format!("#!/bin/sh\ntouch '{}'\ncat\nexit 0\n", ran.display())).unwrap();
    std::fs::set_permissions(&evil, PermissionsExt::from_mode(0o755)).unwrap();
    let program = evil.to_str().unwrap();
    for (name, value) in [
        ("merge.x.driver", program),
        ("gpg.program", program),
        ("core.fsmonitor", program),
        ("core.sshCommand", program),
        ("diff.external", program),
    ] {
        git(&repository, &["config", name, value]);
    }
    for hook in ["pre-commit", "commit-msg", "post-merge", "reference-transaction", "post-checkout"] {
        std::fs::copy(&evil, repository.join(".git/hooks").join(hook)).unwrap();
    }
    std::fs::create_dir_all(repository.join(".git/info")).unwrap();
    write(&repository, ".git/info/attributes", "README.md merge=x\n");
    commit(&workspace, "README.md", "# Two\n");
    let _ = std::fs::remove_file(&ran);
    let planned = plan(&world, Strategy::Merge).await;
    assert_eq!(
        planned.not_run,
        [
            "merge driver `x`",
            "hook `pre-commit`",
            "hook `commit-msg`",
            "hook `post-merge`",
            "hook `reference-transaction`"
        ]
    );
    let landed = apply(&world, planned).await.unwrap();
    assert_eq!(landed.outcome, LandOutcome::Landed, "{landed:#?}");
    assert!(!ran.exists(), "a program of the repository was run");
    // Both sides changed it and its driver is off: that is a conflict, not a choice of one side.
    for hook in ["reference-transaction", "post-checkout", "post-merge", "commit-msg", "pre-commit"] {
        std::fs::remove_file(repository.join(".git/hooks").join(hook)).unwrap();
    }
    git(&repository, &["config", "--unset", "core.fsmonitor"]);
    commit(&repository, "README.md", "# Two\nbase\n");
    commit(&workspace, "README.md", "# Two\nagent\n");
    let _ = std::fs::remove_file(&ran);
    assert_eq!(plan(&world, Strategy::Merge).await.outcome, LandOutcome::Conflicts);
    // Files that a filter of the repository would have to write are not written.
    git(&repository, &["config", "filter.y.smudge", program]);
    write(&workspace, "README.md", "# Two\nbase\nagent\n");
    git(&workspace, &["merge", "-q", "-s", "ours", "main"]);
    assert!(!ran.exists());
    let filtered = plan(&world, Strategy::Merge).await;
    assert_eq!(filtered.how, Move::Aside, "{filtered:#?}");
    assert!(filtered.not_run.contains(&"filter `y`".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn required_signing_that_fails_refuses_whatever_the_repository_says() {
    let world = world().await;
    let repository = world.repository();
    let config = repository.with_file_name(".gitconfig");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = false\n")).unwrap();
    // The agent can reach the configuration of the repository.
    git(&repository, &["config", "commit.gpgSign", "false"]);
    git(&repository, &["config", "gpg.program", "true"]);
    let before = state(&repository);
    for strategy in [Strategy::Merge, Strategy::Squash, Strategy::Rebase] {
        let planned = plan(&world, strategy).await;
        assert!(planned.signed);
        let error = apply(&world, planned).await.unwrap_err();
        assert_eq!(detail(&error, "reason"), "signing", "{error}");
    }
    assert_eq!(before, state(&repository));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_unknown_to_git_is_told_so() {
    let world = world().await;
    std::fs::remove_file(world.repository().with_file_name(".gitconfig")).unwrap();
    let error = world.fleet.backend().land(input(Strategy::Merge)).await.unwrap_err();
    assert_eq!(detail(&error, "reason"), "no_identity");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submodules_and_bare_repositories_land_like_others() {
    let root = tempfile::tempdir().unwrap();
    let inner = root.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "-q", "-b", "main"]);
    commit(&inner, "file", "1\n");
    let world = world().await;
    let (workspace, repository) = (world.workspace("papi"), world.repository());
    let allow = ["-c", "protocol.file.allow=always"];
    git(&workspace, &[&allow[..], &["submodule", "add", "-q", inner.to_str().unwrap(), "sub"]].concat());
    git(&workspace, &["commit", "-q", "-m", "submodule"]);
    let landed = land(&world, Strategy::Merge).await;
    assert_eq!(landed.outcome, LandOutcome::Landed, "{landed:#?}");
    assert!(git(&repository, &["ls-tree", "main", "sub"]).starts_with("160000 commit"));
    // The repository becomes bare: its branch is checked out nowhere any more.
    git(&repository, &["config", "core.bare", "true"]);
    write(&workspace, "more", "x\n");
    let landed = land(&world, Strategy::Squash).await;
    assert_eq!((landed.outcome, landed.how), (LandOutcome::Landed, Move::Branch), "{landed:#?}");
    assert_eq!(git(&repository, &["show", "main:more"]), "x");
}

/// A git that fails at its n-th call, before or after it did what it was told.
fn failing_git(root: &Path) -> Git {
    let script = root.join("failing-git");
    let text = "#!/bin/sh\n\
        test -e \"$HOME/fail\" || exec git \"$@\"\n\
        read -r at when < \"$HOME/fail\"\n\
        echo x >> \"$HOME/calls\"\n\
        test \"$(wc -l < \"$HOME/calls\")\" -eq \"$at\" || exec git \"$@\"\n\
        test \"$when\" = after && git \"$@\" > /dev/null 2>&1 < /dev/null\n\
        kill -9 $$\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let environment =
        [("PATH".into(), std::env::var_os("PATH").unwrap()), ("HOME".into(), root.as_os_str().to_owned())];
    Git::new(script, environment, Duration::from_mins(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_git_that_is_killed_at_any_call_leaves_the_base_where_it_was_or_should_be() {
    let mut world =
        world_with(|options| options.git = failing_git(options.home.parent().unwrap().parent().unwrap()))
            .await;
    let repository = world.repository();
    let root = repository.parent().unwrap().to_owned();
    let mut kills = 0;
    for when in ["before", "after"] {
        for at in 1.. {
            let file = format!("{when}-{at}");
            write(&world.workspace("papi"), &file, &format!("{when} {at}\n"));
            let planned = plan(&world, Strategy::Merge).await;
            let (before, want) = (state(&repository), format!("{when} {at}\n"));
            let _ = std::fs::remove_file(root.join("calls"));
            write(&root, "fail", &format!("{at} {when}\n"));
            let outcome = apply(&world, planned).await;
            std::fs::remove_file(root.join("fail")).unwrap();
            let calls = std::fs::read_to_string(root.join("calls")).unwrap().lines().count();
            let (refs, status, locks) = state(&repository);
            assert_eq!((status.as_str(), locks.len()), ("", 0), "{at} {when}: {outcome:?}");
            let landed = std::fs::read_to_string(repository.join(&file)).is_ok_and(|text| text == want);
            if outcome.as_ref().is_ok_and(|it| it.outcome == LandOutcome::Landed) || landed {
                assert_eq!(git(&repository, &["show", &format!("main:{file}")]), want.trim(), "{at} {when}");
            } else if outcome.as_ref().is_ok_and(|it| it.outcome == LandOutcome::KeptAside) {
                // Only git's own last step failed: the result waits, and the base is where it was.
                git(&repository, &["branch", "-q", "-D", "crewkit/landed/papi"]);
                assert_eq!(before.0, state(&repository).0, "{at} {when}");
            } else {
                assert_eq!(before.0, refs, "{at} {when}: {outcome:?}");
            }
            if calls < at {
                assert!(landed, "without a failure it lands: {outcome:?}");
                break;
            }
            kills += 1;
        }
        // What a killed server left in its home goes when the next one starts.
        world = world.reopen().await;
    }
    assert!(kills > 20, "{kills}");
    let scratch = root.join("home/fleet/snapshots");
    assert_eq!(std::fs::read_dir(scratch).map_or(0, Iterator::count), 0);
}
