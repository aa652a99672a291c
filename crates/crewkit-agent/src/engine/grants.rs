//! What the process of an attempt may ask of the server, and the token by which it is known.
//!
//! A token is made when a driver's process is about to start and forgotten when its attempt ends, however it ends. It is in
//! memory and in the environment of that process, nowhere else; here only its hash is kept, and beside the order of a process that
//! is held for the next server, which knows the token by it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;

use crewkit_core::run::RunId;
use sha2::{Digest as _, Sha256};

use crate::store::RunRecord;
use crate::sync::lock;

/// The token of the attempt, in the environment of its process.
const TOKEN_VARIABLE: &str = "CREWKIT_AGENT_TOKEN";
/// The id of the run, in the environment of its process.
const ID_VARIABLE: &str = "CREWKIT_AGENT_ID";
/// The server's socket, in the environment of its process.
const SOCKET_VARIABLE: &str = "CREWKIT_SERVER_SOCKET";
/// Bytes of a token before they are written in hexadecimal.
const TOKEN_BYTES: usize = 32;
/// The operation every attempt may ask for, on itself.
const ALWAYS: &str = "agent_complete";
/// Operations on other runs that can be granted to attempts, by `agents.may`.
pub const ON_OTHERS: &[&str] = &["agent_start", "agent_wait", "agent_status"];

/// Who an attempt's token speaks for, and what it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptGrant {
    /// The run that is carried out.
    pub run: RunId,
    /// Which attempt of it.
    pub attempt: u32,
    /// Names of the operations it may ask for. Those on a run hold for itself alone, apart from [`ON_OTHERS`].
    pub may: Vec<&'static str>,
}

pub(super) type TokenHash = [u8; 32];

/// The grants of all attempts that processes are carrying out now.
#[derive(Default)]
pub(super) struct Grants {
    attempts: Mutex<HashMap<TokenHash, (RunId, u32)>>,
}

impl Grants {
    /// Makes a token for an attempt. The grant lasts as long as what is returned.
    pub(super) fn issue(&self, record: &RunRecord) -> std::io::Result<Issued<'_>> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Issued { grant: self.restore(record, hash_of(&token)), run: record.id.clone(), token })
    }

    /// Puts the token of an attempt in force whose process an earlier server started. The grant lasts as long as what is returned.
    pub(super) fn restore(&self, record: &RunRecord, hash: TokenHash) -> InForce<'_> {
        lock(&self.attempts).insert(hash, (record.id.clone(), record.attempt));
        InForce { grants: self, hash }
    }

    /// The run and the number of the attempt that has this token.
    ///
    /// The look-up is by hash: how long it takes tells nothing about the tokens there are.
    pub(super) fn find(&self, token: &str) -> Option<(RunId, u32)> {
        lock(&self.attempts).get(&hash_of(token)).cloned()
    }
}

/// What the attempt's process may ask for.
pub(super) fn grant_for(run: RunId, attempt: u32, granted: &[String]) -> AttemptGrant {
    let granted = ON_OTHERS.iter().copied().filter(|name| granted.iter().any(|granted| granted == name));
    AttemptGrant { run, attempt, may: std::iter::once(ALWAYS).chain(granted).collect() }
}

fn hash_of(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// A grant that is in force until this is dropped.
pub(super) struct InForce<'a> {
    grants: &'a Grants,
    hash: TokenHash,
}

/// A new token and its grant.
pub(super) struct Issued<'a> {
    grant: InForce<'a>,
    token: String,
    run: RunId,
}

impl Issued<'_> {
    /// The hash by which the next server knows the token.
    pub(super) fn hash(&self) -> &[u8] {
        &self.grant.hash
    }

    /// The variables by which the process knows itself and its server.
    pub(super) fn variables(&self, socket: Option<&Path>) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> = vec![
            (TOKEN_VARIABLE.into(), self.token.as_str().into()),
            (ID_VARIABLE.into(), self.run.as_str().into()),
        ];
        variables.extend(socket.map(|path| (SOCKET_VARIABLE.into(), path.as_os_str().to_owned())));
        variables
    }
}

impl Drop for InForce<'_> {
    fn drop(&mut self) {
        lock(&self.grants.attempts).remove(&self.hash);
    }
}
