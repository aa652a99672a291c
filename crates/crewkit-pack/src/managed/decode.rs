//! Reading a target manifest straight into its final form: one with ten thousand entries is read on every look.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{CreatedDirs, ManagedFile, SCHEMA_VERSION, TargetManifest};
use crate::hash::Digest;
use crate::ids::ModuleIds;
use crate::path::RelPath;

/// About how long an entry is, for the first allocation.
const ENTRY_BYTES: usize = 256;

/// Parses the bytes of a manifest; skipped entries become warnings. `known` may have a path already.
pub(super) fn parse(
    bytes: &[u8],
    target: &str,
    shown: &Path,
    known: &mut dyn FnMut(&str) -> Option<RelPath>,
) -> Result<(TargetManifest, Vec<String>), String> {
    let files = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    let mut reader = Reader { known, files, skipped: Vec::new(), ids: ModuleIds::default() };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let head = reader.deserialize(&mut deserializer).and_then(|head| deserializer.end().map(|()| head));
    let head = head.map_err(|error| error.to_string())?;
    if head.schema_version != SCHEMA_VERSION {
        return Err(format!("schema version {} is not supported", head.schema_version));
    }
    if head.tool != target {
        return Err(format!("it belongs to `{}`, not `{target}`", head.tool));
    }
    let Reader { mut files, skipped, .. } = reader;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    let knows_directories = head.created_directories.is_some();
    let below = head.created_directories.unwrap_or_default().into_iter();
    let created = CreatedDirs {
        below: below.filter_map(|path| RelPath::new(path).ok()).collect(),
        above: head.created_above,
    };
    let manifest = TargetManifest {
        target: target.to_owned(),
        snapshot_id: head.snapshot_id,
        files,
        created,
        knows_directories,
    };
    let warning = |reason| format!("skipping an entry of the target manifest {}: {reason}", shown.display());
    Ok((manifest, skipped.into_iter().map(warning).collect()))
}

/// What a manifest says besides its entries.
struct Head {
    schema_version: u32,
    tool: String,
    snapshot_id: Option<String>,
    created_directories: Option<Vec<String>>,
    created_above: u32,
}

/// A text, borrowed from the file where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Collects entries as they come.
struct Reader<'k> {
    known: &'k mut dyn FnMut(&str) -> Option<RelPath>,
    files: Vec<ManagedFile>,
    /// Why entries were skipped.
    skipped: Vec<String>,
    /// Of the entry before, which mostly comes from the same modules.
    ids: ModuleIds,
}

impl<'de> DeserializeSeed<'de> for &mut Reader<'_> {
    type Value = Head;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Head, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Reader<'_> {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a target manifest")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Head, A::Error> {
        let (mut schema_version, mut tool, mut snapshot_id) = (None, None, None);
        let (mut created_directories, mut created_above) = (None, 0);
        let mut has_files = false;
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "schema_version" => schema_version = Some(map.next_value()?),
                "tool" => tool = Some(map.next_value()?),
                "snapshot_id" => snapshot_id = map.next_value()?,
                "created_directories" => created_directories = map.next_value()?,
                "created_above" => created_above = map.next_value()?,
                "managed_files" => {
                    map.next_value_seed(Files(&mut *self))?;
                    has_files = true;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !has_files {
            return Err(de::Error::missing_field("managed_files"));
        }
        Ok(Head {
            schema_version: schema_version.ok_or_else(|| de::Error::missing_field("schema_version"))?,
            tool: tool.ok_or_else(|| de::Error::missing_field("tool"))?,
            snapshot_id,
            created_directories,
            created_above,
        })
    }
}

struct Files<'r, 'k>(&'r mut Reader<'k>);

impl<'de> DeserializeSeed<'de> for Files<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Files<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of managed files")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(OneFile(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

struct OneFile<'r, 'k>(&'r mut Reader<'k>);

impl<'de> DeserializeSeed<'de> for OneFile<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneFile<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a managed file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let (mut path, mut sha256, mut executable) = (None, None, false);
        let mut has_ids = false;
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "path" => path = Some(map.next_value::<Text<'de>>()?.0),
                "sha256" => sha256 = Some(map.next_value::<Text<'de>>()?.0),
                "executable" => executable = map.next_value()?,
                "module_ids" => {
                    map.next_value_seed(Ids(&mut reader.ids))?;
                    has_ids = true;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let path = path.ok_or_else(|| de::Error::missing_field("path"))?;
        let sha256 = sha256.ok_or_else(|| de::Error::missing_field("sha256"))?;
        let checked = match (reader.known)(&path) {
            Some(known) => Ok(known),
            None => RelPath::new(&path),
        };
        match (checked, sha256.parse::<Digest>()) {
            (Ok(path), Ok(sha256)) => {
                let module_ids = if has_ids { reader.ids.clone() } else { ModuleIds::default() };
                reader.files.push(ManagedFile { path, sha256, executable, module_ids });
            }
            (Err(error), _) => reader.skipped.push(error.to_string()),
            (_, Err(error)) => reader.skipped.push(format!("`{path}`: {error}")),
        }
        Ok(())
    }
}

/// The ids of an entry, in the place of those of the entry before.
struct Ids<'r>(&'r mut ModuleIds);

impl<'de> DeserializeSeed<'de> for Ids<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Ids<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of module ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut same = 0;
        while let Some(Text(id)) = items.next_element()? {
            if self.0.get(same) == Some(&*id) {
                same += 1;
                continue;
            }
            let mut ids: Vec<String> = self.0.iter().take(same).map(str::to_owned).collect();
            ids.push(id.into_owned());
            while let Some(Text(id)) = items.next_element()? {
                ids.push(id.into_owned());
            }
            *self.0 = ids.into_iter().collect();
            return Ok(());
        }
        if same < self.0.len() {
            *self.0 = self.0.iter().take(same).collect();
        }
        Ok(())
    }
}
