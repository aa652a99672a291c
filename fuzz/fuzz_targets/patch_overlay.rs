//! A patch is refused, does not fit, or applies.
#![no_main]

use crewkit_pack::overlay::patch::Patch;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (patch, text) = input;
    if let Ok(patch) = Patch::parse(patch, "a.md") {
        let _ = patch.apply(text);
    }
    // What we make ourselves always applies.
    let (before, after) = (text, patch);
    let made = crewkit_pack::overlay::patch::make("a.md", before, after);
    if before != after {
        let made = Patch::parse(&made, "a.md").expect("our own patch is one");
        assert_eq!(made.apply(before).expect("our own patch fits"), after);
    }
});
