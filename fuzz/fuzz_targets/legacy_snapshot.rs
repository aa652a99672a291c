//! A snapshot of agentpack 0.9.1, or not.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = crewkit_pack::state::legacy::decode(data);
});
