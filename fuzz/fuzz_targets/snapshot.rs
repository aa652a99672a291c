//! A snapshot that is read is one that would be written again.
#![no_main]

use crewkit_pack::state::snapshot::Snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(snapshot) = Snapshot::decode(data) {
        let mut bytes = Vec::new();
        snapshot.encode(&mut bytes).expect("a snapshot can be written");
        assert_eq!(Snapshot::decode(&bytes).as_ref(), Ok(&snapshot));
    }
});
