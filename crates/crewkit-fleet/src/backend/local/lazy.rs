//! A fleet of this machine that is opened when it is first needed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{FleetSettings, Local};
use crate::error::FleetError;
use crate::service::{Fleet, FleetOptions};

type Opening = BoxFuture<'static, Result<Fleet<Local>, FleetError>>;

/// A fleet on this machine, opened by the first call.
///
/// A process that never asks for it never touches its record, and so never stands in the way of one that does.
pub struct LocalFleet {
    open: Box<dyn Fn() -> Opening + Send + Sync>,
    fleet: OnceCell<Fleet<Local>>,
}

impl std::fmt::Debug for LocalFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalFleet").field("fleet", &self.fleet.get()).finish_non_exhaustive()
    }
}

impl LocalFleet {
    /// A fleet that `open` opens.
    pub fn lazy(open: impl Fn() -> Opening + Send + Sync + 'static) -> Self {
        Self { open: Box::new(open), fleet: OnceCell::new() }
    }

    /// The same fleet for an asker with settings of its own.
    #[must_use]
    pub fn for_asker(self: &Arc<Self>, settings: FleetSettings, options: FleetOptions) -> Self {
        let shared = Arc::clone(self);
        Self::lazy(move || {
            let (shared, settings, options) = (Arc::clone(&shared), settings.clone(), options.clone());
            Box::pin(async move {
                let local = shared.get().await?.backend().for_asker(settings);
                Ok(Fleet::new(local, options))
            })
        })
    }

    /// The fleet.
    pub async fn get(&self) -> Result<&Fleet<Local>, FleetError> {
        self.fleet.get_or_try_init(|| (self.open)()).await
    }

    /// The fleet, if it was opened already.
    pub fn opened(&self) -> Option<&Fleet<Local>> {
        self.fleet.get()
    }
}
