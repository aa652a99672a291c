//! Paths inside a root, as a type that cannot leave it.
//!
//! A [`RelPath`] is checked once, when it is made; whoever holds one need not think about `..`, absolute paths or
//! strange bytes again. A [`RootDir`] is the directory such paths are relative to, held open, so that a root that
//! is renamed or re-linked meanwhile does not redirect what follows. The root itself may be a symbolic link; below
//! it none is followed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest relative path, in bytes.
pub const MAX_PATH_BYTES: usize = 3072;
/// Longest name of one file or directory, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A relative path with `/` between its names: never empty, absolute, or leading upwards.
///
/// Shared, not copied: the same path stands in the plan, the request, the journal and the manifest of one deploy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Arc<str>);

/// Why a text is not a [`RelPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelPathError {
    /// There is nothing.
    #[error("the path is empty")]
    Empty,
    /// It starts at the file system's root or names a drive.
    #[error("`{0}` is absolute")]
    Absolute(String),
    /// A component is `.`, `..`, or missing between two slashes.
    #[error("`{path}` contains the component `{component}`")]
    Component {
        /// The path as given.
        path: String,
        /// The component that is not a name.
        component: String,
    },
    /// It contains a NUL byte, which no file system stores.
    #[error("`{0}` contains a NUL byte")]
    Nul(String),
    /// It is not UTF-8, so it can be neither stored in JSON nor shown faithfully.
    #[error("`{0}` is not valid UTF-8")]
    NotUtf8(String),
    /// A name or the whole is longer than file systems take.
    #[error("`{shown}…` is too long: {bytes} bytes, at most {most}")]
    TooLong {
        /// Its beginning.
        shown: String,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
}

impl RelPath {
    /// Checks `text`.
    pub fn new(text: impl AsRef<str>) -> Result<Self, RelPathError> {
        let text = text.as_ref();
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Checks a path of the operating system.
    pub fn from_path(path: &Path) -> Result<Self, RelPathError> {
        let text = path.to_str().ok_or_else(|| RelPathError::NotUtf8(path.display().to_string()))?;
        if std::path::MAIN_SEPARATOR == '/' {
            Self::new(text)
        } else {
            Self::new(text.replace(std::path::MAIN_SEPARATOR, "/"))
        }
    }

    /// The path with `/` between its names.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path in the form of the operating system.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_str())
    }

    /// The last name.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(self.as_str(), |(_, name)| name)
    }

    /// The directory it lies in; nothing when that is the root itself.
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(parent, _)| Self(parent.into()))
    }

    /// The directories it lies in, from the nearest up to the root, which is not among them.
    pub fn parents(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.parent(), Self::parent)
    }

    /// The names from the root down.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// This path followed by `below`.
    pub fn join(&self, below: &Self) -> Result<Self, RelPathError> {
        Self::new(format!("{}/{}", self.0, below.0))
    }
}

fn check(text: &str) -> Result<(), RelPathError> {
    let shown = || text.chars().take(80).collect::<String>();
    if text.is_empty() {
        return Err(RelPathError::Empty);
    }
    if text.len() > MAX_PATH_BYTES {
        return Err(RelPathError::TooLong { shown: shown(), bytes: text.len(), most: MAX_PATH_BYTES });
    }
    if text.starts_with('/') || Path::new(text).is_absolute() {
        return Err(RelPathError::Absolute(shown()));
    }
    if text.contains('\0') {
        return Err(RelPathError::Nul(shown().replace('\0', "\\0")));
    }
    if std::path::MAIN_SEPARATOR != '/' && text.contains([std::path::MAIN_SEPARATOR, ':']) {
        return Err(RelPathError::Absolute(shown()));
    }
    for component in text.split('/') {
        if matches!(component, "" | "." | "..") {
            return Err(RelPathError::Component { path: shown(), component: component.to_owned() });
        }
        if component.len() > MAX_NAME_BYTES {
            return Err(RelPathError::TooLong {
                shown: shown(),
                bytes: component.len(),
                most: MAX_NAME_BYTES,
            });
        }
    }
    Ok(())
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for RelPath {
    type Err = RelPathError;

    fn from_str(text: &str) -> Result<Self, RelPathError> {
        Self::new(text)
    }
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_stays_below_the_root() {
        for text in ["AGENTS.md", "a/b/c", ".hidden", "a..b/c", "...", "sp ace/ü\n"] {
            assert_eq!(RelPath::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn refuses_what_could_leave_it_or_cannot_be_stored() {
        let long_name = "n".repeat(256);
        let long_path = "d/".repeat(1600) + "f";
        for (text, part) in [
            ("", "empty"),
            ("/etc/passwd", "absolute"),
            ("..", "component `..`"),
            ("a/../b", "component `..`"),
            ("a/./b", "component `.`"),
            ("a//b", "component ``"),
            ("a/", "component ``"),
            ("a\0b", "NUL"),
            (&long_name, "too long"),
            (&long_path, "too long"),
        ] {
            let error = RelPath::new(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn refuses_bytes_that_are_not_utf8() {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        assert!(matches!(RelPath::from_path(path), Err(RelPathError::NotUtf8(_))));
    }

    #[test]
    fn knows_its_parts() {
        let path = RelPath::new("a/b/c.md").unwrap();
        assert_eq!(path.name(), "c.md");
        assert_eq!(path.parent().unwrap().as_str(), "a/b");
        assert_eq!(RelPath::new("c").unwrap().parent(), None);
        assert_eq!(path.components().collect::<Vec<_>>(), ["a", "b", "c.md"]);
        assert_eq!(path.parent().unwrap().join(&RelPath::new("d").unwrap()).unwrap().as_str(), "a/b/d");
    }

    proptest::proptest! {
        #[test]
        fn an_accepted_path_never_climbs(text in "[a./\\\\\0 é]{0,12}") {
            if let Ok(path) = RelPath::new(text) {
                let joined = Path::new("/root").join(path.as_path());
                let mut depth = 0_i32;
                for component in joined.components().skip(2) {
                    depth += if matches!(component, std::path::Component::Normal(_)) { 1 } else { -99 };
                    proptest::prop_assert!(depth > 0);
                }
                proptest::prop_assert!(joined.starts_with("/root"));
            }
        }
    }
}
