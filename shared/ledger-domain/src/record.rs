//! What the ledger remembers of one registration.

use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::key::MessageKey;
use crate::scope::Scope;
use crate::text::{ContentType, FailReason, SourceService};
use crate::time::Timestamp;

/// What a record is about: one (scope, key).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The space in which the key is unique.
    pub scope: Scope,
    /// The message's key.
    pub key: MessageKey,
}

/// Where a record stands in its life (DESIGN section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Won, but its fact is not known to be durable: the ledger's own claim on the key, for [`Record::PENDING_MS`].
    Pending,
    /// Seen once, outside claim mode; repeats are discarded.
    Registered,
    /// A caller holds a claim and works.
    InProgress,
    /// The claim's holder said that it failed; the next check may take it over.
    Failed,
    /// The claim's holder said that it is done; repeats get its stored response.
    Resolved,
}

impl State {
    /// The name used on the wire, in facts and in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Registered => "REGISTERED",
            Self::InProgress => "IN_PROGRESS",
            Self::Failed => "FAILED",
            Self::Resolved => "RESOLVED",
        }
    }

    /// Reads [`State::as_str`]'s names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Registered, Self::InProgress, Self::Failed, Self::Resolved]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// Repeats whose payload hash differed from the first one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drift {
    /// How many repeats drifted; saturating.
    pub count: u32,
    /// The last differing hash.
    pub last_hash: PayloadHash,
    /// When it was seen.
    pub last_at: Timestamp,
}

/// The answer a claim's holder stored for repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// Its media type.
    pub content_type: ContentType,
    /// Its bytes, at most [`StoredResponse::MAX_BYTES`].
    pub body: Vec<u8>,
}

impl StoredResponse {
    /// The largest body, in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;
}

/// How a claim's attempt ended: its holder resolved it or said that it failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ended {
    /// When.
    pub at: Timestamp,
    /// Why it failed, where the holder said so.
    pub reason: Option<FailReason>,
}

/// A take-over's PENDING, lying over the record it wants to continue. If it lapses, the record beneath stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    /// When it lapses.
    pub deadline: Timestamp,
    /// The attempt it will be.
    pub attempt: u16,
    /// The nonce of the check that won it.
    pub nonce: Nonce,
    /// When that check won.
    pub won_at: Timestamp,
    /// The lease it asks for; `None` in plain mode.
    pub lease_ends_at: Option<Timestamp>,
}

/// One registration of a (scope, key), as every tier knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which registration of the key this is.
    pub registration_id: RegistrationId,
    /// Where it stands.
    pub state: State,
    /// The attempt that stands, from 1. Shown to callers in claim mode only.
    pub attempt: u16,
    /// The nonce of the check that won this attempt.
    pub nonce: Nonce,
    /// When that check won: the first sighting, unless the record was taken over.
    pub won_at: Timestamp,
    /// The first sighting.
    pub first_seen_at: Timestamp,
    /// The last sighting counted.
    pub last_seen_at: Timestamp,
    /// The end of the window, exclusive: anchored at the first sighting, never moved.
    pub window_ends_at: Timestamp,
    /// The first sighting's payload hash; never replaced.
    pub payload_hash: PayloadHash,
    /// Sightings after the first; saturating.
    pub retry_count: u32,
    /// Who asked first, if it said so.
    pub source_service: Option<SourceService>,
    /// Repeats with another payload, if there were any.
    pub drift: Option<Drift>,
    /// The claim's lease; `None` outside claim mode.
    pub lease_ends_at: Option<Timestamp>,
    /// The stored answer of a resolved claim.
    pub response: Option<StoredResponse>,
    /// Who asked for the attempt that stands, where it took the record over and said so.
    pub attempt_source: Option<SourceService>,
    /// How the attempt that stands ended, where its holder said so.
    pub ended: Option<Ended>,
    /// Set while the last act's fact is not known to be durable. A mark of the hot tier; facts and rows never carry it.
    pub undurable: bool,
    /// A take-over under way. Of the hot tier only.
    pub take_over: Option<TakeOver>,
}

impl Record {
    /// How long a PENDING holds, in milliseconds (DESIGN section 4).
    pub const PENDING_MS: i64 = 10_000;

    /// When a first PENDING lapses: 10 s after it was won, and never past the window.
    #[must_use]
    pub fn pending_deadline(&self) -> Timestamp {
        self.first_seen_at.plus_millis(Self::PENDING_MS).min(self.window_ends_at)
    }

