//! The roots of version 2: what the descriptions of clients say is written, and which module goes where.
//!
//! A module is placed once per client and scope. What clients share comes first; a client that reads what another target
//! writes gets nothing of its own.

use std::path::{Path, PathBuf};

use super::{Places, Put, RootSpec, TargetKind};
use crate::client::{Client, SHARED, Write, Written};
use crate::config::manifest::{Manifest, Module, ModuleScope, ModuleType, Scope, TargetConfig};
use crate::env::Env;
use crate::error::Result;
use crate::state::managed;

/// The option that keeps `CLAUDE.md` the user's own.
pub(super) const CLAUDE_MD: &str = "claude_md";

/// What a module is for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asset {
    Instructions,
    /// Instructions about some files.
    Rule,
    /// A skill, or a prompt or command that becomes one.
    Skill,
}

impl Asset {
    pub(crate) fn of(module: &Module) -> Self {
        match module.kind {
            ModuleType::Instructions if module.globs.is_null() => Self::Instructions,
            ModuleType::Instructions => Self::Rule,
            ModuleType::Skill | ModuleType::Prompt | ModuleType::Command => Self::Skill,
        }
    }

    /// What it is called in messages.
    const fn title(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Rule => "instructions about some files",
            Self::Skill => "skills",
        }
    }
}

/// Which target writes a module, where.
#[derive(Debug)]
pub(crate) struct Routes<'a> {
    env: &'a Env,
    project: &'a Path,
    manifest: &'a Manifest,
    /// The targets of the config file, in the order in which they are asked.
    configured: Vec<Configured>,
}

/// A value for each asset and scope.
type ByKind<T> = [[T; 2]; 3];

/// A target of the config file. What is asked for every module is found out once.
#[derive(Debug)]
struct Configured {
    target: TargetKind,
    /// Where it writes.
    writes: ByKind<Option<&'static Write>>,
    /// For each target that is asked before it, and for `agents`, whether its client reads what that one writes.
    reads: Vec<ByKind<bool>>,
}

const ASSETS: [Asset; 3] = [Asset::Instructions, Asset::Rule, Asset::Skill];
const SCOPES: [ModuleScope; 2] = [ModuleScope::User, ModuleScope::Project];

/// What a target writes.
fn writes(target: TargetKind) -> &'static [Write] {
    match (target, Client::of(target)) {
        (TargetKind::Agents, _) => &SHARED,
        (_, Some(client)) => client.writes,
        (_, None) => &[],
    }
}

/// The place where `target` writes an asset of a scope.
fn write(
    target: TargetKind,
    config: &TargetConfig,
    asset: Asset,
    scope: ModuleScope,
) -> Option<&'static Write> {
    let in_scope = match scope {
        ModuleScope::User => config.scope().user(),
        ModuleScope::Project => config.scope().project(),
    };
    let found = |fits: fn(Written) -> bool| {
        writes(target).iter().find(|write| {
            in_scope
                && fits(write.what)
                && write.is_of_user() == (scope == ModuleScope::User)
                && is_wanted(config, write)
        })
    };
    let rules = || found(|what| matches!(what, Written::Rules(_)));
    match asset {
        Asset::Skill => found(|what| what == Written::Skills),
        Asset::Rule => rules(),
        Asset::Instructions => {
            found(|what| matches!(what, Written::Instructions | Written::Importing)).or_else(rules)
        }
    }
}

/// A root that is not written any more: if it still has a manifest, what that lists goes.
fn left_behind((target, root): (TargetKind, RootSpec)) -> Option<(TargetKind, RootSpec)> {
    let names = [managed::file_name(target.name()), managed::LEGACY_NAME.to_owned()];
    let has_manifest = names.iter().any(|name| root.path.join(name).symlink_metadata().is_ok());
    has_manifest.then_some((target, RootSpec { puts: Vec::new(), scan_extras: false, ..root }))
}

/// Whether the options of a target leave a place in.
fn is_wanted(config: &TargetConfig, write: &Write) -> bool {
    write.what != Written::Importing || config.flag(CLAUDE_MD, true)
}

