//! A journal that is read is one that would be written again.
#![no_main]

use crewkit_pack::fs::hash::Digest;
use crewkit_pack::state::journal::Journal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Journal::decode(data);
    // With the right checksum, so that the lines themselves are reached.
    let mut signed = data.to_vec();
    if signed.last() != Some(&b'\n') {
        signed.push(b'\n');
    }
    let end = format!("{{\"end\":{{\"sha256\":\"{}\"}}}}\n", Digest::of(&signed));
    signed.extend_from_slice(end.as_bytes());
    if let Ok(journal) = Journal::decode(&signed) {
        let bytes = journal.encode().expect("a journal can be written");
        assert_eq!(Journal::decode(&bytes).as_ref(), Ok(&journal));
    }
});
