//! A path as a model writes it, made relative to the working directory.

use std::path::{Component, Path, PathBuf};

/// The path beneath `root` that `written` means: relative, or absolute below the root. `..` is refused rather than
/// resolved; models use it to leave, or by mistake.
pub(super) fn beneath(root: &Path, written: &str) -> Result<PathBuf, String> {
    if written.contains('\0') {
        return Err("the path holds a NUL byte".to_owned());
    }
    let path = Path::new(written);
    let relative = if path.is_absolute() {
        path.strip_prefix(root)
            .map_err(|_| format!("{written} is outside the working directory {}", root.display()))?
    } else {
        path
    };
    let mut clean = PathBuf::new();
    for part in relative.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => {
                return Err(format!(
                    "{written}: `..` is not allowed; name the path from the working directory"
                ));
            }
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_models_write() {
        let root = Path::new("/srv/tree");
        for (written, expected) in [
            ("src/lib.rs", Some("src/lib.rs")),
            ("./src//lib.rs", Some("src/lib.rs")),
            ("", Some("")),
            (".", Some("")),
            ("/srv/tree/a", Some("a")),
            ("/srv/tree", Some("")),
            ("/srv/treetop/a", None),
            ("/etc/passwd", None),
            ("../a", None),
            ("a/../b", None),
            ("a\0b", None),
        ] {
            assert_eq!(beneath(root, written).ok().as_deref(), expected.map(Path::new), "{written:?}");
        }
    }
}
