//! The fleet, seen from outside: over the simulated Coder, and over a real one when the environment names it.

mod admin;
mod contracts;
mod edges;
mod endpoint;
mod faults;
mod live;
mod local;
mod metadata;
mod profiles;
mod secrets;
mod suite;
mod support;
mod work;
