//! Where the cold ledger decides: a miss that the hot tier cannot vouch for, a hit on a claim that it cannot vouch for either,
//! whatever it is cut off from, and registrations that the queue does not take.
//!
//! What is decided here goes to the hot tier before it is answered. Where it does not get there, or is not sent there, a cold
//! session stands before the answer is given: then nobody believes the hot tier until it was filled from the cold ledger.

use futures::future::join_all;

use super::confirm::Sent;
use super::item::{Answer, Item, Settling, Step, Won, take_steps};
use super::judge::seen_verdict;
use super::{Ledger, Prepared};
use crate::attempt::Attempt;
use crate::claim::{Act, ClaimId};
use crate::fact::Fact;
use crate::persist::alarm_of_false_new;
use crate::policy::Unconfirmed;
use crate::ports::{ColdLedger, Fill, Registered, StoreError, chain};
use crate::record::{Record, State, Subject};
use crate::time::Timestamp;
use crate::verdict::{DecidedBy, NewVerdict, Undecided, Verdict};

impl Ledger {
    /// The cold ledger decides misses: another registration found there is the verdict. What it could not decide comes back, with
    /// why; nothing was done for it but what its PENDING holds.
    pub(super) async fn register_in_cold(
        &self,
        items: &mut [Item<'_, '_>],
        won: Vec<(usize, Box<Won>)>,
    ) -> Vec<(usize, Box<Won>, Undecided)> {
        let results = join_all(won.iter().map(|(at, won)| {
            let prepared = items[*at].prepared;
            async move {
                let now = self.clock.now().map_err(|_| Undecided::Clock)?;
                if now >= won.deadline {
                    return Err(Undecided::TooSlow);
                }
                let cold = self.cold.as_deref().ok_or(Undecided::ColdLedger)?;
                let registered = self.register_once(cold, prepared, &won.confirmed, Some(won.deadline)).await?;
                Ok((registered, now))
            }
        }))
        .await;
        let mut left = Vec::new();
        let mut decided = Vec::with_capacity(won.len());
        for ((at, won), result) in won.into_iter().zip(results) {
            match result {
                Ok((registered, now)) => {
                    let prepared = items[at].prepared;
                    let answer = self.cold_answer(prepared, &won.confirmed, &registered, won.replayed, now);
                    let (Registered::Ours(record) | Registered::Theirs(record)) = registered;
                    decided.push((at, *record, answer));
                }
                Err(why) => left.push((at, won, why)),
            }
        }
        self.answer_and_tell_hot(items, decided).await;
        left
    }

    /// The registering statement, asked once more where nobody knows what became of it: the same registration and nonce, so a
    /// first try that happened is recognised.
    async fn register_once(
        &self,
        cold: &dyn ColdLedger,
        prepared: &Prepared<'_>,
        wanted: &Record,
        deadline: Option<Timestamp>,
    ) -> Result<Registered, Undecided> {
        let (subject, replay_seconds) = (&prepared.check.subject, prepared.policy.replay_seconds);
        let mut result = cold.register(subject, wanted, replay_seconds).await;
        let in_time = || deadline.is_none_or(|deadline| self.clock.now().is_ok_and(|now| now < deadline));
        if matches!(result, Err(StoreError::MayHaveHappened { .. })) && in_time() {
            result = cold.register(subject, wanted, replay_seconds).await;
        }
        result.map_err(|error| cold_ledger_failed(&error))
    }

    /// Gives up what no tier could decide. Its PENDINGs lapse; a compare of the same four may hasten that.
    pub(super) async fn let_go(&self, items: &mut [Item<'_, '_>], left: Vec<(usize, Box<Won>, Undecided)>) {
        let mut to_release = Vec::new();
        for (at, won, why) in left {
            items[at].step = Step::Done(Err(why));
            if won.over.is_none() {
                to_release.extend(items[at].release(&won.confirmed));
            }
        }
        if !to_release.is_empty() {
            // Whatever comes of it, the PENDING is gone at its deadline.
            self.hot.release(&to_release).await;
        }
    }

