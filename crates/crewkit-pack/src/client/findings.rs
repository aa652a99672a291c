//! What is wrong with a deployment from a client's point of view: files it does not read, or not as meant.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use super::view::{Part, PartKind, PartState};
use super::{Client, Evidence};
use crate::desired::{Desired, DesiredRoot};
use crate::env::Env;
use crate::fs::path::RelPath;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FindingKind {
    NotRead,
    HiddenBy,
    DoubledWith,
    Cut,
    NeedsTrust,
    NotVerified,
}

impl FindingKind {
    /// The word in answers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NotRead => "not_read",
            Self::HiddenBy => "hidden_by",
            Self::DoubledWith => "doubled_with",
            Self::Cut => "cut",
            Self::NeedsTrust => "needs_trust",
            Self::NotVerified => "not_verified",
        }
    }
}

/// One thing that is wrong, about one file or several alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: FindingKind,
    /// What is wrong, with what and why.
    pub(crate) message: String,
}

/// What is wrong with what `client` finds, as far as modules are concerned. `own` are the roots that were deployed for
/// this client.
pub(crate) fn of<'a>(
    client: &Client,
    env: &Env,
    parts: &[Part],
    desired: &Desired,
    own: impl Iterator<Item = &'a DesiredRoot>,
) -> Vec<Finding> {
    let own: Vec<&DesiredRoot> = own.collect();
    let is_own = |path: &Path| {
        own.iter().any(|root| {
            let below = path.strip_prefix(&root.path).ok().and_then(|below| RelPath::from_path(below).ok());
            below.is_some_and(|below| root.file(&below).is_some())
        })
    };
    let shown = |path: &Path| shorten(env, path);
    let mut groups: BTreeMap<(FindingKind, String), Vec<String>> = BTreeMap::new();
    let mut add = |kind, text: String, name: String| groups.entry((kind, text)).or_default().push(name);
    let title = client.title;
    // By text: comparing paths part by part takes longer than everything else here.
    let by_path: BTreeMap<&OsStr, &Part> =
        parts.iter().rev().map(|part| (part.path.as_os_str(), part)).collect();
    for part in parts.iter().filter(|part| part.imported_by.is_none()) {
        let ours = !part.modules.is_empty();
        match &part.state {
            PartState::Cut { read, limit } if ours => {
                let what = format!(
                    "{title} reads {limit} bytes of the project's instructions and drops the rest without a word: \
                     {} is cut after byte {read} of {}",
                    shown(&part.path),
                    part.bytes
                );
                add(FindingKind::Cut, what, String::new());
            }
            // A file of the user that hides or is hidden by another of the user's is not our concern.
            PartState::HiddenBy(by)
                if part.kind == PartKind::Instructions
                    && if ours {
                        // Another client's file that says nothing but what is read is not missed.
                        is_own(&part.path) || is_own(by) || !is_said(parts, part)
                    } else {
                        by_module(parts, by)
                    } =>
            {
                let what =
                    format!("{title} does not read {}: it is hidden by {}", shown(&part.path), shown(by));
                add(FindingKind::HiddenBy, what, String::new());
            }
            PartState::HiddenBy(by)
                if part.kind != PartKind::Instructions && ours && !same_modules(&by_path, part, by) =>
            {
                let by = by_path.get(by.as_os_str()).map_or(by.as_path(), |other| group_dir(other));
                let what = format!(
                    "{title} does not use {}s in {}: hidden by {}",
                    part.kind.name(),
                    shown(group_dir(part)),
                    shown(by)
                );
                add(FindingKind::HiddenBy, what, part.name.clone());
            }
            PartState::NeedsTrust(file) if ours => {
                let what = format!(
                    "{title} does not read {}: the project is marked untrusted in {}",
                    shown(&part.path),
                    shown(file)
                );
                add(FindingKind::NeedsTrust, what, String::new());
            }
            _ => {}
        }
    }
    doubled(title, env, parts, &mut add);
    not_read(title, env, parts, own.into_iter(), desired, &mut add);
    if client.evidence == Evidence::Unverified && parts.iter().any(|part| !part.modules.is_empty()) {
        let what = format!("what {title} reads is not verified: look into the client before you rely on it");
        add(FindingKind::NotVerified, what, String::new());
    }
    let finding = |((kind, text), names): ((FindingKind, String), Vec<String>)| Finding {
        kind,
        message: text + &some_of(&names),
    };
    groups.into_iter().map(finding).collect()
}

