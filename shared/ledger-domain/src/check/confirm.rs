//! From a PENDING that was won to the answer NEW: its fact is made durable, by the queue or by the registering statement,
//! then the hot tier confirms it.
//!
//! The two modes part where something is not known. A plain caller is told NEW all the same: whoever processes the message must
//! be told so, and a repeat that is told NEW too is found and counted. A claim has a holder only once it is confirmed, for only
//! then are its acts fenced.

use futures::future::join_all;

use super::item::{Answer, Item, Step, TRIES, Won};
use super::judge::seen_verdict;
use super::{Ledger, Prepared};
use crate::attempt::Attempt;
use crate::claim::ClaimId;
use crate::fact::Fact;
use crate::ports::{Amend, Registered, Settle, StoreError, chain};
use crate::record::{Record, State};
use crate::time::Timestamp;
use crate::transition::{Amended, Found, Guard, Sighting, Swapped};
use crate::verdict::{Claim, DecidedBy, NewVerdict, Undecided, Verdict};

/// How long a fact may be on its way, in milliseconds: a queue's two attempts of two seconds each. One that is sent again
/// must arrive before its PENDING's deadline, for past it another check may win the key.
const SEND_AGAIN_MS: i64 = 4_000;
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
    /// Nobody knows.
    Unknown,
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
        let mut to_release = Vec::new();
        for (((at, over, replayed), Fact { mut record, .. }), sent) in rest.into_iter().zip(facts).zip(sent) {
            let is_claim = record.lease_ends_at.is_some();
            let new = |record: &Record| {
                let new = self.new_verdict(items[at].prepared, record, replayed, DecidedBy::Hot);
                NewVerdict { taken_over: over.is_some(), ..new }
            };
            match sent {
                Sent::Durable => {}
                // RETRY is no discard: the claim may be confirmed, marked, and its next act's fact tells all.
                Sent::Unknown if is_claim => record.undurable = true,
                // The record stays PENDING: nobody is told SEEN from it, and the cold writer heals it if the fact is there.
                Sent::Unknown => {
                    let new = NewVerdict { durable: false, confirmed: false, ..new(&record) };
                    items[at].step = Step::Done(Ok(Verdict::New(new)));
                    continue;
                }
                Sent::Refused => {
                    items[at].step = Step::Done(Err(Undecided::Queue));
                    if over.is_none() {
                        to_release.extend(items[at].release(&record));
                    }
                    continue;
                }
                // Its deadline is over; the store drops it by itself.
                Sent::TooLate => {
                    items[at].step = Step::Done(Err(Undecided::TooSlow));
                    continue;
                }
            }
            answers.push(new(&record));
            to_confirm.push(Confirm { at, guard: Won::guard(&record), record, over });
        }
        if !to_release.is_empty() {
            // It only hastens the lapse: whatever comes of it, the PENDING is gone at its deadline.
            self.hot.release(&to_release).await;
        }
        let places: Vec<_> = to_confirm.iter().map(|confirm| confirm.at).collect();
        let confirmed = self.confirm(items, to_confirm).await;
        for ((at, new), confirmed) in places.into_iter().zip(answers).zip(confirmed) {
            let is_claim = new.claim.is_some();
            match confirmed {
                Confirmed::Yes => items[at].step = Step::Done(Ok(Verdict::New(new))),
                Confirmed::No(_) | Confirmed::Unknown if !is_claim => {
                    items[at].step = Step::Done(Ok(Verdict::New(NewVerdict { confirmed: false, ..new })));
                }
                Confirmed::No(found) => {
                    // What it had registered is durable and nobody's: what it registers now is another registration.
                    items[at].registration_id = self.entropy.eight_bytes().into();
                    items[at].moved(found);
                }
                Confirmed::Unknown => items[at].step = Step::Done(Err(Undecided::Unconfirmed)),
            }
        }
    }

    /// Sends facts, each until it is known to be durable or refused, its deadline is near, or the tries are used up.
    pub(crate) async fn send_facts(&self, facts: &[Fact], deadlines: &[Timestamp]) -> Vec<Sent> {
        let mut sent = vec![Sent::Refused; facts.len()];
        let mut open: Vec<usize> = (0..facts.len()).collect();
        for margin_ms in SEND_MARGINS_MS {
            // Past its PENDING's deadline another check may have won the key: no fact may be sent.
            let Ok(now) = self.clock.now() else { break };
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
        let mut outcomes: Vec<Confirmed> = confirms.iter().map(|_| Confirmed::Unknown).collect();
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
        outcomes
    }

    /// The registering statement decides: another registration found there is the verdict and goes to the hot tier.
    pub(super) async fn register_in_cold(&self, items: &mut [Item<'_, '_>], won: Vec<(usize, Box<Won>)>) {
        let Ok(now) = self.clock.now() else {
            for (at, _) in won {
                items[at].step = Step::Done(Err(Undecided::Clock));
            }
            return;
        };
        let results = join_all(won.iter().map(|(at, won)| {
            let prepared = items[*at].prepared;
            async move {
                if now >= won.deadline {
                    return Err(Undecided::TooSlow);
                }
                let cold = self.cold.as_ref().ok_or(Undecided::ColdLedger)?;
                let replay_seconds = prepared.policy.replay_seconds;
                let subject = &prepared.check.subject;
                let mut result = cold.register(subject, &won.confirmed, replay_seconds).await;
                let in_time = || self.clock.now().is_ok_and(|now| now < won.deadline);
                if matches!(result, Err(StoreError::MayHaveHappened { .. })) && in_time() {
                    // The same registration and nonce: a first try that happened is recognised.
                    result = cold.register(subject, &won.confirmed, replay_seconds).await;
                }
                result.map_err(|error| cold_ledger_failed(&error))
            }
        }))
        .await;
        let mut decided = Vec::new();
        let mut confirms = Vec::new();
        let mut to_release = Vec::new();
        for ((at, won), result) in won.into_iter().zip(results) {
            match result {
                Ok(registered) => {
                    let item = &items[at];
                    let answer = self.cold_answer(item.prepared, &won.confirmed, &registered, won.replayed, now);
                    let (Registered::Ours(record) | Registered::Theirs(record)) = registered;
                    let guard = Won::guard(&won.confirmed);
                    confirms.push(Confirm { at, guard, record: (*record).clone(), over: None });
                    decided.push((at, *record, answer));
                }
                Err(undecided) => {
                    items[at].step = Step::Done(Err(undecided));
                    to_release.extend(items[at].release(&won.confirmed));
                }
            }
        }
        if !to_release.is_empty() {
            self.hot.release(&to_release).await;
        }
        // The cold ledger has decided; the hot tier only learns of it.
        let confirmed = self.confirm(items, confirms).await;
        for ((at, record, answer), confirmed) in decided.into_iter().zip(confirmed) {
            let confirmed = matches!(confirmed, Confirmed::Yes);
            items[at].step = Step::Done(match answer {
                Ok(Verdict::New(new)) if !confirmed => {
                    // No fact of it is on the queue, so none would heal the hot tier, whose misses may be believed again soon.
                    let subject = items[at].prepared.check.subject.clone();
                    self.repeats.offer(repeat_fact(subject, &record));
                    Ok(Verdict::New(NewVerdict { confirmed, ..new }))
                }
                answer => answer,
            });
        }
    }

    /// The answer to the check that wanted `wanted`.
    pub(super) fn cold_answer(
        &self,
        prepared: &Prepared<'_>,
        wanted: &Record,
        registered: &Registered,
        replayed: bool,
        now: Timestamp,
    ) -> Answer {
        match registered {
            Registered::Ours(record) => {
                let replayed = replayed || is_earlier(record, wanted);
                let new = self.new_verdict(prepared, record, replayed, DecidedBy::Cold);
                let taken_over = record.registration_id != wanted.registration_id && !replayed;
                Ok(Verdict::New(NewVerdict { taken_over, ..new }))
            }
            Registered::Theirs(record) => seen_verdict(record, prepared, now, DecidedBy::Cold),
        }
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
            confirmed: true,
        }
    }
}

/// Whether the cold ledger's record of this check is an earlier call's, and not what this one wanted. A take-over continues
/// another registration.
pub(super) fn is_earlier(record: &Record, wanted: &Record) -> bool {
    let is_other = record.registration_id != wanted.registration_id;
    record.won_at != wanted.won_at || (is_other && record.attempt == 1)
}

pub(super) fn cold_ledger_failed(error: &StoreError) -> Undecided {
    tracing::warn!(error = chain(error), "the cold ledger was needed and did not answer");
    Undecided::ColdLedger
}

/// A fact about a repeat, which leaves the response's body out.
pub(super) fn repeat_fact(subject: crate::record::Subject, record: &Record) -> Fact {
    Fact::of(subject, &Record { response: None, ..record.clone() })
}
