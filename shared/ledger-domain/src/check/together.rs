//! Several levels of one message claimed together: all are NEW and claimed, or nothing is registered.
//!
//! The keys lie wherever their slots do, so no store can win them in one step. What makes them one is the order: every
//! PENDING is won first, then one message with all facts becomes durable (or one transaction of the cold ledger), then all are
//! confirmed. Before that message nothing is registered: PENDINGs that a crash leaves lapse by themselves. After it all are: a
//! crash leaves claims whose confirmation the cold writer makes up for, all from the one message, and whose leases then run
//! out together.

use std::collections::HashSet;

use super::confirm::{Confirm, Confirmed, SEND_MARGINS_MS, Sent, cold_ledger_failed, is_earlier};
use super::item::{Item, Step, Won, give_up};
use super::judge::{Judged, judge, seen_verdict};
use super::{Check, Ledger, Prepared};
use crate::attempt::Attempt;
use crate::digest::Slot;
use crate::fact::Fact;
use crate::policy::ConfirmMiss;
use crate::ports::{Heal, StoreError, Together, chain};
use crate::record::Record;
use crate::text::Invalid;
use crate::time::Timestamp;
use crate::transition::Found;
use crate::verdict::{DecidedBy, NewVerdict, Refusal, Undecided, Verdict};

/// How long the batch waits for PENDINGs of others, in milliseconds (DESIGN section 4).
const WAIT_MS: u64 = 500;
/// The first pause of that wait; each further one is twice as long.
const FIRST_PAUSE_MS: u64 = 5;
/// How often records may change under a batch before it gives up. Each change is another's progress.
const ROUNDS_MAX: usize = 8;

/// What came of checks that are decided together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TogetherAnswer {
    /// Whether all are NEW and claimed. Where not, nothing was registered and no sighting counted, unless an item says that
    /// nobody knows ([`Refusal::Undecided`]): then the batch is to be repeated with the same `requestId`s.
    pub applied: bool,
    /// In the order of the checks.
    pub items: Vec<Result<Looked, Refusal>>,
}

/// One of checks that are decided together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// Where applied: NEW with its claim. Where not: the verdict as looked at, or the caller's own answer again.
    Verdict(Verdict),
    /// Not seen, or to be taken over; nothing was registered, because of other items.
    Free,
}

/// Why a batch goes no further.
enum Stopped {
    /// Some item cannot be won.
    Taken,
    /// The cold ledger holds some item: what stands there, by place.
    TakenInCold(Vec<(usize, Record)>),
    /// No tier can decide.
    Undecided(Undecided),
}

impl Ledger {
    /// Decides checks in claim mode, of distinct keys, together.
    pub async fn check_together(&self, checks: &[Check]) -> TogetherAnswer {
        self.together(checks, true).await
    }

    /// Looks at the rest of a batch of which something cannot even be read: what stands under their keys. Nothing is registered
    /// or counted.
    pub async fn look_together(&self, checks: &[Check]) -> Vec<Result<Looked, Refusal>> {
        self.together(checks, false).await.items
    }

    async fn together(&self, checks: &[Check], whole: bool) -> TogetherAnswer {
        let random = self.entropy.many_eight_bytes(checks.len() * 2);
        let (random, _) = random.as_chunks::<2>();
        let mut slots: HashSet<Slot> = HashSet::with_capacity(checks.len());
        let prepared: Vec<Result<Prepared<'_>, Refusal>> = checks
            .iter()
            .zip(random)
            .map(|(check, random)| {
                if check.claim.is_none() {
                    return Err(Invalid::new("claim", "a claim, as each check of an atomic batch has").into());
                }
                let prepared = self.prepare(check, *random)?;
                if !slots.insert(prepared.slot) {
                    return Err(Invalid::new("key", "a key that stands once in an atomic batch").into());
                }
                Ok(prepared)
            })
            .collect();
        let refused: Vec<_> = prepared.iter().map(|item| item.as_ref().err().cloned()).collect();
        let prepared: Vec<_> = prepared.into_iter().filter_map(Result::ok).collect();
        let (applied, decided) = if whole && prepared.len() == checks.len() {
            self.decide_together(&prepared).await
        } else {
            (false, self.look(&prepared).await)
        };
        let mut decided = decided.into_iter();
        let mut next = || decided.next().unwrap_or(Err(Undecided::Contended.into()));
        let items: Vec<_> = refused.into_iter().map(|refusal| refusal.map_or_else(&mut next, Err)).collect();
        if applied {
            for item in items.iter().flatten() {
                if let Looked::Verdict(verdict) = item {
                    self.counters.count(&Ok(verdict.clone()));
                }
            }
        }
        TogetherAnswer { applied, items }
    }

