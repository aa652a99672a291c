//! Cursor: one rule file per instructions module, in a project.

use super::{Places, Put, RootSpec};

pub(super) fn roots(places: &Places<'_>) -> Vec<RootSpec> {
    let wanted = places.config.scope().project() && places.config.flag("write_rules", true);
    let path = places.project.join(".cursor/rules");
    wanted.then(|| RootSpec::new(path, true, vec![Put::CursorRules])).into_iter().collect()
}
