//! Benchmarks: ratios between two programs measured in the same run, because absolute times say more about the machine.

pub(crate) mod pack;
