//! The Coder backend.
