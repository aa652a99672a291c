//! Where the content of modules comes from, and the checks that keep it there.

use std::io;
use std::path::{Path, PathBuf};

use crewkit_core::Code;

use crate::config::manifest::{Git, LocalPath, Module};
use crate::error::{PackError, Result};
use crate::fs::scan::Base;
use crate::fs::{Fs, Opened, RealFs, ScanFs as _, Stat};

pub(crate) mod git;
pub(crate) mod materialize;
pub mod module;
pub(crate) mod process;
pub(crate) mod resolve;
pub(crate) mod spec;
pub(crate) mod tree;

/// A way to write a source that is not accepted, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// The error for a source of `module` that is not accepted.
pub(crate) fn refused(module_id: &str, refused: &Refused) -> PackError {
    PackError::new(Code::SourceInvalid, format!("source of module {module_id} is refused: {refused}"))
        .detail("module_id", module_id)
        .detail("error", refused.to_string())
}

/// A path relative to a root, without `.` and doubled slashes; empty for the root itself.
pub fn normalized_relative(path: &str) -> Result<String, Refused> {
    let path = path.replace('\\', "/");
    if path.starts_with('/') {
        return Err(Refused(format!("`{path}` is absolute")));
    }
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => return Err(Refused(format!("`{path}` leads outside through `..`"))),
            name if name.contains('\0') => return Err(Refused("a path contains a NUL byte".to_owned())),
            name => names.push(name),
        }
    }
    Ok(names.join("/"))
}

/// The subdirectory of a git source.
pub fn normalized_subdir(subdir: &str) -> Result<String, Refused> {
    normalized_relative(subdir).map_err(|Refused(why)| Refused(format!("subdir {why}")))
}

/// A local source as it is written: below the config repo, or anywhere by an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalPlace {
    /// Relative to the config repo.
    InRepo(String),
    /// Absolute; a documented feature, but nobody else's machine has it.
    Absolute(PathBuf),
}

impl LocalPlace {
    /// Reads what the manifest says.
    pub fn parse(path: &str) -> Result<Self, Refused> {
        if path.is_empty() {
            return Err(Refused("local_path is empty".to_owned()));
        }
        if Path::new(path).is_absolute() {
            return Ok(Self::Absolute(PathBuf::from(path)));
        }
        normalized_relative(path)
            .map(Self::InRepo)
            .map_err(|Refused(why)| Refused(format!("local_path {why}")))
    }

    /// Where it is.
    pub fn path(&self, repo: &Path) -> PathBuf {
        match self {
            Self::InRepo(path) if path.is_empty() => repo.to_owned(),
            Self::InRepo(path) => repo.join(path),
            Self::Absolute(path) => path.clone(),
        }
    }
}

/// The upstream of a module, open for listing.
pub(crate) type Upstream = (Opened<<RealFs as Fs>::Dir>, Stat);

/// Opens a local source; also returns the path it can be opened by again.
pub(crate) fn open_local(module: &Module, local: &LocalPath, repo: &Base<'_>) -> Result<(Upstream, PathBuf)> {
    let place = LocalPlace::parse(&local.path).map_err(|why| refused(&module.id, &why))?;
    let base = place.path(repo.path());
    let opened = match &place {
        LocalPlace::InRepo(path) => repo.open_beneath(path),
        LocalPlace::Absolute(path) => RealFs::default().open_any(path),
    };
    Ok((opened.map_err(|error| not_opened(module, &base, error))?, base))
}

/// Opens the part of a checkout that is the module; also returns the path it can be opened by again.
pub(crate) fn open_in_checkout(module: &Module, git: &Git, checkout: &Path) -> Result<(Upstream, PathBuf)> {
    let subdir = normalized_subdir(&git.subdir).map_err(|why| refused(&module.id, &why))?;
    let base = if subdir.is_empty() { checkout.to_owned() } else { checkout.join(&subdir) };
    let opened = Base::open(RealFs::default(), checkout);
    let opened = opened.and_then(|checkout| checkout.open_beneath(&subdir));
    Ok((opened.map_err(|error| not_opened(module, &base, error))?, base))
}

fn not_opened(module: &Module, base: &Path, error: io::Error) -> PackError {
    let shown = base.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => PackError::new(
            Code::SourceMissing,
            format!("source of module {} does not exist: {shown}", module.id),
        )
        .detail("module_id", module.id.as_str())
        .detail("path", shown),
        io::ErrorKind::CrossesDevices => refused(
            &module.id,
            &Refused(format!("{shown} leads outside of its root through a symbolic link")),
        )
        .detail("path", shown),
        _ => PackError::io("open source", base, error).detail("module_id", module.id.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_stay_inside() {
        for (path, want) in [
            ("a/b", Ok("a/b")),
            ("./a//b/", Ok("a/b")),
            (".", Ok("")),
            ("", Ok("")),
            ("a\\b", Ok("a/b")),
            ("a..b/...", Ok("a..b/...")),
            ("../a", Err(())),
            ("a/../../b", Err(())),
            ("a/..", Err(())),
            ("/etc", Err(())),
            ("a\0b", Err(())),
        ] {
            assert_eq!(normalized_relative(path).as_deref().map_err(|_| ()), want, "{path:?}");
        }
    }
}
