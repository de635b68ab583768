//! The record's life as pure functions: what was found and what is asked give what is written and what came of it.
//!
//! The in-memory tier runs these as they are; Redis runs scripts that must do the same, and the conformance suite holds
//! them to it. Each function is one atomic step: it compares what the caller read with what is there now.

use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::record::{Drift, Record, State};
use crate::time::Timestamp;

/// What stands under a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A record.
    Record(Box<Record>),
    /// A value of an unknown version, or a damaged one: some registration, never NEW.
    Unreadable,
}

impl Found {
    /// A found record.
    #[must_use]
    pub fn record(record: Record) -> Self {
        Self::Record(Box::new(record))
    }
}

/// What a caller read and now wants to change: state, registration, attempt and winning check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// The state read.
    pub state: State,
    /// The registration read.
    pub registration_id: RegistrationId,
    /// The attempt read.
    pub attempt: u16,
    /// The nonce read.
    pub nonce: Nonce,
}

impl Guard {
    /// The guard of a record as read.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let (registration_id, attempt, nonce) = record.identity();
        Self { state: record.state, registration_id, attempt, nonce }
    }

    /// Whether `record` is still what was read.
    #[must_use]
    pub fn holds(&self, record: &Record) -> bool {
        record.state == self.state && self.same_check(record)
    }

    /// Whether `record` was won by the same check, in whatever state it is now.
    #[must_use]
    pub fn same_check(&self, record: &Record) -> bool {
        record.identity() == (self.registration_id, self.attempt, self.nonce)
    }
}

/// What came of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// It stands as wanted: written now, or already so.
    Done,
    /// Something else stands there; nothing was written.
    Moved(Found),
}

/// `SET NX`: writes `pending` where nothing stands. `Ok` is the value to write, `Err` what stood there.
///
/// # Errors
/// What was found, which then stays as it is.
pub fn begin(found: Found, pending: &Record) -> Result<Record, Found> {
    match found {
        Found::Absent => Ok(pending.clone()),
        Found::Record(_) | Found::Unreadable => Err(found),
    }
}

/// Settles a first PENDING: writes `settled` where the PENDING of `guard` stands. Where the same check already stands
/// confirmed, that is success too and nothing is written.
#[must_use]
pub fn settle(found: Found, guard: &Guard, settled: &Record) -> (Option<Record>, Swapped) {
    match found {
        Found::Record(record) if record.state == State::Pending && guard.same_check(&record) => {
            (Some(settled.clone()), Swapped::Done)
        }
        Found::Record(record) if record.state != State::Pending && guard.same_check(&record) => (None, Swapped::Done),
        Found::Absent | Found::Record(_) | Found::Unreadable => (None, Swapped::Moved(found)),
    }
}

/// What came of counting a sighting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// Counted; the record as it stands now.
    Counted(Box<Record>),
    /// Something else stands there; nothing was counted.
    Moved(Found),
}

/// Counts one more sighting of the record that `guard` read.
#[must_use]
pub fn count(found: Found, guard: &Guard, now: Timestamp, payload: &PayloadHash) -> Counted {
    match found {
        Found::Record(mut record) if guard.holds(&record) => {
            record.sight(now, payload);
            Counted::Counted(record)
        }
        Found::Absent | Found::Record(_) | Found::Unreadable => Counted::Moved(found),
    }
}

impl Record {
    /// One more sighting: count, time, and drift where the payload differs from the first one's. Clocks of processes differ
    /// by ε, so the drift kept as the last is the latest, not the one that came last: as [`Record::merge`] has it, and so the
    /// same in every tier and in whatever order sightings come.
    pub fn sight(&mut self, now: Timestamp, payload: &PayloadHash) {
        self.retry_count = self.retry_count.saturating_add(1);
        self.last_seen_at = self.last_seen_at.max(now);
        if *payload != self.payload_hash {
            let (count, last) =
                self.drift.map_or((0, None), |drift| (drift.count, Some((drift.last_at, drift.last_hash))));
            let (last_at, last_hash) = last.map_or((now, *payload), |last| last.max((now, *payload)));
            self.drift = Some(Drift { count: count.saturating_add(1), last_hash, last_at });
        }
    }
}

/// Replaces the record that `guard` read, whose window is over, by a new PENDING.
#[must_use]
pub fn replace(found: Found, guard: &Guard, pending: &Record) -> (Option<Record>, Swapped) {
    match found {
        Found::Record(record) if guard.holds(&record) => (Some(pending.clone()), Swapped::Done),
        Found::Absent | Found::Record(_) | Found::Unreadable => (None, Swapped::Moved(found)),
    }
}

/// Hastens the lapse of a first PENDING whose fact was refused. `true` where it is to be removed.
#[must_use]
pub fn release(found: &Found, guard: &Guard) -> bool {
    match found {
        Found::Record(record) => record.state == State::Pending && guard.same_check(record),
        Found::Absent | Found::Unreadable => false,
    }
}

/// Heals from the durable row: absent → the row; PENDING of the same registration, attempt and nonce → the row; else
/// nothing. `Some` is what to write.
#[must_use]
pub fn heal(found: &Found, row: &Record) -> Option<Record> {
    match found {
        Found::Absent => Some(row.clone()),
        Found::Record(record) if record.state == State::Pending && record.identity() == row.identity() => {
            Some(row.clone())
        }
        Found::Record(_) | Found::Unreadable => None,
    }
}
