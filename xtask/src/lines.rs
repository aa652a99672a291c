//! How much code there is: lines of `src` per crate, tests not counted.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::shell::root;

/// Prints the lines of each crate and of all.
pub(crate) fn run() -> Result<()> {
    let mut total = 0;
    let crates = root().join("crates");
    let listed = std::fs::read_dir(&crates).with_context(|| crates.display().to_string())?;
    let mut names: Vec<_> = listed.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
    names.sort();
    for name in names {
        let lines = lines_below(&crates.join(&name).join("src"))?;
        println!("{lines:>7}  {}", name.to_string_lossy());
        total += lines;
    }
    println!("{total:>7}  all");
    Ok(())
}

fn lines_below(dir: &Path) -> Result<usize> {
    let mut lines = 0;
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "tests" {
            lines += lines_below(&path)?;
        } else if is_source(name) {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            lines += without_tests(&text).lines().count();
        }
    }
    Ok(lines)
}

/// Whether a file is code that is not a test.
fn is_source(name: &str) -> bool {
    name.strip_suffix(".rs").is_some_and(|stem| stem != "tests" && !stem.ends_with("_tests"))
}

/// The text before the module of tests, which ends a file.
fn without_tests(text: &str) -> &str {
    let mut at = 0;
    while let Some(found) = text[at..].find("#[cfg(test)]\n") {
        let start = at + found;
        let after = text[start..].lines().find(|line| !line.starts_with("#["));
        if after.is_some_and(|line| line.starts_with("mod ") && line.ends_with('{')) {
            return &text[..start];
        }
        at = start + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_are_not_counted() {
        let counted = |text: &str| super::without_tests(text).lines().count();
        assert_eq!(counted("fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"), 2);
        assert_eq!(counted("#[cfg(test)]\n#[cfg(unix)]\nmod tests {\n}\n"), 0);
        assert_eq!(counted("fn a() {}\n#[cfg(test)]\nmod tests;\n"), 3);
    }
}
