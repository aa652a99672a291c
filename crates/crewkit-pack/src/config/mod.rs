//! What a config repo says: `agentpack.yaml`, its lockfile, and the ids that follow from them.

pub mod edit;
pub mod ids;
pub mod lockfile;
pub mod manifest;
pub(crate) mod project;
pub(crate) mod upgrade;
pub(crate) mod yaml;