    /// Registrations and take-overs that the queue did not take, or nobody knows whether it did: the cold ledger makes them
    /// durable itself. What is to be confirmed in the hot tier comes back.
    pub(super) async fn register_without_queue(
        &self,
        items: &mut [Item<'_, '_>],
        won: Vec<(usize, Box<Won>, Sent)>,
    ) -> Vec<(usize, Won)> {
        let mut sent_of = vec![Sent::Refused; items.len()];
        let (mut firsts, mut overs) = (Vec::new(), Vec::new());
        for (at, won, sent) in won {
            sent_of[at] = sent;
            if won.over.is_some() { &mut overs } else { &mut firsts }.push((at, won));
        }
        let mut left: Vec<_> = self.register_in_cold(items, firsts).await;
        let (mut to_confirm, mut decided) = (Vec::new(), Vec::new());
        for (at, won) in overs {
            let before = won.over.as_deref().and_then(Attempt::of);
            let subject = items[at].prepared.check.subject.clone();
            let fact = Fact { subject, record: won.confirmed.clone(), before };
            match self.persist(std::slice::from_ref(&fact)).await {
                Ok(rows) => match rows.into_iter().find(|row| row.identity() == won.confirmed.identity()) {
                    // No message of it is on the queue: nothing would heal a confirmation that gets lost.
                    Some(row) => {
                        let new = NewVerdict { decided_by: DecidedBy::Cold, ..self.new_of(items[at].prepared, &won) };
                        decided.push((at, row, Ok(Verdict::New(new))));
                    }
                    // Something later stands there than the hot tier knows of.
                    None => items[at].step = Step::Settle(Box::default()),
                },
                Err(why) => left.push((at, won, why)),
            }
        }
        self.answer_and_tell_hot(items, decided).await;
        let mut refused = Vec::new();
        for (at, mut won, _) in left {
            let is_unknown = sent_of[at] == Sent::Unknown;
            if is_unknown && won.confirmed.lease_ends_at.is_some() {
                // RETRY is no discard: the claim may be confirmed, marked, and its next act's fact tells all.
                won.confirmed.undurable = true;
                to_confirm.push((at, *won));
            } else if is_unknown {
                // The record stays PENDING: nobody is told SEEN from it, and the cold writer heals it if the fact is there.
                let new = self.new_of(items[at].prepared, &won);
                let new = NewVerdict { durable: false, confirmed: false, ..new };
                items[at].step = Step::Done(Ok(Verdict::New(new)));
            } else {
                refused.push((at, won, Undecided::Queue));
            }
        }
        self.let_go(items, refused).await;
        to_confirm
    }

    /// The rows that stand after facts were merged into the cold ledger, without the queue.
    pub(crate) async fn persist(&self, facts: &[Fact]) -> Result<Vec<Record>, Undecided> {
        let cold = self.cold.as_ref().ok_or(Undecided::ColdLedger)?;
        let now = self.clock.now().map_err(|_| Undecided::Clock)?;
        let mut result = cold.persist(facts, now).await;
        if matches!(result, Err(StoreError::MayHaveHappened { .. })) {
            // Merging twice is merging once.
            result = cold.persist(facts, now).await;
        }
        let persisted = result.map_err(|error| cold_ledger_failed(&error))?;
        alarm_of_false_new(persisted.false_new);
        Ok(persisted.claims.into_iter().map(|row| row.record).collect())
    }