impl<'a> Routes<'a> {
    pub(crate) fn new(env: &'a Env, project: &'a Path, manifest: &'a Manifest) -> Self {
        let mut routes = Self { env, project, manifest, configured: Vec::new() };
        for target in TargetKind::VERSION_2 {
            let Some(config) = manifest.targets.get(target.name()) else { continue };
            let writes = ASSETS.map(|asset| SCOPES.map(|scope| write(target, config, asset, scope)));
            let reads = |other: &Configured| {
                other.writes.map(|of_asset| {
                    of_asset.map(|write| write.is_some_and(|write| routes.reads(target, other.target, write)))
                })
            };
            let reads = routes.configured.iter().map(reads).collect();
            routes.configured.push(Configured { target, writes, reads });
        }
        routes
    }

    fn path(&self, target: TargetKind, write: &Write) -> PathBuf {
        // The shared places are the same for every client.
        let client = Client::of(target).unwrap_or(crate::client::CLIENTS[0]);
        client.path(self.env, self.project, &write.place)
    }

    /// Whether the client of `target` reads what `write` of `other` becomes.
    fn reads(&self, target: TargetKind, other: TargetKind, write: &Write) -> bool {
        let Some(client) = Client::of(target) else { return false };
        let path = self.path(other, write);
        match write.what {
            Written::Skills => client.reads_skills_in(self.env, self.project, &path),
            Written::Instructions | Written::Importing => {
                client.reads_instructions_at(self.env, self.project, &path)
            }
            Written::Rules(style) => {
                client.reads_instructions_at(self.env, self.project, &path.join(style.file_name("x")))
            }
        }
    }

    fn index(&self, target: TargetKind) -> Option<usize> {
        self.configured.iter().position(|configured| configured.target == target)
    }

    /// Asset and scope of a module, as places in a table.
    fn kind(&self, module: &Module) -> (usize, usize) {
        (Asset::of(module) as usize, self.manifest.scope_of(module) as usize)
    }

