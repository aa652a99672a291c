//! The doors, driven from outside with a table of operations made for the purpose.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod agents;
mod answers;
mod arguments;
mod attacks;
mod conformance_messages;
mod conformance_resume;
mod corpus;
mod hang_up;
mod http;
mod kit;
mod pack_contract;
mod product;
mod resources;
mod stdio;
mod support;
