//! The promises of the agents, one module each.

mod chat;
mod drivers;
mod kill;
mod life;
mod rude_model;
mod support;
mod tool_servers;
mod workspace;
