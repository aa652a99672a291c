//! Merging never fails, and a change of one side alone is taken as it is.
#![no_main]

use crewkit_pack::overlay::merge3::{Names, merge};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, &str)| {
    let (base, ours, theirs) = input;
    let names = Names { ours: "a", theirs: "b" };
    merge(base, ours, theirs, names);
    let merged = merge(base, ours, base, names);
    assert_eq!((merged.text.as_str(), merged.conflicts), (ours, 0));
});
