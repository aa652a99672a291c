//! Tests of the pack commands on real directories.

mod config;
mod data;
mod git;
mod mistakes;
mod overlays;
mod place;
mod security;
mod tokens;
mod workspace;
