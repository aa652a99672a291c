//! What the operations work on.

/// The services behind the operations, built once by the binary and shared by every door.
#[derive(Debug, Default)]
pub struct Services {}
