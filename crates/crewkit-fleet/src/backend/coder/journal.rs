//! Remembers what this server did to agents, which Coder does not record. Lost on restart, which costs labels only.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::history::Intervention;

pub(super) struct Journal {
    entries: Mutex<VecDeque<(Uuid, Intervention)>>,
    most: usize,
}

impl Journal {
    pub(super) fn new(most: u64) -> Self {
        Self { entries: Mutex::default(), most: usize::try_from(most).unwrap_or(usize::MAX).max(1) }
    }

    pub(super) fn note(&self, workspace: Uuid, intervention: Intervention) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        while entries.len() >= self.most {
            entries.pop_front();
        }
        entries.push_back((workspace, intervention));
    }

    /// What was done to one workspace, oldest first.
    pub(super) fn of(&self, workspace: Uuid) -> Vec<Intervention> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter(|(id, _)| *id == workspace).map(|(_, done)| done.clone()).collect()
    }
}
