//! What an agent puts into its workspace to hold the server up, to fool it, or to have it run something.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crewkit_fleet::metadata::sandbox::Sandbox;
use crewkit_fleet::model::{CreateAgent, ListAgents, WaitForAgent};

use super::local::{World, git};
use super::support::{checked, json as to_json, named};

/// Longer than anything here takes, and shorter than git may take: what waits for git to be ended is late.
const LATE: Duration = Duration::from_mins(1);

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LATE, work).await.unwrap_or_else(|_| panic!("{what} waits"))
}

fn fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
}

/// A fleet whose git may take longer than this test does.
async fn world() -> World {
    World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        let environment = options.settings.run.environment.clone();
        options.git = crewkit_fleet::backend::local::git::Git::new("git", environment, LATE * 2);
    })
    .await
}

/// Looks at the agent in every way, deletes it, and tells what the deletion said.
async fn seen_and_deleted(world: &World, name: &str, what: &str) -> String {
    in_time(what, world.fleet.list_agents(ListAgents::default())).await.unwrap();
    in_time(what, world.fleet.show_agent(named(name))).await.unwrap();
    let wait = WaitForAgent { agent_name: name.to_owned(), status: None, timeout_seconds: Some(60) };
    in_time(what, world.fleet.wait_for_agent(wait)).await.unwrap();
    let deleted = in_time(what, world.fleet.delete_agent(named(name))).await.unwrap();
    to_json(&deleted)["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipes_in_place_of_files_that_are_read_hold_nobody_up() {
    let world = world().await;
    let places =
        ["Taskfile.yml", ".gitignore", ".gitattributes", ".gitmodules", "deep/er/.gitignore", ".git"];
    for (number, place) in places.into_iter().enumerate() {
        let name = format!("agent{number}");
        world.create(&name, "first thing").await;
        world.until(&name, "idle").await;
        let workspace = world.workspace(&name);
        let path = workspace.join(place);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        fifo(&path);
        let message = seen_and_deleted(&world, &name, place).await;
        assert!(!workspace.exists(), "{place}");
        if place.starts_with(".git") && place != ".git" || place.starts_with("deep") {
            assert!(message.contains("its files are in") && message.contains("pipe"), "{place}: {message}");
            let trashed = message.split("its files are in ").nth(1).unwrap().split(" until").next().unwrap();
            let kept = std::fs::read_to_string(Path::new(trashed).join("done.txt")).unwrap();
            assert_eq!(kept, "first thing\n", "{place}");
            assert!(std::fs::symlink_metadata(Path::new(trashed).join(place)).unwrap().file_type().is_fifo());
        } else {
            assert!(message.contains("its work, with what was not committed"), "{place}: {message}");
        }
        // Others of the project are not touched by it.
        world.create("other", "second thing").await;
        world.until("other", "idle").await;
        in_time(place, world.fleet.delete_agent(named("other"))).await.unwrap();
    }
    in_time("the end", world.fleet.backend().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worktree_full_of_traps_neither_holds_up_the_end_of_the_server_nor_lists_of_others() {
    let world = world().await;
    for number in 0..6 {
        let name = format!("trap{number}");
        world.create(&name, "first thing").await;
        world.until(&name, "idle").await;
        fifo(&world.workspace(&name).join(".gitignore"));
        fifo(&world.workspace(&name).join("Taskfile.yml"));
    }
    world.create("good", "first thing").await;
    world.until("good", "idle").await;
    let list = in_time("a list", world.fleet.list_agents(ListAgents::default())).await.unwrap();
    let good =
        to_json(&list)["agents"].as_array().unwrap().iter().find(|agent| agent["name"] == "good").cloned();
    assert_eq!(good.unwrap()["git"]["branch"], "crewkit/good");
    in_time("the end", world.fleet.backend().shutdown()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_directories_links_and_huge_files_in_those_places_cost_nothing_but_metadata() {
    type Plant = fn(&Path);
    let plants: [(&str, Plant); 6] = [
        ("sockets", |dir| {
            for name in ["Taskfile.yml", ".gitignore", ".gitattributes"] {
                std::os::unix::net::UnixListener::bind(dir.join(name)).unwrap();
            }
        }),
        ("directories", |dir| {
            for name in ["Taskfile.yml", ".gitignore", ".gitattributes", ".gitmodules"] {
                std::fs::create_dir(dir.join(name)).unwrap();
            }
        }),
        ("endless", |dir| {
            for name in ["Taskfile.yml", ".gitignore", ".gitattributes", ".gitmodules"] {
                symlink("/dev/zero", dir.join(name)).unwrap();
            }
        }),
        ("terminal", |dir| {
            for name in ["Taskfile.yml", ".gitignore"] {
                symlink("/dev/tty", dir.join(name)).unwrap();
            }
        }),
        ("huge", |dir| {
            for name in ["Taskfile.yml", ".gitignore", ".gitattributes"] {
                std::fs::File::create(dir.join(name)).unwrap().set_len(1 << 40).unwrap();
            }
        }),
        ("loops", |dir| {
            for name in ["Taskfile.yml", ".gitignore", ".gitattributes"] {
                symlink(name, dir.join(name)).unwrap();
            }
            std::fs::remove_file(dir.join(".git")).unwrap();
            symlink("/", dir.join(".git")).unwrap();
        }),
    ];
    let world = world().await;
    for (what, plant) in plants {
        world.create(what, "first thing").await;
        world.until(what, "idle").await;
        let workspace = world.workspace(what);
        plant(&workspace);
        let message = seen_and_deleted(&world, what, what).await;
        assert!(!workspace.exists(), "{what}");
        // Whatever is there, the work that was done is on a branch or in the trash.
        assert!(message.contains("its work") || message.contains("its files are in"), "{what}: {message}");
    }
    in_time("the end", world.fleet.backend().shutdown()).await;
}

/// Where nothing confines the commands of a Taskfile they are not run, and git speaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_confinement_a_taskfile_is_not_run() {
    let world = world().await;
    world.create("papi", "first thing").await;
    world.until("papi", "idle").await;
    let workspace = world.workspace("papi");
    let proof = workspace.join("proof");
    let taskfile =
        format!("tasks:\n  x: {{meta: {{include_in_list: true}}, cmds: ['touch {}']}}\n", proof.display());
    std::fs::write(workspace.join("Taskfile.yml"), taskfile).unwrap();
    let shown = world.fleet.show_agent(named("papi")).await.unwrap().agent;
    assert_eq!(shown.git.unwrap().branch.as_deref(), Some("crewkit/papi"));
    assert_eq!(shown.metadata["taskfile"]["error"], "nothing here can confine its commands");
    let list = to_json(&world.fleet.list_agents(ListAgents::default()).await.unwrap());
    assert_eq!(list["agents"][0]["git"]["branch"], "crewkit/papi");
    assert!(!proof.exists());
}

/// A script that leaves a proof when it is run.
fn evil(dir: &Path) -> (PathBuf, PathBuf) {
    let (script, proof) = (dir.join("evil.sh"), dir.join("proof"));
    std::fs::write(&script, format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\ncat\n", proof.display())).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (script, proof)
}

/// What a program of a repository would be run for, as configuration.
fn evil_config(script: &Path) -> String {
    let run = script.display();
    format!(
        "[core]\nfsmonitor = {run}\npager = {run}\nsshCommand = {run}\nhooksPath = {}\neditor = {run}\n\
         [diff]\nexternal = {run}\n[diff \"evil\"]\ntextconv = {run}\ncommand = {run}\n\
         [filter \"evil\"]\nclean = {run}\nsmudge = {run}\nprocess = {run}\nrequired = true\n\
         [gpg]\nprogram = {run}\n[credential]\nhelper = {run}\n[alias]\nstatus = !{run}\n\
         [include]\npath = {run}.more\n",
        script.parent().unwrap().display()
    )
}

/// An agent that can write nothing but its workspace puts repositories of its own there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repositories_that_an_agent_puts_into_its_workspace_run_nothing() {
    let world = world().await;
    let repository = world.repository();
    let outside = tempfile::tempdir().unwrap();
    // The project has a submodule, whose place in the workspace is empty at first.
    let library = outside.path().join("library");
    std::fs::create_dir(&library).unwrap();
    git(&library, &["init", "-q", "-b", "main"]);
    std::fs::write(library.join("lib.txt"), "lib\n").unwrap();
    git(&library, &["add", "."]);
    git(&library, &["commit", "-q", "-m", "lib"]);
    let from = library.to_str().unwrap();
    git(&repository, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", from, "sub"]);
    git(&repository, &["commit", "-q", "-m", "with a submodule"]);
    assert!(git(&repository, &["ls-files", "--stage", "sub"]).starts_with("160000"), "there is a submodule");

    let (script, proof) = evil(outside.path());
    std::fs::write(outside.path().join("evil.sh.more"), "[core]\nfsmonitor = x\n").unwrap();
    for hook in ["post-checkout", "post-index-change", "reference-transaction", "pre-commit"] {
        std::fs::copy(&script, outside.path().join(hook)).unwrap();
    }
    // At the top in place of the `.git` that git made, in the place of the submodule, and somewhere new.
    for (name, place) in [("top", ""), ("cloned", "sub"), ("replaced", "sub"), ("added", "added")] {
        world.create(name, "first thing").await;
        world.until(name, "idle").await;
        let workspace = world.workspace(name);
        let inner = workspace.join(place);
        if place.is_empty() {
            std::fs::remove_file(workspace.join(".git")).unwrap();
        }
        std::fs::create_dir_all(&inner).unwrap();
        if name == "cloned" {
            // At the very commit the project names, so that only its files can tell whether it was changed.
            git(&workspace, &["clone", "-q", from, "sub"]);
        } else {
            git(&inner, &["init", "-q", "-b", "main"]);
            std::fs::write(inner.join("lib.txt"), "lib\n").unwrap();
            git(&inner, &["add", "."]);
            git(&inner, &["commit", "-q", "-m", "inner"]);
        }
        // Of the same size, so that git has to look into it.
        std::fs::write(inner.join("lib.txt"), "bil\n").unwrap();
        std::fs::write(inner.join(".gitattributes"), "* filter=evil diff=evil\n").unwrap();
        std::fs::write(workspace.join("README.md"), "# Two\n").unwrap();
        let config = inner.join(".git/config");
        let text = std::fs::read_to_string(&config).unwrap() + &evil_config(&script);
        std::fs::write(&config, text).unwrap();
        for hook in ["post-checkout", "post-index-change", "reference-transaction", "pre-commit"] {
            std::fs::copy(&script, inner.join(".git/hooks").join(hook)).unwrap();
        }
        let message = seen_and_deleted(&world, name, name).await;
        let said = std::fs::read_to_string(&proof).unwrap_or_default();
        assert!(!proof.exists(), "{name}: {said}");
        assert!(message.contains("its work") || message.contains("its files"), "{name}: {message}");
    }
    in_time("the end", world.fleet.backend().shutdown()).await;
}

/// Whoever makes the first agent in a project is told what that means, and nobody is told twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_agent_of_a_project_says_what_will_run() {
    let world = world().await;
    let create = async |world: &World, name: &str| {
        let new = CreateAgent {
            name: name.to_owned(),
            project: "project one".to_owned(),
            spec: Some("first thing".to_owned()),
            ..CreateAgent::default()
        };
        checked("create_agent", world.fleet.create_agent(new).await.unwrap()).message
    };
    let (one, two) = tokio::join!(create(&world, "one"), create(&world, "two"));
    let says = |message: &str| message.contains("hooks and MCP servers") && message.contains("'Project One'");
    assert_eq!([says(&one), says(&two)].iter().filter(|says| **says).count(), 1, "{one}\n{two}");
    assert!(one.contains("it works in") && two.contains("it works in"), "{one}\n{two}");
    let world = world.reopen().await;
    let three = create(&world, "three").await;
    assert!(!says(&three), "{three}");
    // A failed creation is no creation.
    let other = world.repository().parent().unwrap().join("other");
    std::fs::create_dir(&other).unwrap();
    world.fleet.backend().add_project(&other, None).await.unwrap();
    let new = CreateAgent {
        name: "one".to_owned(),
        project: "other".to_owned(),
        spec: Some("first thing".to_owned()),
        ..CreateAgent::default()
    };
    world.fleet.create_agent(new.clone()).await.unwrap_err();
    let made = world.fleet.create_agent(CreateAgent { name: "four".to_owned(), ..new }).await.unwrap();
    assert!(made.message.contains("first agent in project 'other'"), "{}", made.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_metadata_commands_of_a_killed_server_left_is_removed() {
    let world = World::with(|options| {
        options.settings.driver = Some("fake".to_owned());
        let scratch = options.home.join("scratch");
        options.taskfile_sandbox =
            Ok(Sandbox { helper: vec!["false".into()], environment: Vec::new(), scratch });
    })
    .await;
    let scratch = world.repository().parent().unwrap().join("home/fleet/scratch");
    std::fs::create_dir_all(scratch.join("left/deep")).unwrap();
    symlink(world.repository(), scratch.join("left/link")).unwrap();
    let world = world.reopen().await;
    assert!(!scratch.join("left").exists());
    assert!(world.repository().join("README.md").exists(), "links are not followed");
}
