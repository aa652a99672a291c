//! Random histories of a worktree, then its end: nothing that was there may be gone.
//!
//! `CREWKIT_GIT_STATES` sets how many histories are tried; the usual few run with every test, the many at night.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::git::Git;
use super::keep::{Kept, Leaving, take_away};
use super::project::{self, LocalProject};
use super::trash::Trash;
use super::worktree::{self, CopyLimits, Workspace};
use crate::time::Clock;

const USUAL_STATES: u32 = 40;
const LIMITS: CopyLimits = CopyLimits { bytes: 1 << 30, entries: 1 << 20 };

/// Something an agent, or its user, does in a worktree.
#[derive(Debug, Clone)]
enum Step {
    Write(u8, u16),
    WriteIgnored(u8),
    WriteDeep(u8, u16),
    Remove(u8),
    Rename(u8, u8),
    Executable(u8),
    Link(u8),
    Stage(u8),
    StageAll,
    AnnounceOnly(u8),
    Commit,
    Amend,
    Stash,
    Detach,
    NewBranch(u8),
    SwitchBack,
    ConflictingMerge(u16),
    ConflictingRebase(u16),
    PausedRebase,
    DamageIndex,
    InnerRepository { commits: bool },
    BreakLink,
    EmptyDirectory,
    BinaryFile(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..5_u8;
    let step = prop_oneof![
        6 => (file.clone(), any::<u16>()).prop_map(|(file, text)| Step::Write(file, text)),
        1 => file.clone().prop_map(Step::WriteIgnored),
        2 => (file.clone(), any::<u16>()).prop_map(|(file, text)| Step::WriteDeep(file, text)),
        1 => file.clone().prop_map(Step::Remove),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => file.clone().prop_map(Step::Executable),
        1 => file.clone().prop_map(Step::Link),
        3 => file.clone().prop_map(Step::Stage),
        1 => Just(Step::StageAll),
        1 => file.clone().prop_map(Step::AnnounceOnly),
        3 => Just(Step::Commit),
        1 => Just(Step::Amend),
        1 => Just(Step::Stash),
        1 => Just(Step::Detach),
        1 => (0..3_u8).prop_map(Step::NewBranch),
        1 => Just(Step::SwitchBack),
        1 => any::<u16>().prop_map(Step::ConflictingMerge),
        1 => any::<u16>().prop_map(Step::ConflictingRebase),
        1 => Just(Step::PausedRebase),
        1 => Just(Step::DamageIndex),
        1 => any::<bool>().prop_map(|commits| Step::InnerRepository { commits }),
        1 => Just(Step::BreakLink),
        1 => Just(Step::EmptyDirectory),
        1 => file.prop_map(Step::BinaryFile),
    ];
    prop::collection::vec(step, 0..9)
}

/// A repository, a home beside it, and git as a user would run it.
struct World {
    _dir: tempfile::TempDir,
    repository: PathBuf,
    home: PathBuf,
    git: Git,
}

/// The files of a repository that every state begins with.
struct Template(Vec<(PathBuf, Vec<u8>)>);

impl Template {
    fn new() -> Self {
        let world = World::empty();
        let repository = &world.repository;
        // Samples of hooks would only be copied again and again.
        world.user(repository, &["init", "-q", "-b", "main", "--template="]);
        std::fs::write(repository.join(".gitignore"), "*.log\n").unwrap();
        for file in 0..3 {
            std::fs::write(repository.join(format!("file{file}")), format!("base {file}\n")).unwrap();
        }
        world.user(repository, &["add", "."]);
        world.user(repository, &["commit", "-q", "-m", "base"]);
        let mut files = Vec::new();
        collect(&repository.join(".git"), Path::new(".git"), &mut files);
        collect(repository, Path::new(""), &mut files);
        Self(files)
    }
}

impl World {
    fn new() -> Self {
        Self::like(&Template::new())
    }

