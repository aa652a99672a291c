//! A random walk of a user, their config repo and the real commands over the same directories.
//!
//! Whatever the user wrote is where it was written or kept by a snapshot, a deploy that succeeded leaves nothing to say for
//! `status`, and the manifests tell the truth. About 400 steps here; `CREWKIT_WALK_STEPS=10000` walks further.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crewkit_core::Code;
use crewkit_pack::commands::{Consent, Deploy, Migrate, Pack};
use crewkit_pack::fs::hash::Digest;
use crewkit_pack::plan::status::Kind;
use crewkit_pack::state::home::StateHome;

use super::place::{Place, all};
use crate::sweep::Dice;

const CHILD: &str = "pack::steps::deploys_as_a_child";
const MIGRATE: Migrate = Migrate { apply: Some(Consent::Given), adopt: true, scope: None };
const TARGETS: &str = "{codex: {mode: files, scope: both}, claude_code: {mode: files, scope: both, options: {write_user_skills: true, write_repo_skills: true}}}";
/// The roots of each target. A manifest elsewhere, left where a link used to lead, is nobody's business.
const VERSION_1_ROOTS: usize = 7;
const ROOTS: [(&str, &str); 10] = [
    ("codex", "proj"),
    ("codex", "proj/.codex/skills"),
    ("codex", "home/.codex"),
    ("codex", "home/.codex/skills"),
    ("claude_code", "proj/.claude/skills"),
    ("claude_code", "home/.claude/skills"),
    ("claude_code", "home/.claude/commands"),
    ("agents", "proj"),
    ("agents", "proj/.agents/skills"),
    ("claude_code", "proj"),
];
/// Places a user may meddle with: most of them are ours at times.
const PLACES: [&str; 11] = [
    "proj/AGENTS.md",
    "proj/.codex/skills/s0/SKILL.md",
    "proj/.codex/skills/s1/notes.md",
    "proj/.claude/skills/s0/SKILL.md",
    "home/.codex/AGENTS.md",
    "home/.codex/skills/s0/SKILL.md",
    "home/.codex/skills/own/SKILL.md",
    "home/.claude/skills/s1/SKILL.md",
    "home/.claude/skills/s2/notes.md",
    "proj/.agents/skills/s0/SKILL.md",
    "proj/CLAUDE.md",
];

struct Walk {
    place: Place,
    dice: Dice,
    /// Two targets share a directory through a link. Such a walk stays in version 1: there both want the same files, so that
    /// a rollback, which may know of a shared file from one of them alone, cannot leave one that nobody wants.
    shares: bool,
    /// For each skill: the version of its text, and the targets it is for; nothing when it is not listed.
    skills: [Option<(u64, &'static str)>; 4],
    /// What the user wrote and nobody but we can have touched since.
    saved: BTreeSet<String>,
    /// A directory that is away: where it belongs.
    away: Option<&'static str>,
    count: u64,
    deployed: usize,
    migrated: usize,
    log: Vec<String>,
}

fn deploy(adopt: bool) -> Deploy {
    Deploy { apply: Some(Consent::Given), adopt, confirm_token: None }
}

fn pack_at(base: &Path) -> Pack {
    let mut env = crewkit_pack::Env::at_home(base.join("home"));
    env.cwd = base.join("proj");
    env.limits.pack_snapshots_kept = u64::MAX;
    Pack::new(env)
}

#[test]
#[ignore = "a child process of the walk"]
fn deploys_as_a_child() {
    let base = PathBuf::from(std::env::var("CREWKIT_TEST_BASE").unwrap());
    if std::env::var_os("CREWKIT_TEST_MIGRATES").is_some() {
        let _ = pack_at(&base).migrate(&all(), MIGRATE);
    } else {
        let _ = pack_at(&base).deploy(&all(), &deploy(true));
    }
}

impl Walk {
    fn new(seed: u64) -> Self {
        let place = Place::new();
        let skills = [Some((0, "[]")), Some((0, "[]")), None, None];
        let walk = Self {
            place,
            dice: Dice::new(seed),
            shares: seed.is_multiple_of(2),
            skills,
            saved: BTreeSet::new(),
            away: None,
            count: 0,
            deployed: 0,
            migrated: 0,
            log: Vec::new(),
        };
        walk.place.source("agentpack.yaml", "version: 1\n");
        walk.write_sources();
        if walk.shares {
            fs::create_dir_all(walk.place.path("home/.codex/skills")).unwrap();
            fs::create_dir_all(walk.place.path("home/.claude")).unwrap();
            symlink("../.codex/skills", walk.place.path("home/.claude/skills")).unwrap();
        }
        walk
    }

    fn write_sources(&self) {
        let mut modules = vec![
            "{id: 'instructions:i', type: instructions, tags: [base], targets: [codex], source: {local_path: {path: i}}}".to_owned(),
        ];
        self.place.source("i/AGENTS.md", "be kind\n");
        for (index, skill) in self.skills.iter().enumerate() {
            let Some((version, targets)) = skill else { continue };
            modules.push(format!("{{id: 'skill:s{index}', type: skill, tags: [base], targets: {targets}, source: {{local_path: {{path: s{index}}}}}}}"));
            self.place.source(
                &format!("s{index}/SKILL.md"),
                &format!("---\nname: s{index}\ndescription: d\n---\nversion {version}\n"),
            );
            let notes = self.place.repo(&format!("s{index}/notes.md"));
            if version.is_multiple_of(3) {
                fs::write(notes, format!("notes {version}")).unwrap();
            } else {
                let _ = fs::remove_file(notes);
            }
        }
        let is_version_2 = self.is_version_2();
        self.place.manifest(TARGETS, &modules.iter().map(String::as_str).collect::<Vec<_>>());
        if is_version_2 {
            let text = self.place.read("home/.agentpack/repo/agentpack.yaml");
            let text = text.replace("version: 1", "version: 2");
            let text = text.replace(TARGETS, "{agents: {}, claude_code: {}, codex: {}}");
            self.place.source("agentpack.yaml", &text);
        }
    }

    /// What the config file says: a migration, or its being taken back, changes it.
    fn is_version_2(&self) -> bool {
        self.place.read("home/.agentpack/repo/agentpack.yaml").starts_with("version: 2")
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.dice.below(from.len() as u64)).unwrap()]
    }

