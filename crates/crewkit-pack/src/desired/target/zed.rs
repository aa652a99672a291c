//! Zed: one rules file, in a project.

use super::{Places, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let wanted = places.config.scope().project() && places.config.flag("write_rules", true);
    let puts = vec![Put::Instructions { file: ".rules" }];
    wanted.then(|| RootSpec::new(places.project.to_owned(), false, puts)).into_iter().collect()
}
