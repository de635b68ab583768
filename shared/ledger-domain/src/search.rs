//! What an auditor is shown: every record known, newest first, wherever it is.

use std::sync::Arc;

use crate::attempt::{Attempt, Trail};
use crate::digest::Slot;
use crate::hash::PayloadHash;
use crate::ids::RegistrationId;
use crate::ports::{Clock, ColdLedger, EventQueue, HistoryQuery, HistoryRow, HotTier, Position, StoreError};
use crate::record::{Record, Subject};
use crate::scope::Tenant;
use crate::time::Timestamp;
use crate::transition::Found;

/// Where a message was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In the hot tier, and perhaps in the cold ledger too.
    Hot,
    /// In the cold ledger.
    Cold,
}

impl Location {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

/// One registration, as an auditor is shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The key.
    pub subject: Subject,
    /// The registration.
    pub record: Record,
    /// The attempts on it; empty where it was never claimed.
    pub trail: Trail,
    /// Where it was found.
    pub location: Location,
    /// The earlier registration it repeats, where it is a false NEW.
    pub false_new_of: Option<RegistrationId>,
}

/// A page of messages, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The messages.
    pub messages: Vec<Message>,
    /// Where the next page goes on, where there is one.
    pub next: Option<Position>,
    /// The hot tier did not answer, so what only it knows is missing.
    pub hot_missing: bool,
}

/// Searches hot tier and cold ledger.
pub struct Auditor {
    /// Asked by key only.
    pub hot: Arc<dyn HotTier>,
    /// History.
    pub cold: Arc<dyn ColdLedger>,
    /// Asked how much waits.
    pub queue: Arc<dyn EventQueue>,
    /// Ledger time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auditor").finish_non_exhaustive()
    }
}

impl Auditor {
    /// Every registration of one key: history, and the hot record. What both know is shown once, with the newer facts.
    ///
    /// # Errors
    /// [`StoreError`] where the cold ledger does not answer.
    pub async fn by_key(&self, subject: &Subject, query: &HistoryQuery) -> Result<Page, StoreError> {
        let slot = Slot::of(&subject.scope, &subject.key);
        // Hot first: a record that leaves the hot tier between the two reads is in history by then.
        let hot = self.hot.read(&[slot]).await.pop();
        let (hot, hot_missing) = match hot {
            Some(Ok(Found::Record(record))) => (Some(*record), false),
            Some(Ok(Found::Absent)) => (None, false),
            Some(Ok(Found::Unreadable) | Err(_)) | None => (None, true),
        };
        let page = self.cold.by_key(subject, query).await?;
        let mut messages: Vec<_> = page.rows.into_iter().map(cold_message).collect();
        let mut more = page.more;
        if let Some(hot) = hot {
            merge_hot(&mut messages, subject, hot, query, more);
            if messages.len() > query.limit {
                messages.truncate(query.limit);
                more = true;
            }
        }
        let next = next_of(&messages, more);
        Ok(Page { messages, next, hot_missing })
    }

    /// Every registration of one tenant with one payload, in history.
    ///
    /// # Errors
    /// [`StoreError`] where the cold ledger does not answer.
    pub async fn by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        query: &HistoryQuery,
    ) -> Result<Page, StoreError> {
        let page = self.cold.by_hash(tenant, payload, query).await?;
        let messages: Vec<_> = page.rows.into_iter().map(cold_message).collect();
        let next = next_of(&messages, page.more);
        Ok(Page { messages, next, hot_missing: false })
    }

    /// The time up to which facts are in the cold ledger; `None` where that was never known. With the queue empty it is now,
    /// less how far the queue's count may lag; else what was last noted.
    ///
    /// # Errors
    /// [`StoreError`] where the cold ledger does not answer.
    pub async fn as_of(&self) -> Result<Option<Timestamp>, StoreError> {
        note_if_drained(&*self.queue, &*self.cold, &*self.clock).await?;
        self.cold.drained_until().await
    }
}

/// Notes in the cold ledger that the queue is empty, where it is.
///
/// # Errors
/// [`StoreError`] where the cold ledger does not answer. A queue that does not answer, or a dead-letter queue that holds
/// something, only means that nothing is noted.
pub async fn note_if_drained(
    queue: &dyn EventQueue,
    cold: &dyn ColdLedger,
    clock: &dyn Clock,
) -> Result<(), StoreError> {
    // The time before the count: what is sent after it is not spoken for.
    let Ok(now) = clock.now() else { return Ok(()) };
    match queue.depth().await {
        Ok(depth) if depth.waiting == 0 && depth.dead == Some(0) => {
            let lag_ms = i64::try_from(depth.lag_ms).unwrap_or(i64::MAX);
            cold.note_drained(now.plus_millis(-lag_ms)).await
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn cold_message(row: HistoryRow) -> Message {
    let HistoryRow { subject, record, trail, false_new_of } = row;
    Message { subject, record, trail, location: Location::Cold, false_new_of }
}

fn position(record: &Record) -> Position {
    Position { first_seen_at: record.first_seen_at, registration_id: record.registration_id }
}

fn next_of(messages: &[Message], more: bool) -> Option<Position> {
    if more { messages.last().map(|message| position(&message.record)) } else { None }
}

/// Puts the hot record into its place on a page that ends where `more` says that older rows follow.
fn merge_hot(messages: &mut Vec<Message>, subject: &Subject, hot: Record, query: &HistoryQuery, more: bool) {
    let at = position(&hot);
    if let Some(known) = messages.iter_mut().find(|message| message.record.registration_id == hot.registration_id) {
        known.record.merge(&hot);
        known.trail.merge(&Trail::of(Attempt::of(&hot)));
        known.location = Location::Hot;
        return;
    }
    let in_query = (query.from..query.to).contains(&at.first_seen_at) && query.after.is_none_or(|after| at < after);
    let place = messages.partition_point(|message| position(&message.record) > at);
    // Behind the last row of a page that goes on, it belongs to a later page.
    if in_query && (place < messages.len() || !more) {
        let (subject, trail) = (subject.clone(), Trail::of(Attempt::of(&hot)));
        let message = Message { subject, record: hot, trail, location: Location::Hot, false_new_of: None };
        messages.insert(place, message);
    }
}
