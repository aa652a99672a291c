//! Whatever is accepted stays below its root and survives a round trip.
#![no_main]

use crewkit_pack::fs::path::RelPath;
use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};

fuzz_target!(|text: &str| {
    if let Ok(path) = RelPath::new(text) {
        assert_eq!(path.as_str(), text);
        assert!(Path::new(text).components().all(|part| matches!(part, Component::Normal(_))));
        assert!(!text.contains('\0') && !text.is_empty());
        assert_eq!(RelPath::from_path(path.as_path()).as_ref(), Ok(&path));
        if let Some(parent) = path.parent() {
            assert_eq!(format!("{parent}/{}", path.name()), text);
        }
    }
});
