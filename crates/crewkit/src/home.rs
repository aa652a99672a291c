//! Where crewkit keeps its configuration and state.

use std::path::PathBuf;

use crewkit_core::Code;

use crate::failure::Failure;

/// The directory given, or the one the platform has for such things.
pub fn resolve(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(home) = given {
        return std::path::absolute(&home)
            .map_err(|error| Failure::new(Code::StateUnusable, format!("{}: {error}", home.display())));
    }
    platform_default().ok_or_else(|| {
        Failure::new(Code::SettingInvalid, "no home directory is known; give one with --home or CREWKIT_HOME")
    })
}

#[cfg(target_os = "macos")]
fn platform_default() -> Option<PathBuf> {
    Some(std::env::home_dir()?.join("Library/Application Support/crewkit"))
}

#[cfg(windows)]
fn platform_default() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("APPDATA")?).join("crewkit"))
}

#[cfg(not(any(target_os = "macos", windows)))]
fn platform_default() -> Option<PathBuf> {
    // The XDG rules: a relative value counts as unset.
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let data = data.or_else(|| Some(std::env::home_dir()?.join(".local/share")))?;
    Some(data.join("crewkit"))
}
