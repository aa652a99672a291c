//! Counters for operators, in the Prometheus text format.
//!
//! One global instance: a process has one set of counters, and passing it through every call would say nothing more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The counters of this process.
#[derive(Debug)]
pub struct Metrics {
    began: Instant,
    operations: Mutex<BTreeMap<(&'static str, bool), Tally>>,
    http: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Open HTTP connections.
    pub connections: AtomicI64,
    /// HTTP connections refused because of the limit or the peer.
    pub connections_refused: AtomicU64,
    /// MCP sessions held in memory.
    pub sessions: AtomicI64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    calls: u64,
    time: Duration,
}

static GLOBAL: LazyLock<Metrics> = LazyLock::new(|| Metrics {
    began: Instant::now(),
    operations: Mutex::default(),
    http: Mutex::default(),
    connections: AtomicI64::new(0),
    connections_refused: AtomicU64::new(0),
    sessions: AtomicI64::new(0),
});

impl Metrics {
    /// The instance of this process.
    pub fn global() -> &'static Self {
        &GLOBAL
    }

    /// Counts one run of an operation.
    pub fn operation(&self, name: &'static str, failed: bool, took: Duration) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = operations.entry((name, failed)).or_default();
        tally.calls += 1;
        tally.time += took;
    }

    /// Counts one answered HTTP request; `door` is a group of routes, so that labels stay few.
    pub fn request(&self, door: &'static str, status: u16) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        *http.entry((door, status)).or_default() += 1;
    }

    /// The whole page.
    pub fn render(&self) -> String {
        let mut page = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, String)]| {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(page, "{name}{labels} {value}");
            }
        };
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let label = |(name, failed): &(&str, bool)| {
            format!("{{operation=\"{name}\",outcome=\"{}\"}}", if *failed { "failed" } else { "ok" })
        };
        let calls: Vec<_> =
            operations.iter().map(|(key, tally)| (label(key), tally.calls.to_string())).collect();
        let times: Vec<_> = operations
            .iter()
            .map(|(key, tally)| (label(key), format!("{:.6}", tally.time.as_secs_f64())))
            .collect();
        family("crewkit_operations_total", "counter", "Operations run, by name and outcome.", &calls);
        family("crewkit_operation_seconds_total", "counter", "Time spent in operations.", &times);
        let http = self.http.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let requests: Vec<_> = http
            .iter()
            .map(|((door, status), count)| {
                (format!("{{door=\"{door}\",status=\"{status}\"}}"), count.to_string())
            })
            .collect();
        family(
            "crewkit_http_requests_total",
            "counter",
            "HTTP requests answered, by door and status.",
            &requests,
        );
        let plain = |value: String| vec![(String::new(), value)];
        let load = |counter: &AtomicI64| counter.load(Ordering::Relaxed).to_string();
        family(
            "crewkit_http_connections",
            "gauge",
            "Open HTTP connections.",
            &plain(load(&self.connections)),
        );
        let refused = self.connections_refused.load(Ordering::Relaxed).to_string();
        family(
            "crewkit_http_connections_refused_total",
            "counter",
            "Connections refused by the limit or because of their owner.",
            &plain(refused),
        );
        family("crewkit_mcp_sessions", "gauge", "MCP sessions in memory.", &plain(load(&self.sessions)));
        let uptime = format!("{:.0}", self.began.elapsed().as_secs_f64());
        family("crewkit_uptime_seconds", "gauge", "Time since the process began to serve.", &plain(uptime));
        let version = vec![(format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), "1".to_owned())];
        family("crewkit_build_info", "gauge", "The version that runs.", &version);
        page
    }
}
