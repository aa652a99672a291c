//! The bearer token: made on first use, kept in a file only its owner can read.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crewkit_core::{Code, Secret};

use crate::failure::Failure;

/// The file in a home that holds the token.
pub fn file(home: &Path) -> PathBuf {
    home.join("token")
}

/// The token of a home, if it has one.
pub fn load(home: &Path) -> Result<Option<Secret>, Failure> {
    let path = file(home);
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 16 => {
            refuse_if_others_can_read(&path)?;
            Ok(Some(Secret::new(text.trim())))
        }
        Ok(_) => {
            let message = format!(
                "{}: the token is empty or too short; delete the file to get a new one",
                path.display()
            );
            Err(Failure::new(Code::StateUnusable, message))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(&path, &error)),
    }
}

/// The token of a home; a new one when there is none.
pub fn load_or_create(home: &Path) -> Result<Secret, Failure> {
    if let Some(token) = load(home)? {
        return Ok(token);
    }
    let path = file(home);
    let unusable = |error: std::io::Error| unusable(&path, &error);
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::new(Code::StateUnusable, format!("no random numbers for a token: {error}"))
    })?;
    let token = random.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    std::fs::create_dir_all(home).map_err(unusable)?;
    let mut options = std::fs::OpenOptions::new();
    // Made anew, never through a link someone put there.
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = match options.open(&path) {
        Ok(file) => file,
        // Another process made one at the same moment.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return load_or_create(home),
        Err(error) => return Err(unusable(error)),
    };
    file.write_all(format!("{token}\n").as_bytes()).and_then(|()| file.sync_all()).map_err(unusable)?;
    Ok(Secret::new(token))
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Code::StateUnusable, format!("{}: {error}", path.display()))
}

/// Returns an error if the mode of the file lets others read the secrets in it.
#[cfg(unix)]
pub(crate) fn refuse_if_others_can_read(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).map_or(0o600, |metadata| metadata.permissions().mode());
    let others = mode & 0o077;
    if others == 0 {
        return Ok(());
    }
    let message =
        format!("{}: others can read it (mode {:o}); run chmod 600 on it", path.display(), mode & 0o777);
    Err(Failure::new(Code::StateUnusable, message))
}

#[cfg(not(unix))]
pub(crate) fn refuse_if_others_can_read(_path: &Path) -> Result<(), Failure> {
    Ok(())
}
