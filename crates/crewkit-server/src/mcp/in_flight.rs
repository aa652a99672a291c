//! The requests of HTTP sessions that are not answered yet.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::RequestId;

use super::message::{INVALID_REQUEST, Refusal, TRANSPORT_ERROR, id_to_json};

/// The requests not yet answered, by session. rmcp loses an answer when an id is used twice at once.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<HashMap<String, HashSet<RequestId>>>);

/// One request's place; leaving it frees the id.
pub(super) struct Place {
    all: Arc<InFlight>,
    session: String,
    id: RequestId,
}

impl InFlight {
    /// Whether a session has requests that are not answered yet.
    pub(super) fn is_busy(&self, session: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(session)
    }

    /// Takes a place for the request `id`.
    pub(super) fn enter(
        all: &Arc<Self>,
        session: String,
        id: &RequestId,
        most: u64,
    ) -> Result<Place, Refusal> {
        let refuse = |code, message| Err(Refusal { id: id_to_json(id), code, message });
        let mut sessions = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        let places = sessions.entry(session.clone()).or_default();
        if places.contains(id) {
            return refuse(
                INVALID_REQUEST,
                format!("a request with id {} is still in flight", id_to_json(id)),
            );
        }
        if places.len() as u64 >= most {
            return refuse(TRANSPORT_ERROR, format!("{most} requests are in flight in this session already"));
        }
        places.insert(id.clone());
        drop(sessions);
        Ok(Place { all: Arc::clone(all), session, id: id.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sessions = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = sessions.get_mut(&self.session) {
            places.remove(&self.id);
            if places.is_empty() {
                sessions.remove(&self.session);
            }
        }
    }
}
