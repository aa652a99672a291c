//! Random walks.
