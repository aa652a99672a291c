//! What the operations work on.

use std::sync::Arc;

use crewkit_fleet::AnyFleet;
use crewkit_pack::commands::Pack;

/// The services behind the operations, built once by the binary and shared by every door.
#[derive(Debug, Default)]
pub struct Services {
    /// Deployment of agent assets.
    pub pack: Option<Arc<Pack>>,
    /// Named agents in workspaces; none when no place for workspaces is configured.
    pub fleet: Option<AnyFleet>,
}
