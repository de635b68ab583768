//! The record's life as pure functions: what was found and what is asked give what is written and what came of it.
//!
//! The in-memory tier runs these as they are; Redis runs scripts that must do the same, and the conformance suite holds
//! them to it. Each function is one atomic step: it compares what the caller read with what is there now.

use crate::claim::{Act, ClaimId, lease_end};
use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::record::{Drift, Ended, Record, State, TakeOver};
use crate::text::FailReason;
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

/// Settles a first PENDING: writes `settled` where the PENDING of `guard` stands. Where the same check already stands in
/// `settled`'s state, that is success too and nothing is written; a claim that has ended since is [`Swapped::Moved`].
#[must_use]
pub fn settle(found: Found, guard: &Guard, settled: &Record) -> (Option<Record>, Swapped) {
    match found {
        Found::Record(record) if record.state == State::Pending && guard.same_check(&record) => {
            (Some(settled.clone()), Swapped::Done)
        }
        Found::Record(record) if record.state == settled.state && guard.same_check(&record) => (None, Swapped::Done),
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

/// What of a record a claim's transition compares, and replaces. Sightings, which others count meanwhile, are no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimPart {
    /// Where the record stands.
    pub state: State,
    /// Which claim stands on it.
    pub claim: ClaimId,
    /// When it was won.
    pub won_at: Timestamp,
    /// Its lease.
    pub lease_ends_at: Option<Timestamp>,
    /// Whether its last act's fact is not known to be durable.
    pub undurable: bool,
    /// A take-over over it, lapsed or not.
    pub take_over: Option<TakeOver>,
}

impl ClaimPart {
    /// A record's.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self {
            state: record.state,
            claim: ClaimId::of(record),
            won_at: record.won_at,
            lease_ends_at: record.lease_ends_at,
            undurable: record.undurable,
            take_over: record.take_over,
        }
    }
}

/// A sighting that is counted with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// When.
    pub at: Timestamp,
    /// With which payload.
    pub payload: PayloadHash,
}

/// What came of a claim's transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amended {
    /// It stands as wanted, written now or already so: the record as it stands, its stored response left out.
    Done(Box<Record>),
    /// Something else stands there; nothing was written.
    Moved(Found),
}

/// A claim's transition: where the [`ClaimPart`] of `read` stands, that of `to` takes its place, with `to`'s notes on the
/// attempt, and its response where it has one; all else stays. `sighting` is counted with it. Where `to`'s part, notes and
/// response stand already, that is success too and nothing is written or counted: the reply to a first try was lost.
#[must_use]
pub fn amend(found: Found, read: &Record, to: &Record, sighting: Option<&Sighting>) -> (Option<Record>, Amended) {
    let Found::Record(mut record) = found else { return (None, Amended::Moved(found)) };
    let part = ClaimPart::of(&record);
    if part == ClaimPart::of(read) {
        apply(&mut record, to, sighting);
        let done = Amended::Done(Box::new(Record { response: None, ..(*record).clone() }));
        return (Some(*record), done);
    }
    let stands = part == ClaimPart::of(to)
        && record.attempt_source == to.attempt_source
        && record.ended == to.ended
        && (to.response.is_none() || record.response == to.response);
    if stands {
        record.response = None;
        return (None, Amended::Done(record));
    }
    (None, Amended::Moved(Found::Record(record)))
}

/// Changes `record`, whose claim part was compared, as [`amend`] says.
pub fn apply(record: &mut Record, to: &Record, sighting: Option<&Sighting>) {
    record.state = to.state;
    record.attempt = to.attempt;
    record.nonce = to.nonce;
    record.won_at = to.won_at;
    record.lease_ends_at = to.lease_ends_at;
    record.undurable = to.undurable;
    record.take_over = to.take_over;
    record.attempt_source.clone_from(&to.attempt_source);
    record.ended.clone_from(&to.ended);
    if to.response.is_some() {
        record.response.clone_from(&to.response);
    }
    if let Some(sighting) = sighting {
        record.sight(sighting.at, &sighting.payload);
    }
}

/// Why an act on a claim is refused; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ActRefused {
    /// The claim has moved on: another attempt or another registration stands.
    #[error("the claim has moved on: another attempt stands")]
    Stale,
    /// This attempt is resolved, with other content than is asked for.
    #[error("the claim is resolved already, and what it was resolved with stands")]
    Resolved,
    /// This attempt failed.
    #[error("the claim has failed already")]
    Failed,
    /// Its window is over.
    #[error("the message's window is over")]
    WindowOver,
}

/// What an act on a claim comes to on a record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    /// The record as the act leaves it, marked [`Record::undurable`]; to be written by [`amend`].
    Changed(Box<Record>),
    /// It stands as asked for already.
    Stands,
    /// A PENDING stands on the key, or over the record: the outcome is to be waited for.
    Pending,
    /// Not done.
    Refused(ActRefused),
}

