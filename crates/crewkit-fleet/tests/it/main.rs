//! The fleet, seen from outside: over the simulated Coder, and over a real one when the environment names it.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, in helpers as well")]
#![expect(clippy::needless_pass_by_value, reason = "schemas are built from values on the spot")]

mod admin;
mod coder_history;
mod coder_kit;
mod contracts;
mod corpus;
mod diff;
mod edges;
mod endpoint;
mod faults;
mod hostile;
mod land;
mod live;
mod local;
mod metadata;
mod owner;
mod profiles;
mod schema;
mod secrets;
mod suite;
mod support;
mod tls;
mod work;
