//! agentpack.lock.json: what is read would be written the same.
#![no_main]

use crewkit_pack::config::lockfile::Lockfile;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    if let Ok(lockfile) = Lockfile::parse(data, Path::new("agentpack.lock.json")) {
        let bytes = lockfile.render();
        let again = Lockfile::parse(&bytes, Path::new("agentpack.lock.json")).expect("it was written");
        assert_eq!(again.render(), bytes);
    }
});
