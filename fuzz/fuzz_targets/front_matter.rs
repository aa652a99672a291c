//! The head of a SKILL.md: any text gives values, nothing, or an error, within the limits.
#![no_main]

use crewkit_core::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = crewkit_pack::source::module::frontmatter(text, &Limits::default());
});