/// What `act`, of the holder of `claim` at `now`, comes to. A lease that is over does not hinder it while nobody has taken
/// over.
#[must_use]
pub fn act(record: &Record, claim: &ClaimId, act: &Act, now: Timestamp) -> Acted {
    if record.state == State::Pending && !record.is_over(now) {
        // Another registration's too: the cold ledger may be about to find that this claim stands.
        return Acted::Pending;
    }
    if record.registration_id != claim.registration_id {
        return Acted::Refused(ActRefused::Stale);
    }
    if record.is_over(now) {
        return Acted::Refused(ActRefused::WindowOver);
    }
    if ClaimId::of(record) != *claim {
        return Acted::Refused(ActRefused::Stale);
    }
    if record.live_take_over(now).is_some() {
        return Acted::Pending;
    }
    let ended = |reason: &Option<FailReason>| Some(Ended { at: now, reason: reason.clone() });
    match (record.state, act) {
        (State::InProgress, Act::Resolve(response)) => Acted::Changed(Box::new(Record {
            state: State::Resolved,
            response: response.clone(),
            ended: ended(&None),
            undurable: true,
            ..record.clone()
        })),
        (State::InProgress, Act::Fail(reason)) => Acted::Changed(Box::new(Record {
            state: State::Failed,
            ended: ended(reason),
            undurable: true,
            ..record.clone()
        })),
        (State::InProgress, Act::Renew { lease_seconds }) => {
            let wanted = lease_end(now, *lease_seconds, record.window_ends_at);
            // Never shorter: a renewal that was overtaken by a longer one must not end the lease early.
            let lease_ends_at = record.lease_ends_at.max(Some(wanted));
            Acted::Changed(Box::new(Record { lease_ends_at, undurable: true, ..record.clone() }))
        }
        (State::Resolved, Act::Resolve(response)) if *response == record.response => Acted::Stands,
        (State::Failed, Act::Fail(reason)) if record.ended.as_ref().is_some_and(|ended| ended.reason == *reason) => {
            Acted::Stands
        }
        (State::Resolved, Act::Resolve(_) | Act::Fail(_) | Act::Renew { .. }) => Acted::Refused(ActRefused::Resolved),
        (State::Failed, Act::Resolve(_) | Act::Fail(_) | Act::Renew { .. }) => Acted::Refused(ActRefused::Failed),
        // A plain record has no holder, whatever its token says.
        (State::Registered | State::Pending, Act::Resolve(_) | Act::Fail(_) | Act::Renew { .. }) => {
            Acted::Refused(ActRefused::Stale)
        }
    }
}

/// Heals from the durable row: absent → the row; PENDING of the same registration, attempt and nonce → the row, and so for a
/// take-over's PENDING that lies over its record as it found it, failed or with its lease over (what the record counted
/// meanwhile is kept); else nothing. A record whose holder acted after that take-over lapsed is not undone. `Some` is what to
/// write.
#[must_use]
pub fn heal(found: &Found, row: &Record) -> Option<Record> {
    match found {
        Found::Absent => Some(row.clone()),
        Found::Record(record) if record.state == State::Pending && record.identity() == row.identity() => {
            Some(row.clone())
        }
        Found::Record(record)
            if record.registration_id == row.registration_id
                && record.take_over.is_some_and(|over| {
                    (over.attempt, over.nonce) == (row.attempt, row.nonce) && is_as_taken_over(record, &over)
                }) =>
        {
            let mut healed = row.clone();
            healed.merge_sightings(record);
            Some(healed)
        }
        Found::Record(_) | Found::Unreadable => None,
    }
}

/// Fills from the durable row: absent → the row; a first PENDING → the row, whosever it is, so that its confirm is refused; an
/// older state of the same registration → what the two know together, and a take-over under way over it is refused; an older
/// registration → the row; else nothing. `Some` is what to write.
#[must_use]
pub fn fill(found: &Found, row: &Record) -> Option<Record> {
    match found {
        Found::Absent => Some(row.clone()),
        Found::Unreadable => None,
        Found::Record(record) if record.state == State::Pending => Some(row.clone()),
        Found::Record(record) if record.registration_id != row.registration_id => {
            (record.standing() < row.standing()).then(|| row.clone())
        }
        // Its end is no fact yet, and another has taken over: nobody was told that it is done.
        Found::Record(record) if record.undurable && row.attempt > record.attempt => {
            let mut next = row.clone();
            next.merge_sightings(record);
            Some(next)
        }
        Found::Record(record) => {
            let mut merged = (**record).clone();
            merged.merge(row);
            if ClaimPart::of(&merged) != ClaimPart::of(record) {
                merged.take_over = None;
                // What stands now is the row's, and that is durable.
                merged.undurable = false;
            }
            (merged != **record).then_some(merged)
        }
    }
}

/// Whether `record` still is as `take_over` found it.
fn is_as_taken_over(record: &Record, take_over: &TakeOver) -> bool {
    match record.state {
        State::Failed => true,
        State::InProgress => record.lease_ends_at.is_none_or(|lease| lease <= take_over.won_at),
        State::Pending | State::Registered | State::Resolved => false,
    }
}