    /// Tells the cold ledger what the hot tier showed of claims, as facts that it may not have heard of yet. An end that is marked
    /// as not durable is no fact yet: its holder was not told that it is done, and another may have taken over in the cold
    /// ledger. So it is asked for there as its holder would, and refused where the claim has moved on.
    pub(crate) async fn tell_cold(&self, shown: &[(Subject, Record)]) -> Result<(), Undecided> {
        let is_asked = |record: &Record| record.undurable && matches!(record.state, State::Resolved | State::Failed);
        let fact = |(subject, record): &(Subject, Record)| {
            let record = if is_asked(record) {
                Record { state: State::InProgress, ended: None, response: None, ..record.clone() }
            } else {
                record.clone()
            };
            Fact::of(subject.clone(), &record)
        };
        let facts: Vec<_> = shown.iter().map(fact).collect();
        if facts.is_empty() {
            return Ok(());
        }
        self.persist(&facts).await?;
        let cold = self.cold.as_ref().ok_or(Undecided::ColdLedger)?;
        for (subject, record) in shown.iter().filter(|(_, record)| is_asked(record)) {
            let now = self.clock.now().map_err(|_| Undecided::Clock)?;
            let end = match record.state {
                State::Resolved => Act::Resolve(record.response.clone()),
                State::Failed | State::Pending | State::Registered | State::InProgress => {
                    Act::Fail(record.ended.as_ref().and_then(|ended| ended.reason.clone()))
                }
            };
            // Done, or refused: either way the cold ledger knows what stands.
            let acted = cold.act(subject, &ClaimId::of(record), &end, now).await;
            acted.map_err(|error| cold_ledger_failed(&error))?;
        }
        Ok(())
    }

    /// Makes facts durable for which no PENDING waits: by the queue, else in the cold ledger itself. `true` for each that is.
    pub(crate) async fn send_or_persist(&self, facts: &[Fact], deadlines: &[Timestamp]) -> Vec<bool> {
        let sent = self.send_facts(facts, deadlines).await;
        let mut durable = Vec::with_capacity(sent.len());
        for (fact, sent) in facts.iter().zip(sent) {
            durable.push(match sent {
                Sent::Durable => true,
                Sent::Refused | Sent::Unknown => self.persist(std::slice::from_ref(fact)).await.is_ok(),
                Sent::TooLate => false,
            });
        }
        durable
    }

    /// Has the cold ledger decide where the hot tier cannot, or is not there.
    pub(super) async fn settle(&self, items: &mut [Item<'_, '_>]) {
        let taken = take_steps!(items, Step::Settle(settling) => settling);
        if taken.is_empty() {
            return;
        }
        let Some(cold) = self.cold.as_deref() else {
            for (at, _) in taken {
                items[at].step = Step::Done(Err(Undecided::ColdLedger));
            }
            return;
        };
        for (at, settling) in &taken {
            items[*at].unconfirmed = may_be_new(items[*at].prepared, settling);
        }
        let (cut_off, taken): (Vec<_>, Vec<_>) = taken.into_iter().partition(|(_, settling)| settling.cut_off);
        if !taken.is_empty() {
            let decided = self.decide_in_cold(cold, items, taken).await;
            self.answer_and_tell_hot(items, decided).await;
        }
        if cut_off.is_empty() {
            return;
        }
        let Some(until) = self.cold_session().await else {
            for (at, _) in cut_off {
                items[at].unconfirmed = false;
                items[at].step = Step::Done(Err(Undecided::ColdSession));
            }
            return;
        };
        let decided = self.decide_in_cold(cold, items, cut_off).await;
        let is_covered = self.is_before(until);
        for (at, row, answer) in decided {
            items[at].unconfirmed = false;
            let answer = if is_covered { answer } else { self.uncovered(items[at].prepared, &row, answer) };
            items[at].step = Step::Done(answer);
        }
    }

    /// What the cold ledger decides, after it has learnt what the hot tier showed. What it cannot decide is done with.
    async fn decide_in_cold(
        &self,
        cold: &dyn ColdLedger,
        items: &mut [Item<'_, '_>],
        settling: Vec<(usize, Box<Settling>)>,
    ) -> Vec<(usize, Record, Answer)> {
        let facts: Vec<_> = settling
            .iter()
            .filter_map(|(at, settling)| {
                let read = settling.read.as_deref()?;
                Some((items[*at].prepared.check.subject.clone(), read.clone()))
            })
            .collect();
        let told = self.tell_cold(&facts).await;
        let results = join_all(settling.into_iter().map(|(at, settling)| {
            let item = &items[at];
            async move {
                let result = async {
                    if settling.read.is_some() {
                        told?;
                    }
                    let now = self.clock.now().map_err(|_| Undecided::Clock)?;
                    let wanted = settling.won.map_or_else(|| item.pending(now).confirmed(), |won| *won);
                    let registered = self.register_once(cold, item.prepared, &wanted, None).await?;
                    let answer = self.cold_answer(item.prepared, &wanted, &registered, false, now);
                    let (Registered::Ours(record) | Registered::Theirs(record)) = registered;
                    Ok((*record, answer))
                };
                (at, result.await)
            }
        }))
        .await;
        let mut decided = Vec::with_capacity(results.len());
        for (at, result) in results {
            match result {
                Ok((record, answer)) => decided.push((at, record, answer)),
                Err(why) => items[at].step = Step::Done(Err(why)),
            }
        }
        decided
    }