    fn like(template: &Template) -> Self {
        let world = Self::empty();
        for (path, content) in &template.0 {
            let path = world.repository.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        for empty in ["refs/tags", "hooks", "info"] {
            std::fs::create_dir_all(world.repository.join(".git").join(empty)).unwrap();
        }
        world
    }

    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (repository, home) = (root.join("project"), root.join("home"));
        std::fs::create_dir_all(&repository).unwrap();
        std::fs::create_dir_all(home.join("workspaces")).unwrap();
        let environment = [("PATH".into(), std::env::var_os("PATH").unwrap()), ("HOME".into(), root.into())];
        let git = Git::new("git", environment, Duration::from_mins(1));
        Self { _dir: dir, repository, home, git }
    }

    /// Runs git the way a person or an agent does; whether it succeeds is theirs to know.
    #[expect(clippy::unused_self, reason = "reads as an act of the world at every call")]
    fn user(&self, dir: &Path, arguments: &[&str]) -> Option<String> {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgSign=false"])
            .args(["-c", "protocol.file.allow=always"])
            .args(arguments)
            .current_dir(dir)
            .env("HOME", dir)
            .env("GIT_EDITOR", "true")
            .output()
            .unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn project(&self) -> LocalProject {
        project::look(&self.git, &self.repository, None).await.unwrap()
    }

    async fn workspace(&self, agent: &str) -> Workspace {
        let path = self.home.join("workspaces").join(agent);
        worktree::create(&self.git, &self.project().await, agent, &path, LIMITS).await.unwrap()
    }

    async fn delete(&self, agent: &str, workspace: &Workspace) -> Kept {
        let trash = Trash::new(self.home.join("trash"), Duration::from_hours(24), Clock::system());
        let leaving = Leaving { agent, workspace, project: &self.repository, kit_files: &[] };
        take_away(&self.git, &trash, leaving).await.unwrap()
    }

    fn take(&self, dir: &Path, step: &Step) {
        let file = |number: &u8| dir.join(format!("file{number}"));
        let name = |number: &u8| format!("file{number}");
        match step {
            Step::Write(number, text) => drop(std::fs::write(file(number), format!("{text}\n"))),
            Step::WriteIgnored(number) => drop(std::fs::write(dir.join(format!("{number}.log")), "noise\n")),
            Step::WriteDeep(number, text) => {
                let _ = std::fs::create_dir_all(dir.join("a b/ç"));
                let _ = std::fs::write(dir.join(format!("a b/ç/{number}")), format!("deep {text}\n"));
            }
            Step::Remove(number) => drop(std::fs::remove_file(file(number))),
            Step::Rename(from, to) => drop(std::fs::rename(file(from), file(to))),
            Step::Executable(number) => {
                use std::os::unix::fs::PermissionsExt;
                let _ = std::fs::set_permissions(file(number), std::fs::Permissions::from_mode(0o755));
            }
            Step::Link(number) => {
                let _ = std::fs::remove_file(file(number));
                let _ = std::os::unix::fs::symlink("elsewhere", file(number));
            }
            Step::Stage(number) => drop(self.user(dir, &["add", "--", &name(number)])),
            Step::StageAll => drop(self.user(dir, &["add", "-A"])),
            Step::AnnounceOnly(number) => drop(self.user(dir, &["add", "-N", "--", &name(number)])),
            Step::Commit => drop(self.user(dir, &["commit", "-q", "-m", "work"])),
            Step::Amend => drop(self.user(dir, &["commit", "-q", "--amend", "-m", "work again"])),
            Step::Stash => drop(self.user(dir, &["stash", "-q", "-u"])),
            Step::Detach => drop(self.user(dir, &["checkout", "-q", "--detach"])),
            Step::NewBranch(number) => {
                drop(self.user(dir, &["checkout", "-q", "-b", &format!("feature{number}")]));
            }
            Step::SwitchBack => drop(self.user(dir, &["checkout", "-q", "-"])),
            Step::ConflictingMerge(text) => {
                self.diverge(dir, *text);
                drop(self.user(dir, &["merge", "-q", "--no-edit", "theirs"]));
            }
            Step::ConflictingRebase(text) => {
                self.diverge(dir, *text);
                drop(self.user(dir, &["rebase", "-q", "--autostash", "theirs"]));
            }
            // Stops with HEAD at the commit before the last, which is then nowhere but in the notes of the rebase.
            Step::PausedRebase => {
                let pause = ["-c", "sequence.editor=sed -i 1ibreak", "rebase", "-q", "-i", "HEAD~1"];
                drop(self.user(dir, &pause));
            }
            Step::DamageIndex => {
                if let Some(git_dir) = self.user(dir, &["rev-parse", "--absolute-git-dir"]) {
                    std::fs::write(Path::new(git_dir.trim()).join("index"), "no index").unwrap();
                }
            }
            Step::InnerRepository { commits } => {
                let inner = dir.join("inner");
                if std::fs::create_dir(&inner).is_ok() {
                    self.user(&inner, &["init", "-q"]);
                    std::fs::write(inner.join("precious"), "inner work\n").unwrap();
                    if *commits {
                        self.user(&inner, &["add", "."]);
                        self.user(&inner, &["commit", "-q", "-m", "inner"]);
                    }
                }
            }
            Step::BreakLink => drop(std::fs::remove_file(dir.join(".git"))),
            Step::EmptyDirectory => drop(std::fs::create_dir_all(dir.join("hollow"))),
            Step::BinaryFile(number) => drop(std::fs::write(file(number), [0, 255, 13, 10, *number])),
        }
    }

    /// A branch `theirs` that changed the same file otherwise.
    fn diverge(&self, dir: &Path, text: u16) {
        if !dir.join(".git").exists() {
            return;
        }
        let base = self.user(&self.repository, &["rev-parse", "main"]).unwrap();
        let blob = format!("theirs {text}\n");
        let scratch = self.home.join("theirs");
        std::fs::write(&scratch, blob).unwrap();
        let blob = self.user(&self.repository, &["hash-object", "-w", scratch.to_str().unwrap()]).unwrap();
        let listing = format!("100644 blob {}\tfile0\n", blob.trim());
        let tree = {
            let mut child = Command::new("git")
                .args(["mktree"])
                .current_dir(&self.repository)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(listing.as_bytes()).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        let commit = self
            .user(&self.repository, &["commit-tree", tree.trim(), "-p", base.trim(), "-m", "theirs"])
            .unwrap();
        self.user(&self.repository, &["branch", "-f", "theirs", commit.trim()]);
    }

    /// Every object that some reference leads to.
    fn reachable(&self) -> BTreeSet<String> {
        // The stash is a reference whose older entries are only in its log.
        let listing = self.user(&self.repository, &["rev-list", "--objects", "--all", "-g", "--all"]);
        let listing = listing
            .or_else(|| self.user(&self.repository, &["rev-list", "--objects", "--all"]))
            .unwrap_or_default();
        let mut ids: BTreeSet<String> =
            listing.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        let all = self.user(&self.repository, &["rev-list", "--objects", "--all"]).unwrap();
        ids.extend(all.lines().map(|line| line.split(' ').next().unwrap().to_owned()));
        ids
    }
}

/// What would be lost if a worktree simply vanished.
struct Treasure {
    /// Files with their contents, links with their targets, relative to the worktree; `.git` left out.
    files: Vec<(PathBuf, Vec<u8>)>,
    head: Option<String>,
    /// The commits a rebase, merge or the like that is half done will need.
    half_done: BTreeSet<String>,
    staged: BTreeSet<String>,
    branches: BTreeSet<String>,
    stashes: Option<String>,
}

impl Treasure {
    fn of(world: &World, workspace: &Workspace) -> Self {
        let mut files = Vec::new();
        collect(&workspace.path, Path::new(""), &mut files);
        let checkout = workspace.git.as_ref().unwrap();
        let git_dir = format!("--git-dir={}", checkout.admin_dir.display());
        let tree = format!("--work-tree={}", workspace.path.display());
        let ask = |arguments: &[&str]| {
            world.user(&workspace.path, &[&[git_dir.as_str(), tree.as_str()], arguments].concat())
        };
        let notes = ["MERGE_HEAD", "REBASE_HEAD", "rebase-merge/orig-head", "rebase-merge/autostash"];
        let notes =
            notes.iter().filter_map(|name| std::fs::read_to_string(checkout.admin_dir.join(name)).ok());
        let staged = ask(&["ls-files", "--stage"]).unwrap_or_default();
        let staged = staged.lines().filter(|line| !line.starts_with("160000"));
        // An announced file stands for an empty one, which no commit need hold.
        let empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
        Self {
            files,
            head: ask(&["rev-parse", "--verify", "-q", "HEAD"]).map(|head| head.trim().to_owned()),
            half_done: notes.map(|note| note.trim().to_owned()).collect(),
            staged: staged
                .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
                .filter(|blob| blob != empty)
                .collect(),
            branches: references(world),
            stashes: world.user(&world.repository, &["rev-parse", "-q", "--verify", "refs/stash"]),
        }
    }

    /// Panics when something of it is nowhere any more.
    fn assert_kept(&self, world: &World, workspace: &Workspace, kept: &Kept) {
        assert!(!workspace.path.exists(), "the workspace is still there");
        let reachable = world.reachable();
        if let Some(head) = &self.head {
            assert!(reachable.contains(head), "HEAD {head} is lost; {kept:?}");
        }
        for commit in &self.half_done {
            assert!(reachable.contains(commit), "{commit}, needed by what is half done, is lost; {kept:?}");
        }
        let raw_index_is_kept =
            kept.trashed.as_ref().is_some_and(|t| t.path.with_extension("git").join("index").exists());
        for blob in &self.staged {
            let known = reachable.contains(blob);
            // When nothing could be committed the index itself is kept beside the files.
            assert!(
                known || (raw_index_is_kept && !kept.saved_changes),
                "staged blob {blob} is lost; {kept:?}"
            );
        }
        let stashes = world.user(&world.repository, &["rev-parse", "-q", "--verify", "refs/stash"]);
        assert_eq!(self.stashes, stashes, "the stash changed");
        let own = workspace.git.as_ref().unwrap().branch.clone();
        for branch in &self.branches {
            let tip = branch.split(' ').next().unwrap();
            assert!(reachable.contains(tip), "branch {branch} is lost");
            if !branch.ends_with(&format!(" refs/heads/{own}")) {
                assert!(references(world).contains(branch), "branch {branch} was touched");
            }
        }
        let in_trash = |(path, content): &&(PathBuf, Vec<u8>)| {
            let trashed = kept.trashed.as_ref();
            trashed.is_some_and(|trashed| contents(&trashed.path.join(path)).as_ref() == Some(content))
        };
        let elsewhere: Vec<_> = self.files.iter().filter(|file| !in_trash(file)).collect();
        let commits: Vec<&String> = kept.branches.iter().chain(&self.head).collect();
        let objects: Vec<String> = elsewhere
            .iter()
            .flat_map(|(path, _)| commits.iter().map(move |commit| format!("{commit}:{}", path.display())))
            .collect();
        let found = blobs(world, &objects);
        for (number, (path, content)) in elsewhere.into_iter().enumerate() {
            let mut places = found.iter().skip(number * commits.len()).take(commits.len());
            let is_kept = places.any(|found| found.as_ref() == Some(content));
            assert!(is_kept, "{} is lost; {kept:?}", path.display());
        }
    }
}

fn references(world: &World) -> BTreeSet<String> {
    let listing =
        world.user(&world.repository, &["for-each-ref", "--format=%(objectname) %(refname)", "refs/heads"]);
    listing.unwrap_or_default().lines().map(str::to_owned).collect()
}

fn collect(dir: &Path, below: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if path == Path::new(".git") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &path, files);
        } else {
            files.push((path, contents(&entry.path()).unwrap()));
        }
    }
}

