//! Several levels of one message claimed together: all are NEW and claimed, or nothing is registered.
//!
//! The keys lie wherever their slots do, so no store can win them in one step. What makes them one is the order: every
//! PENDING is won first, then one message with all facts becomes durable (or one transaction of the cold ledger), then all are
//! confirmed. Before that message nothing is registered: PENDINGs that a crash leaves lapse by themselves. After it all are: a
//! crash leaves claims whose confirmation the cold writer makes up for, all from the one message, and whose leases then run
//! out together.

use std::collections::HashSet;

use super::confirm::{Confirm, Confirmed, SEND_MARGINS_MS, Sent};
use super::item::{Item, Step, Won, give_up};
use super::judge::{Judged, judge, seen_verdict};
use super::settle::{cold_ledger_failed, is_earlier};
use super::{Check, Ledger, Prepared};
use crate::attempt::Attempt;
use crate::digest::Slot;
use crate::fact::Fact;
use crate::policy::ConfirmMiss;
use crate::ports::{Fill, StoreError, Together, chain};
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

/// A registration that the cold ledger is asked for.
struct Wanted {
    /// Of which item.
    at: usize,
    record: Record,
    /// Whether an earlier call won it.
    replayed: bool,
}

/// Why a batch goes no further.
enum Stopped {
    /// Some item cannot be won.
    Taken,
    /// The cold ledger holds some item: what stands there, by place.
    TakenInCold(Vec<(usize, Record)>),
    /// The hot tier does not do what it is asked: the cold ledger decides without it.
    CutOff,
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
        let mut items: Vec<_> = prepared.iter().map(|prepared| Item::new(prepared, self.cold.is_some())).collect();
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
            Stopped::CutOff => self.decide_together_in_cold(prepared).await,
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
                if items.iter().all(|item| matches!(item.step, Step::Register(_) | Step::Settle(_) | Step::Done(_))) {
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
        let vouched = self.trust.vouches();
        let in_cold = items.iter().any(|item| match (&item.step, item.prepared.policy.confirm_miss) {
            (Step::Settle(_), ConfirmMiss::WhenIncomplete | ConfirmMiss::Always) => true,
            (Step::Register(_), ConfirmMiss::WhenIncomplete) => !vouched,
            (Step::Register(won), ConfirmMiss::Always) => won.over.is_none() || !vouched,
            // The caller's own answer again: it is registered.
            (_, ConfirmMiss::WhenIncomplete | ConfirmMiss::Always) => false,
        });
        if in_cold {
            return self.register_all_in_cold(items).await;
        }
        match self.register_all_by_queue(items).await {
            Err(Stopped::Undecided(Undecided::Queue)) if self.cold.is_some() => {
                match self.register_all_in_cold(items).await {
                    Err(Stopped::Undecided(Undecided::ColdLedger)) => Err(Stopped::Undecided(Undecided::Queue)),
                    done @ (Ok(()) | Err(_)) => done,
                }
            }
            done @ (Ok(()) | Err(_)) => done,
        }
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

    /// One transaction of the cold ledger registers all, after it has learnt what the hot tier showed beneath; then the hot tier
    /// is told.
    async fn register_all_in_cold(&self, items: &mut [Item<'_, '_>]) -> Result<(), Stopped> {
        let now = self.clock.now().map_err(|_| Stopped::Undecided(Undecided::Clock))?;
        let (mut wanted, mut shown) = (Vec::with_capacity(items.len()), Vec::new());
        for (at, item) in items.iter().enumerate() {
            let beneath = match &item.step {
                Step::Register(won) if now >= won.deadline => return Err(Stopped::Undecided(Undecided::TooSlow)),
                Step::Register(won) => won.over.as_deref(),
                Step::Settle(settling) => settling.read.as_deref(),
                Step::Begin
                | Step::Judge(_)
                | Step::Count(_)
                | Step::Replace(_)
                | Step::TakeOver(_)
                | Step::Mark(_)
                | Step::Peek
                | Step::Unreadable
                | Step::Wait
                | Step::Done(_) => continue,
            };
            shown.extend(beneath.map(|record| (item.prepared.check.subject.clone(), record.clone())));
            let (record, replayed) = match (item.won(), beneath) {
                (Some(won), None) => (won.confirmed.clone(), won.replayed),
                // The statement takes over by itself: what it wants to know is this check, as of when it won.
                (Some(won), Some(_)) => (item.pending(won.confirmed.won_at).confirmed(), won.replayed),
                (None, _) => (item.pending(now).confirmed(), false),
            };
            wanted.push(Wanted { at, record, replayed });
        }
        self.tell_cold(&shown).await.map_err(Stopped::Undecided)?;
        let rows = self.register_wanted(items, &wanted).await?;
        let slot = |wanted: &Wanted| items[wanted.at].prepared.slot;
        let fills: Vec<_> = wanted.iter().zip(rows).map(|(wanted, row)| Fill { slot: slot(wanted), row }).collect();
        if self.tell_hot(&fills).await.contains(&false) {
            return Err(Stopped::Undecided(Undecided::Unconfirmed));
        }
        Ok(())
    }

    /// Asks the cold ledger for all of `wanted`; where it has them, their answers are given and their rows come back.
    async fn register_wanted(&self, items: &mut [Item<'_, '_>], wanted: &[Wanted]) -> Result<Vec<Record>, Stopped> {
        let cold = self.cold.as_ref().ok_or(Stopped::Undecided(Undecided::ColdLedger))?;
        let records: Vec<_> = wanted
            .iter()
            .map(|wanted| (items[wanted.at].prepared.check.subject.clone(), wanted.record.clone()))
            .collect();
        let replays = wanted.iter().map(|wanted| items[wanted.at].prepared.policy.replay_seconds);
        let replay_seconds = replays.min().unwrap_or(0);
        let registered = cold.register_together(&records, replay_seconds).await;
        let rows = match registered.map_err(|error| Stopped::Undecided(cold_ledger_failed(&error)))? {
            Together::All(rows) => rows,
            Together::None(found) => {
                let rows = wanted.iter().zip(found).filter_map(|(wanted, row)| Some((wanted.at, row?)));
                return Err(Stopped::TakenInCold(rows.collect()));
            }
        };
        for (wanted, row) in wanted.iter().zip(&rows) {
            let replayed = wanted.replayed || is_earlier(row, &wanted.record);
            let new = self.new_verdict(items[wanted.at].prepared, row, replayed, DecidedBy::Cold);
            let taken_over = row.registration_id != wanted.record.registration_id && !replayed;
            items[wanted.at].step = Step::Done(Ok(Verdict::New(NewVerdict { taken_over, ..new })));
        }
        Ok(rows)
    }

    /// The hot tier is cut off: the cold ledger decides all alone, under a cold session.
    async fn decide_together_in_cold(&self, prepared: &[Prepared<'_>]) -> (bool, Vec<Result<Looked, Refusal>>) {
        let undecided = |why: Undecided| (false, prepared.iter().map(|_| Err(why.into())).collect());
        let Some(until) = self.cold_session().await else { return undecided(Undecided::ColdSession) };
        let Ok(now) = self.clock.now() else { return undecided(Undecided::Clock) };
        let mut items: Vec<_> = prepared.iter().map(|prepared| Item::new(prepared, true)).collect();
        let wanted: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(at, item)| Wanted { at, record: item.pending(now).confirmed(), replayed: false })
            .collect();
        let decided = self.register_wanted(&mut items, &wanted).await;
        // Past the session's end nobody is told to look into the cold ledger: a repeat finds what was decided.
        if !self.is_before(until) {
            return undecided(Undecided::ColdSession);
        }
        match decided {
            Ok(_) => {
                let answers = give_up(items, Undecided::Contended).into_iter();
                (true, answers.map(|answer| answer.map(Looked::Verdict).map_err(Refusal::from)).collect())
            }
            Err(Stopped::TakenInCold(rows)) => {
                let mut looked: Vec<Result<Looked, Refusal>> = prepared.iter().map(|_| Ok(Looked::Free)).collect();
                for (at, row) in rows {
                    looked[at] = self.looked_at(&prepared[at], &row, now, DecidedBy::Cold);
                }
                (false, looked)
            }
            Err(Stopped::Undecided(why)) => undecided(why),
            Err(Stopped::Taken | Stopped::CutOff) => undecided(Undecided::Contended),
        }
    }

    /// As [`Ledger::look`], where the cold ledger holds what the hot tier does not; the hot tier learns of it.
    async fn look_in_cold(
        &self,
        prepared: &[Prepared<'_>],
        rows: Vec<(usize, Record)>,
    ) -> Vec<Result<Looked, Refusal>> {
        let mut looked = self.look(prepared).await;
        let Ok(now) = self.clock.now() else { return looked };
        let mut fills = Vec::with_capacity(rows.len());
        for (at, row) in rows {
            looked[at] = self.looked_at(&prepared[at], &row, now, DecidedBy::Cold);
            fills.push(Fill { slot: prepared[at].slot, row });
        }
        // Nothing was decided: where the hot tier does not learn of it, the next one looks here too.
        for filled in self.hot.fill(&fills).await {
            if let Err(error) = filled {
                tracing::warn!(error = chain(&error), "the hot tier may not know what the cold ledger holds");
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
        Step::Peek => Some(Stopped::CutOff),
        Step::Unreadable => Some(Stopped::Undecided(Undecided::Unsupported)),
        Step::Done(Err(why)) => Some(Stopped::Undecided(*why)),
        Step::Begin
        | Step::Judge(_)
        | Step::Register(_)
        | Step::Replace(_)
        | Step::TakeOver(_)
        | Step::Settle(_)
        | Step::Wait
        | Step::Done(Ok(_)) => None,
    }
}