/// Modules that a client sees in more than one place.
fn doubled(title: &str, env: &Env, parts: &[Part], add: &mut impl FnMut(FindingKind, String, String)) {
    let mut seen: BTreeMap<(PartKind, &str), Vec<&Part>> = BTreeMap::new();
    for part in parts.iter().filter(|part| part.is_seen()) {
        for module in &part.modules {
            seen.entry((part.kind, module)).or_default().push(part);
        }
        // A skill of the user beside one of ours of that name.
        if part.kind != PartKind::Instructions && part.modules.is_empty() {
            let twin = parts.iter().find(|other| {
                other.kind == part.kind
                    && other.name == part.name
                    && !other.modules.is_empty()
                    && other.is_seen()
            });
            if let Some(twin) = twin {
                let what = format!(
                    "{title} lists {}s of {} a second time: doubled with {}",
                    part.kind.name(),
                    shorten(env, group_dir(twin)),
                    shorten(env, group_dir(part))
                );
                add(FindingKind::DoubledWith, what, part.name.clone());
            }
        }
    }
    for ((kind, module), parts) in seen.into_iter().filter(|(_, parts)| parts.len() > 1) {
        let places: BTreeSet<&Path> = parts.iter().map(|part| part.path.as_path()).collect();
        let mut places = places.into_iter();
        let (Some(first), Some(second)) = (places.next(), places.next()) else {
            // One file that reaches the model twice, by itself and as an import.
            if let [part, _, ..] = parts[..]
                && let Some(importer) = parts.iter().find_map(|part| part.imported_by.as_deref())
            {
                let what = format!(
                    "{title} sees {} twice: doubled with the import in {}",
                    shorten(env, &part.path),
                    shorten(env, importer)
                );
                add(FindingKind::DoubledWith, what, module.to_owned());
            }
            continue;
        };
        let at = |path: &Path| {
            parts.iter().find(|part| part.path == path).map_or_else(String::new, |part| {
                shorten(env, if kind == PartKind::Instructions { &part.path } else { group_dir(part) })
            })
        };
        let what =
            format!("{title} sees {} of {} twice: doubled with {}", kind.name(), at(first), at(second));
        add(FindingKind::DoubledWith, what, module.to_owned());
    }
}

/// Files deployed for the client that are part of nothing it reads.
fn not_read<'a>(
    title: &str,
    env: &Env,
    parts: &[Part],
    own: impl Iterator<Item = &'a DesiredRoot>,
    desired: &Desired,
    add: &mut impl FnMut(FindingKind, String, String),
) {
    let files: BTreeSet<&OsStr> = parts.iter().map(|part| part.path.as_os_str()).collect();
    let skills: BTreeSet<&OsStr> = parts
        .iter()
        .filter(|part| part.kind == PartKind::Skill)
        .filter_map(|part| Some(part.path.parent()?.as_os_str()))
        .collect();
    for root in own {
        let mut last: Option<(&str, bool)> = None;
        for file in &root.files {
            // Files of one skill are decided together.
            let top = file.path.as_str().split_once('/').map(|(top, _)| top);
            if top.is_some_and(|top| last == Some((top, true))) {
                continue;
            }
            let in_skill = top.is_some_and(|top| skills.contains(root.path.join(top).as_os_str()));
            last = top.map(|top| (top, in_skill)).or(last);
            if !in_skill && !files.contains(root.path.join(file.path.as_path()).as_os_str()) {
                let what = format!("{title} does not read {}", shorten(env, &root.path));
                let name = desired.module_ids(file).iter().next().unwrap_or_default().to_owned();
                add(FindingKind::NotRead, what, name);
            }
        }
    }
}

/// The directory that parts like this one are named by.
fn group_dir(part: &Part) -> &Path {
    let parent = part.path.parent().unwrap_or(&part.path);
    match part.kind {
        PartKind::Skill => parent.parent().unwrap_or(parent),
        PartKind::Instructions | PartKind::Command => parent,
    }
}

fn by_module(parts: &[Part], path: &Path) -> bool {
    parts.iter().any(|part| part.path == path && !part.modules.is_empty())
}

/// Whether every module of a hidden part is seen elsewhere.
fn is_said(parts: &[Part], hidden: &Part) -> bool {
    let seen = |module: &String| parts.iter().any(|part| part.is_seen() && part.modules.contains(module));
    hidden.modules.iter().all(seen)
}

/// Whether the part that hides another says the same.
fn same_modules(by_path: &BTreeMap<&OsStr, &Part>, hidden: &Part, by: &Path) -> bool {
    by_path.get(by.as_os_str()).is_some_and(|part| part.kind == hidden.kind && part.modules == hidden.modules)
}

/// The names at the end of a message: all of a few, else how many more there are.
pub(crate) fn some_of(names: &[String]) -> String {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return String::new();
    }
    let more = names.len().saturating_sub(3);
    let few: Vec<&str> = names.into_iter().take(3).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(" ({}{more})", few.join(", "))
}

/// The path with `~` for the home directory.
fn shorten(env: &Env, path: &Path) -> String {
    match path.strip_prefix(&env.home) {
        Ok(below) if !env.home.as_os_str().is_empty() => format!("~/{}", below.display()),
        _ => path.display().to_string(),
    }
}
