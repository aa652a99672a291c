//! The doors, driven from outside.

mod conformance_messages;
