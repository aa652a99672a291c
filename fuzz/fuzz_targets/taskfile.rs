//! What an agent wrote is read without harm.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../harness/workspace.rs"]
#[allow(dead_code, reason = "each target uses one of the readers")]
mod workspace;

fuzz_target!(|data: &[u8]| workspace::taskfile(data));
