//! What both cold ledgers do before they speak SQL: check and coalesce facts, and say what an error means.

use ledger_domain::ports::{HistoryPage, HistoryQuery, HistoryRow, Position, StoreError};
use ledger_domain::{Ended, Fact, FailReason, Record, RegistrationId, State, Subject, Timestamp, Trail};

const DAY_MS: i64 = 86_400_000;
/// How long before now a first sighting may lie: the longest window, the queue's 14 days twice (queue and dead-letter
/// queue), and a few. `dedup_ensure_month` draws the same lines.
const OLDEST_MS: i64 = 400 * DAY_MS;
/// How far after now a first sighting may lie: clocks agree to ε, so this is generous.
const NEWEST_MS: i64 = 2 * DAY_MS;

/// Refuses a first sighting for which no month would be made.
pub(crate) fn check_plausible(operation: &'static str, at: Timestamp, now: Timestamp) -> Result<(), StoreError> {
    if (-OLDEST_MS..=NEWEST_MS).contains(&at.millis_since(now)) {
        return Ok(());
    }
    let problem = format!("first sighting {at}: expected within 400 days before and 2 days after {now}");
    Err(StoreError::rejected(operation, problem))
}

/// The longest window, 366 days: what both schemas hold rows to, so that overlaps are looked for in bounded history, and live
/// rows too.
pub(crate) const WINDOW_MAX_MS: i64 = 366 * DAY_MS;

/// The longest replay time told apart, 1,000 years: longer than there is time to compare.
const REPLAY_MAX_MS: i64 = 1_000 * 366 * DAY_MS;

/// For how long a check is given again what it won.
pub(crate) fn replay_ms(replay_seconds: u64) -> i64 {
    i64::try_from(replay_seconds).unwrap_or(i64::MAX).saturating_mul(1_000).min(REPLAY_MAX_MS)
}

/// The time after which a check with the wanted nonce must have won to be this check's own earlier try.
pub(crate) fn won_after(wanted: &Record, replay_seconds: u64) -> Timestamp {
    wanted.first_seen_at.plus_millis(-replay_ms(replay_seconds))
}

/// Whether the registration that stands is this check's own, which is not counted. A retry with the very record that was
/// registered, or that took over, is so at any time: it must not be counted on itself. A claim is its winner's only while its
/// lease runs; one that failed or lapsed is anybody's, and one that is resolved answers like any other repeat.
pub(crate) fn is_own(standing: &Record, wanted: &Record, won_after: Timestamp) -> bool {
    let very_same = standing.registration_id == wanted.registration_id
        || (standing.attempt > 1 && standing.won_at == wanted.won_at);
    let same_check = standing.nonce == wanted.nonce && (very_same || standing.won_at > won_after);
    same_check
        && match standing.state {
            State::Registered => true,
            State::InProgress => very_same || standing.is_leased(wanted.first_seen_at),
            State::Pending | State::Failed | State::Resolved => false,
        }
}

/// A stored value that no caller could have given.
pub(crate) fn damaged(column: &'static str) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: "the row is damaged".into() }
}

/// A column's value, or the word that its row is damaged.
pub(crate) fn column<T, E>(name: &'static str, read: Result<T, E>) -> Result<T, sqlx::Error> {
    read.map_err(|_| damaged(name))
}

/// A registration as the facts of one batch tell of it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// Merged.
    pub(crate) record: Record,
    /// The attempts they tell of.
    pub(crate) trail: Trail,
}

/// A key's registrations in one batch, in the order in which they stand; at least one.
#[derive(Debug)]
pub(crate) struct Coalesced<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) registrations: Vec<Told>,
}

#[cfg(feature = "postgres")]
impl Coalesced<'_> {
    /// The latest window end of the registrations before the last one, which is the one that may stand.
    pub(crate) fn others_until(&self) -> Option<Timestamp> {
        self.registrations.iter().rev().skip(1).map(|told| told.record.window_ends_at).max()
    }
}

/// Merges the facts of each registration. Keys come in their order, so that every batch takes its locks in the same one.
pub(crate) fn coalesce(facts: &[Fact]) -> Vec<Coalesced<'_>> {
    let mut sorted: Vec<&Fact> = facts.iter().collect();
    sorted.sort_by(|a, b| (&a.subject, a.record.registration_id).cmp(&(&b.subject, b.record.registration_id)));
    let mut keys: Vec<Coalesced<'_>> = Vec::new();
    for fact in sorted {
        let told = || Told { record: fact.record.clone(), trail: fact.trail() };
        match keys.last_mut() {
            Some(key) if *key.subject == fact.subject => match key.registrations.last_mut() {
                Some(known) if known.record.registration_id == fact.record.registration_id => {
                    known.record.merge(&fact.record);
                    known.trail.merge(&fact.trail());
                }
                Some(_) | None => key.registrations.push(told()),
            },
            Some(_) | None => keys.push(Coalesced { subject: &fact.subject, registrations: vec![told()] }),
        }
    }
    for key in &mut keys {
        key.registrations.sort_by_key(|told| told.record.standing());
    }
    keys
}