    /// The user's text at a place is no longer what must be kept, because the user replaces it.
    fn forget(&mut self, path: &Path) {
        if let Ok(text) = fs::read_to_string(path) {
            self.saved.remove(&text);
        }
    }

    fn step(&mut self) {
        self.count += 1;
        let what = self.dice.below(20);
        match what {
            0..=2 => {
                let index = usize::try_from(self.dice.below(4)).unwrap();
                let version = self.count;
                let targets = self.pick(&["[]", "[]", "[codex]", "[claude_code]"]);
                let listed = self.dice.below(4) > 0;
                self.skills[index] = listed.then_some((version, targets));
                self.write_sources();
            }
            3..=5 => {
                let chosen = self.pick(&PLACES);
                let path = self.place.path(chosen);
                // Not through a file, and not where something is away.
                if path.is_dir() || fs::create_dir_all(path.parent().unwrap()).is_err() {
                    return;
                }
                self.forget(&path);
                let text = format!("user {}", self.count);
                fs::write(&path, &text).unwrap();
                self.saved.insert(text);
            }
            6 => {
                let chosen = self.pick(&PLACES);
                let path = self.place.path(chosen);
                self.forget(&path);
                let _ = fs::remove_file(path);
            }
            7 => {
                let chosen = self.pick(&PLACES);
                let path = self.place.path(chosen);
                let bits = self.pick(&[0o600, 0o640, 0o755]);
                let _ = fs::set_permissions(path, fs::Permissions::from_mode(bits));
            }
            8 => self.relink(),
            9 => self.move_away_or_back(),
            10 => self.kill(false),
            11 => {
                let migrates = !self.shares && self.dice.below(2) == 0;
                self.kill(migrates);
            }
            12 => self.rollback(),
            13 => self.migrate(),
            _ => {
                let adopt = self.dice.below(2) == 0;
                self.deploy(adopt);
            }
        }
        self.log.push(format!("{} {what}", self.count));
        self.check();
    }

