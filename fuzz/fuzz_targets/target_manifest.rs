//! A target manifest that is read lists only places below its root, each once.
#![no_main]

use crewkit_pack::state::managed;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    if let Ok((manifest, _)) = managed::parse(data, "codex", Path::new("manifest")) {
        assert!(manifest.files.windows(2).all(|pair| pair[0].path < pair[1].path));
        let mut bytes = Vec::new();
        managed::write(&manifest, "now", &mut bytes).expect("memory takes everything");
        let (again, warnings) = managed::parse(&bytes, "codex", Path::new("manifest")).expect("it was written");
        assert!(warnings.is_empty());
        assert_eq!((&again.files, &again.created), (&manifest.files, &manifest.created));
    }
});
