//! Homes that agentpack 0.9.1 left behind.
