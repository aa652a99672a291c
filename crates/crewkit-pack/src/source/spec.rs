//! The source argument of `add`: `local:<path>` or `git:<url>[#ref=…&subdir=…&shallow=…]`.

use crate::config::manifest::{Git, LocalPath, ModuleType, Source};

use super::{LocalPlace, Refused, git, normalized_subdir};

/// Parses and checks the argument.
pub(crate) fn parse(text: &str) -> Result<Source, Refused> {
    if let Some(path) = text.strip_prefix("local:") {
        LocalPlace::parse(path)?;
        return Ok(Source { local_path: Some(LocalPath { path: path.to_owned() }), git: None });
    }
    let Some(rest) = text.strip_prefix("git:") else {
        return Err(Refused(format!("`{text}` is neither local:<path> nor git:<url>[#ref=…&subdir=…]")));
    };
    let (url, options) = rest.split_once('#').unwrap_or((rest, ""));
    let mut source =
        Git { url: url.to_owned(), reference: "main".to_owned(), subdir: String::new(), shallow: true };
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("ref", value)) => value.clone_into(&mut source.reference),
            Some(("subdir", value)) => value.clone_into(&mut source.subdir),
            Some(("shallow", value)) => source.shallow = matches!(value, "true" | "1"),
            _ => return Err(Refused(format!("`{option}` is none of ref=…, subdir=… and shallow=…"))),
        }
    }
    git::check_url(&source.url)?;
    git::check_ref(&source.reference)?;
    normalized_subdir(&source.subdir)?;
    Ok(Source { local_path: None, git: Some(source) })
}

/// The id of a module that is added without one: its type and the last name of its source.
pub(crate) fn derived_id(kind: ModuleType, source: &Source) -> Option<String> {
    let last = |path: &str| {
        path.trim_end_matches('/').rsplit(['/', '\\', ':']).next().unwrap_or_default().to_owned()
    };
    let name = match (&source.local_path, &source.git) {
        (Some(local), _) => {
            let name = last(&local.path);
            match name.rsplit_once('.') {
                Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
                _ => name,
            }
        }
        (_, Some(git)) if !git.subdir.trim_matches('/').is_empty() => last(&git.subdir),
        (_, Some(git)) => last(&git.url).trim_end_matches(".git").to_owned(),
        _ => String::new(),
    };
    (!matches!(name.as_str(), "" | "." | "..")).then(|| format!("{}:{name}", kind.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> String {
        match parse(text) {
            Ok(source) => derived_id(ModuleType::Skill, &source).unwrap_or_else(|| "none".to_owned()),
            Err(error) => format!("refused: {error}"),
        }
    }

    #[test]
    fn ids_follow_from_sources() {
        for (text, want) in [
            ("local:modules/skills/foo", "skill:foo"),
            ("local:modules/prompts/a.md", "skill:a"),
            ("local:/abs/x.y.md", "skill:x.y"),
            ("git:https://h/o/repo.git", "skill:repo"),
            ("git:git@h:repo.git", "skill:repo"),
            ("git:https://h/o/r.git#ref=v1&subdir=skills/bar/", "skill:bar"),
            ("local:.", "none"),
        ] {
            assert_eq!(id(text), want, "{text}");
        }
    }

    #[test]
    fn what_is_refused() {
        for text in [
            "modules/x",
            "local:",
            "local:../x",
            "git:",
            "git:--upload-pack=x",
            "git:ext::sh",
            "git:https://h/r#ref=-x",
            "git:https://h/r#subdir=../x",
            "git:https://h/r#branch=x",
        ] {
            assert!(id(text).starts_with("refused"), "{text}");
        }
    }

    #[test]
    fn options_of_git() {
        let git = parse("git:https://h/r#ref=v2&subdir=a/b&shallow=0").unwrap().git.unwrap();
        assert_eq!((git.reference.as_str(), git.subdir.as_str(), git.shallow), ("v2", "a/b", false));
    }
}