    /// Whether the window is over at `now`.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.window_ends_at
    }

    /// A take-over's PENDING that lies over this record and has not lapsed at `now`.
    #[must_use]
    pub fn live_take_over(&self, now: Timestamp) -> Option<TakeOver> {
        self.take_over.filter(|take_over| now < take_over.deadline)
    }

    /// Whether a claim's holder is at work at `now`: IN_PROGRESS, its lease running.
    #[must_use]
    pub fn is_leased(&self, now: Timestamp) -> bool {
        self.state == State::InProgress && self.lease_ends_at.is_some_and(|lease| now < lease)
    }

    /// The next attempt's number: one that lapsed unconfirmed is spent. Saturating, at 65,535.
    #[must_use]
    pub fn next_attempt(&self) -> u16 {
        self.take_over.map_or(self.attempt, |spent| spent.attempt.max(self.attempt)).saturating_add(1)
    }

    /// The record as `take_over`, won by a check of `payload` from `source`, leaves it once confirmed: that attempt stands,
    /// and the check is counted as a sighting.
    #[must_use]
    pub fn taken_over(&self, take_over: &TakeOver, payload: &PayloadHash, source: Option<&SourceService>) -> Self {
        let state = if take_over.lease_ends_at.is_some() { State::InProgress } else { State::Registered };
        let mut taken = Self {
            state,
            attempt: take_over.attempt,
            nonce: take_over.nonce,
            won_at: take_over.won_at,
            lease_ends_at: take_over.lease_ends_at,
            attempt_source: source.cloned(),
            ended: None,
            response: None,
            undurable: false,
            take_over: None,
            ..self.clone()
        };
        taken.sight(take_over.won_at, payload);
        taken
    }

    /// The same record, confirmed: REGISTERED in plain mode, IN_PROGRESS where it carries a lease.
    #[must_use]
    pub fn confirmed(&self) -> Self {
        let mut confirmed = self.clone();
        confirmed.confirm();
        confirmed
    }

    /// Makes a PENDING what [`Record::confirmed`] says.
    pub fn confirm(&mut self) {
        self.state = if self.lease_ends_at.is_some() { State::InProgress } else { State::Registered };
    }

    /// What a compare-and-set compares: which registration, attempt and winning check this is.
    #[must_use]
    pub fn identity(&self) -> (RegistrationId, u16, Nonce) {
        (self.registration_id, self.attempt, self.nonce)
    }

    /// Whether both records speak of overlapping windows of one key. A registration whose window begins where the
    /// other's ends does not overlap it.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first_seen_at < other.window_ends_at && other.first_seen_at < self.window_ends_at
    }

    /// The order in which registrations of one key stand in `dedup_claim`: the greater stands.
    #[must_use]
    pub fn standing(&self) -> (Timestamp, RegistrationId) {
        (self.first_seen_at, self.registration_id)
    }

    /// Takes over what `other`, **of the same registration**, knows better: min / max, what is never taken over before all
    /// else (RESOLVED, then a plain caller's REGISTERED: taken over in two tiers at once, it must not be open again because the
    /// other one's lease lapses), and then the highest attempt (DESIGN section 6). Commutative, associative and idempotent, so duplicates and any order of
    /// facts give the same record.
    pub fn merge(&mut self, other: &Self) {
        if other.rank() > self.rank() {
            self.state = other.state;
            self.attempt = other.attempt;
            self.nonce = other.nonce;
            self.won_at = other.won_at;
            self.lease_ends_at = other.lease_ends_at;
            self.attempt_source.clone_from(&other.attempt_source);
            self.ended.clone_from(&other.ended);
        }
        // One registration has one answer; a fact about a repeat leaves it out. Were it resolved in two tiers during a split,
        // with two answers, the one that came first would stand: the trail tells.
        if self.response.is_none() {
            self.response.clone_from(&other.response);
        }
        if self.source_service.is_none() {
            self.source_service.clone_from(&other.source_service);
        }
        self.first_seen_at = self.first_seen_at.min(other.first_seen_at);
        self.window_ends_at = self.window_ends_at.max(other.window_ends_at);
        self.merge_sightings(other);
    }

    /// Takes over what `other`, of the same registration, knows better of its sightings.
    pub fn merge_sightings(&mut self, other: &Self) {
        self.last_seen_at = self.last_seen_at.max(other.last_seen_at);
        self.retry_count = self.retry_count.max(other.retry_count);
        self.drift = match (self.drift, other.drift) {
            (Some(a), Some(b)) => {
                let last = if (b.last_at, b.last_hash) > (a.last_at, a.last_hash) { b } else { a };
                Some(Drift { count: a.count.max(b.count), ..last })
            }
            (a, b) => a.or(b),
        };
    }

    /// What decides which state of one registration stands.
    #[expect(clippy::type_complexity, reason = "it is compared as a whole, once")]
    fn rank(&self) -> (u8, u16, State, Timestamp, Nonce, Option<Timestamp>, Option<&Ended>, Option<&SourceService>) {
        let finality = match self.state {
            State::Resolved => 2,
            State::Registered => 1,
            State::Pending | State::InProgress | State::Failed => 0,
        };
        (
            finality,
            self.attempt,
            self.state,
            self.won_at,
            self.nonce,
            self.lease_ends_at,
            self.ended.as_ref(),
            self.attempt_source.as_ref(),
        )
    }
}
