//! The cold ledger: durable, authoritative, unique.

use async_trait::async_trait;

use super::StoreError;
use crate::attempt::Trail;
use crate::claim::{Act, ClaimId};
use crate::fact::Fact;
use crate::hash::PayloadHash;
use crate::ids::RegistrationId;
use crate::record::{Record, Subject};
use crate::scope::Tenant;
use crate::time::Timestamp;

/// What the registering statement decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// The registration asked for stands, durable: nothing stood in the window, or this very check's earlier try did.
    Ours(Box<Record>),
    /// Another registration stands in its window; this sighting was counted on it.
    Theirs(Box<Record>),
}

/// What registering several together came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Together {
    /// Each is the caller's own, durable: the records as they stand.
    All(Vec<Record>),
    /// Nothing was changed or counted: what stands under each key inside its window, as looked at afterwards.
    None(Vec<Option<Record>>),
}

/// What came of an act on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActedCold {
    /// Done, durable: the record as it stands.
    Done(Box<Record>),
    /// Not done: what stands under the key, if anything does.
    Unchanged(Option<Box<Record>>),
}

/// What a batch of facts came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Persisted {
    /// The live row of each key of the batch, as `dedup_claim` holds it after the commit.
    pub claims: Vec<ClaimRow>,
    /// Registrations found to be false NEWs by this batch, not counting those found before.
    pub false_new: u64,
    /// Months that were missing and were created, as `YYYY-MM`: an alarm.
    pub months_created: Vec<String>,
}

/// A live row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRow {
    /// The key.
    pub subject: Subject,
    /// The registration that stands.
    pub record: Record,
}

/// A registration in history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// The key.
    pub subject: Subject,
    /// The registration. Of a stored response history keeps hash, type and length only, so `response` is `None`.
    pub record: Record,
    /// The attempts on it; empty where it was never claimed.
    pub trail: Trail,
    /// The earlier registration whose window this one overlaps under another nonce, where there is one: this row is a
    /// false NEW.
    pub false_new_of: Option<RegistrationId>,
}

/// Where a page ends: the last row shown. Rows come newest first: by (first seen, registration id), descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Its first sighting.
    pub first_seen_at: Timestamp,
    /// Its registration.
    pub registration_id: RegistrationId,
}

/// A search in history. `from` is inclusive, `to` exclusive, both on the first sighting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// First sighted at or after.
    pub from: Timestamp,
    /// First sighted before.
    pub to: Timestamp,
    /// Only rows older than this one.
    pub after: Option<Position>,
    /// At most so many rows, 1 to 1,000.
    pub limit: usize,
}

/// A page of history, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryPage {
    /// The rows.
    pub rows: Vec<HistoryRow>,
    /// Whether older rows follow.
    pub more: bool,
}

/// The cold ledger: `dedup_ledger`, history, and `dedup_claim`, what is inside its window.
///
/// # Contract
/// - `Ok` is durable and seen by every handle on the same place.
/// - Of one key's overlapping registrations the greater [`Record::standing`] stands in `dedup_claim`, whatever the order of
///   arrival; history keeps all. Rows of one registration merge as [`Record::merge`] does, in both tables.
/// - A **false NEW** is a registration whose window overlaps an earlier one's of the same key under another nonce. Both rows
///   are kept, the later one names the least earlier one it overlaps, and it is reported once, in either order of arrival.
/// - A row that failed, or whose lease is over, is taken over by the registering statement: the same registration, the next
///   attempt, the wanted record's state, nonce and lease; the sighting is counted. History keeps the trail of attempts, each
///   merged by (attempt, nonce) as [`Trail::add`] does.
/// - A call is one transaction: all of it or nothing.
/// - Keys compare byte by byte; a text never meets a tuple.
#[async_trait]
pub trait ColdLedger: Send + Sync {
    /// The registering statement: decides and writes claim and history at once. Among concurrent calls on one key inside one
    /// window exactly one gets [`Registered::Ours`] under its own nonce.
    ///
    /// `wanted` is the confirmed record of the registration asked for; its `first_seen_at` is *now*. A row whose window is over
    /// at that time is replaced. A row with the wanted nonce is this check's own, not a sighting, and comes back as
    /// [`Registered::Ours`] with the registration that stands, as long as `replay_seconds` have not gone by since it was won.
    ///
    /// # Errors
    /// [`StoreError`]; repeating with the same record after [`StoreError::MayHaveHappened`] is safe.
    async fn register(&self, subject: &Subject, wanted: &Record, replay_seconds: u64)
    -> Result<Registered, StoreError>;

    /// Counts a sighting on the registration that stands, registering nothing: `None` where none stands in its window at
    /// `sighted.first_seen_at`. A row with `sighted`'s nonce is answered as by [`ColdLedger::register`].
    ///
    /// # Errors
    /// [`StoreError`]; a call whose reply was lost may have counted.
    async fn sight(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError>;

    /// The registering statement for several distinct keys, in one transaction: all are the caller's own, or nothing is
    /// changed.
    ///
    /// # Errors
    /// As [`ColdLedger::register`].
    async fn register_together(
        &self,
        wanted: &[(Subject, Record)],
        replay_seconds: u64,
    ) -> Result<Together, StoreError>;

    /// An act of the holder of `claim`: done where that claim stands IN_PROGRESS and its window is not over at `now`, as
    /// [`crate::transition::act`] has it, but not marked undurable: it is durable.
    ///
    /// # Errors
    /// [`StoreError`]; repeating after [`StoreError::MayHaveHappened`] finds the act's record standing.
    async fn act(&self, subject: &Subject, claim: &ClaimId, act: &Act, now: Timestamp)
    -> Result<ActedCold, StoreError>;

    /// The live row of a key, whatever its window; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn standing(&self, subject: &Subject) -> Result<Option<Record>, StoreError>;

    /// Merges facts into both tables. Facts may repeat and be of any order; several of one registration, or of one key, may
    /// be in one batch. A missing month is created.
    ///
    /// # Errors
    /// [`StoreError::Rejected`] where some fact's content is refused (its first sighting lies outside what months are made
    /// for): nothing was written, and the others may succeed without it.
    async fn persist(&self, facts: &[Fact], now: Timestamp) -> Result<Persisted, StoreError>;

    /// Live rows whose window is not over at `now`, newest first, by (first seen, registration id) descending; only rows older
    /// than `after`, at most `limit` of them and 10,000. None means that there are no more. Registration ids are random: two
    /// keys do not share one within a millisecond.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError>;

    /// Removes up to `limit` live rows, and 10,000, that nothing can need any more: their windows, and those of the key's other
    /// registrations, ended before `ended_before`. Returns how many. A row that was registered again meanwhile stays, one that
    /// somebody is writing is left for the next time. History is left alone.
    ///
    /// # Errors
    /// [`StoreError`]; repeating it is safe.
    async fn purge(&self, ended_before: Timestamp, limit: usize) -> Result<u64, StoreError>;

    /// History of one key.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn by_key(&self, subject: &Subject, query: &HistoryQuery) -> Result<HistoryPage, StoreError>;

    /// History of one tenant's payload, by its hash.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        query: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError>;

    /// Notes that every fact enqueued before `at` is in the tables. Never moves back.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn note_drained(&self, at: Timestamp) -> Result<(), StoreError>;

    /// The time up to which facts are in the tables, as last noted; `None` if never.
    ///
    /// # Errors
    /// [`StoreError`] where the ledger does not answer.
    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError>;

    /// The ledger's own time; also shows that it answers.
    ///
    /// # Errors
    /// [`StoreError`] where it does not answer.
    async fn time(&self) -> Result<Timestamp, StoreError>;
}
