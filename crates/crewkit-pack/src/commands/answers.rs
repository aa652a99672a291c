//! What the verbs answer, as data.
//!
//! The members of every struct stand in alphabetical order: that is the order in which they are written, and people
//! diff and hash the text.

use std::path::{Path, PathBuf};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::commands::doctor::{IgnoreFix, RootCheck};
use crate::commands::session::Session;
use crate::fs::hash::Digest;
use crate::overlay::rebase::Report;
use crate::plan::diff::FileDiff;
use crate::plan::status::{Drift, Kind, RootSummary, Summary as DriftSummary};
use crate::plan::{Op, Plan, Summary as PlanSummary};
use crate::state::history::SnapshotInfo;

/// Writes a path as two members: as the system writes it, and with forward slashes.
fn path_members<S: Serializer>(name: &str, path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = path.display().to_string();
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry(name, &shown)?;
    map.serialize_entry(&format!("{name}_posix"), &shown.replace('\\', "/"))?;
    map.end()
}

macro_rules! path_members {
    ($($name:ident)*) => {
        /// One function for each name that a path has in answers; for fields that are flattened.
        pub(crate) mod members {
            use super::{Path, Serializer};

            $(pub(crate) fn $name<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
                super::path_members(stringify!($name), path, serializer)
            })*
        }
    };
}

path_members!(path root repo manifest lockfile store overlay_dir repo_root gitignore_path);

/// Writes a hash with the name of its algorithm.
#[expect(clippy::ref_option, reason = "the signature serde asks for")]
pub(crate) fn prefixed<S: Serializer>(hash: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    hash.map(|hash| format!("sha256:{hash}")).serialize(serializer)
}

/// The answer of `plan`, `diff` and `deploy`; the optional members are those of a deploy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Planned {
    /// Whether the plan was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    pub changes: Plan,
    /// The hash of the plan, as the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_plan_hash: Option<String>,
    /// Approves exactly this plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_token: Option<String>,
    /// When the token expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_token_expires_at: Option<String>,
    pub profile: String,
    /// Why nothing was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The snapshot that applying made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// How many changes there are.
    pub summary: PlanSummary,
    /// The selected targets.
    pub targets: Vec<&'static str>,
}

impl Planned {
    pub(super) fn new(plan: Plan, session: &Session<'_>) -> crate::error::Result<Self> {
        let (profile, targets) = session.selection()?;
        Ok(Self { summary: plan.summary(), changes: plan, profile, targets, ..Self::default() })
    }
}

/// The answer of `preview`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preview {
    /// The plan with the lines that change, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<PreviewPlan>,
    pub plan: PreviewPlan,
    pub profile: String,
    /// The selected targets.
    pub targets: Vec<&'static str>,
}

/// A plan as part of a preview.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PreviewPlan {
    pub changes: Plan,
    /// The differences of each changed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileDiff>>,
    /// How many changes there are.
    pub summary: PlanSummary,
}

/// The answer of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The differences.
    pub drift: Vec<Drift>,
    /// Commands that would help.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions: Vec<String>,
    /// The same with a name for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions_detailed: Vec<NextAction>,
    pub profile: String,
    /// How many differences are listed.
    pub summary: DriftSummary,
    /// How many there are in each root that has any.
    pub summary_by_root: Vec<RootSummary>,
    /// How many there are, listed or not; if only some kinds were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_total: Option<DriftSummary>,
    /// The selected targets.
    pub targets: Vec<&'static str>,
}

/// A command that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NextAction {
    pub action: &'static str,
    /// The command line.
    pub command: String,
}

/// The answer of `explain`: the changes of the plan, or the differences.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Explained {
    /// Where each change comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<ExplainedChange>>,
    /// Where each difference comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Vec<ExplainedDrift>>,
    pub profile: String,
    /// The selected targets.
    pub targets: Vec<&'static str>,
}

/// A change and its modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedChange {
    pub modules: Vec<ExplainedModule>,
    /// What happens.
    pub op: Op,
    /// Where.
    #[serde(flatten, serialize_with = "members::path")]
    pub path: PathBuf,
    pub target: &'static str,
}

/// A module that a change comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedModule {
    /// The layer that decides.
    pub layer: &'static str,
    pub module_id: String,
    /// The file of the module.
    pub module_path: Option<String>,
    pub module_type: Option<&'static str>,
}

