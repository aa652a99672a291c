//! Who asks. The one place where that is decided; every door asks it.
//!
//! A caller is known by what the kernel tells about its connection and by the token it sends: the owner by either, an
//! agent only by the token of its attempt. What an agent started is that agent, whatever else it knows.

use crewkit_agent::engine::{AttemptGrant, ON_OTHERS};
use crewkit_core::{Code, Secret};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde_json::Value;
use subtle::ConstantTimeEq as _;

use crate::http::Peer;
use crate::ops::JsonObject;

/// Who asks for something.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The person who runs the server.
    Owner,
    /// An attempt of an agent, which may ask for what its grant lists.
    Attempt(AttemptGrant),
    /// Anybody else, who may only ask whether the server is healthy.
    Stranger(Refused),
}

/// Why a caller is a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The token is missing or wrong.
    Token,
    /// The process belongs to an agent and shows no token of a living attempt.
    Agent,
    /// The process belongs to another user.
    OtherUser,
    /// Nothing is known about the process.
    Unknown,
}

/// What a request shows of its caller.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Who is at the other end of its connection.
    pub peer: Peer,
    /// The token that the owner has to send on this door, if one is asked for.
    pub owner_token: Option<&'a Secret>,
    /// The bearer token it came with.
    pub token: Option<&'a str>,
}

impl Caller {
    /// Who shows this evidence. `attempt` finds the living attempt that a token belongs to.
    pub fn identify(evidence: Evidence<'_>, attempt: impl Fn(&str) -> Option<AttemptGrant>) -> Self {
        let Evidence { peer, owner_token, token } = evidence;
        if let Some(grant) = token.and_then(attempt)
            && peer != Peer::OtherUser
        {
            return Self::Attempt(grant);
        }
        let is_owners =
            |token: &str, owner: &Secret| bool::from(token.as_bytes().ct_eq(owner.expose().as_bytes()));
        match (peer, owner_token) {
            (Peer::Agent, _) => Self::Stranger(Refused::Agent),
            (_, Some(owner)) if token.is_some_and(|token| is_owners(token, owner)) => Self::Owner,
            (_, Some(_)) => Self::Stranger(Refused::Token),
            (Peer::Owner, None) => Self::Owner,
            (Peer::OtherUser, None) => Self::Stranger(Refused::OtherUser),
            (Peer::Unknown, None) => Self::Stranger(Refused::Unknown),
        }
    }

    /// Whether this caller may ask for the operation `name` at all.
    pub fn may(&self, name: &str) -> bool {
        match self {
            Self::Owner => true,
            Self::Attempt(grant) => grant.may.contains(&name),
            Self::Stranger(_) => false,
        }
    }

    /// Checks a call before anything else is done about it. An attempt speaks for its own run alone, and need not name it,
    /// apart from what it was granted on other runs.
    pub fn authorize(&self, name: &str, arguments: &mut JsonObject) -> Result<(), String> {
        if !self.may(name) {
            return Err(format!("Agents may not call `{name}`"));
        }
        if let Self::Attempt(grant) = self
            && !ON_OTHERS.contains(&name)
        {
            let own = Value::from(grant.run.as_str());
            let named = arguments.entry("agent_id").or_insert_with(|| own.clone());
            if *named != own {
                return Err(format!("An agent may call `{name}` for itself alone, which is {}", grant.run));
            }
        }
        Ok(())
    }
}

impl Refused {
    /// The code of the refusal.
    pub const fn code(self) -> Code {
        match self {
            Self::Token => Code::Unauthorized,
            Self::Agent => Code::AgentRefused,
            Self::OtherUser | Self::Unknown => Code::PeerRefused,
        }
    }

    /// What to tell the caller.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Token => "A valid bearer token is required",
            Self::Agent => "This connection comes from a process that an agent started",
            Self::OtherUser => "This connection comes from a process of another user",
            Self::Unknown => "The process that opened this connection cannot be identified",
        }
    }
}

/// The bearer token of a request.
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: &str) -> Option<AttemptGrant> {
        let run = format!("{}1", crewkit_core::run::RunId::PREFIX).parse().unwrap();
        (token == "attempt").then_some(AttemptGrant { run, attempt: 1, may: vec!["agent_complete"] })
    }

    #[test]
    fn the_kernel_and_the_token_decide() {
        use Peer::{Agent, OtherUser, Owner, Unknown};
        let home = Secret::new("home");
        for (peer, asked_for, token, expected) in [
            (Owner, false, None, "owner"),
            (Owner, false, Some("anything"), "owner"),
            (Owner, true, None, "token"),
            (Owner, true, Some("wrong"), "token"),
            (Owner, true, Some("home"), "owner"),
            (Unknown, true, Some("home"), "owner"),
            (OtherUser, true, Some("home"), "owner"),
            (OtherUser, false, None, "other user"),
            (OtherUser, false, Some("home"), "other user"),
            (OtherUser, false, Some("attempt"), "other user"),
            (Unknown, false, None, "unknown"),
            (Agent, false, None, "agent"),
            (Agent, false, Some("wrong"), "agent"),
            (Agent, true, Some("home"), "agent"),
            (Agent, false, Some("attempt"), "attempt"),
            (Agent, true, Some("attempt"), "attempt"),
            (Owner, false, Some("attempt"), "attempt"),
        ] {
            let evidence = Evidence { peer, owner_token: asked_for.then_some(&home), token };
            let caller = match Caller::identify(evidence, grant) {
                Caller::Owner => "owner",
                Caller::Attempt(_) => "attempt",
                Caller::Stranger(Refused::Token) => "token",
                Caller::Stranger(Refused::Agent) => "agent",
                Caller::Stranger(Refused::OtherUser) => "other user",
                Caller::Stranger(Refused::Unknown) => "unknown",
            };
            assert_eq!(caller, expected, "{evidence:?}");
        }
    }

    #[test]
    fn an_attempt_speaks_for_itself_alone() {
        let attempt = Caller::Attempt(grant("attempt").unwrap());
        let own = grant("attempt").unwrap().run.to_string();
        for (name, agent, allowed) in [
            ("agent_complete", None, true),
            ("agent_complete", Some(own.as_str()), true),
            ("agent_complete", Some("agent_other"), false),
            ("agent_start", None, false),
            ("agent_stop", Some(own.as_str()), false),
        ] {
            let mut arguments = JsonObject::new();
            if let Some(agent) = agent {
                arguments.insert("agent_id".to_owned(), agent.into());
            }
            assert_eq!(attempt.authorize(name, &mut arguments).is_ok(), allowed, "{name} {agent:?}");
            assert!(!allowed || arguments["agent_id"] == own.as_str());
        }
        let stranger = Caller::Stranger(Refused::Agent);
        assert!(stranger.authorize("agent_complete", &mut JsonObject::new()).is_err());
        let mut arguments = JsonObject::new();
        Caller::Owner.authorize("agent_start", &mut arguments).unwrap();
        assert!(arguments.is_empty());
    }
}
