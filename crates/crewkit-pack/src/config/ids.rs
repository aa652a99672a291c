//! Names derived from ids: the directory name of a module, the id of a machine, the name of a skill.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fs::hash::Digest;

/// The ids of the modules a file comes from; shared, because the files of a module share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleIds(Arc<[Box<str>]>);

impl ModuleIds {
    /// The ids in their order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|id| &**id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The id at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.0.get(index).map(|id| &**id)
    }
}

impl Default for ModuleIds {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<T: Into<Box<str>>> FromIterator<T> for ModuleIds {
    fn from_iter<I: IntoIterator<Item = T>>(ids: I) -> Self {
        Self(ids.into_iter().map(Into::into).collect())
    }
}

impl Serialize for ModuleIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&*self.0)
    }
}

impl<'de> Deserialize<'de> for ModuleIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Box<str>>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Longest readable part of a module's directory name.
const KEY_CHARS: usize = 64;

/// The directory name of a module: readable, safe on every file system, and distinct through a hash.
pub fn fs_key(module_id: &str) -> String {
    let readable: String = sanitized(module_id).chars().take(KEY_CHARS).collect();
    keyed(&readable, module_id)
}

/// The directory name without the length cap, which older overlays carry.
pub fn long_fs_key(module_id: &str) -> String {
    keyed(&sanitized(module_id), module_id)
}

fn keyed(readable: &str, module_id: &str) -> String {
    format!("{readable}--{}", Digest::of(module_id.as_bytes()).short(10))
}

/// The id with everything but letters, digits, `_` and `-` replaced.
pub fn sanitized(module_id: &str) -> String {
    let text: String = module_id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' })
        .collect();
    if text.is_empty() { "module".to_owned() } else { text }
}

/// The name of a module as it appears in paths: what follows the first `:`, or the sanitised id.
pub fn module_name(module_id: &str) -> String {
    match module_id.split_once(':') {
        Some((_, name)) => name.to_owned(),
        None => sanitized(module_id),
    }
}

/// The machine id in the form overlay directories use; empty when nothing usable is in `text`.
pub fn normalized_machine_id(text: &str) -> String {
    let mut id = String::new();
    for c in text.trim().to_lowercase().chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-' {
            id.push(c);
        } else if !id.ends_with('-') {
            id.push('-');
        }
    }
    id.trim_matches('-').to_owned()
}

/// The first candidate that leaves a machine id.
pub fn machine_id<'a>(candidates: impl IntoIterator<Item = &'a str>) -> String {
    candidates
        .into_iter()
        .map(normalized_machine_id)
        .find(|id| !id.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_existing_repos_carry() {
        assert_eq!(fs_key("skill:foo"), "skill_foo--22d3caa4ab");
        assert_eq!(fs_key("instructions:base"), "instructions_base--d39861fff1");
        assert!(fs_key("").starts_with("module--"));
        let long = "skill:".to_owned() + &"x".repeat(100);
        assert_eq!(fs_key(&long).len(), 64 + 2 + 10);
        assert_eq!(long_fs_key(&long).len(), 106 + 2 + 10);
    }

    #[test]
    fn machine_ids() {
        for (given, want) in [
            (" My Box.local ", "my-box-local"),
            ("a..b", "a-b"),
            ("--x--", "x"),
            ("box_1", "box_1"),
            ("***", ""),
            ("a-.b", "a-b"),
        ] {
            assert_eq!(normalized_machine_id(given), want, "{given:?}");
        }
        assert_eq!(machine_id(["", "**", "Host"]), "host");
        assert_eq!(machine_id([]), "unknown");
    }

    #[test]
    fn names_of_modules() {
        for (id, name) in
            [("skill:foo", "foo"), ("skill:a:b", "a:b"), ("plain id", "plain_id"), ("skill:", "")]
        {
            assert_eq!(module_name(id), name, "{id}");
        }
    }
}