    /// A skill of `~/.codex/skills` becomes a link to where the user keeps it, or a directory again.
    fn relink(&self) {
        let (link, real) = (self.place.path("home/.codex/skills/s2"), self.place.path("kept-elsewhere"));
        if fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink()) {
            fs::remove_file(&link).unwrap();
            fs::rename(real, link).unwrap();
        } else if link.is_dir() && !real.exists() {
            fs::rename(&link, &real).unwrap();
            symlink(&real, &link).unwrap();
        }
    }

    fn move_away_or_back(&mut self) {
        let kept = self.place.path("away");
        if let Some(home) = self.away.take() {
            let home = self.place.path(home);
            if home.exists() {
                fs::rename(&home, self.place.path(&format!("put-aside-{}", self.count))).unwrap();
            }
            fs::rename(kept, home).unwrap();
        } else {
            let dir = self.pick(&["home/.codex", "proj", "proj/.codex"]);
            if self.place.path(dir).is_dir() {
                fs::rename(self.place.path(dir), kept).unwrap();
                // The project itself is where we are: something is mounted on it, or was.
                if dir == "proj" {
                    fs::create_dir(self.place.path(dir)).unwrap();
                }
                self.away = Some(dir);
            }
        }
    }

    fn migrate(&mut self) {
        if self.shares {
            return;
        }
        let pack = pack_at(&self.place.base());
        if self.is_version_2() && self.dice.below(2) == 0 {
            match pack.undo_migration(&all(), Consent::Given) {
                Ok(_) => {}
                Err(error) => {
                    let known = [
                        Code::TargetEscape,
                        Code::TargetNotAFile,
                        Code::DesiredStateConflict,
                        Code::SnapshotNotFound,
                    ];
                    assert!(known.contains(&error.code()), "step {}: undo: {error}", self.count);
                }
            }
            return;
        }
        match pack.migrate(&all(), MIGRATE) {
            Ok(done) => {
                assert!(self.is_version_2(), "step {}", self.count);
                self.migrated += usize::from(done.data.config.is_some());
                // What was left alone is the user's now; everything else is as it should be.
                let plan = pack.plan(&all()).unwrap();
                let left: BTreeSet<PathBuf> = done.data.left_alone.into_iter().collect();
                let open = plan.data.changes.changes.iter().map(|change| plan.data.changes.place(change));
                let open: Vec<PathBuf> = open.filter(|path| !left.contains(path)).collect();
                assert!(done.data.config.is_none() || open.is_empty(), "step {}: {open:?}", self.count);
            }
            Err(error) => {
                let refusals = [Code::TargetEscape, Code::TargetNotAFile];
                assert!(refusals.contains(&error.code()), "step {}: migrate: {error}", self.count);
            }
        }
    }

    fn kill(&mut self, migrates: bool) {
        let call = self.pick(&["renameat2", "unlinkat", "syncfs", "mkdirat"]);
        let nth = 1 + self.dice.below(if call == "syncfs" { 3 } else { 24 });
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
        command
            .args(["-e", &format!("inject={call}:signal=KILL:when={nth}"), "--"])
            .arg(std::env::current_exe().unwrap());
        command.args(["--exact", CHILD, "--ignored", "--quiet"]).env("CREWKIT_TEST_BASE", self.place.base());
        if migrates {
            command.env("CREWKIT_TEST_MIGRATES", "1");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    }

    fn rollback(&mut self) {
        let pack = pack_at(&self.place.base());
        let list = pack.snapshots_list().unwrap();
        let ids: Vec<String> = list.data.snapshots.into_iter().map(|one| one.id).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[usize::try_from(self.dice.below(ids.len() as u64)).unwrap()].clone();
        let to = if self.dice.below(2) == 0 { id } else { format!("before:{id}") };
        if let Err(error) = pack.rollback(&all(), &to, Consent::Given) {
            // A link or directory of the user's is in the way.
            let known = [Code::TargetEscape, Code::TargetNotAFile, Code::DesiredStateConflict];
            assert!(known.contains(&error.code()), "step {}: rollback to {to}: {error}", self.count);
        }
    }

    fn deploy(&mut self, adopt: bool) {
        let what = format!("step {}", self.count);
        let pack = pack_at(&self.place.base());
        match pack.deploy(&all(), &deploy(adopt)) {
            Ok(_) => {
                self.deployed += 1;
                let plan = pack.plan(&all()).unwrap();
                assert!(plan.data.changes.changes.is_empty(), "{what}: something is left to do");
                let status = pack.status(&all(), &[]).unwrap();
                for drift in &status.data.drift {
                    let path = &drift.path;
                    // What the user put there is extra, and nothing else is.
                    let is_users = fs::symlink_metadata(path).unwrap().is_symlink()
                        // What was behind the user's link when nobody wanted it any more stayed the user's.
                        || path.to_string_lossy().contains("/s2/")
                        || fs::read_to_string(path).unwrap().starts_with("user ");
                    assert!(drift.kind == Kind::Extra && is_users, "{what}: {drift:?}");
                }
                self.manifests_are_true(&what);
                let journals = self.place.path("home/.agentpack/state/crewkit/journal");
                let waits = fs::read_dir(journals).unwrap().count() > 0;
                // What was cut short in a directory that is away, or was put aside for good, waits for it.
                let mut names =
                    fs::read_dir(self.place.base()).unwrap().map(|entry| entry.unwrap().file_name());
                let is_away =
                    names.any(|name| name == "away" || name.to_string_lossy().starts_with("put-aside"));
                assert!(!waits || is_away, "{what}: a journal is left");
                if !waits {
                    let mut files = Vec::new();
                    collect(&self.place.base(), &mut files);
                    let stray = |path: &&PathBuf| {
                        path.file_name().unwrap().to_string_lossy().starts_with(".crewkit-")
                    };
                    assert_eq!(files.iter().find(stray), None, "{what}: a stray is left");
                }
            }
            Err(error) => {
                let refusals = [Code::AdoptConfirmRequired, Code::TargetEscape, Code::TargetNotAFile];
                assert!(refusals.contains(&error.code()), "{what}: {error}");
            }
        }
    }

    fn manifests_are_true(&self, what: &str) {
        // Version 2 clears up after version 1, and not the other way round.
        let roots = if self.is_version_2() { &ROOTS[..] } else { &ROOTS[..VERSION_1_ROOTS] };
        for (target, root) in roots {
            let root = self.place.path(root);
            let Ok(bytes) = fs::read(root.join(format!(".agentpack.manifest.{target}.json"))) else {
                continue;
            };
            let manifest: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            for file in manifest["managed_files"].as_array().unwrap() {
                let path = root.join(file["path"].as_str().unwrap());
                let shown = path.display();
                let bytes =
                    fs::read(&path).unwrap_or_else(|error| panic!("{what}: {shown} is listed: {error}"));
                assert_eq!(
                    Digest::of(&bytes).to_string(),
                    file["sha256"].as_str().unwrap(),
                    "{what}: {shown}"
                );
            }
        }
    }

    /// Whatever the user wrote is somewhere: in a file, or in the store of what was replaced.
    fn check(&self) {
        let mut files = Vec::new();
        collect(&self.place.base(), &mut files);
        let here: BTreeSet<String> = files.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
        let mut lost = self.saved.difference(&here).peekable();
        if lost.peek().is_none() {
            return;
        }
        let blobs = StateHome::new(self.place.path("home/.agentpack")).blobs().unwrap();
        for text in lost {
            assert!(
                blobs.contains(&Digest::of(text.as_bytes())),
                "step {}: `{text}` is lost: {:?}",
                self.count,
                self.log
            );
        }
    }
}

