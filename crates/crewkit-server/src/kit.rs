//! Packs as the kits of agents: where the fleet, which knows no packs, meets the pack service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_fleet::kit::{Drift, Equipped, Kit, KitError, KitFile, KitPlace};
use crewkit_pack::PackError;
use crewkit_pack::commands::Pack;
use crewkit_pack::commands::Select;
use crewkit_pack::config::manifest::DEFAULT_PROFILE;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

/// Deploys profiles of one pack.
#[derive(Debug, Clone)]
pub struct PackKit {
    pack: Arc<Pack>,
}

impl PackKit {
    /// Kits out of `pack`.
    pub fn new(pack: Arc<Pack>) -> Self {
        Self { pack }
    }

    /// Runs `work` on the pack where blocking is allowed.
    fn away<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Pack) -> Result<T, PackError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, KitError>> {
        let pack = Arc::clone(&self.pack);
        async move {
            let done = tokio::task::spawn_blocking(move || work(&pack).map_err(|error| failed(&error)));
            done.await.unwrap_or_else(|_| {
                Err(KitError { code: "E_INTERNAL".to_owned(), message: "deploying broke".to_owned() })
            })
        }
        .boxed()
    }

    /// Runs `work` on the pack as seen from the workspace.
    fn at<T: Send + 'static>(
        &self,
        place: KitPlace,
        work: impl FnOnce(&Pack, &Select, &Path) -> Result<T, PackError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, KitError>> {
        self.away(move |pack| {
            let here = pack.in_workspace(&place.workspace, &place.state);
            let select = Select { profile: place.profile, ..Select::default() };
            work(&here, &select, &place.workspace)
        })
    }
}

fn failed(error: &PackError) -> KitError {
    KitError { code: error.code().as_str().to_owned(), message: error.to_string() }
}

/// Paths as people see them: relative to the workspace.
fn relative(paths: Vec<PathBuf>, workspace: &Path) -> Vec<String> {
    // A workspace may be named by a path with links in it, while the pack names the place itself.
    let real = workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned());
    let shown = |path: PathBuf| {
        let short = path.strip_prefix(&real).or_else(|_| path.strip_prefix(workspace)).unwrap_or(&path);
        short.to_string_lossy().into_owned()
    };
    paths.into_iter().map(shown).collect()
}

impl Kit for PackKit {
    fn default_profile(&self) -> Option<String> {
        self.pack.has_config(&Select::default()).then(|| DEFAULT_PROFILE.to_owned())
    }

    fn equip(&self, place: KitPlace) -> BoxFuture<'_, Result<Equipped, KitError>> {
        self.at(place, |pack, select, workspace| {
            let report = pack.equip(select)?;
            Ok(Equipped {
                snapshot_id: report.snapshot_id,
                changed: report.changed,
                drifted: relative(report.drifted, workspace),
                left_alone: relative(report.left_alone, workspace),
            })
        })
    }

    fn finish(&self, place: KitPlace) -> BoxFuture<'_, Result<Option<String>, KitError>> {
        self.away(move |pack| pack.finish_in_workspace(&place.workspace, &place.state))
    }

    fn rollback(&self, place: KitPlace, snapshot: String) -> BoxFuture<'_, Result<Equipped, KitError>> {
        self.at(place, move |pack, _, _| {
            let snapshot_id = pack.unequip(&snapshot)?;
            Ok(Equipped { changed: usize::from(snapshot_id.is_some()), snapshot_id, ..Equipped::default() })
        })
    }

    fn contents(&self, profile: String) -> BoxFuture<'_, Result<Vec<KitFile>, KitError>> {
        self.away(|pack| {
            let files = pack.kit_files(&Select { profile, ..Select::default() })?;
            let file = |file: crewkit_pack::commands::KitFile| KitFile {
                path: file.path,
                executable: file.executable,
                content: file.content,
            };
            Ok(files.into_iter().map(file).collect())
        })
    }

    fn drift(&self, place: KitPlace) -> BoxFuture<'_, Result<Drift, KitError>> {
        self.at(place, |pack, select, workspace| {
            let drift = pack.kit_drift(select)?;
            Ok(Drift {
                modified: relative(drift.modified, workspace),
                missing: relative(drift.missing, workspace),
                unchanged: relative(drift.unchanged, workspace),
            })
        })
    }
}
