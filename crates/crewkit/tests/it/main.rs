//! The commands, run as a person runs them.

mod conformance_absent;
