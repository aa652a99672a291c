//! `JetBrains` with Junie: one guidelines file, in a project.

use super::{Places, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let wanted = places.config.scope().project() && places.config.flag("write_guidelines", true);
    let path = places.project.join(".junie");
    let puts = vec![Put::Instructions { file: "guidelines.md" }];
    wanted.then(|| RootSpec::new(path, true, puts)).into_iter().collect()
}
