//! The real file system: modes, links, attackers.