/// The bytes of a file, or where a link leads.
fn contents(path: &Path) -> Option<Vec<u8>> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    if metadata.is_symlink() {
        return Some(std::fs::read_link(path).ok()?.into_os_string().into_encoded_bytes());
    }
    std::fs::read(path).ok()
}

fn in_commit(world: &World, commit: &str, path: &Path) -> Option<Vec<u8>> {
    blobs(world, &[format!("{commit}:{}", path.display())]).remove(0)
}

/// The contents of objects, asked for in one go: thousands of states make hundreds of thousands of questions.
fn blobs(world: &World, objects: &[String]) -> Vec<Option<Vec<u8>>> {
    if objects.is_empty() {
        return Vec::new();
    }
    let mut git = Command::new("git")
        .args(["cat-file", "--batch"])
        .current_dir(&world.repository)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = git.stdin.take().unwrap();
    let asked = objects.join("\n") + "\n";
    let asking = std::thread::spawn(move || questions.write_all(asked.as_bytes()));
    let answers = git.wait_with_output().unwrap().stdout;
    asking.join().unwrap().unwrap();
    let mut rest = answers.as_slice();
    let blob = |object: &String| {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let header = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 1..];
        if header.ends_with(" missing") {
            return None;
        }
        let mut words = header.rsplit(' ');
        let size: usize = words.next().unwrap().parse().unwrap_or_else(|_| panic!("{object}: {header}"));
        let content = rest[..size].to_vec();
        rest = &rest[size + 1..];
        (words.next() == Some("blob")).then_some(content)
    };
    objects.iter().map(blob).collect()
}