/// The trail as it is stored; nothing for one that was never claimed.
pub(crate) fn stored_trail(trail: &Trail) -> Option<String> {
    (!trail.attempts().is_empty()).then(|| trail.to_json())
}

/// Reads what [`stored_trail`] wrote.
pub(crate) fn read_trail(stored: Option<&str>) -> Result<Trail, sqlx::Error> {
    stored.map_or_else(|| Ok(Trail::default()), |json| column("attempts", Trail::from_json(json)))
}

/// How the attempt that stands ended, from its two columns.
pub(crate) fn ended(at: Option<Timestamp>, reason: Option<&str>) -> Result<Option<Ended>, sqlx::Error> {
    let reason = column("fail_reason", reason.map(FailReason::parse).transpose())?;
    Ok(at.map(|at| Ended { at, reason }))
}

/// What an SQL error says about the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    DidNotHappen,
    MayHaveHappened,
    Rejected,
}

impl Outcome {
    pub(crate) fn into_error(self, operation: &'static str, error: sqlx::Error) -> StoreError {
        match self {
            Self::DidNotHappen => StoreError::did_not_happen(operation, error),
            Self::MayHaveHappened => StoreError::may_have_happened(operation, error),
            Self::Rejected => StoreError::rejected(operation, error),
        }
    }
}

/// What an error that is not the database's own answer says: nothing was sent, or nobody knows.
pub(crate) fn outcome_without_answer(error: &sqlx::Error) -> Outcome {
    match error {
        sqlx::Error::Configuration(_)
        | sqlx::Error::ConfigFile(_)
        | sqlx::Error::InvalidArgument(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::Tls(_)
        | sqlx::Error::InvalidSavePointStatement
        | sqlx::Error::BeginFailed
        | sqlx::Error::TypeNotFound { .. } => Outcome::DidNotHappen,
        sqlx::Error::Database(_)
        | sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::RowNotFound
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::AnyDriverError(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Migrate(_) => Outcome::MayHaveHappened,
        // sqlx's errors are non-exhaustive.
        _ => Outcome::MayHaveHappened,
    }
}

/// The most rows one call for live rows gives, or one purge removes.
const LIVE_ROWS_MAX: usize = 10_000;

/// A number of live rows as the statements take it.
pub(crate) fn live_rows(limit: usize) -> i64 {
    i64::try_from(limit.min(LIVE_ROWS_MAX)).unwrap_or(i64::MAX)
}

/// The place that all rows are older than: the latest time there is.
pub(crate) const NEWEST: Position =
    Position { first_seen_at: Timestamp::MAX, registration_id: RegistrationId::from_bytes([0xff; 8]) };

/// The most rows a page of history has, as the port says.
const PAGE_ROWS_MAX: usize = 1_000;

/// A history query as the statements take it.
#[derive(Debug)]
pub(crate) struct Window {
    /// The first millisecond of first sightings wanted.
    pub(crate) from: Timestamp,
    /// The last one.
    pub(crate) last: Timestamp,
    /// Of rows of that last millisecond, only those below this id.
    pub(crate) below_id: Option<RegistrationId>,
    limit: usize,
}

impl Window {
    /// `None` where no row can be meant.
    pub(crate) fn of(query: &HistoryQuery) -> Option<Self> {
        let last = query.to.plus_millis(-1);
        let (last, below_id) = match query.after {
            Some(after) if after.first_seen_at <= last => (after.first_seen_at, Some(after.registration_id)),
            Some(_) | None => (last, None),
        };
        let limit = query.limit.clamp(1, PAGE_ROWS_MAX);
        (query.from < query.to && query.from <= last).then_some(Self { from: query.from, last, below_id, limit })
    }

    /// One row more than the page has, which says whether older ones follow.
    pub(crate) fn rows_wanted(&self) -> i64 {
        i64::try_from(self.limit + 1).unwrap_or(i64::MAX)
    }

    pub(crate) fn page(&self, mut rows: Vec<HistoryRow>) -> HistoryPage {
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        HistoryPage { rows, more }
    }
}
