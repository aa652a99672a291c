//! What a client will see, and what of a plan it will not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crewkit_core::Code;
use serde::Serialize;

use super::answers::members;
use super::look::Computed;
use super::{Pack, collect_warnings};
use crate::client::view::{Files, Part, PartState, Viewer};
use crate::client::{CLIENTS, Client, findings};
use crate::commands::session::{Select, Session};
use crate::desired::target::TargetKind;
use crate::envelope::Answer;
use crate::error::{PackError, Result};
use crate::plan::Op;

/// Whose view is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainClient {
    /// The client's name.
    pub client: String,
    /// The directory it is started in; the working directory when nothing is said.
    pub dir: Option<PathBuf>,
}

/// The answer of `explain --client`: what the client will see once the plan is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientView {
    pub client: &'static str,
    /// The directory the client is started in.
    pub dir: PathBuf,
    /// How well it is known what the client reads: `measured`, `documented` or `not verified`.
    pub evidence: &'static str,
    /// What it finds, in its order.
    pub parts: Vec<ClientPart>,
    /// What it will not see, or not as meant.
    pub problems: Vec<ClientProblem>,
    pub title: &'static str,
    /// The version that was measured.
    pub version: Option<&'static str>,
}

/// One thing a client finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientPart {
    pub bytes: u64,
    /// Whether the model sees it only when the user calls it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub called: bool,
    /// The file that imports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported_by: Option<PathBuf>,
    /// `instructions`, `skill` or `command`.
    pub kind: &'static str,
    /// The modules it comes from; empty for a file that was not deployed.
    pub modules: Vec<String>,
    pub name: String,
    #[serde(flatten, serialize_with = "members::path")]
    pub path: PathBuf,
    /// Why it is not read, or how much of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `user` or `project`.
    pub scope: &'static str,
    /// `read`, `cut`, `hidden` or `needs_trust`.
    pub state: &'static str,
}

/// Something a client will not see as meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientProblem {
    /// `not_read`, `hidden_by`, `doubled_with`, `cut`, `needs_trust` or `not_verified`.
    pub kind: &'static str,
    pub message: String,
}

impl From<Part> for ClientPart {
    fn from(part: Part) -> Self {
        let (state, reason) = match part.state {
            PartState::Read => ("read", None),
            PartState::Cut { read, limit } => {
                ("cut", Some(format!("{read} of {} bytes are read; the limit is {limit}", part.bytes)))
            }
            PartState::HiddenBy(by) => ("hidden", Some(format!("hidden by {}", by.display()))),
            PartState::NeedsTrust(file) => {
                ("needs_trust", Some(format!("the project is marked untrusted in {}", file.display())))
            }
        };
        Self {
            bytes: part.bytes,
            called: part.called,
            imported_by: part.imported_by,
            kind: part.kind.name(),
            modules: part.modules,
            name: part.name,
            path: part.path,
            reason,
            scope: if part.of_user { "user" } else { "project" },
            state,
        }
    }
}

impl Pack {
    /// What a client will see in a directory once the plan is applied. Without a config repo, what it sees now.
    pub fn explain_client(&self, select: &Select, explain: &ExplainClient) -> Result<Answer<ClientView>> {
        let Some(client) = Client::from_name(&explain.client) else {
            let known: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
            let message = format!("unknown client `{}`; there are {}", explain.client, known.join(", "));
            return Err(PackError::new(Code::ArgumentInvalid, message)
                .detail("argument", "client")
                .detail("allowed", known));
        };
        let mut env = self.env.clone();
        if let Some(dir) = &explain.dir {
            env.cwd = std::fs::canonicalize(env.cwd.join(dir))
                .map_err(|error| PackError::io("look at", &env.cwd.join(dir), error))?;
        }
        let here = Self { env, ..self.clone() };
        collect_warnings(|warnings| {
            let dir = here.env.cwd.clone();
            let (parts, problems) = match here.session(select) {
                Ok(session) => {
                    let computed = Computed::new(&session, warnings)?;
                    let parts = here.look(client, &session.project.root, Some(&computed), ReadNames::Yes);
                    let problems = here.findings(client, &parts, &computed);
                    (parts, problems)
                }
                Err(error) if error.code() == Code::ConfigMissing => {
                    warnings.push("there is no config repo: this is what the client sees now".to_owned());
                    let project = crate::config::project::Project::detect(&here.env);
                    (here.look(client, &project.root, None, ReadNames::Yes), Vec::new())
                }
                Err(error) => return Err(error),
            };
            Ok(ClientView {
                client: client.name,
                dir,
                evidence: client.evidence.name(),
                parts: parts.into_iter().map(Into::into).collect(),
                problems,
                title: client.title,
                version: client.version,
            })
        })
    }

    /// Adds a warning for everything that the clients of the selected targets will not see as meant.
    pub(super) fn warn_unread(&self, session: &Session<'_>, computed: &Computed, warnings: &mut Vec<String>) {
        // From version 2 on a client may have no root of its own and read what others write.
        let chosen = session.targets().unwrap_or_default().into_iter().map(|(target, _)| target);
        let chosen = chosen.filter(|_| session.manifest.is_version_2());
        let roots = computed.desired.roots.iter().map(|root| root.target);
        let targets: Vec<TargetKind> = roots.chain(chosen).collect();
        let is_used = |client: &&&Client| {
            targets.iter().any(|target| Client::of(*target).is_some_and(|of| of.name == client.name))
        };
        for client in CLIENTS.iter().filter(is_used) {
            let parts = self.look(client, &session.project.root, Some(computed), ReadNames::No);
            let problems = self.findings(client, &parts, computed);
            warnings.extend(problems.into_iter().map(|problem| problem.message));
        }
    }

    fn look(
        &self,
        client: &Client,
        project: &Path,
        computed: Option<&Computed>,
        names: ReadNames,
    ) -> Vec<Part> {
        let deleted = |computed: &Computed| -> BTreeSet<PathBuf> {
            let deletes = computed.plan.changes.iter().filter(|change| change.op == Op::Delete);
            deletes.map(|change| computed.plan.place(change)).collect()
        };
        Viewer {
            env: &self.env,
            limits: &self.env.limits,
            project,
            dir: &self.env.cwd,
            files: Files {
                desired: computed.map(|computed| &computed.desired),
                gone: computed.map(deleted).unwrap_or_default(),
            },
            read_names: names == ReadNames::Yes,
        }
        .look(client)
    }

    fn findings(&self, client: &Client, parts: &[Part], computed: &Computed) -> Vec<ClientProblem> {
        let desired = &computed.desired;
        let own = desired
            .roots
            .iter()
            .filter(|root| Client::of(root.target).is_some_and(|of| of.name == client.name));
        findings::of(client, &self.env, parts, desired, own)
            .into_iter()
            .map(|finding| ClientProblem { kind: finding.kind.name(), message: finding.message })
            .collect()
    }
}

/// Whether the names that skills give themselves are read; a plan does without, since it would cost a read per skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadNames {
    Yes,
    No,
}
