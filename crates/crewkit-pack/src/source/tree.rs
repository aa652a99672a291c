//! The files of a module: where each comes from and what it hashes to, without copying any of them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crewkit_core::{Code, Limits};

use crate::error::{PackError, Result};
use crate::fs::hash::{Digest, Hasher};
use crate::fs::path::RelPath;
use crate::fs::read::{self, ReadError};
use crate::fs::scan::{self, Item, Next};
use crate::fs::{FileKind, Fs, Opened, RealFs, ScanFs as _, Stat};
use crate::observe::hash_cache::{HashCache, Marks};
use crate::overlay::OverlayScope;
use crate::source::Upstream;

/// The directory of an overlay's own files, never deployed.
pub(crate) const METADATA_DIR: &str = ".agentpack";

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
pub enum Place {
    /// In this file.
    Disk(Arc<Path>),
    /// Here, because they exist nowhere else.
    Memory(Arc<[u8]>),
}

/// One file of a module.
#[derive(Debug, Clone)]
pub struct TreeFile {
    /// Where it is in the module.
    pub path: RelPath,
    /// Hash of its content.
    pub sha256: Digest,
    /// Length of its content.
    pub bytes: u64,
    /// Whether its owner may execute it.
    pub executable: bool,
    /// The overlay it comes from; nothing for the module's source.
    pub layer: Option<OverlayScope>,
    /// Where its bytes are.
    pub place: Place,
    /// Stat data of a file on disk, under which its hash is remembered.
    stat: Option<Stat>,
    marks: Marks,
}

impl TreeFile {
    /// A file that exists in memory alone.
    pub fn in_memory(path: RelPath, bytes: Vec<u8>, executable: bool, layer: OverlayScope) -> Self {
        Self {
            path,
            sha256: Digest::of(&bytes),
            bytes: bytes.len() as u64,
            executable,
            layer: Some(layer),
            place: Place::Memory(bytes.into()),
            stat: None,
            marks: Marks::NONE,
        }
    }

    /// Where to point a person to.
    pub fn shown(&self) -> PathBuf {
        match &self.place {
            Place::Disk(path) => path.to_path_buf(),
            Place::Memory(_) => self.path.as_path().to_owned(),
        }
    }

    /// Its bytes, at most `limit`.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>> {
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.to_vec()),
            Place::Disk(path) => read::bytes(path, limit).map_err(|error| unreadable(path, error)),
        }
    }

    /// Its text.
    pub fn read_text(&self, limit: u64) -> Result<String> {
        read::utf8(self.read(limit)?).map_err(|error| unreadable(&self.shown(), error))
    }

    /// Whether `marks` are known about its content.
    pub fn is_marked(&self, marks: Marks) -> bool {
        self.marks.has(marks)
    }

    /// Remembers `marks` about its content.
    pub fn mark(&self, marks: Marks, cache: &HashCache) {
        if let Some(stat) = &self.stat {
            cache.mark(stat, marks);
        }
    }
}

fn unreadable(path: &Path, error: ReadError) -> PackError {
    match error {
        ReadError::Io(error) => PackError::io("read", path, error),
        other => PackError::new(Code::ModuleInvalid, format!("{}: {other}", path.display()))
            .detail("path", path.display().to_string()),
    }
}

/// What is done with symbolic links.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// What they lead to appears in their place.
    Follow,
    /// They are left out.
    Ignore,
}

/// Lists what was opened: a directory, or a single file. `base` is the path it was opened by.
///
/// Everything is listed except `.git`; the result is sorted by path.
pub(crate) fn list(
    (opened, stat): Upstream,
    base: &Path,
    layer: Option<OverlayScope>,
    links: Links,
    limits: &Limits,
    cache: &HashCache,
) -> Result<Vec<TreeFile>> {
    let mut lister = Lister { base, layer, limits, cache, files: Vec::new(), links: Vec::new() };
    match opened {
        Opened::Directory(dir) => {
            lister.directory(&dir, &stat, base, "")?;
            if links == Links::Follow {
                lister.follow_links()?;
            }
        }
        Opened::File(file) => {
            let name = base.file_name().unwrap_or_default();
            let path = rel_path(base, name.to_str().ok_or_else(|| not_utf8(base))?)?;
            lister.file(path, base.to_owned(), &stat, || Ok(file))?;
        }
        Opened::Special => return Err(invalid(base, "is neither a file nor a directory")),
    }
    let mut files = lister.files;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The hash of a whole tree, as lockfiles and baselines record it.
pub(crate) fn digest<'a>(files: impl IntoIterator<Item = (&'a str, Digest, u64)>) -> Digest {
    let mut hasher = Hasher::default();
    for (path, sha256, bytes) in files {
        hasher.update(format!("{path}\n{sha256}\n{bytes}\n").as_bytes());
    }
    hasher.finish()
}

