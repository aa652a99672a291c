//! Points in time as answers show them: UTC, whole seconds, `Z`.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time, printed as `2026-10-29T10:30:45Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, schemars::JsonSchema)]
#[schemars(with = "String")]
pub struct Moment(Timestamp);

impl Moment {
    /// Wraps a timestamp.
    pub const fn new(timestamp: Timestamp) -> Self {
        Self(timestamp)
    }

    /// The timestamp with all its digits.
    pub const fn timestamp(self) -> Timestamp {
        self.0
    }

    /// Milliseconds since 1970.
    pub fn unix_ms(self) -> i64 {
        self.0.as_millisecond()
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Seconds are cut, not rounded: a moment must never appear to lie in the future.
        let seconds = Timestamp::from_second(self.0.as_second()).unwrap_or(self.0);
        write!(f, "{}", seconds.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// Where the current time comes from; passed in so that tests can hold it still.
#[derive(Clone)]
pub struct Clock(std::sync::Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self::from_fn(Timestamp::now)
    }

    /// A clock that asks `now`.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(std::sync::Arc::new(now))
    }

    /// The current time.
    pub fn now(&self) -> Moment {
        Moment((self.0)())
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_fractions_become_whole_utc_seconds() {
        let cases = [
            ("2025-11-10T11:38:10.64715+01:00", "2025-11-10T10:38:10Z"),
            ("2025-11-10T11:38:10.999999999Z", "2025-11-10T11:38:10Z"),
            ("2025-11-10T00:00:00-05:30", "2025-11-10T05:30:00Z"),
        ];
        for (given, shown) in cases {
            let moment: Moment = serde_json::from_str(&format!("\"{given}\"")).unwrap();
            assert_eq!(serde_json::to_string(&moment).unwrap(), format!("\"{shown}\""));
        }
        assert!(serde_json::from_str::<Moment>("\"yesterday\"").is_err());
    }
}
