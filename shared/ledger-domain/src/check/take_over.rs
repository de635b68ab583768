//! What a check does with a record that somebody else's claim left: take it over, or make its last act durable first.

use super::Ledger;
use super::item::{Item, Step, Won, take_steps};
use crate::fact::Fact;
use crate::ports::{Amend, chain};
use crate::record::Record;
use crate::time::Timestamp;
use crate::transition::Amended;
use crate::verdict::Undecided;

impl Ledger {
    /// Lays a take-over's PENDING over records that failed, or whose lease is over.
    pub(super) async fn take_over(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::TakeOver(record) => record);
        if taken.is_empty() {
            return;
        }
        let mut requests = Vec::with_capacity(taken.len());
        let mut wanted = Vec::with_capacity(taken.len());
        for (at, read) in taken {
            let take_over = items[at].take_over(&read, now);
            items[at].took_over_at = Some(now);
            let to = Record { take_over: Some(take_over), response: None, ..(*read).clone() };
            requests.push(Amend { slot: items[at].prepared.slot, read: *read, to, sighting: None });
            wanted.push((at, take_over));
        }
        let results = self.hot.amend(&requests).await;
        for ((at, take_over), result) in wanted.into_iter().zip(results) {
            match result {
                Ok(Amended::Done(record)) => {
                    items[at].step = Step::Register(Won::over(record, &take_over, items[at].prepared.check, false));
                }
                Ok(Amended::Moved(found)) => items[at].moved(found),
                // It may lie there now: the nonce tells, so looking again is safe.
                Err(error) => items[at].hot_tier_failed(&error, Step::Begin),
            }
        }
    }

    /// Makes the last act of marked records durable, body included, before anybody is told to discard from them.
    pub(super) async fn make_marked_durable(&self, items: &mut [Item<'_, '_>]) {
        let taken = take_steps!(items, Step::Mark(record) => record);
        if taken.is_empty() {
            return;
        }
        let subject = |at: usize| items[at].prepared.check.subject.clone();
        let facts: Vec<_> = taken.iter().map(|(at, record)| Fact::of(subject(*at), record)).collect();
        // No PENDING lapses here: its window's end is all there is to keep to.
        let deadlines: Vec<_> = taken.iter().map(|(_, record)| record.window_ends_at).collect();
        let sent = self.send_or_persist(&facts, &deadlines).await;
        let mut requests = Vec::with_capacity(taken.len());
        let mut durable = Vec::with_capacity(taken.len());
        for ((at, record), is_durable) in taken.into_iter().zip(sent) {
            if !is_durable {
                items[at].step = Step::Done(Err(Undecided::Queue));
                continue;
            }
            let slot = items[at].prepared.slot;
            let to = Record { undurable: false, response: None, ..(*record).clone() };
            requests.push(Amend { slot, read: (*record).clone(), to: to.clone(), sighting: None });
            durable.push((at, Record { response: record.response, ..to }));
        }
        let results = if requests.is_empty() { Vec::new() } else { self.hot.amend(&requests).await };
        for ((at, record), result) in durable.into_iter().zip(results) {
            match result {
                Ok(Amended::Done(_)) => items[at].step = Step::Count(Box::new(record)),
                Ok(Amended::Moved(found)) => items[at].moved(found),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "a mark may not be cleared in the hot tier");
                    items[at].hot_tier_failed(&error, Step::Begin);
                }
            }
        }
    }
}