    async fn decide_together(&self, prepared: &[Prepared<'_>]) -> (bool, Vec<Result<Looked, Refusal>>) {
        let mut items: Vec<_> = prepared.iter().map(Item::new).collect();
        let stopped = match self.win_all(&mut items).await {
            Ok(()) => match self.register_all(&mut items).await {
                Ok(()) => {
                    let answers = give_up(items, Undecided::Contended).into_iter();
                    let answers: Vec<_> =
                        answers.map(|answer| answer.map(Looked::Verdict).map_err(Refusal::from)).collect();
                    let applied = answers.iter().all(Result::is_ok);
                    return (applied, answers);
                }
                Err(stopped) => stopped,
            },
            Err(stopped) => stopped,
        };
        // What was won lapses; a compare of the same four hastens that where no retry of the caller's may have adopted it.
        // Once facts were sent nothing is let go of: they may be durable.
        let may_release = !matches!(stopped, Stopped::Undecided(Undecided::Unconfirmed));
        let releases: Vec<_> = items
            .iter()
            .filter_map(|item| item.won().filter(|won| won.over.is_none()).and_then(|won| item.release(&won.confirmed)))
            .collect();
        if may_release && !releases.is_empty() {
            self.hot.release(&releases).await;
        }
        match stopped {
            Stopped::Taken => {
                // Whoever meets an answer that is not known to be durable makes it so.
                self.make_marked_durable(&mut items).await;
                (false, self.look(prepared).await)
            }
            Stopped::TakenInCold(rows) => (false, self.look_in_cold(prepared, rows).await),
            Stopped::Undecided(why) => (false, prepared.iter().map(|_| Err(why.into())).collect()),
        }
    }

    /// Looks at every key first, so that nothing is begun where something cannot be won; then wins all, or stops.
    async fn win_all(&self, items: &mut [Item<'_, '_>]) -> Result<(), Stopped> {
        let (mut waited_ms, mut pause_ms) = (0, FIRST_PAUSE_MS);
        for _ in 0..ROUNDS_MAX {
            self.look_into(items).await;
            loop {
                // A fresh look each round: a frozen process must not decide on the time it went to sleep.
                let now = self.clock.now().map_err(|_| Stopped::Undecided(Undecided::Clock))?;
                self.judge(items, now);
                if let Some(stopped) = items.iter().find_map(stopped_by) {
                    return Err(stopped);
                }
                if items.iter().any(|item| matches!(item.step, Step::Wait)) {
                    break;
                }
                if items.iter().all(|item| matches!(item.step, Step::Register(_) | Step::Done(_))) {
                    return Ok(());
                }
                self.begin(items, now).await;
                self.replace(items, now).await;
                self.take_over(items, now).await;
            }
            if waited_ms >= WAIT_MS {
                return Err(Stopped::Undecided(Undecided::Pending));
            }
            let pause = pause_ms.min(WAIT_MS - waited_ms);
            self.clock.pause(pause).await;
            waited_ms += pause;
            pause_ms *= 2;
        }
        Err(Stopped::Undecided(Undecided::Pending))
    }

    /// Reads what stands under the keys that are not won yet.
    async fn look_into(&self, items: &mut [Item<'_, '_>]) {
        let open: Vec<_> = items
            .iter()
            .enumerate()
            .filter(|(_, item)| matches!(item.step, Step::Begin | Step::Wait))
            .map(|(at, _)| at)
            .collect();
        let slots: Vec<_> = open.iter().map(|at| items[*at].prepared.slot).collect();
        for (at, result) in open.into_iter().zip(self.hot.read(&slots).await) {
            match result {
                Ok(found) => items[at].step = Step::Judge(found),
                Err(error) => items[at].hot_tier_failed(&error, Step::Wait),
            }
        }
    }

    /// Makes all that was won durable in one piece, and confirms it.
    async fn register_all(&self, items: &mut [Item<'_, '_>]) -> Result<(), Stopped> {
        let vouched = self.trust.vouches_for_misses();
        let in_cold = items.iter().any(|item| match (&item.step, item.prepared.policy.confirm_miss) {
            (Step::Register(won), ConfirmMiss::WhenIncomplete) => won.over.is_none() && !vouched,
            (Step::Register(won), ConfirmMiss::Always) => won.over.is_none(),
            // The caller's own answer again: it is registered.
            (_, ConfirmMiss::WhenIncomplete | ConfirmMiss::Always) => false,
        });
        if in_cold { self.register_all_in_cold(items).await } else { self.register_all_by_queue(items).await }
    }

    async fn register_all_by_queue(&self, items: &mut [Item<'_, '_>]) -> Result<(), Stopped> {
        let won: Vec<_> = items.iter().enumerate().filter_map(|(at, item)| Some((at, item.won()?))).collect();
        let Some(deadline) = won.iter().map(|(_, won)| won.deadline).min() else { return Ok(()) };
        let facts: Vec<_> = won
            .iter()
            .map(|(at, won)| Fact {
                subject: items[*at].prepared.check.subject.clone(),
                record: won.confirmed.clone(),
                before: won.over.as_deref().and_then(Attempt::of),
            })
            .collect();
        let undurable = match self.send_together(&facts, deadline).await {
            Sent::Durable => false,
            // RETRY is no discard: the claims may be confirmed, marked, and their next acts' facts tell all.
            Sent::Unknown => true,
            Sent::Refused => return Err(Stopped::Undecided(Undecided::Queue)),
            Sent::TooLate => return Err(Stopped::Undecided(Undecided::TooSlow)),
        };
        let mut confirms = Vec::with_capacity(won.len());
        let mut answers = Vec::with_capacity(won.len());
        for (at, won) in won {
            let record = Record { undurable, ..won.confirmed.clone() };
            let new = self.new_verdict(items[at].prepared, &record, won.replayed, DecidedBy::Hot);
            answers.push((at, NewVerdict { taken_over: won.over.is_some(), ..new }));
            confirms.push(Confirm { at, guard: Won::guard(&record), record, over: won.over.clone() });
        }
        let confirmed = self.confirm(items, confirms).await;
        let all = confirmed.iter().all(|confirmed| matches!(confirmed, Confirmed::Yes));
        // A claim has a holder only once it is confirmed, and these stand or fall together.
        if !all {
            return Err(Stopped::Undecided(Undecided::Unconfirmed));
        }
        for (at, new) in answers {
            items[at].step = Step::Done(Ok(Verdict::New(new)));
        }
        Ok(())
    }

    /// Sends facts in one message, until it is known to be durable or refused, the deadline is near, or the tries are used up.
    async fn send_together(&self, facts: &[Fact], deadline: Timestamp) -> Sent {
        let mut sent = Sent::Refused;
        for margin_ms in SEND_MARGINS_MS {
            let Ok(now) = self.clock.now() else { break };
            if now.plus_millis(margin_ms) >= deadline {
                return if sent == Sent::Unknown { sent } else { Sent::TooLate };
            }
            match self.queue.send_together(facts).await {
                Ok(()) => return Sent::Durable,
                Err(error @ StoreError::MayHaveHappened { .. }) => {
                    tracing::warn!(error = chain(&error), "facts may not be durable");
                    sent = Sent::Unknown;
                }
                // Refused now, but an earlier try may have happened: still not known.
                Err(error @ (StoreError::DidNotHappen { .. } | StoreError::Rejected { .. })) => {
                    tracing::warn!(error = chain(&error), "the queue refused facts");
                    return sent;
                }
            }
        }
        sent
    }

    async fn register_all_in_cold(&self, items: &mut [Item<'_, '_>]) -> Result<(), Stopped> {
        let undecided = |why| Stopped::Undecided(why);
        let now = self.clock.now().map_err(|_| undecided(Undecided::Clock))?;
        let won: Vec<_> = items.iter().enumerate().filter_map(|(at, item)| Some((at, item.won()?))).collect();
        if won.iter().any(|(_, won)| now >= won.deadline) {
            return Err(undecided(Undecided::TooSlow));
        }
        let cold = self.cold.as_ref().ok_or(undecided(Undecided::ColdLedger))?;
        let subject = |at: usize| items[at].prepared.check.subject.clone();
        // The statement takes over by itself: what it wants to know is this check, as of when it won.
        let wanted: Vec<_> = won
            .iter()
            .map(|(at, won)| match won.over {
                Some(_) => (subject(*at), items[*at].pending(won.confirmed.won_at).confirmed()),
                None => (subject(*at), won.confirmed.clone()),
            })
            .collect();
        let replay_seconds = won.iter().map(|(at, _)| items[*at].prepared.policy.replay_seconds).min().unwrap_or(0);
        let registered = cold.register_together(&wanted, replay_seconds).await;
        let records = match registered.map_err(|error| undecided(cold_ledger_failed(&error)))? {
            Together::All(records) => records,
            Together::None(found) => {
                let rows = won.iter().zip(found).filter_map(|((at, _), record)| Some((*at, record?)));
                return Err(Stopped::TakenInCold(rows.collect()));
            }
        };
        let mut confirms = Vec::with_capacity(won.len());
        let mut answers = Vec::with_capacity(won.len());
        for ((at, won), record) in won.into_iter().zip(records) {
            let replayed = won.replayed || is_earlier(&record, &won.confirmed);
            let taken_over =
                won.over.is_some() || (record.registration_id != won.confirmed.registration_id && !replayed);
            let new = self.new_verdict(items[at].prepared, &record, replayed, DecidedBy::Cold);
            answers.push((at, NewVerdict { taken_over, ..new }, record.clone(), won.over.is_some()));
            confirms.push(Confirm { at, guard: Won::guard(&won.confirmed), record, over: won.over.clone() });
        }
        // Of a take-over that the cold ledger made on another registration than the hot tier holds, no holder could act.
        let elsewhere = |confirm: &Confirm| {
            confirm.over.as_ref().is_some_and(|over| over.registration_id != confirm.record.registration_id)
        };
        if confirms.iter().any(elsewhere) {
            return Err(undecided(Undecided::Unconfirmed));
        }
        // The cold ledger has decided, and the hot tier only learns of it: where its PENDING is gone or lapses, a holder's acts
        // find the claim in the cold ledger. What is taken over stands in the hot tier, and must stand there as decided.
        let confirmed = self.confirm(items, confirms).await;
        let mut all = answers.iter().zip(&confirmed);
        if all.any(|((_, _, _, over), confirmed)| *over && !matches!(confirmed, Confirmed::Yes)) {
            return Err(undecided(Undecided::Unconfirmed));
        }
        for ((at, new, record, _), confirmed) in answers.into_iter().zip(confirmed) {
            let confirmed = matches!(confirmed, Confirmed::Yes);
            if !confirmed {
                self.repeats.offer(Fact::of(items[at].prepared.check.subject.clone(), &record));
            }
            items[at].step = Step::Done(Ok(Verdict::New(NewVerdict { confirmed, ..new })));
        }
        Ok(())
    }

    /// As [`Ledger::look`], where the cold ledger holds what the hot tier does not; the hot tier learns of it.
    async fn look_in_cold(
        &self,
        prepared: &[Prepared<'_>],
        rows: Vec<(usize, Record)>,
    ) -> Vec<Result<Looked, Refusal>> {
        let mut looked = self.look(prepared).await;
        let Ok(now) = self.clock.now() else { return looked };
        let mut heals = Vec::with_capacity(rows.len());
        for (at, row) in rows {
            looked[at] = self.looked_at(&prepared[at], &row, now, DecidedBy::Cold);
            heals.push(Heal { slot: prepared[at].slot, row });
        }
        for healed in self.hot.heal(&heals).await {
            if let Err(error) = healed {
                tracing::warn!(error = chain(&error), "the hot tier may not be healed from the cold ledger");
            }
        }
        looked
    }

    /// What stands under the keys, as looked at: nothing is registered or counted.
    async fn look(&self, prepared: &[Prepared<'_>]) -> Vec<Result<Looked, Refusal>> {
        let slots: Vec<_> = prepared.iter().map(|item| item.slot).collect();
        let results = self.hot.read(&slots).await;
        let Ok(now) = self.clock.now() else { return prepared.iter().map(|_| Err(Undecided::Clock.into())).collect() };
        let looked = prepared.iter().zip(results).map(|(prepared, result)| match result {
            Ok(Found::Absent) => Ok(Looked::Free),
            Ok(Found::Unreadable) => Err(Undecided::Unsupported.into()),
            Ok(Found::Record(record)) => self.looked_at(prepared, &record, now, DecidedBy::Hot),
            Err(error) => {
                tracing::warn!(error = chain(&error), "the hot tier did not answer");
                Err(Undecided::HotTier.into())
            }
        });
        looked.collect()
    }

    fn looked_at(
        &self,
        prepared: &Prepared<'_>,
        record: &Record,
        now: Timestamp,
        decided_by: DecidedBy,
    ) -> Result<Looked, Refusal> {
        match judge(record, prepared.nonce, now, prepared.policy.replay_seconds) {
            Judged::Over | Judged::TakeOver | Judged::Adopt | Judged::AdoptTakeOver(_) => Ok(Looked::Free),
            Judged::Replay => Ok(Looked::Verdict(Verdict::New(self.new_verdict(prepared, record, true, decided_by)))),
            // Nobody is told to discard what is not durable yet.
            Judged::Wait | Judged::Mark => Err(Undecided::Pending.into()),
            Judged::Repeat => {
                let seen = seen_verdict(record, prepared, now, decided_by);
                seen.map(Looked::Verdict).map_err(Refusal::from)
            }
        }
    }
}

/// Whether this item stops the batch.
fn stopped_by(item: &Item<'_, '_>) -> Option<Stopped> {
    match &item.step {
        Step::Count(_) | Step::Mark(_) => Some(Stopped::Taken),
        Step::Unreadable => Some(Stopped::Undecided(Undecided::Unsupported)),
        Step::Done(Err(why)) => Some(Stopped::Undecided(*why)),
        Step::Begin
        | Step::Judge(_)
        | Step::Register(_)
        | Step::Replace(_)
        | Step::TakeOver(_)
        | Step::Wait
        | Step::Done(Ok(_)) => None,
    }
}
