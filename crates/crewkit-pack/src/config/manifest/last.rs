//! The manifest parsed last: whoever asks again about the same text does not have it parsed again.
//!
//! A server remembers it in memory, and every process in a file, since parsing a long YAML text takes longer than all the
//! rest of a look that finds nothing to do. What is remembered belongs to the exact text it was made from, by hash; like
//! the hash cache, the file is written whole, and ignored when anything about it is odd.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crewkit_core::Limits;

use super::{Manifest, read_text};
use crate::error::Result;
use crate::fs::atomic;
use crate::fs::hash::Digest;

/// Raised when the meaning of a manifest's members changes; older files are then ignored.
const MAGIC: [u8; 8] = *b"crewmf02";
const HEADER: usize = 8 + 32 + 32;

/// Shorter texts are parsed faster than another file is opened.
const WORTH_KEEPING: usize = 16 * 1024;

/// Remembers the manifest parsed last.
#[derive(Debug, Default)]
pub struct LastManifest {
    /// Where it is kept between processes, if at all.
    file: Option<PathBuf>,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    text: String,
    manifest: Arc<Manifest>,
    /// Whether the file does not have it.
    unsaved: bool,
}

impl LastManifest {
    /// Remembers in `file`, too.
    pub fn in_file(file: PathBuf) -> Self {
        Self { file: Some(file), last: Mutex::default() }
    }

    /// [`Manifest::load`], remembering.
    pub fn load(&self, repo: &Path, limits: &Limits) -> Result<Arc<Manifest>> {
        let path = Manifest::path_in(repo);
        let text = read_text(&path, limits)?;
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*last()
            && known.text == text
        {
            return Ok(Arc::clone(&known.manifest));
        }
        let kept = self.file.as_ref().filter(|_| text.len() >= WORTH_KEEPING);
        let (manifest, unsaved) = match kept.and_then(|file| kept_in(file, &text)) {
            Some(manifest) => {
                // It was checked once; checking again costs little and spares us from trusting the file.
                manifest.check()?;
                (manifest, false)
            }
            None => (Manifest::parse(&text, &path, limits)?, kept.is_some()),
        };
        let manifest = Arc::new(manifest);
        *last() = Some(Last { text, manifest: Arc::clone(&manifest), unsaved });
        Ok(manifest)
    }

    /// Keeps what was parsed for the next process. Failing is not an error: it only costs time.
    pub fn save(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(last), Some(file)) = (last.as_mut().filter(|last| last.unsaved), &self.file) else {
            return;
        };
        last.unsaved = false;
        let Ok(body) = serde_json::to_vec(&*last.manifest) else { return };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(Digest::of(last.text.as_bytes()).as_bytes());
        bytes.extend_from_slice(Digest::of(&body).as_bytes());
        bytes.extend_from_slice(&body);
        let _ = atomic::write_cache(file, &bytes);
    }
}

/// The path of the file below a state directory.
pub fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join("crewkit/manifest-cache")
}

fn kept_in(file: &Path, text: &str) -> Option<Manifest> {
    let bytes = std::fs::read(file).ok()?;
    let (header, body) = bytes.split_at_checked(HEADER)?;
    let sound = header.starts_with(&MAGIC)
        && header[8..40] == *Digest::of(text.as_bytes()).as_bytes()
        && header[40..] == *Digest::of(body).as_bytes();
    if !sound {
        return None;
    }
    serde_json::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: usize = 400;

    fn text(name: &str) -> String {
        let mut text = "version: 1\nprofiles:\n  default: {include_tags: [base]}\ntargets:\n  \
                        codex: {mode: files, scope: both, options: {write_agents_global: yes, n: 7}}\nmodules:\n"
            .to_owned();
        for number in 0..MODULES {
            let source = if number % 2 == 0 {
                format!("{{local_path: {{path: modules/{name}}}}}")
            } else {
                "{git: {url: https://example.com/x, ref: v1, subdir: a, shallow: false}}".to_owned()
            };
            text.push_str(&format!(
                "  - {{id: 'skill:{number}', type: skill, tags: [base], targets: [codex], source: {source}}}\n"
            ));
        }
        text
    }

    #[test]
    fn what_is_kept_is_what_would_be_parsed_and_belongs_to_its_text() {
        let dir = tempfile::tempdir().unwrap();
        let (repo, file) = (dir.path(), file_in(&dir.path().join("state")));
        let limits = Limits::default();
        let path = Manifest::path_in(repo);
        std::fs::write(&path, text("one")).unwrap();
        let parsed = Manifest::load(repo, &limits).unwrap();
        let fresh = LastManifest::in_file(file.clone());
        assert_eq!(*fresh.load(repo, &limits).unwrap(), parsed);
        fresh.save();

        assert_eq!(kept_in(&file, &text("one")), Some(parsed.clone()));
        assert_eq!(*LastManifest::in_file(file.clone()).load(repo, &limits).unwrap(), parsed);

        // Another text of the same length is parsed anew.
        std::fs::write(&path, text("two")).unwrap();
        assert_eq!(kept_in(&file, &text("two")), None);
        let other = LastManifest::in_file(file.clone()).load(repo, &limits).unwrap();
        assert_eq!(*other, Manifest::load(repo, &limits).unwrap());
        assert_ne!(*other, parsed);

        let whole = std::fs::read(&file).unwrap();
        for position in [0, 10, 50, HEADER, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(kept_in(&file, &text("one")), None, "byte {position}");
        }
    }

    #[test]
    fn a_short_or_invalid_text_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = file_in(&dir.path().join("state"));
        let last = LastManifest::in_file(file.clone());
        for text in ["version: 1\nprofiles: {default: {}}\n".to_owned(), text("one") + "\nmodules: ["] {
            std::fs::write(Manifest::path_in(dir.path()), text).unwrap();
            drop(last.load(dir.path(), &Limits::default()));
            last.save();
            assert!(!file.exists());
        }
    }
}
