//! Git sources as words: which addresses, refs and commits are accepted. No process is run here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Refused;

/// Schemes that only move data.
const SCHEMES: [&str; 5] = ["https", "http", "ssh", "git", "file"];

/// Checks an address: a plain scheme, `user@host:path`, or a local path.
pub(crate) fn check_url(url: &str) -> Result<(), Refused> {
    let refuse = |why: &str| Err(Refused(format!("git url `{}` {why}", shown_url(url))));
    if url.trim().is_empty() {
        return Err(Refused("git url is empty".to_owned()));
    }
    if url.starts_with('-') {
        return refuse("starts with `-`, which git would take for an option");
    }
    if url.chars().any(char::is_control) {
        return refuse("contains a control character");
    }
    let helper = url.split_once("::").is_some_and(|(name, _)| !name.contains(['/', '@', '[', ':']));
    if helper {
        return refuse("names a transport helper, which could run commands");
    }
    if let Some((scheme, rest)) = url.split_once("://") {
        if !SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) {
            return refuse("has a scheme other than https, http, ssh, git and file");
        }
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        if host.starts_with('-') || authority.starts_with('-') {
            return refuse("has a host that starts with `-`");
        }
        return Ok(());
    }
    // `user@host:path`, unless a slash comes first, which makes it a local path.
    if let Some((host, path)) = url.split_once(':')
        && !host.contains('/')
    {
        let name = host.rsplit('@').next().unwrap_or_default();
        if name.starts_with('-') || host.starts_with('-') || path.starts_with('-') {
            return refuse("has a host or path that starts with `-`");
        }
    }
    Ok(())
}

/// Checks a branch, tag or commit.
pub(crate) fn check_ref(name: &str) -> Result<(), Refused> {
    let refuse = |why: &str| Err(Refused(format!("git ref `{name}` {why}")));
    if name.is_empty() {
        return Err(Refused("git ref is empty".to_owned()));
    }
    if name.starts_with('-') {
        return refuse("starts with `-`, which git would take for an option");
    }
    if name.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c))
        || name.contains("..")
        || name.contains("@{")
    {
        return refuse("contains what no ref can contain");
    }
    let odd = name
        .split('/')
        .any(|part| part.is_empty() || part.starts_with('.') || part.to_ascii_lowercase().ends_with(".lock"));
    if odd || name.ends_with('.') {
        return refuse("is not a name git accepts");
    }
    Ok(())
}

/// The address with a password replaced; for messages.
pub(crate) fn shown_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{scheme}://{name}:***@{host}{path}"),
            // A lone token in front of the `@` is as secret as a password, unless it is the customary name.
            None if user == "git" => url.to_owned(),
            None => format!("{scheme}://***@{host}{path}"),
        },
        None => url.to_owned(),
    }
}

/// A commit id: 40 or 64 hex digits, so that it can be a directory name and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit(String);

impl Commit {
    /// The hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text that is not a commit id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a commit id of 40 or 64 hex digits")]
pub struct NotACommit(String);

impl FromStr for Commit {
    type Err = NotACommit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(NotACommit(text.chars().take(80).collect()))
        }
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Commit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Commit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Picks the commit of `name` from the lines of `git ls-remote`: a peeled tag, else a branch, else a tag.
pub(crate) fn pick(listing: &str, name: &str) -> Option<Commit> {
    let find = |wanted: &str| {
        listing.lines().find_map(|line| {
            let (commit, found) = line.split_once('\t')?;
            (found == wanted).then(|| commit.parse().ok()).flatten()
        })
    };
    find(&format!("refs/tags/{name}^{{}}"))
        .or_else(|| find(&format!("refs/heads/{name}")))
        .or_else(|| find(&format!("refs/tags/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in [
            "https://github.com/a/b.git",
            "http://h/a",
            "ssh://git@h:22/a/b",
            "git://h/a",
            "file:///srv/a.git",
            "git@github.com:a/b.git",
            "/srv/a",
            "../a",
            "host:a/b",
            "/srv/odd::name",
            "C:/repo",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "--upload-pack=touch /tmp/pwned;",
            "-x",
            "ext::sh -c id",
            "fd::17",
            "foo::bar",
            "http::https://x",
            "ftp://h/a",
            "ssh://-oProxyCommand=id/x",
            "ssh://user@-oProxyCommand=id/x",
            "-oProxyCommand=id:x",
            "git@-host:x",
            "host:--upload-pack=id",
            "https://h/a\nb",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refs() {
        for good in ["main", "v1.0", "feature/x", "a".repeat(40).as_str(), "release-2"] {
            assert_eq!(check_ref(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "-b",
            "--upload-pack=x",
            "a b",
            "a..b",
            "a^",
            "a:b",
            "/a",
            "a/",
            "a.lock",
            ".a",
            "@{1}",
            "a\n",
        ] {
            assert!(check_ref(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, want) in [
            ("https://u:secret@h/p@q", "https://u:***@h/p@q"),
            ("https://token@h/p", "https://***@h/p"),
            ("ssh://git@h/p", "ssh://git@h/p"),
            ("git@h:p", "git@h:p"),
            ("https://h/p", "https://h/p"),
        ] {
            assert_eq!(shown_url(url), want);
        }
    }

    #[test]
    fn a_peeled_tag_wins_over_a_branch_over_a_tag() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let listing =
            format!("{a}\trefs/heads/v1\n{b}\trefs/tags/v1\n{c}\trefs/tags/v1^{{}}\n{b}\trefs/tags/v2\n");
        let picked = |listing: &str, name| pick(listing, name).map(|commit| commit.to_string());
        assert_eq!(picked(&listing, "v1"), Some(c));
        assert_eq!(picked(&listing.replace("^{}", "-x"), "v1"), Some(a));
        assert_eq!(picked(&listing, "v2"), Some(b));
        assert_eq!(picked(&listing, "v3"), None);
    }
}
