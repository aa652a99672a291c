//! The shapes of answers: plain data in, JSON out.

use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::desired::Desired;
use crate::hash::Digest;
use crate::ids::ModuleIds;
use crate::plan::{Change, Plan, Summary};

/// Inserts a path and its twin with forward slashes.
pub(crate) fn put_path(map: &mut Map<String, Value>, key: &str, path: &Path) {
    let shown = path.display().to_string();
    map.insert(format!("{key}_posix"), shown.replace('\\', "/").into());
    map.insert(key.to_owned(), shown.into());
}

/// An object, of what is known to be one.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The changes of a plan as they are written: row by row, so that a long plan never exists as JSON.
pub(crate) struct Changes<'a>(pub(crate) &'a Plan);

impl Serialize for Changes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.changes.iter().map(|change| Row::new(self.0, change)))
    }
}

/// One change; the members are in alphabetical order, as everywhere in answers.
#[derive(Serialize)]
struct Row {
    after_sha256: Option<Digest>,
    before_sha256: Option<Digest>,
    op: &'static str,
    path: String,
    path_posix: String,
    reason: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    update_kind: Option<&'static str>,
}

impl Row {
    fn new(plan: &Plan, change: &Change) -> Self {
        let path = plan.place(change).display().to_string();
        Self {
            after_sha256: change.after.map(|(_, sha256)| sha256),
            before_sha256: change.before.map(|entry| entry.sha256),
            op: change.op.name(),
            path_posix: path.replace('\\', "/"),
            path,
            reason: change.reason,
            target: plan.target(change),
            update_kind: change.op.update_kind(),
        }
    }
}

/// The changes and their count.
pub(crate) fn plan(plan: &Plan) -> Map<String, Value> {
    object(json!({"changes": Changes(plan), "summary": summary(plan.summary())}))
}

pub(crate) fn summary(summary: Summary) -> Value {
    json!({"create": summary.create, "update": summary.update, "delete": summary.delete})
}

/// What a change has to do with which modules.
pub(crate) fn explained(plan: &Plan, change: &Change, desired: &Desired, formerly: &ModuleIds) -> Value {
    let modules: Vec<Value> = match change.after {
        Some((at, _)) => desired
            .roots
            .get(change.root)
            .and_then(|root| root.files.get(at))
            .map(|file| file.modules.iter().filter_map(|index| module(desired, *index, file)).collect())
            .unwrap_or_default(),
        None => formerly
            .iter()
            .map(|id| json!({"module_id": id, "module_type": null, "layer": "missing", "module_path": null}))
            .collect(),
    };
    let mut map = object(json!({"op": change.op.name(), "target": plan.target(change), "modules": modules}));
    put_path(&mut map, "path", &plan.place(change));
    Value::Object(map)
}

/// The part of a module that a desired file comes from.
fn module(desired: &Desired, index: usize, file: &crate::desired::DesiredFile) -> Option<Value> {
    use crate::desired::Content;
    use crate::manifest::ModuleType;
    let material = desired.modules.get(index)?;
    let source = match &file.content {
        Content::Source(source) if material.files.iter().any(|part| part.path == source.path) => {
            material.files.iter().find(|part| part.path == source.path)
        }
        _ => material.files.iter().find(|part| part.path.as_str() == crate::module::INSTRUCTIONS_FILE),
    };
    let kind = match material.kind {
        ModuleType::Instructions => "Instructions",
        ModuleType::Skill => "Skill",
        ModuleType::Prompt => "Prompt",
        ModuleType::Command => "Command",
    };
    Some(json!({
        "module_id": material.id,
        "module_type": kind,
        "layer": source.map_or("missing", |source| source.layer.name()),
        "module_path": source.map(|source| source.path.as_str()),
    }))
}

/// A word a shell takes as one.
pub(crate) fn quoted(word: &str) -> String {
    let plain =
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:@+~=".contains(c));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
