//! Ledger time: milliseconds since 1970-01-01T00:00:00Z.

use std::fmt;

/// ε: how far the ledger clock may be off, in milliseconds (DESIGN section 3). Edges of windows and leases hold to ± ε, and
/// a store's own expiry is set 2 ε later, so that the clock decides and not the eviction.
pub const EPSILON_MS: i64 = 100;

/// A point in ledger time, in whole milliseconds since the Unix epoch, from 1970 to the year 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The last instant that can be written, a day short of the year 10000 so that every offset fits.
const MAX_MS: i64 = 253_402_207_200_000;

impl Timestamp {
    /// The earliest instant.
    pub const MIN: Self = Self(0);
    /// The latest instant, 9999-12-30T22:00:00.000Z.
    pub const MAX: Self = Self(MAX_MS);

    /// The instant `millis` after the epoch; clamped to what can be written.
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, MAX_MS))
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant moved by `millis`, clamped.
    #[must_use]
    pub fn plus_millis(self, millis: i64) -> Self {
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// This instant moved by whole seconds, clamped.
    #[must_use]
    pub fn plus_seconds(self, seconds: u64) -> Self {
        self.plus_millis(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000))
    }

    /// Milliseconds from `earlier` to this instant; negative if `earlier` is later.
    #[must_use]
    pub fn millis_since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// Reads an RFC 3339 time with an offset; finer than a millisecond is cut off.
    ///
    /// # Errors
    /// `None` if it is not RFC 3339 or outside 1970 to 9999.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let parsed: jiff::Timestamp = text.parse().ok()?;
        let millis = parsed.as_millisecond();
        (0..=MAX_MS).contains(&millis).then_some(Self(millis))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339, UTC, with exactly three digits of milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => Err(fmt::Error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_with_exactly_three_digits() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(1_790_000_000_120).to_string(), "2026-09-21T14:13:20.120Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00.000Z");
    }

    #[test]
    fn reads_what_it_writes_and_any_offset() {
        let t = Timestamp::from_millis(1_790_000_000_120);
        assert_eq!(Timestamp::parse_rfc3339(&t.to_string()), Some(t));
        assert_eq!(Timestamp::parse_rfc3339("2026-09-21T16:13:20.120+02:00"), Some(t));
        assert_eq!(Timestamp::parse_rfc3339("2026-09-21"), None);
        assert_eq!(Timestamp::parse_rfc3339("1969-12-31T23:59:59Z"), None);
    }
}
