//! Adding and removing a module leaves every other byte of agentpack.yaml alone.
#![no_main]

use crewkit_core::Limits;
use crewkit_pack::config::manifest::Manifest;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    let (path, limits) = (Path::new("agentpack.yaml"), Limits::default());
    let Ok(manifest) = Manifest::parse(text, path, &limits) else { return };
    for module in &manifest.modules {
        if let Ok(without) = crewkit_pack::config::edit::remove(text, &module.id, path, &limits) {
            let left = Manifest::parse(&without, path, &limits).expect("still a manifest");
            assert_eq!(left.modules.len() + 1, manifest.modules.len());
        }
    }
});