    /// Answers what the cold ledger decided, once the hot tier holds it, or nobody believes the hot tier any more.
    async fn answer_and_tell_hot(&self, items: &mut [Item<'_, '_>], decided: Vec<(usize, Record, Answer)>) {
        if decided.is_empty() {
            return;
        }
        let (mut fills, mut answers) = (Vec::with_capacity(decided.len()), Vec::with_capacity(decided.len()));
        for (at, row, answer) in decided {
            fills.push(Fill { slot: items[at].prepared.slot, row });
            answers.push((at, answer));
        }
        let is_told = self.tell_hot(&fills).await;
        for (((at, answer), fill), is_told) in answers.into_iter().zip(fills).zip(is_told) {
            let answer = if is_told { answer } else { self.uncovered(items[at].prepared, &fill.row, answer) };
            items[at].step = Step::Done(answer);
        }
    }

    /// What is answered where neither the hot tier nor a cold session knows of a decision. Who has a `requestId` asks again and
    /// finds it, and so does whoever was told SEEN. A plain caller without one is told NEW all the same, or its own retry would be
    /// told to discard what nobody processed; the fact goes to the queue too, so that the cold writer heals the hot tier.
    fn uncovered(&self, prepared: &Prepared<'_>, row: &Record, answer: Answer) -> Answer {
        match answer {
            Ok(Verdict::New(new)) if new.claim.is_none() && prepared.check.request_id.is_none() => {
                self.repeats.offer(Fact::of(prepared.check.subject.clone(), row));
                Ok(Verdict::New(NewVerdict { confirmed: false, ..new }))
            }
            Ok(_) => Err(Undecided::ColdSession),
            Err(why) => Err(why),
        }
    }

    /// Tells the hot tier what stands in the cold ledger. `true` for each row that stands there now for everybody, or whose
    /// absence a cold session tells everybody.
    pub(crate) async fn tell_hot(&self, fills: &[Fill]) -> Vec<bool> {
        let results = self.hot.fill(fills).await;
        // Asked last: what was filled in a place that is lost meanwhile is not known to anybody.
        let is_in_place = self.trust.is_in_place();
        let error = results.iter().find_map(|result| result.as_ref().err());
        if let Some(error) = error {
            tracing::warn!(error = chain(error), "the hot tier may not know what the cold ledger decided");
        }
        let is_covered = match error.is_some() || !is_in_place {
            true => self.cold_session().await.is_some_and(|until| self.is_before(until)),
            false => true,
        };
        results.into_iter().map(|result| is_covered || (result.is_ok() && is_in_place)).collect()
    }

    /// Until when this process's cold session may be relied on; `None` where none can be had.
    pub(crate) async fn cold_session(&self) -> Option<Timestamp> {
        match self.sessions.ensure().await {
            Ok(until) => Some(until),
            Err(error) => {
                tracing::warn!(error = chain(&error), "no cold session can be had: nothing is decided without it");
                None
            }
        }
    }

    pub(crate) fn is_before(&self, until: Timestamp) -> bool {
        self.clock.now().is_ok_and(|now| now < until)
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
}

/// Whether a check that neither tier can decide is answered NEW: a plain one of which the hot tier showed nothing. A claim needs a
/// tier that fences it.
fn may_be_new(prepared: &Prepared<'_>, settling: &Settling) -> bool {
    prepared.policy.unconfirmed == Unconfirmed::Allow
        && prepared.check.claim.is_none()
        && settling.read.is_none()
        && settling.won.is_none()
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