/// Histories are tried in lanes, each from a seed of its own, so that they can be tried side by side and always are the
/// same.
const LANES: u8 = 8;

#[test]
fn deleting_a_workspace_in_any_state_loses_nothing() {
    let states: u32 =
        std::env::var("CREWKIT_GIT_STATES").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL_STATES);
    let template = Template::new();
    let next_lane = AtomicU8::new(0);
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let lane @ 0..LANES = next_lane.fetch_add(1, Ordering::Relaxed) {
                    try_states(&template, lane, states.div_ceil(LANES.into()));
                }
            });
        }
    });
}

fn try_states(template: &Template, lane: u8, states: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config =
        Config { cases: states, failure_persistence: None, max_shrink_iters: 20, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[lane; 32]));
    let outcome = runner.run(&(steps(), steps()), |(papi, sony)| {
        let world = World::like(template);
        runtime.block_on(async {
            let first = world.workspace("papi").await;
            let second = world.workspace("sony").await;
            assert_ne!(first.path, second.path);
            assert_ne!(first.git, second.git);
            for step in &papi {
                world.take(&first.path, step);
            }
            for step in &sony {
                world.take(&second.path, step);
            }
            for (agent, workspace) in [("papi", &first), ("sony", &second)] {
                let treasure = Treasure::of(&world, workspace);
                let kept = world.delete(agent, workspace).await;
                treasure.assert_kept(&world, workspace, &kept);
            }
        });
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("lane {lane}: {error}"));
}

