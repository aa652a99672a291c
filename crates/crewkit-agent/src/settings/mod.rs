//! What a run is carried out with, as its asker has configured it, and how it is recorded without its secrets.

mod record;
#[cfg(test)]
mod tests;
mod vault;

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

pub use record::{RecordedSettings, is_secret};
pub(crate) use vault::{Use, Vault};

use crate::driver::ProcessDriver;
use crate::model::Endpoint;
use crate::tools::CommandPolicy;
use crate::tools::mcp::ServerConfig;

/// The settings of a run: fixed at its start and used by every attempt, whoever asks for it.
///
/// They are written down as [`RecordedSettings`] alone, whose secrets are replaced.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Models, the default one first. Without any, runs use the rehearsal.
    pub models: Vec<Endpoint>,
    /// Command lines that can carry out contracts, besides the built-in loop.
    pub drivers: Vec<ProcessDriver>,
    /// Tool servers.
    pub tool_servers: Vec<ServerConfig>,
    /// Whether agents may run commands.
    pub commands: CommandPolicy,
    /// The environment every driver and tool server starts from.
    #[serde(with = "text::environment")]
    pub environment: Vec<(OsString, OsString)>,
}

impl std::fmt::Debug for RunSettings {
    /// Shows names alone: variables can be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names =
            |drivers: &[ProcessDriver]| drivers.iter().map(|driver| driver.name.clone()).collect::<Vec<_>>();
        f.debug_struct("RunSettings")
            .field("models", &self.models)
            .field("drivers", &names(&self.drivers))
            .finish_non_exhaustive()
    }
}

impl Default for RunSettings {
    /// No model, no tool servers, no commands; the preset drivers.
    fn default() -> Self {
        Self {
            models: Vec::new(),
            drivers: ProcessDriver::presets(),
            tool_servers: Vec::new(),
            commands: CommandPolicy::Off,
            environment: Vec::new(),
        }
    }
}

/// How texts that may be secrets are written once their secrets are replaced.
pub(crate) mod text {
    use crewkit_core::Secret;
    use serde::{Deserializer, Serializer};

    pub(crate) mod secret {
        use super::{Deserializer, Secret, Serializer};

        pub(crate) fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(secret.expose())
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
            Ok(Secret::new(<String as serde::Deserialize>::deserialize(from)?))
        }
    }

    pub(crate) mod optional_secret {
        use super::{Deserializer, Secret, Serializer};
        use serde::{Deserialize as _, Serialize as _};

        #[expect(clippy::ref_option, reason = "serde passes a reference")]
        pub(crate) fn serialize<S: Serializer>(secret: &Option<Secret>, to: S) -> Result<S::Ok, S::Error> {
            secret.as_ref().map(Secret::expose).serialize(to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Secret>, D::Error> {
            Ok(Option::<String>::deserialize(from)?.map(Secret::new))
        }
    }

    pub(crate) mod secrets {
        use std::collections::BTreeMap;

        use super::{Deserializer, Secret, Serializer};
        use serde::Deserialize as _;

        pub(crate) fn serialize<S: Serializer>(
            secrets: &BTreeMap<String, Secret>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            to.collect_map(secrets.iter().map(|(name, secret)| (name, secret.expose())))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<BTreeMap<String, Secret>, D::Error> {
            let texts = BTreeMap::<String, String>::deserialize(from)?;
            Ok(texts.into_iter().map(|(name, text)| (name, Secret::new(text))).collect())
        }
    }

    pub(crate) mod environment {
        use std::ffi::OsString;

        use super::{Deserializer, Serializer};
        use serde::Deserialize as _;

        pub(crate) fn serialize<S: Serializer>(
            variables: &[(OsString, OsString)],
            to: S,
        ) -> Result<S::Ok, S::Error> {
            to.collect_seq(
                variables.iter().map(|(name, value)| (name.to_string_lossy(), value.to_string_lossy())),
            )
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Vec<(OsString, OsString)>, D::Error> {
            let texts = Vec::<(String, String)>::deserialize(from)?;
            Ok(texts.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
        }
    }
}