/// A difference and its modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainedDrift {
    /// The content that is there.
    #[serde(serialize_with = "prefixed")]
    pub actual: Option<Digest>,
    /// The content that should be there.
    #[serde(serialize_with = "prefixed")]
    pub expected: Option<Digest>,
    /// How it differs.
    pub kind: Kind,
    pub modules: crate::config::ids::ModuleIds,
    /// Where.
    #[serde(flatten, serialize_with = "members::path")]
    pub path: PathBuf,
    pub target: &'static str,
}

/// The answer of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// What was repaired.
    pub gitignore_fixes: Vec<IgnoreFix>,
    pub machine_id: String,
    /// Commands that would help.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next_actions: Vec<String>,
    /// What was found about each root.
    pub roots: Vec<RootCheck>,
}

/// The answer of `init`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Initialized {
    /// What was done about git, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitInitialized>,
    /// The config repo.
    #[serde(flatten, serialize_with = "members::repo")]
    pub repo: PathBuf,
}

/// The git part of an `init`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GitInitialized {
    /// The file with the names git ignores.
    #[serde(flatten, serialize_with = "members::gitignore_path")]
    pub gitignore_path: PathBuf,
    /// Whether that file was changed.
    pub gitignore_updated: bool,
    /// Whether the repository is new.
    pub initialized: bool,
}

/// The answer of `add` and `remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestEdited {
    #[serde(flatten, serialize_with = "members::manifest")]
    pub manifest: PathBuf,
    pub module_id: String,
}

/// The answer of `lock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModulesLocked {
    #[serde(flatten, serialize_with = "members::lockfile")]
    pub lockfile: PathBuf,
    /// How many modules it lists.
    pub modules: usize,
}

/// The answer of `fetch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fetched {
    /// How many git modules were made available.
    pub git_modules_fetched: usize,
    /// Where checkouts are.
    #[serde(flatten, serialize_with = "members::store")]
    pub store: PathBuf,
}

/// The answer of `update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Updated {
    /// How many git modules were made available.
    pub git_modules_fetched: usize,
    #[serde(flatten, serialize_with = "members::lockfile")]
    pub lockfile: PathBuf,
    /// The steps that were taken.
    pub steps: Vec<UpdateStep>,
    /// Where checkouts are.
    #[serde(flatten, serialize_with = "members::store")]
    pub store: PathBuf,
}

/// A step of an `update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpdateStep {
    /// Its own answer.
    pub detail: UpdateDetail,
    pub name: &'static str,
    /// Whether it succeeded; an update ends with the first step that does not.
    pub ok: bool,
}

/// The answer of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum UpdateDetail {
    Lock(ModulesLocked),
    Fetch(Fetched),
}

/// The answer of `rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolledBack {
    /// How many files a dry run would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<usize>,
    /// The snapshot it made; none when nothing had to change.
    pub event_snapshot_id: Option<String>,
    /// Why nothing happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The state that was asked for.
    pub rolled_back_to: String,
}

/// The answer of `snapshots list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshots {
    /// Newest first.
    pub snapshots: Vec<SnapshotInfo>,
}

/// The answer of `overlay path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverlayPath {
    pub module_id: String,
    /// The overlay's directory.
    #[serde(flatten, serialize_with = "members::overlay_dir")]
    pub overlay_dir: PathBuf,
    /// The layer.
    pub scope: &'static str,
}

/// The answer of `overlay edit`.
#[expect(clippy::struct_excessive_bools, reason = "the members are fixed")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverlayEdited {
    /// Whether the overlay is new.
    pub created: bool,
    /// The machine of a machine's overlay.
    pub machine_id: Option<String>,
    /// Whether missing upstream files were added.
    pub materialized: bool,
    pub module_id: String,
    /// The overlay's directory.
    #[serde(flatten, serialize_with = "members::overlay_dir")]
    pub overlay_dir: PathBuf,
    /// Whether it changes whole files or lines.
    pub overlay_kind: &'static str,
    /// Where its patches are, if it changes lines.
    pub patches_dir: Option<String>,
    /// Whether it is a project's overlay.
    pub project: bool,
    /// The project of a project's overlay.
    pub project_id: Option<String>,
    /// The layer.
    pub scope: &'static str,
    /// Whether it started without upstream files.
    pub sparse: bool,
}

/// The answer of `overlay rebase`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverlayRebased {
    /// Whether nothing was written.
    pub dry_run: bool,
    pub module_id: String,
    /// The overlay's directory.
    #[serde(flatten, serialize_with = "members::overlay_dir")]
    pub overlay_dir: PathBuf,
    /// What became of its files.
    pub report: Report,
    /// The layer.
    pub scope: &'static str,
    /// Whether files that say what the upstream says were dropped.
    pub sparsify: bool,
}
