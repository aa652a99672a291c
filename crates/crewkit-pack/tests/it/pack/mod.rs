//! Tests of the pack commands on real directories.

mod answers;
mod clients;
mod config;
mod data;
mod git;
mod migrate;
mod mistakes;
mod modes;
mod overlays;
mod place;
mod security;
mod shared;
mod steps;
mod tokens;
mod vanished;
mod version2;
mod workspace;
