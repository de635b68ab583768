//! From a PENDING that was won to the answer NEW: its fact is made durable, by the queue or by the registering statement,
//! then the hot tier confirms it.
//!
//! The two modes part where something is not known. A plain caller is told NEW all the same: whoever processes the message must
//! be told so, and a repeat that is told NEW too is found and counted. A claim has a holder only once it is confirmed, for only
//! then are its acts fenced.

use super::item::{Item, Settling, Step, TRIES, Won};
use super::{Ledger, Prepared};
use crate::attempt::Attempt;
use crate::claim::ClaimId;
use crate::fact::Fact;
use crate::ports::{Amend, Settle, StoreError, chain};
use crate::record::{Record, State};
use crate::time::Timestamp;
use crate::transition::{Amended, Found, Guard, Sighting, Swapped};
use crate::verdict::{Claim, DecidedBy, NewVerdict, Undecided, Verdict};

/// How long a fact may be on its way, in milliseconds: a queue's two attempts of two seconds each. One that is sent again
/// must arrive before its PENDING's deadline, for past it another check may win the key.
const SEND_AGAIN_MS: i64 = 4_000;
/// A queue that has taken so long, in milliseconds, is silent.
const SILENT_MS: i64 = 1_000;
/// A fact is sent so often in all while nobody knows whether it is durable, each time only where so many milliseconds are left
/// to its deadline.
pub(super) const SEND_MARGINS_MS: [i64; 3] = [0, SEND_AGAIN_MS, SEND_AGAIN_MS];

/// What became of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Durable,
    Refused,
    Unknown,
    TooLate,
}

/// A registration or take-over to be confirmed in the hot tier.
pub(super) struct Confirm {
    /// Of which item.
    pub(super) at: usize,
    /// The first PENDING that was won. The cold ledger may have decided for another registration than that one's.
    pub(super) guard: Guard,
    /// As it is to stand; [`Record::undurable`] where its fact is not known to be durable.
    pub(super) record: Record,
    /// For a take-over: the record as it stands, the PENDING over it.
    pub(super) over: Option<Box<Record>>,
}

/// What came of it.
pub(super) enum Confirmed {
    /// It stands.
    Yes,
    /// Something else stands there.
    No(Found),
    /// Nobody knows; what was to be confirmed.
    Unknown(Option<Box<Record>>),
}

impl Won {
    /// What is confirmed now that it is durable, or may be.
    fn into_confirm(self, at: usize) -> Confirm {
        Confirm { at, guard: Won::guard(&self.confirmed), record: self.confirmed, over: self.over }
    }
}

