//! Askers: whose settings a request is carried out with.
//!
//! A client of the home's socket says hello once, with its settings, its environment and its working directory, and gets the
//! id of an asker. Requests that carry the id use that asker's services and selection; all others use the server's own. So two
//! clients with different models, keys and narrowing work side by side, and neither changes what the other gets.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Services;
use crate::ops::{Problem, Selection};

/// The version of what clients and servers of a home say to each other. Both sides must have the same.
pub const PROTOCOL: u32 = 1;

/// The request header that carries the id of an asker.
pub const ASKER_HEADER: &str = "crewkit-asker";

/// What a client says about itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct Hello {
    /// Build of the client.
    pub build: String,
    /// The client's [`PROTOCOL`].
    pub protocol: u32,
    /// Working directory of the client, absolute.
    pub directory: PathBuf,
    /// Settings that the client's environment and flags override, by key. Paths are absolute.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// Variables of the client's environment that drivers may use.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

impl fmt::Debug for Hello {
    /// Shows names alone: values can be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("build", &self.build)
            .field("protocol", &self.protocol)
            .field("directory", &self.directory)
            .field("settings", &self.settings.keys().collect::<Vec<_>>())
            .field("environment", &self.environment.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// What the requests of one asker are carried out with.
#[derive(Debug)]
pub struct Asker {
    /// What its operations work on.
    pub services: Arc<Services>,
    /// Which operations it is shown.
    pub selection: Arc<Selection>,
    /// Its working directory.
    pub directory: PathBuf,
}

/// Makes the asker that a hello describes. Equal hellos may get the same one.
pub type MakeAsker = Box<dyn Fn(&Hello) -> Result<Arc<Asker>, Problem> + Send + Sync>;

/// The askers of a server.
#[derive(Default)]
pub struct Askers {
    make: Option<MakeAsker>,
    server: Value,
    most: usize,
    /// Ids with their askers, the least recently used first.
    known: Mutex<VecDeque<(String, Arc<Asker>)>>,
}

impl fmt::Debug for Askers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Askers").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Askers {
    /// Askers made by `make`, at most `most` at a time. `server` is what a hello is told about the server.
    pub fn new(make: MakeAsker, server: Value, most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        Self { make: Some(make), server, most, known: Mutex::default() }
    }

    /// Answers a hello with the id of its asker. Returns `None` if this server takes no hellos.
    ///
    /// Reads files: call it where blocking is allowed.
    pub fn hello(&self, hello: &Hello) -> Option<Result<Value, Problem>> {
        let make = self.make.as_ref()?;
        Some(make(hello).map(|asker| json!({"asker": self.remember(asker), "server": self.server})))
    }

    /// The asker with this id. Returns `None` if there is none: it was never known, or made room for newer ones.
    pub fn get(&self, id: &str) -> Option<Arc<Asker>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().position(|(known, _)| known == id)?;
        let entry = known.remove(found)?;
        let asker = Arc::clone(&entry.1);
        known.push_back(entry);
        Some(asker)
    }

    fn remember(&self, asker: Arc<Asker>) -> String {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, _)) = known.iter().find(|(_, other)| Arc::ptr_eq(other, &asker)) {
            return id.clone();
        }
        if known.len() >= self.most {
            known.pop_front();
        }
        let id = new_id();
        known.push_back((id.clone(), asker));
        id
    }
}

fn new_id() -> String {
    let mut bytes = [0_u8; 16];
    // The id is no secret: the guard has decided who asks before it is looked at. It only has to be unique.
    if getrandom::fill(&mut bytes).is_err() {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        bytes[..8].copy_from_slice(&next.to_le_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn askers(most: u64) -> Askers {
        let make: MakeAsker = Box::new(|hello| {
            Ok(Arc::new(Asker {
                services: Arc::default(),
                selection: Arc::default(),
                directory: hello.directory.clone(),
            }))
        });
        Askers::new(make, json!({"pid": 1}), most)
    }

    fn hello(directory: &str) -> Hello {
        Hello {
            build: "0".to_owned(),
            protocol: PROTOCOL,
            directory: directory.into(),
            settings: [("llm.api_key".to_owned(), json!("sesame"))].into(),
            environment: [("SOME_TOKEN".to_owned(), "sesame".to_owned())].into(),
        }
    }

    fn id(askers: &Askers, directory: &str) -> String {
        askers.hello(&hello(directory)).unwrap().unwrap()["asker"].as_str().unwrap().to_owned()
    }

    #[test]
    fn the_least_recently_used_asker_makes_room() {
        let askers = askers(2);
        let (first, second) = (id(&askers, "/1"), id(&askers, "/2"));
        assert_eq!(askers.get(&first).unwrap().directory, PathBuf::from("/1"));
        let third = id(&askers, "/3");
        assert!(askers.get(&second).is_none(), "the second was not used since the first was");
        assert!(askers.get(&first).is_some() && askers.get(&third).is_some());
    }

    #[test]
    fn a_hello_shows_no_values() {
        assert!(!format!("{:?}", hello("/")).contains("sesame"));
    }
}