#[test]
fn what_was_changed_right_after_staging_is_kept() {
    on_runtime(async {
        let world = World::new();
        // Times are set below, except the one that cannot be set.
        world.user(&world.repository, &["config", "core.trustctime", "false"]);
        let workspace = world.workspace("papi").await;
        let file = workspace.path.join("file0");
        let index = workspace.git.as_ref().unwrap().admin_dir.join("index");
        let then = std::time::SystemTime::now() - Duration::from_secs(10);
        let age = |path: &Path| {
            std::fs::File::options().append(true).open(path).unwrap().set_modified(then).unwrap();
        };
        // Staged and changed again within one tick of the clock, a while ago: only the contents tell the two apart.
        world.take(&workspace.path, &Step::Write(0, 11_111));
        age(&file);
        world.take(&workspace.path, &Step::Stage(0));
        world.take(&workspace.path, &Step::Write(0, 22_222));
        age(&file);
        age(&index);
        let treasure = Treasure::of(&world, &workspace);
        let kept = world.delete("papi", &workspace).await;
        treasure.assert_kept(&world, &workspace, &kept);
    });
}

fn on_runtime(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn a_clean_workspace_leaves_no_trace() {
    on_runtime(async {
        let world = World::new();
        let before = references(&world);
        let workspace = world.workspace("papi").await;
        assert_eq!(world.delete("papi", &workspace).await, Kept::default());
        assert_eq!(references(&world), before);
        let worktrees = world.user(&world.repository, &["worktree", "list"]).unwrap();
        assert_eq!(worktrees.lines().count(), 1, "{worktrees}");
    });
}

#[test]
fn a_name_can_be_used_again_while_the_old_work_is_kept() {
    on_runtime(async {
        let world = World::new();
        let first = world.workspace("papi").await;
        world.take(&first.path, &Step::Write(1, 7));
        let kept = world.delete("papi", &first).await;
        assert_eq!((kept.branches.as_slice(), kept.saved_changes), (&["crewkit/papi".to_owned()][..], true));
        let second = world.workspace("papi").await;
        assert_eq!(second.git.unwrap().branch, "crewkit/papi-2");
        assert_eq!(in_commit(&world, "crewkit/papi", Path::new("file1")).unwrap(), b"7\n");
    });
}

#[test]
fn nothing_a_repository_says_is_run() {
    on_runtime(async {
        let world = World::new();
        let proof = world.home.join("proof");
        let evil = world.home.join("evil.sh");
        std::fs::write(&evil, format!("#!/bin/sh\necho x >> {}\ncat\n", proof.display())).unwrap();
        std::fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let hooks = world.repository.join(".git/hooks");
        for hook in ["post-checkout", "pre-commit", "reference-transaction", "post-index-change"] {
            std::fs::copy(&evil, hooks.join(hook)).unwrap();
        }
        let evil = evil.to_str().unwrap();
        let config = world.repository.join(".git/config");
        let text = std::fs::read_to_string(&config).unwrap();
        let more = format!(
            "[core]\nfsmonitor = {evil}\npager = {evil}\n[filter \"evil\"]\nclean = {evil}\nsmudge = {evil}\nprocess = {evil}\nrequired = true\n"
        );
        std::fs::write(&config, text + &more).unwrap();
        std::fs::write(world.repository.join(".git/info/attributes"), "* filter=evil diff=evil\n").unwrap();
        let workspace = world.workspace("papi").await;
        world.take(&workspace.path, &Step::Write(1, 7));
        let kept = world.delete("papi", &workspace).await;
        assert!(kept.saved_changes, "{kept:?}");
        assert!(!proof.exists(), "a program of the repository was run");
    });
}

#[test]
fn many_workspaces_of_one_repository_come_and_go_at_once() {
    on_runtime(async {
        let world = World::new();
        let before = references(&world);
        let names: Vec<String> = (0..40).map(|number| format!("agent{number}")).collect();
        let came = futures_util::future::join_all(names.iter().map(|name| world.workspace(name))).await;
        for (name, workspace) in names.iter().zip(&came) {
            assert_eq!(workspace.git.as_ref().unwrap().branch, format!("crewkit/{name}"));
            assert_eq!(world.user(&workspace.path, &["status", "--porcelain"]).unwrap(), "");
        }
        // While half of them go, others come.
        let went = names.iter().zip(&came).map(|(name, workspace)| world.delete(name, workspace));
        let late: Vec<String> = (0..20).map(|number| format!("late{number}")).collect();
        let more = futures_util::future::join_all(late.iter().map(|name| world.workspace(name)));
        let (went, more) = tokio::join!(futures_util::future::join_all(went), more);
        assert!(went.iter().all(|kept| *kept == Kept::default()), "{went:?}");
        for (name, workspace) in late.iter().zip(&more) {
            world.delete(name, workspace).await;
        }
        assert_eq!(references(&world), before);
        let worktrees = world.user(&world.repository, &["worktree", "list"]).unwrap();
        assert_eq!(worktrees.lines().count(), 1, "{worktrees}");
    });
}

#[test]
fn a_workspace_that_fails_half_way_leaves_no_trace() {
    on_runtime(async {
        let world = World::new();
        // The register can be written, the files cannot.
        let big = world.repository.join("big");
        std::fs::write(&big, "x").unwrap();
        world.user(&world.repository, &["add", "big"]).unwrap();
        world.user(&world.repository, &["commit", "-q", "-m", "big"]).unwrap();
        let object = world.user(&world.repository, &["rev-parse", "HEAD:big"]).unwrap();
        let (dir, file) = object.trim().split_at(2);
        std::fs::remove_file(world.repository.join(".git/objects").join(dir).join(file)).unwrap();
        let before = references(&world);
        let path = world.home.join("workspaces/papi");
        let made = worktree::create(&world.git, &world.project().await, "papi", &path, LIMITS).await;
        assert!(made.is_err(), "{made:?}");
        assert!(!path.exists());
        assert_eq!(references(&world), before);
        let worktrees = world.user(&world.repository, &["worktree", "list"]).unwrap();
        assert_eq!(worktrees.lines().count(), 1, "{worktrees}");
    });
}

#[test]
fn what_an_interrupted_creation_left_is_undone() {
    on_runtime(async {
        let world = World::new();
        let before = references(&world);
        let workspace = world.workspace("papi").await;
        worktree::undo(&world.git, &world.project().await, &workspace.path).await.unwrap();
        assert!(!workspace.path.exists());
        assert_eq!(references(&world), before);
        let again = world.workspace("papi").await;
        assert_eq!(again.git, workspace.git);
    });
}

#[test]
fn a_repository_without_commits_and_a_plain_directory_have_workspaces_too() {
    on_runtime(async {
        let world = World::new();
        let empty = world.home.join("empty");
        std::fs::create_dir(&empty).unwrap();
        let plain = project::look(&world.git, &empty, Some("plain")).await.unwrap();
        assert_eq!(plain.kind, project::Kind::Directory);
        std::fs::write(empty.join("notes"), "x").unwrap();
        let path = world.home.join("workspaces/plain");
        let copy = worktree::create(&world.git, &plain, "ann", &path, LIMITS).await.unwrap();
        assert_eq!(contents(&path.join("notes")).unwrap(), b"x");
        let kept = world.delete("ann", &copy).await;
        assert_eq!(contents(&kept.trashed.unwrap().path.join("notes")).unwrap(), b"x");

        world.user(&empty, &["init", "-q"]);
        let unborn = project::look(&world.git, &empty, None).await.unwrap();
        let path = world.home.join("workspaces/unborn");
        let workspace = worktree::create(&world.git, &unborn, "bob", &path, LIMITS).await.unwrap();
        let asked = |dir: &Path, arguments: &[&str]| {
            let output = Command::new("git").args(arguments).current_dir(dir).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(asked(&path, &["symbolic-ref", "HEAD"]), "refs/heads/crewkit/bob\n");
        assert_eq!(asked(&path, &["rev-list", "--all", "--reflog"]), "", "its history is empty");
        assert_eq!(asked(&empty, &["for-each-ref"]), "", "the repository has no branch it did not have");
        std::fs::write(path.join("first"), "y").unwrap();
        let trash = Trash::new(world.home.join("trash"), Duration::ZERO, Clock::system());
        let leaving = Leaving { agent: "bob", workspace: &workspace, project: &empty, kit_files: &[] };
        let kept = take_away(&world.git, &trash, leaving).await.unwrap();
        assert_eq!(kept.branches, ["crewkit/bob"]);
        let saved =
            Command::new("git").args(["show", "crewkit/bob:first"]).current_dir(&empty).output().unwrap();
        assert_eq!(saved.stdout, b"y");
    });
}
