//! The operating system's two clocks, and the age of what was learned by them.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A wall clock and a monotonic one, in microseconds. Tests move both by hand.
pub(crate) trait TimeSource: Send + Sync + fmt::Debug {
    /// Both, read together.
    fn read(&self) -> Reading;
}

/// What both clocks said at one moment, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Since 1970; an operator or a time service may set it forth or back.
    pub(crate) wall_us: i64,
    /// Since some moment of this process; never back, but it may stand still while the process, or the machine, is frozen.
    pub(crate) monotonic_us: i64,
}

impl Reading {
    /// How long ago `earlier` was, at the least by either clock: a process that was frozen, or whose wall clock was set back,
    /// still learns that something is old. In microseconds.
    pub(crate) fn age_us(self, earlier: Self) -> i64 {
        self.wall_us.saturating_sub(earlier.wall_us).max(self.monotonic_us.saturating_sub(earlier.monotonic_us))
    }

    /// How far both clocks have gone apart since `earlier`, in microseconds: the wall clock was set, or time went by in which
    /// the process was not there.
    pub(crate) fn divergence_us(self, earlier: Self) -> i64 {
        let wall = self.wall_us.saturating_sub(earlier.wall_us);
        wall.saturating_sub(self.monotonic_us.saturating_sub(earlier.monotonic_us)).saturating_abs()
    }
}

/// The real clocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OsTime;

impl TimeSource for OsTime {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the operating system's clocks")]
    fn read(&self) -> Reading {
        static START: OnceLock<Instant> = OnceLock::new();
        let micros = |elapsed: std::time::Duration| i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        let now = Instant::now();
        let start = *START.get_or_init(|| now);
        // A wall clock before 1970 is 0: far from any reference, so the ledger clock refuses it.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Reading { wall_us: micros(wall), monotonic_us: micros(now.saturating_duration_since(start)) }
    }
}

#[cfg(test)]
pub(crate) mod manual {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Clocks that stand still until a test moves them.
    #[derive(Debug)]
    pub(crate) struct ManualTime(Mutex<Reading>);

    impl ManualTime {
        pub(crate) fn new(wall_ms: i64) -> Arc<Self> {
            Arc::new(Self(Mutex::new(Reading { wall_us: wall_ms * 1_000, monotonic_us: 0 })))
        }

        /// Time goes by.
        pub(crate) fn pass_ms(&self, millis: i64) {
            self.set_wall_ms_by(millis);
            self.0.lock().unwrap().monotonic_us += millis * 1_000;
        }

        /// The wall clock is set; or the machine slept, and only the wall clock knows.
        pub(crate) fn set_wall_ms_by(&self, millis: i64) {
            self.0.lock().unwrap().wall_us += millis * 1_000;
        }
    }

    impl TimeSource for ManualTime {
        fn read(&self) -> Reading {
            *self.0.lock().unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_is_the_greater_of_both_and_divergence_their_difference() {
        let at = |wall_us, monotonic_us| Reading { wall_us, monotonic_us };
        assert_eq!(at(15, 25).age_us(at(10, 10)), 15);
        assert_eq!(at(90, 25).age_us(at(10, 10)), 80);
        assert_eq!(at(0, 25).age_us(at(10, 10)), 15);
        assert_eq!(at(90, 25).divergence_us(at(10, 10)), 65);
        assert_eq!(at(0, 25).divergence_us(at(10, 10)), 25);
    }

    #[test]
    fn the_real_clocks_go_forward_together() {
        let first = OsTime.read();
        let second = OsTime.read();
        assert!(second.monotonic_us >= first.monotonic_us);
        assert!(second.wall_us > 1_700_000_000_000_000);
    }
}
