//! What the Coder at hand can do, by version and by route.

use std::sync::Mutex;

/// Major and minor version of Coder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl Version {
    /// Tasks have ids of their own from here on.
    pub(super) const TASKS_WITH_OWN_IDS: Self = Self { major: 2, minor: 28 };
    /// The tasks API is stable from here on.
    pub(super) const STABLE_TASKS: Self = Self { major: 2, minor: 29 };
    /// The parameter `AI Prompt` is like any other from here on, and a start wakes a dormant workspace.
    pub(super) const PLAIN_PROMPT_PARAMETER: Self = Self { major: 2, minor: 30 };
    /// Tasks can be sent to from here on.
    pub(super) const TASK_SEND: Self = Self { major: 2, minor: 27 };
    /// Tasks exist from here on.
    pub(super) const TASKS: Self = Self { major: 2, minor: 26 };

    /// Reads `v2.27.1+230b55b` and the like.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').split(['.', '+', '-']);
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A place the tasks API is served at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TasksRoute {
    Stable,
    Experimental,
}

impl TasksRoute {
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Stable => "/api/v2/tasks",
            Self::Experimental => "/api/experimental/tasks",
        }
    }
}

/// Remembers which routes of the tasks API this Coder turned out not to have.
#[derive(Debug, Default)]
pub(super) struct TasksRoutes {
    missing: Mutex<Missing>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Missing {
    version: Option<Version>,
    stable: bool,
    experimental: bool,
}

impl TasksRoutes {
    /// The routes worth trying, best first. An upgrade of Coder makes all worth trying again.
    pub(super) fn candidates(&self, version: Option<Version>) -> Vec<TasksRoute> {
        if version.is_some_and(|version| version < Version::TASKS) {
            return Vec::new();
        }
        let mut missing = self.missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if missing.version != version {
            *missing = Missing { version, ..Missing::default() };
        }
        let before_stable = version.is_some_and(|version| version < Version::STABLE_TASKS);
        let mut routes = Vec::new();
        if !missing.stable && !before_stable {
            routes.push(TasksRoute::Stable);
        }
        if !missing.experimental {
            routes.push(TasksRoute::Experimental);
        }
        routes
    }

    /// Notes that a route is not there.
    pub(super) fn is_missing(&self, route: TasksRoute) {
        let mut missing = self.missing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match route {
            TasksRoute::Stable => missing.stable = true,
            TasksRoute::Experimental => missing.experimental = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_every_form_coder_writes_them() {
        let version = |major, minor| Some(Version { major, minor });
        assert_eq!(Version::parse("v2.27.1+230b55b"), version(2, 27));
        assert_eq!(Version::parse("2.30.0-devel+abc"), version(2, 30));
        assert_eq!(Version::parse("v3.0"), version(3, 0));
        assert_eq!(Version::parse("unknown"), None);
        assert!(Version::parse("v2.9.0").unwrap() < Version::TASKS);
    }

    #[test]
    fn routes_are_tried_by_version_and_forgotten_when_missing() {
        use TasksRoute::{Experimental, Stable};
        let at = |minor| Some(Version { major: 2, minor });
        let routes = TasksRoutes::default();
        assert_eq!(routes.candidates(at(25)), []);
        assert_eq!(routes.candidates(at(27)), [Experimental]);
        assert_eq!(routes.candidates(at(32)), [Stable, Experimental]);
        assert_eq!(routes.candidates(None), [Stable, Experimental]);
        assert_eq!(routes.candidates(at(37)), [Stable, Experimental]);
        routes.is_missing(Stable);
        routes.is_missing(Experimental);
        assert_eq!(routes.candidates(at(37)), []);
        assert_eq!(routes.candidates(at(38)), [Stable, Experimental], "an upgrade may bring them back");
    }
}
