//! Where no tier can say whether a message was seen before, and the scope's policy says `unconfirmed: allow`: NEW with
//! `confirmed: false`, durable through the queue. A repeat may be told NEW as well; both are found and linked when their facts
//! arrive.

use super::Ledger;
use super::confirm::Sent;
use super::item::{Item, Step, Won};
use crate::fact::Fact;
use crate::policy::Unconfirmed;
use crate::record::Record;
use crate::verdict::{DecidedBy, NewVerdict, Undecided, Verdict};

impl Ledger {
    /// The hot tier is not complete, and the cold ledger does not answer: what its policy allows is registered by the queue alone.
    /// The rest comes back.
    pub(super) async fn register_unconfirmed(
        &self,
        items: &mut [Item<'_, '_>],
        left: Vec<(usize, Box<Won>, Undecided)>,
    ) -> Vec<(usize, Box<Won>, Undecided)> {
        let is_allowed = |(at, _, why): &(usize, Box<Won>, Undecided)| {
            *why == Undecided::ColdLedger && items[*at].prepared.policy.unconfirmed == Unconfirmed::Allow
        };
        let (allowed, left): (Vec<_>, Vec<_>) = left.into_iter().partition(is_allowed);
        if allowed.is_empty() {
            return left;
        }
        let places: Vec<_> = allowed.iter().map(|(at, _, _)| *at).collect();
        self.register_by_queue(items, allowed.into_iter().map(|(at, won, _)| (at, won)).collect()).await;
        for at in places {
            if let Step::Done(Ok(Verdict::New(new))) = &mut items[at].step {
                new.unconfirmed = true;
            }
        }
        left
    }

    /// The hot tier is cut off, and the cold ledger does not answer either.
    pub(super) async fn answer_unconfirmed(&self, items: &mut [Item<'_, '_>]) {
        let is_open =
            |item: &Item<'_, '_>| item.unconfirmed && matches!(item.step, Step::Done(Err(Undecided::ColdLedger)));
        let places: Vec<_> = (0..items.len()).filter(|at| is_open(&items[*at])).collect();
        if places.is_empty() {
            return;
        }
        let Ok(now) = self.clock.now() else { return };
        let mut facts = Vec::with_capacity(places.len());
        for at in &places {
            let pending = items[*at].pending(now);
            facts.push(Fact::of(items[*at].prepared.check.subject.clone(), &pending));
        }
        // No PENDING stands that could lapse: its deadline is as if one did.
        let deadlines: Vec<_> = facts.iter().map(|_| now.plus_millis(Record::PENDING_MS)).collect();
        let sent = self.send_facts(&facts, &deadlines).await;
        for ((at, fact), sent) in places.into_iter().zip(facts).zip(sent) {
            let new = |durable| {
                let new = self.new_verdict(items[at].prepared, &fact.record, false, DecidedBy::Cold);
                Verdict::New(NewVerdict { durable, unconfirmed: true, confirmed: false, ..new })
            };
            items[at].step = Step::Done(match sent {
                Sent::Durable => Ok(new(true)),
                Sent::Unknown => Ok(new(false)),
                Sent::Refused | Sent::TooLate => Err(Undecided::ColdLedger),
            });
        }
    }
}
