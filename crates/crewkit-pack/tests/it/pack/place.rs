//! A home, a config repo and a project in a temporary directory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crewkit_core::Code;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Consent, Deploy, Pack, Planned};
use crewkit_pack::envelope::Answer;
use crewkit_pack::{Env, PackError};

/// A skill that is valid.
pub(super) const SKILL: &str = "---\nname: a\ndescription: d\n---\nbody\n";

/// Where a test plays.
pub(super) struct Place {
    dir: tempfile::TempDir,
    pub(super) env: Env,
    skew: Arc<AtomicU64>,
}

impl Place {
    /// A home with an empty config repo and the project `proj`.
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(dir.path()).unwrap();
        let skew = Arc::new(AtomicU64::new(0));
        let mut env = Env::at_home(base.join("home"));
        env.cwd = base.join("proj");
        env.machine_names = vec!["box".to_owned()];
        let added = skew.clone();
        env.clock = Arc::new(move || SystemTime::now() + Duration::from_secs(added.load(Ordering::SeqCst)));
        fs::create_dir_all(&env.home).unwrap();
        fs::create_dir_all(&env.cwd).unwrap();
        Self { dir, env, skew }
    }

    /// [`new`](Self::new) with a manifest: `targets` and `modules` as flow YAML.
    pub(super) fn with(targets: &str, modules: &[&str]) -> Self {
        let place = Self::new();
        place.manifest(targets, modules);
        place
    }

    pub(super) fn manifest(&self, targets: &str, modules: &[&str]) {
        let list: String = modules.iter().map(|module| format!("  - {module}\n")).collect();
        let list = if list.is_empty() { " []\n".to_owned() } else { format!("\n{list}") };
        let text = format!(
            "version: 1\nprofiles: {{default: {{include_tags: [base]}}}}\ntargets: {targets}\nmodules:{list}"
        );
        self.write("home/.agentpack/repo/agentpack.yaml", &text);
    }

    pub(super) fn base(&self) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap()
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.base().join(path)
    }

    pub(super) fn repo(&self, path: &str) -> PathBuf {
        self.path("home/.agentpack/repo").join(path)
    }

    pub(super) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a file of the config repo.
    pub(super) fn source(&self, path: &str, text: &str) -> PathBuf {
        self.write(&format!("home/.agentpack/repo/{path}"), text)
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| format!("<{}>", error.kind()))
    }

    pub(super) fn pack(&self) -> Pack {
        Pack::new(self.env.clone())
    }

    /// The same home, seen from another directory.
    pub(super) fn pack_in(&self, cwd: &str) -> Pack {
        let cwd = self.path(cwd);
        fs::create_dir_all(&cwd).unwrap();
        Pack::new(Env { cwd, ..self.env.clone() })
    }

    /// Lets time pass.
    pub(super) fn wait(&self, seconds: u64) {
        self.skew.fetch_add(seconds, Ordering::SeqCst);
    }

    pub(super) fn git(&self, dir: &str, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"])
            .args(args)
            .current_dir(self.path(dir))
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A git repository at `dir` with one commit of these files; its commit.
    pub(super) fn git_repo(&self, dir: &str, files: &[(&str, &str)]) -> String {
        fs::create_dir_all(self.path(dir)).unwrap();
        if !self.path(dir).join(".git").exists() {
            self.git(dir, &["init", "-q"]);
        }
        for (path, text) in files {
            self.write(&format!("{dir}/{path}"), text);
        }
        self.git(dir, &["add", "-A"]);
        self.git(dir, &["commit", "-q", "-m", "c"]);
        self.git(dir, &["rev-parse", "HEAD"])
    }

    /// Everything below the place: path to mode and content.
    pub(super) fn everything(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut all = BTreeMap::new();
        collect(self.dir.path(), self.dir.path(), &mut all);
        all
    }
}

fn collect(base: &Path, dir: &Path, all: &mut BTreeMap<String, (u32, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(base).unwrap().to_string_lossy().into_owned();
        if metadata.is_dir() {
            all.insert(format!("{name}/"), (metadata.permissions().mode(), Vec::new()));
            collect(base, &path, all);
        } else {
            let content =
                if metadata.is_symlink() { b"link".to_vec() } else { fs::read(&path).unwrap_or_default() };
            all.insert(name, (metadata.permissions().mode(), content));
        }
    }
}

pub(super) fn all() -> Select {
    Select::default()
}

pub(super) fn apply(pack: &Pack) -> Result<Answer<Planned>, PackError> {
    deploy(pack, false)
}

pub(super) fn adopt(pack: &Pack) -> Result<Answer<Planned>, PackError> {
    deploy(pack, true)
}

fn deploy(pack: &Pack, adopt: bool) -> Result<Answer<Planned>, PackError> {
    pack.deploy(&all(), &Deploy { apply: Some(Consent::Given), adopt, confirm_token: None })
}

pub(super) fn snapshot_id(answer: &Answer<Planned>) -> String {
    answer.data.snapshot_id.clone().unwrap()
}

/// `op path` of each change, paths relative to `base`.
pub(super) fn changes(answer: &Answer<Planned>, base: &Path) -> Vec<String> {
    let plan = &answer.data.changes;
    let shown =
        |change| plan.place(change).display().to_string().replace(&format!("{}/", base.display()), "");
    plan.changes.iter().map(|change| format!("{} {}", change.op.name(), shown(change))).collect()
}

#[track_caller]
pub(super) fn code<T: std::fmt::Debug>(result: Result<T, PackError>) -> Code {
    result.unwrap_err().code()
}