impl Ledger {
    pub(super) async fn register_by_queue(&self, items: &mut [Item<'_, '_>], won: Vec<(usize, Box<Won>)>) {
        let mut facts = Vec::with_capacity(won.len());
        let mut deadlines = Vec::with_capacity(won.len());
        let mut rest = Vec::with_capacity(won.len());
        for (at, won) in won {
            let Won { confirmed, deadline, over, replayed } = *won;
            let subject = items[at].prepared.check.subject.clone();
            let before = over.as_deref().and_then(Attempt::of);
            facts.push(Fact { subject, record: confirmed, before });
            deadlines.push(deadline);
            rest.push((at, over, replayed));
        }
        let sent = self.send_facts(&facts, &deadlines).await;
        let mut to_confirm = Vec::with_capacity(facts.len());
        let mut answers = Vec::with_capacity(facts.len());
        let mut without_queue = Vec::new();
        for ((((at, over, replayed), Fact { record, .. }), deadline), sent) in
            rest.into_iter().zip(facts).zip(deadlines).zip(sent)
        {
            let won = Won { confirmed: record, deadline, over, replayed };
            match sent {
                Sent::Durable => {
                    answers.push(self.new_of(items[at].prepared, &won));
                    to_confirm.push(won.into_confirm(at));
                }
                Sent::Refused | Sent::Unknown => without_queue.push((at, Box::new(won), sent)),
                // Its deadline is over; the store drops it by itself.
                Sent::TooLate => items[at].step = Step::Done(Err(Undecided::TooSlow)),
            }
        }
        if !without_queue.is_empty() {
            // Rare and large: in a place of its own it does not weigh on every check.
            for (at, won) in Box::pin(self.register_without_queue(items, without_queue)).await {
                answers.push(self.new_of(items[at].prepared, &won));
                to_confirm.push(won.into_confirm(at));
            }
        }
        let places: Vec<_> = to_confirm.iter().map(|confirm| confirm.at).collect();
        let confirmed = self.confirm(items, to_confirm).await;
        for ((at, new), confirmed) in places.into_iter().zip(answers).zip(confirmed) {
            let is_claim = new.claim.is_some();
            match confirmed {
                Confirmed::Yes => items[at].step = Step::Done(Ok(Verdict::New(new))),
                Confirmed::No(_) | Confirmed::Unknown(_) if !is_claim => {
                    items[at].step = Step::Done(Ok(Verdict::New(NewVerdict { confirmed: false, ..new })));
                }
                Confirmed::No(found) => {
                    // What it had registered is durable and nobody's: what it registers now is another registration.
                    items[at].registration_id = self.entropy.eight_bytes().into();
                    items[at].moved(found);
                }
                // The registration is durable, or may be: in the cold ledger it becomes the claim that stands.
                Confirmed::Unknown(Some(record)) if self.cold.is_some() => {
                    let record = Box::new(Record { undurable: false, ..*record });
                    let (read, won) = (Some(record.clone()), Some(record));
                    items[at].step = Step::Settle(Box::new(Settling { read, won, cut_off: true }));
                }
                Confirmed::Unknown(_) => items[at].step = Step::Done(Err(Undecided::Unconfirmed)),
            }
        }
    }

    /// NEW for what was won and is durable now, or may be.
    pub(super) fn new_of(&self, prepared: &Prepared<'_>, won: &Won) -> NewVerdict {
        let new = self.new_verdict(prepared, &won.confirmed, won.replayed, DecidedBy::Hot);
        NewVerdict { taken_over: won.over.is_some(), ..new }
    }

    /// Sends facts, each until it is known to be durable or refused, its deadline is near, or the tries are used up.
    pub(crate) async fn send_facts(&self, facts: &[Fact], deadlines: &[Timestamp]) -> Vec<Sent> {
        let mut sent = vec![Sent::Refused; facts.len()];
        let mut open: Vec<usize> = (0..facts.len()).collect();
        let mut began_at = None;
        for margin_ms in SEND_MARGINS_MS {
            // Past its PENDING's deadline another check may have won the key: no fact may be sent.
            let Ok(now) = self.clock.now() else { break };
            // A queue that says nothing is not waited for again where the cold ledger can make the fact durable.
            let waited_ms = now.millis_since(*began_at.get_or_insert(now));
            if self.cold.is_some() && waited_ms >= SILENT_MS {
                break;
            }
            open.retain(|place| {
                let in_time = now.plus_millis(margin_ms) < deadlines[*place];
                if !in_time && sent[*place] != Sent::Unknown {
                    sent[*place] = Sent::TooLate;
                }
                in_time
            });
            if open.is_empty() {
                break;
            }
            let results = if open.len() == facts.len() {
                self.queue.send(facts).await
            } else {
                let again: Vec<_> = open.iter().map(|place| facts[*place].clone()).collect();
                self.queue.send(&again).await
            };
            let mut unknown = Vec::new();
            for (place, result) in open.into_iter().zip(results) {
                match result {
                    Ok(()) => sent[place] = Sent::Durable,
                    Err(error @ StoreError::MayHaveHappened { .. }) => {
                        tracing::warn!(error = chain(&error), "a fact may not be durable");
                        sent[place] = Sent::Unknown;
                        unknown.push(place);
                    }
                    // Refused now, but an earlier try may have happened: still not known.
                    Err(error @ (StoreError::DidNotHappen { .. } | StoreError::Rejected { .. })) => {
                        tracing::warn!(error = chain(&error), "the queue refused a fact");
                    }
                }
            }
            open = unknown;
            if open.is_empty() {
                break;
            }
        }
        sent
    }