    /// Where `target` writes a module like this, if anywhere.
    fn write(&self, target: TargetKind, module: &Module) -> Option<&'static Write> {
        let (asset, scope) = self.kind(module);
        self.configured.get(self.index(target)?)?.writes[asset][scope]
    }

    /// Whether `target` itself writes `module`.
    pub(crate) fn places(&self, target: TargetKind, module: &Module) -> bool {
        self.index(target).is_some_and(|index| self.places_at(index, module))
    }

    fn places_at(&self, index: usize, module: &Module) -> bool {
        let (asset, scope) = self.kind(module);
        let Some(this) = self.configured.get(index) else { return false };
        if this.writes[asset][scope].is_none() {
            return false;
        }
        if this.target == TargetKind::Agents {
            // Clients without a place of their own get there what is for them alone.
            return module.is_for(this.target)
                || self.configured[index + 1..].iter().any(|other| {
                    module.is_for(other.target)
                        && other.writes[asset][scope].is_none()
                        && other.reads.get(index).is_some_and(|reads| reads[asset][scope])
                });
        }
        module.is_for(this.target) && !self.is_covered_at(index, module)
    }

    /// Whether the client of `target` reads the module where an earlier target writes it.
    fn is_covered(&self, target: TargetKind, module: &Module) -> bool {
        self.index(target).is_some_and(|index| self.is_covered_at(index, module))
    }

    fn is_covered_at(&self, index: usize, module: &Module) -> bool {
        let (asset, scope) = self.kind(module);
        let Some(this) = self.configured.get(index) else { return false };
        (this.reads.iter().enumerate())
            .any(|(other, reads)| reads[asset][scope] && self.places_at(other, module))
    }

    /// Whether `put` in a root of `target` takes `module`; `scope` is whom the put is for.
    pub(crate) fn takes(
        &self,
        target: TargetKind,
        put: &Put,
        scope: Option<ModuleScope>,
        module: &Module,
    ) -> bool {
        let Some(scope) = scope else { return module.is_for(target) };
        let asset = Asset::of(module);
        if self.manifest.scope_of(module) != scope {
            return false;
        }
        match put {
            // What is imported is not written here, but decides whether the file is.
            Put::Importing { .. } => asset == Asset::Instructions && module.is_for(target),
            Put::Rules(_) => {
                let written = self.write(target, module).map(|write| write.what);
                asset != Asset::Skill
                    && matches!(written, Some(Written::Rules(_)))
                    && self.places(target, module)
            }
            Put::Instructions { .. } => asset == Asset::Instructions && self.places(target, module),
            _ => self.places(target, module),
        }
    }

    /// Whether the shared `AGENTS.md` holds `module`.
    pub(crate) fn is_shared(&self, module: &Module) -> bool {
        self.manifest.targets.contains_key(TargetKind::Agents.name())
            && self.places(TargetKind::Agents, module)
    }

    /// The roots of a target, and those that earlier deploys left something in.
    pub(crate) fn roots(
        &self,
        target: TargetKind,
        config: &TargetConfig,
    ) -> Result<Vec<(TargetKind, RootSpec)>> {
        if target == TargetKind::ExportDir {
            // A plain directory is for modules of either scope.
            let config = &config.in_scope(Scope::Project);
            let places = Places { env: self.env, project: self.project, config };
            return Ok(super::export_dir::roots(&places)?.into_iter().map(|root| (target, root)).collect());
        }
        let mut roots = Vec::new();
        let mut earlier = Vec::new();
        for write in writes(target) {
            let (scope, in_scope) = if write.is_of_user() {
                (ModuleScope::User, config.scope().user())
            } else {
                (ModuleScope::Project, config.scope().project())
            };
            let root = (target, self.root(target, write, scope));
            if in_scope && is_wanted(config, write) { roots.push(root) } else { earlier.push(root) }
        }
        let before = if target == TargetKind::Junie { TargetKind::Jetbrains } else { target };
        let places = Places { env: self.env, project: self.project, config: &TargetConfig::everything() };
        earlier.extend(before.roots(&places)?.into_iter().map(|root| (before, root)));
        roots.extend(earlier.into_iter().filter_map(left_behind));
        Ok(roots)
    }

    fn root(&self, target: TargetKind, write: &Write, scope: ModuleScope) -> RootSpec {
        let path = self.path(target, write);
        // The place of a file: its directory is the root.
        let (_, file) = write.place.path.rsplit_once('/').unwrap_or(("", write.place.path));
        let above = || path.parent().map_or_else(|| path.clone(), Path::to_owned);
        let (path, scan_extras, puts) = match write.what {
            Written::Instructions => (above(), false, vec![Put::Instructions { file }]),
            Written::Importing => (above(), false, vec![Put::Importing { file }]),
            Written::Rules(style) => (path.clone(), true, vec![Put::Rules(style)]),
            Written::Skills => {
                let for_codex = Client::of(TargetKind::Codex)
                    .is_some_and(|codex| codex.reads_skills_in(self.env, self.project, &path));
                (path.clone(), true, vec![Put::Skills { dir: "" }, Put::CalledSkills { for_codex }])
            }
        };
        RootSpec { path, scan_extras, puts: puts.into_iter().map(|put| (put, Some(scope))).collect() }
    }

    /// What clients of the config file will not get, in words.
    pub(crate) fn homeless(&self, modules: &[&Module]) -> Vec<String> {
        let mut warnings = Vec::new();
        for Configured { target, writes, .. } in &self.configured {
            let Some(client) = Client::of(*target) else { continue };
            for asset in ASSETS {
                for scope in SCOPES {
                    // Whoever has a place writes there, or reads what another writes.
                    if writes[asset as usize][scope as usize].is_some() {
                        continue;
                    }
                    let without = modules.iter().filter(|module| {
                        Asset::of(module) == asset
                            && self.manifest.scope_of(module) == scope
                            && module.is_for(*target)
                            && !self.is_covered(*target, module)
                    });
                    let names: Vec<String> = without.map(|module| module.id.clone()).collect();
                    if !names.is_empty() {
                        warnings.push(format!(
                            "{} has no place for {} of scope {}{}{}",
                            client.title,
                            asset.title(),
                            scope.name(),
                            crate::client::findings::some_of(&names),
                            self.advice(*target, asset, scope)
                        ));
                    }
                }
            }
        }
        warnings
    }

    /// What would give the client of `target` what it lacks.
    fn advice(&self, target: TargetKind, asset: Asset, scope: ModuleScope) -> &'static str {
        let shared = SHARED.iter().filter(|write| write.is_of_user() == (scope == ModuleScope::User));
        let mut shared = shared.filter(|write| (write.what == Written::Skills) == (asset == Asset::Skill));
        let lacks_agents = !self.manifest.targets.contains_key(TargetKind::Agents.name());
        if lacks_agents && shared.any(|write| self.reads(target, TargetKind::Agents, write)) {
            ": add the target `agents`"
        } else {
            ""
        }
    }
}
