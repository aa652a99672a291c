//! Whatever a client sends, the server answers or hangs up, and goes on.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../harness/doors.rs"]
#[allow(dead_code, reason = "each target uses one of the doors")]
mod doors;

fuzz_target!(|data: &[u8]| doors::http(data));