    /// Confirms PENDINGs in the hot tier. An unknown outcome is asked for once more.
    pub(super) async fn confirm(&self, items: &[Item<'_, '_>], confirms: Vec<Confirm>) -> Vec<Confirmed> {
        let mut outcomes: Vec<Confirmed> = confirms.iter().map(|_| Confirmed::Unknown(None)).collect();
        let (mut settles, mut amends) = (Vec::with_capacity(confirms.len()), Vec::new());
        let (mut of_settles, mut of_amends) = (Vec::with_capacity(confirms.len()), Vec::new());
        for (place, Confirm { at, guard, record, over }) in confirms.into_iter().enumerate() {
            let prepared = items[at].prepared;
            match over {
                None => {
                    of_settles.push(place);
                    settles.push(Settle { slot: prepared.slot, guard, settled: record });
                }
                Some(read) => {
                    of_amends.push(place);
                    let sighting = Sighting { at: record.won_at, payload: prepared.check.payload };
                    amends.push(Amend { slot: prepared.slot, read: *read, to: record, sighting: Some(sighting) });
                }
            }
        }
        for _ in 0..TRIES {
            if settles.is_empty() {
                break;
            }
            let (mut open, mut again) = (Vec::new(), Vec::new());
            let results = self.hot.settle(&settles).await;
            for ((place, request), result) in of_settles.into_iter().zip(settles).zip(results) {
                match result {
                    Ok(Swapped::Done) => outcomes[place] = Confirmed::Yes,
                    Ok(Swapped::Moved(found)) => outcomes[place] = Confirmed::No(found),
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "a registration may not be settled in the hot tier");
                        open.push(place);
                        again.push(request);
                    }
                }
            }
            (of_settles, settles) = (open, again);
        }
        for (place, request) in of_settles.into_iter().zip(settles) {
            outcomes[place] = Confirmed::Unknown(Some(Box::new(request.settled)));
        }
        for _ in 0..TRIES {
            if amends.is_empty() {
                break;
            }
            let (mut open, mut again) = (Vec::new(), Vec::new());
            let results = self.hot.amend(&amends).await;
            for ((place, request), result) in of_amends.into_iter().zip(amends).zip(results) {
                match result {
                    Ok(Amended::Done(_)) => outcomes[place] = Confirmed::Yes,
                    Ok(Amended::Moved(found)) => outcomes[place] = Confirmed::No(found),
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "a take-over may not be confirmed in the hot tier");
                        open.push(place);
                        again.push(request);
                    }
                }
            }
            (of_amends, amends) = (open, again);
        }
        for (place, request) in of_amends.into_iter().zip(amends) {
            outcomes[place] = Confirmed::Unknown(Some(Box::new(request.to)));
        }
        outcomes
    }

    /// NEW for what was just won, or this check's own answer again; in claim mode with the claim's token.
    pub(super) fn new_verdict(
        &self,
        prepared: &Prepared<'_>,
        record: &Record,
        replayed: bool,
        decided_by: DecidedBy,
    ) -> NewVerdict {
        let claim = record.lease_ends_at.map(|lease_ends_at| Claim {
            token: self.tokens.issue(&prepared.slot, &ClaimId::of(record)),
            lease_ends_at,
        });
        NewVerdict {
            first_seen_at: record.first_seen_at,
            window_ends_at: record.window_ends_at,
            // A first attempt's own answer: as it was when the check won.
            retry_count: if record.attempt == 1 { 0 } else { record.retry_count },
            state: if claim.is_some() { State::InProgress } else { State::Registered },
            attempt: claim.as_ref().map(|_| record.attempt),
            claim,
            replayed,
            taken_over: false,
            decided_by,
            durable: !record.undurable,
            unconfirmed: false,
            confirmed: true,
        }
    }
}

/// A fact about a repeat, which leaves the response's body out.
pub(super) fn repeat_fact(subject: crate::record::Subject, record: &Record) -> Fact {
    Fact::of(subject, &Record { response: None, ..record.clone() })
}