/// The hash of listed files.
pub(crate) fn digest_of(files: &[TreeFile]) -> Digest {
    digest(files.iter().map(|file| (file.path.as_str(), file.sha256, file.bytes)))
}

/// Whether a path belongs to an overlay's own files.
pub(crate) fn is_metadata(path: &RelPath) -> bool {
    path.components().any(|component| component == METADATA_DIR)
}

struct Lister<'a> {
    base: &'a Path,
    layer: Option<OverlayScope>,
    limits: &'a Limits,
    cache: &'a HashCache,
    files: Vec<TreeFile>,
    links: Vec<RelPath>,
}

impl Lister<'_> {
    fn directory(&mut self, dir: &<RealFs as Fs>::Dir, stat: &Stat, path: &Path, prefix: &str) -> Result<()> {
        let (limits, cache) = (self.limits, Some((self.cache, stat)));
        scan::walk(&RealFs::default(), dir, path, limits, cache, |item| self.visit(item, path, prefix))
    }

    fn visit(&mut self, item: &Item<'_>, dir: &Path, prefix: &str) -> Result<Next> {
        let place = || dir.join(item.path);
        let name = item.path.rsplit('/').next().unwrap_or_default();
        if name == ".git" {
            return Ok(Next::Skip);
        }
        if !item.utf8 {
            return Err(not_utf8(&place()));
        }
        if item.kind == FileKind::Directory {
            return Ok(Next::Descend);
        }
        let path = if prefix.is_empty() {
            rel_path(self.base, item.path)?
        } else {
            rel_path(self.base, &format!("{prefix}{}", item.path))?
        };
        match item.kind {
            FileKind::Directory => {}
            FileKind::Special => return Err(invalid(&place(), "is a socket, device or pipe")),
            FileKind::Symlink => self.links.push(path),
            FileKind::File => {
                let stat = item.stat().map_err(|error| PackError::io("read", &place(), error))?;
                self.file(path, place(), &stat, || item.open())?;
            }
        }
        Ok(Next::Skip)
    }

    fn file(
        &mut self,
        path: RelPath,
        place: PathBuf,
        stat: &Stat,
        open: impl FnOnce() -> io::Result<File>,
    ) -> Result<()> {
        let known = self.cache.hash(stat, open).map_err(|error| PackError::io("read", &place, error))?;
        if self.files.len() as u64 >= self.limits.pack_module_files {
            let most = self.limits.pack_module_files;
            return Err(invalid(
                self.base,
                &format!("has more files than pack_module_files ({most}) allows"),
            ));
        }
        self.files.push(TreeFile {
            path,
            sha256: known.sha256,
            bytes: stat.size,
            executable: stat.is_executable(),
            layer: self.layer,
            place: Place::Disk(place.into()),
            stat: Some(*stat),
            marks: known.marks,
        });
        Ok(())
    }

    /// Links may point to files and directories of the same module; what they lead to appears in their place.
    fn follow_links(&mut self) -> Result<()> {
        if self.links.is_empty() {
            return Ok(());
        }
        let real_base =
            std::fs::canonicalize(self.base).map_err(|error| PackError::io("open", self.base, error))?;
        while let Some(path) = self.links.pop() {
            let link = self.base.join(path.as_path());
            let real = match std::fs::canonicalize(&link) {
                Ok(real) => real,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(invalid(&link, "is a symbolic link to nothing"));
                }
                Err(error) => return Err(PackError::io("follow link", &link, error)),
            };
            if !real.starts_with(&real_base) {
                return Err(invalid(&link, "is a symbolic link that leaves the module"));
            }
            let opened = RealFs::default().open_any(&real);
            let (opened, stat) = opened.map_err(|error| PackError::io("read", &link, error))?;
            match opened {
                Opened::File(file) => self.file(path, real, &stat, || Ok(file))?,
                Opened::Directory(dir) => {
                    // A link to a directory above itself would have no end.
                    let above = std::fs::canonicalize(link.parent().unwrap_or(self.base));
                    if above.is_ok_and(|above| above.starts_with(&real)) || path.components().count() > 32 {
                        return Err(invalid(&link, "is a symbolic link to a directory it lies in"));
                    }
                    self.directory(&dir, &stat, &real, &format!("{path}/"))?;
                }
                Opened::Special => {
                    return Err(invalid(&link, "is a symbolic link to a socket, device or pipe"));
                }
            }
        }
        Ok(())
    }
}

fn rel_path(base: &Path, path: &str) -> Result<RelPath> {
    RelPath::new(path).map_err(|error| invalid(&base.join(path), &format!("cannot be used: {error}")))
}

fn not_utf8(path: &Path) -> PackError {
    invalid(path, "has a name that is not valid UTF-8")
}

fn invalid(path: &Path, what: &str) -> PackError {
    PackError::new(Code::ModuleInvalid, format!("{} {what}", path.display())).path(path)
}