/// All files below `dir`, except the state and the config repo.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != ".agentpack" {
            collect(&entry.path(), files);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
}

#[test]
fn a_user_and_the_commands_never_take_anything_from_each_other() {
    let can_kill =
        Command::new("strace").arg("--version").output().is_ok_and(|output| output.status.success());
    if !can_kill {
        eprintln!(
            "NOT TRIED: the random walk over real directories, because there is no `strace` to kill deploys with"
        );
        return;
    }
    let steps =
        std::env::var("CREWKIT_WALK_STEPS").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(400);
    let seed = std::env::var("CREWKIT_WALK_SEED").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let (mut walked, mut deployed, mut migrated) = (0, 0, 0);
    for seed in seed.. {
        let mut walk = Walk::new(seed);
        for _ in 0..100 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk.step()));
            if let Err(panic) = outcome {
                eprintln!("seed {seed} after {} steps", walk.count);
                std::panic::resume_unwind(panic);
            }
        }
        walked += walk.count;
        deployed += walk.deployed;
        migrated += walk.migrated;
        if walked >= steps {
            break;
        }
    }
    assert!(migrated > 0, "no migration succeeded in {walked} steps");
    assert!(deployed as u64 > walked / 20, "only {deployed} deploys succeeded in {walked} steps");
}
