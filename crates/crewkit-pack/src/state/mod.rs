//! What is kept from one command to the next, and how trees are changed: lock, journal, transaction, snapshots.

pub(crate) mod blobs;
pub(crate) mod heads;
pub mod history;
pub mod home;
pub mod journal;
pub mod legacy;
pub mod lock;
pub mod managed;
pub mod rollback;
pub mod snapshot;
pub mod transaction;
