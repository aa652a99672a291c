//! A plain directory: every kind of module, for programs that are not a target of their own.

use crewkit_core::Code;

use super::{Places, PromptNaming, Put, RootSpec};
use crate::error::{PackError, Result};

pub(super) fn roots(places: &Places<'_>) -> Result<Vec<RootSpec>> {
    let config = places.config;
    let Some(root) = config.text("root") else {
        return Err(PackError::new(Code::ConfigInvalid, "target export_dir needs a non-empty option `root`")
            .detail("target", "export_dir")
            .detail("option", "root"));
    };
    // `join` keeps an absolute root as it is.
    let base = places.project.join(places.env.expand_tilde(root));
    let scan_extras = config.flag("scan_extras", true);
    let spec = |path| {
        RootSpec::new(
            path,
            scan_extras,
            vec![
                Put::Instructions { file: "AGENTS.md" },
                Put::Prompts { dir: "prompts", naming: PromptNaming::Same },
                Put::Skills { dir: "skills" },
                Put::Commands { dir: "commands" },
            ],
        )
    };
    Ok(match (config.scope().user(), config.scope().project()) {
        (true, true) => vec![spec(base.join("user")), spec(base.join("project"))],
        _ => vec![spec(base)],
    })
}
