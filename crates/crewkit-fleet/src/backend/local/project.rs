//! Projects: git repositories and plain directories that agents can be made for.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::git::{Git, GitError, Place, one_line};

/// What agents of a project get a copy of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A git repository; agents get worktrees.
    Repository {
        /// The directory all worktrees share.
        common_dir: PathBuf,
    },
    /// A plain directory; agents get copies.
    Directory,
}

/// A registered project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalProject {
    /// Stable for its path, in the form of a UUID.
    pub id: String,
    /// Name agents show and callers use.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// What it is about, if somebody said so.
    pub description: String,
    /// Name of the pack profile its agents are equipped with, unless their role says otherwise.
    pub profile: Option<String>,
}

/// Why a path cannot be a project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// It cannot be looked at.
    #[error("{}: {source}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is no directory.
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// Git would not look at it.
    #[error(transparent)]
    Git(GitError),
    /// The name cannot be used.
    #[error("`{0}` cannot be a project's name; use 1 to 64 characters without control characters")]
    Name(String),
}

/// Looks at `path` and says what project it would be: the repository it is in, or the directory itself.
pub(crate) async fn look(git: &Git, path: &Path, name: Option<&str>) -> Result<LocalProject, ProjectError> {
    let given = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let path = given.canonicalize()?;
        let is_dir = path.metadata()?.is_dir();
        Ok((path, is_dir))
    });
    let read = read.await.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
    let (found, is_dir) = read.map_err(|source| ProjectError::Path { path: path.to_owned(), source })?;
    if !is_dir {
        return Err(ProjectError::NotADirectory(found));
    }
    let (path, kind) = match repository(git, &found).await? {
        Some((top, common_dir)) => (top, Kind::Repository { common_dir }),
        None => (found, Kind::Directory),
    };
    let name = match name {
        Some(name) => name.trim().to_owned(),
        None => {
            path.file_name().map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned())
        }
    };
    let usable = !name.is_empty() && name.chars().count() <= 64 && !name.chars().any(char::is_control);
    if !usable {
        return Err(ProjectError::Name(name.chars().take(80).collect()));
    }
    Ok(LocalProject { id: id_of(&path), name, path, kind, description: String::new(), profile: None })
}

/// The top of the repository `dir` is in, and the directory its worktrees share; none when it is in no repository.
async fn repository(git: &Git, dir: &Path) -> Result<Option<(PathBuf, PathBuf)>, ProjectError> {
    let place = Place::found_from(dir);
    let asked = git.at(&place).args(["rev-parse", "--path-format=absolute", "--git-common-dir"]).run().await;
    let common = match asked {
        Ok(output) => PathBuf::from(one_line(&output)),
        Err(GitError::Refused { complaint, .. }) if complaint.contains("not a git repository") => {
            return Ok(None);
        }
        Err(error) => return Err(ProjectError::Git(error)),
    };
    let top = git.at(&place).args(["rev-parse", "--path-format=absolute", "--show-toplevel"]).line().await;
    // A bare repository has no top; its own directory stands for it.
    Ok(Some((top.map_or_else(|_| dir.to_owned(), PathBuf::from), common)))
}

/// An id that is the same whenever the same path is registered.
fn id_of(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

impl LocalProject {
    /// Whether somebody who says `word` means this project.
    pub(crate) fn answers_to(&self, word: &str) -> bool {
        let word = word.trim();
        self.id.eq_ignore_ascii_case(word) || self.name.to_lowercase() == word.to_lowercase()
    }
}
