//! agentpack.yaml: any bytes give a manifest or an error, within the limits.
#![no_main]

use crewkit_core::Limits;
use crewkit_pack::config::manifest::Manifest;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    let _ = Manifest::parse(text, Path::new("agentpack.yaml"), &Limits::default());
});
