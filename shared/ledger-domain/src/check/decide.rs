//! The use case that orders hot tier, queue and cold ledger.
//!
//! ```text
//! begin ── won ──> make durable (queue, or the registering statement) ──> settle ──> NEW
//!   │ present
//!   └─> judge ── own PENDING ──> make durable ... ──> NEW, replayed      own record ──> NEW, replayed
//!              ── window over ──> replace ──> make durable ...           repeat ──> count ──> SEEN
//!              ── another's PENDING ──> wait, once, up to 500 ms          unreadable ──> the cold ledger counts it
//! ```
//! A batch goes through each step together, so a step is one round trip for all its items; what was won is durable and
//! confirmed before anything waits for others.
//!
//! The order is what keeps the first promise: nobody is answered SEEN from a record that is not durable, because a record
//! leaves PENDING only after its fact is.

use futures::future::join_all;

use super::item::{Answer, Item, Step, TRIES, give_up, pending_ttl_ms, take_steps};
use super::judge::{Judged, judge, new_verdict, seen_verdict};
use super::{Ledger, Prepared};
use crate::fact::Fact;
use crate::ids::RegistrationId;
use crate::policy::ConfirmMiss;
use crate::ports::{Begin, Begun, Count, Registered, Replace, Settle, StoreError, chain};
use crate::record::Record;
use crate::time::Timestamp;
use crate::transition::{Counted, Found, Guard, Swapped};
use crate::verdict::{DecidedBy, NewVerdict, Undecided, Verdict};

/// How long a check waits for another's PENDING, in milliseconds (DESIGN section 4).
const WAIT_MS: u64 = 500;
/// The first pause of that wait; each further one is twice as long.
const FIRST_PAUSE_MS: u64 = 5;
/// How often a fact is sent in all while nobody knows whether it is durable.
const SENDS: u8 = 3;
/// How long a fact may be on its way, in milliseconds: a queue's two attempts of two seconds each. One that is sent again
/// must arrive before its PENDING's deadline, for past it another check may win the key.
const SEND_AGAIN_MS: i64 = 4_000;

impl Ledger {
    /// Decides items of distinct keys, or repeats of keys that were decided. `waited_ms` is how long this call of the use
    /// case has waited for others: it does so once, whatever it decides.
    pub(super) async fn decide(&self, prepared: &[Prepared<'_>], waited_ms: &mut u64) -> Vec<Answer> {
        let mut items: Vec<_> = prepared.iter().map(Item::new).collect();
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            while items.iter().any(|item| !matches!(item.step, Step::Wait | Step::Done(_))) {
                // A fresh look each round: a frozen process must not decide on the time it went to sleep.
                let Ok(now) = self.clock.now() else { return give_up(items, Undecided::Clock) };
                self.begin(&mut items, now).await;
                self.judge(&mut items, now);
                self.replace(&mut items, now).await;
                self.register(&mut items).await;
                self.count(&mut items, now).await;
                self.ask_cold_ledger(&mut items, now).await;
            }
            if !items.iter().any(|item| matches!(item.step, Step::Wait)) || *waited_ms >= WAIT_MS {
                return give_up(items, Undecided::Pending);
            }
            let pause = pause_ms.min(WAIT_MS - *waited_ms);
            self.clock.pause(pause).await;
            *waited_ms += pause;
            pause_ms *= 2;
            self.look_again(&mut items).await;
        }
    }

    async fn begin(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Begin => ());
        if taken.is_empty() {
            return;
        }
        let requests: Vec<_> = taken
            .iter()
            .map(|(at, ())| {
                let pending = items[*at].pending(now);
                Begin { slot: items[*at].prepared.slot, ttl_ms: pending_ttl_ms(&pending, now), pending }
            })
            .collect();
        let results = self.hot.begin(&requests).await;
        for (((at, ()), request), result) in taken.into_iter().zip(requests).zip(results) {
            match result {
                Ok(Begun::Won) => items[at].step = Step::Register { pending: request.pending, replayed: false },
                Ok(Begun::Present(found)) => items[at].step = Step::Judge(found),
                // It may stand there now: the nonce tells, so asking again is safe.
                Err(error) => items[at].hot_tier_failed(&error, Step::Begin),
            }
        }
    }

    fn judge(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        for (at, found) in take_steps!(items, Step::Judge(found) => found) {
            let item = &mut items[at];
            let prepared = item.prepared;
            item.step = match found {
                Found::Absent => Step::Begin,
                Found::Unreadable => Step::Unreadable,
                Found::Record(record) => {
                    match judge(&record, prepared.nonce, now, prepared.policy.replay_seconds) {
                        Judged::Wait => Step::Wait,
                        // What this very call won, its reply lost, is no replay.
                        Judged::Adopt => Step::Register {
                            replayed: record.registration_id != item.registration_id,
                            pending: *record,
                        },
                        Judged::Replay => {
                            let replayed = record.registration_id != item.registration_id;
                            Step::Done(Ok(Verdict::New(new_verdict(&record, replayed, DecidedBy::Hot))))
                        }
                        Judged::Over => Step::Replace(*record),
                        Judged::Repeat => Step::Count(*record),
                        Judged::Unsupported => Step::Done(Err(Undecided::Unsupported)),
                    }
                }
            };
        }
    }

    async fn replace(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Replace(record) => record);
        if taken.is_empty() {
            return;
        }
        let requests: Vec<_> = taken
            .iter()
            .map(|(at, record)| {
                let pending = items[*at].pending(now);
                let ttl_ms = pending_ttl_ms(&pending, now);
                Replace { slot: items[*at].prepared.slot, guard: Guard::of(record), ttl_ms, pending }
            })
            .collect();
        let results = self.hot.replace(&requests).await;
        for (((at, _), request), result) in taken.into_iter().zip(requests).zip(results) {
            match result {
                Ok(Swapped::Done) => items[at].step = Step::Register { pending: request.pending, replayed: false },
                Ok(Swapped::Moved(found)) => items[at].moved(found),
                Err(error) => items[at].hot_tier_failed(&error, Step::Begin),
            }
        }
    }

    /// Makes won PENDINGs durable and settles them.
    async fn register(&self, items: &mut [Item<'_, '_>]) {
        let taken = take_steps!(items, Step::Register { pending, replayed } => (pending, replayed));
        if taken.is_empty() {
            return;
        }
        let vouched = self.trust.vouches_for_misses();
        let (mut by_queue, mut by_cold) = (Vec::with_capacity(taken.len()), Vec::new());
        for won in taken {
            match items[won.0].prepared.policy.confirm_miss {
                ConfirmMiss::WhenIncomplete if vouched => by_queue.push(won),
                ConfirmMiss::WhenIncomplete | ConfirmMiss::Always => by_cold.push(won),
            }
        }
        if !by_queue.is_empty() {
            self.register_by_queue(items, by_queue).await;
        }
        if !by_cold.is_empty() {
            self.register_in_cold(items, by_cold).await;
        }
    }

    async fn register_by_queue(&self, items: &mut [Item<'_, '_>], won: Vec<(usize, (Record, bool))>) {
        let pendings: Vec<_> = won.iter().map(|(at, (pending, _))| (*at, pending)).collect();
        let sent = self.send_facts(items, &pendings).await;
        let mut to_settle = Vec::with_capacity(won.len());
        let mut to_release = Vec::new();
        for ((at, (pending, replayed)), sent) in won.into_iter().zip(sent) {
            let new = new_verdict(&pending, replayed, DecidedBy::Hot);
            match sent {
                Sent::Durable => to_settle.push((at, pending, new)),
                // The record stays PENDING: nobody is told SEEN from it, and the cold writer heals it if the fact is there.
                Sent::Unknown => {
                    let new = NewVerdict { durable: false, confirmed: false, ..new };
                    items[at].step = Step::Done(Ok(Verdict::New(new)));
                }
                Sent::Refused => {
                    items[at].step = Step::Done(Err(Undecided::Queue));
                    to_release.extend(items[at].release(&pending));
                }
                // Its deadline is over; the store drops it by itself.
                Sent::TooLate => items[at].step = Step::Done(Err(Undecided::TooSlow)),
            }
        }
        if !to_release.is_empty() {
            // It only hastens the lapse: whatever comes of it, the PENDING is gone at its deadline.
            self.hot.release(&to_release).await;
        }
        let settles: Vec<_> =
            to_settle.iter().map(|(at, pending, _)| (*at, Guard::of(pending), pending.confirmed())).collect();
        let confirmed = self.settle(items, settles).await;
        for ((at, _, new), confirmed) in to_settle.into_iter().zip(confirmed) {
            // Durable but not confirmed is NEW all the same: whoever processes it must be told so, and a repeat that is told
            // NEW too is found and counted by the cold writer.
            items[at].step = Step::Done(Ok(Verdict::New(NewVerdict { confirmed, ..new })));
        }
    }

    /// Sends the facts of PENDINGs until each is known to be durable or refused, or the tries are used up.
    async fn send_facts(&self, items: &[Item<'_, '_>], pendings: &[(usize, &Record)]) -> Vec<Sent> {
        let mut sent = vec![Sent::Refused; pendings.len()];
        let mut open: Vec<usize> = (0..pendings.len()).collect();
        for send in 0..SENDS {
            // Past its PENDING's deadline another check may have won the key: no fact may be sent.
            let margin_ms = if send == 0 { 0 } else { SEND_AGAIN_MS };
            let Ok(now) = self.clock.now() else { break };
            open.retain(|place| {
                let in_time = now.plus_millis(margin_ms) < pendings[*place].1.pending_deadline();
                if !in_time && sent[*place] != Sent::Unknown {
                    sent[*place] = Sent::TooLate;
                }
                in_time
            });
            if open.is_empty() {
                break;
            }
            let facts: Vec<_> = open
                .iter()
                .map(|place| {
                    let (at, pending) = pendings[*place];
                    Fact::of(items[at].prepared.check.subject.clone(), pending)
                })
                .collect();
            let results = self.queue.send(&facts).await;
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

    /// Settles PENDINGs in the hot tier; whether each stands settled now. An unknown outcome is asked for once more.
    async fn settle(&self, items: &[Item<'_, '_>], settles: Vec<(usize, Guard, Record)>) -> Vec<bool> {
        if settles.is_empty() {
            return Vec::new();
        }
        let requests: Vec<_> = settles
            .into_iter()
            .map(|(at, guard, settled)| Settle { slot: items[at].prepared.slot, guard, settled })
            .collect();
        let mut done = vec![false; requests.len()];
        let mut open: Vec<usize> = (0..requests.len()).collect();
        for _ in 0..TRIES {
            let results = if open.len() == requests.len() {
                self.hot.settle(&requests).await
            } else {
                let again: Vec<_> = open.iter().map(|place| requests[*place].clone()).collect();
                self.hot.settle(&again).await
            };
            let mut failed = Vec::new();
            for (place, result) in open.into_iter().zip(results) {
                match result {
                    Ok(Swapped::Done) => done[place] = true,
                    Ok(Swapped::Moved(_)) => {}
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "a registration may not be settled in the hot tier");
                        failed.push(place);
                    }
                }
            }
            open = failed;
            if open.is_empty() {
                break;
            }
        }
        done
    }

    /// The registering statement decides: another registration found there is the verdict and goes to the hot tier.
    async fn register_in_cold(&self, items: &mut [Item<'_, '_>], won: Vec<(usize, (Record, bool))>) {
        let Ok(now) = self.clock.now() else {
            for (at, _) in won {
                items[at].step = Step::Done(Err(Undecided::Clock));
            }
            return;
        };
        let results = join_all(won.iter().map(|(at, (pending, _))| {
            let prepared = items[*at].prepared;
            async move {
                if now >= pending.pending_deadline() {
                    return Err(Undecided::TooSlow);
                }
                let cold = self.cold.as_ref().ok_or(Undecided::ColdLedger)?;
                let wanted = pending.confirmed();
                let replay_seconds = prepared.policy.replay_seconds;
                let subject = &prepared.check.subject;
                let mut result = cold.register(subject, &wanted, replay_seconds).await;
                let in_time = || self.clock.now().is_ok_and(|now| now < pending.pending_deadline());
                if matches!(result, Err(StoreError::MayHaveHappened { .. })) && in_time() {
                    // The same registration and nonce: a first try that happened is recognised.
                    result = cold.register(subject, &wanted, replay_seconds).await;
                }
                result.map_err(|error| cold_ledger_failed(&error))
            }
        }))
        .await;
        let mut settles = Vec::new();
        let mut answers = Vec::new();
        let mut to_release = Vec::new();
        for ((at, (pending, replayed)), result) in won.into_iter().zip(results) {
            match result {
                Ok(registered) => {
                    let item = &items[at];
                    let answer = cold_answer(item.prepared, item.registration_id, &registered, replayed, now);
                    let (Registered::Ours(record) | Registered::Theirs(record)) = registered;
                    settles.push((at, Guard::of(&pending), *record));
                    answers.push(answer);
                }
                Err(undecided) => {
                    items[at].step = Step::Done(Err(undecided));
                    to_release.extend(items[at].release(&pending));
                }
            }
        }
        if !to_release.is_empty() {
            self.hot.release(&to_release).await;
        }
        // The cold ledger has decided; the hot tier only learns of it.
        let confirmed = self.settle(items, settles.clone()).await;
        for (((at, _, record), answer), confirmed) in settles.into_iter().zip(answers).zip(confirmed) {
            items[at].step = Step::Done(match answer {
                Ok(Verdict::New(new)) if !confirmed => {
                    // No fact of it is on the queue, so none would heal the hot tier, whose misses may be believed again soon.
                    let subject = items[at].prepared.check.subject.clone();
                    self.repeats.offer(Fact::of(subject, &without_response(&record)));
                    Ok(Verdict::New(NewVerdict { confirmed, ..new }))
                }
                answer => answer,
            });
        }
    }

    async fn count(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Count(record) => record);
        if taken.is_empty() {
            return;
        }
        let requests: Vec<_> = taken
            .into_iter()
            .map(|(at, read)| {
                let prepared = items[at].prepared;
                let (slot, payload) = (prepared.slot, prepared.check.payload);
                (at, Count { slot, guard: Guard::of(&read), now, payload, read })
            })
            .collect();
        let (places, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let results = self.hot.count(&requests).await;
        for ((at, request), result) in places.into_iter().zip(requests).zip(results) {
            let item = &mut items[at];
            match result {
                Ok(Counted::Counted(record)) => {
                    let prepared = item.prepared;
                    self.repeats.offer(Fact::of(prepared.check.subject.clone(), &without_response(&record)));
                    item.step =
                        Step::Done(seen_verdict(&record, &prepared.check.payload, prepared.nonce, now, DecidedBy::Hot));
                }
                Ok(Counted::Moved(found)) => item.moved(found),
                // Perhaps counted: asking again may count twice, which a lost reply is allowed to.
                Err(error) => item.hot_tier_failed(&error, Step::Count(request.read)),
            }
        }
    }

    /// A value nobody here can read stands for some registration: the cold ledger may know it, and it is never NEW by itself.
    async fn ask_cold_ledger(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Unreadable => ());
        let answers = join_all(taken.iter().map(|(at, ())| {
            let item = &items[*at];
            async move {
                let cold = self.cold.as_ref().ok_or(Undecided::ColdLedger)?;
                let prepared = item.prepared;
                let sighted = item.pending(now).confirmed();
                let found = cold.sight(&prepared.check.subject, &sighted, prepared.policy.replay_seconds).await;
                match found.map_err(|error| cold_ledger_failed(&error))? {
                    Some(registered) => cold_answer(prepared, item.registration_id, &registered, true, now),
                    None => Err(Undecided::Unsupported),
                }
            }
        }))
        .await;
        for ((at, ()), answer) in taken.into_iter().zip(answers) {
            items[at].step = Step::Done(answer);
        }
    }

    /// After a pause: what became of the PENDINGs of others?
    async fn look_again(&self, items: &mut [Item<'_, '_>]) {
        let waiting: Vec<_> =
            items.iter().enumerate().filter(|(_, i)| matches!(i.step, Step::Wait)).map(|(at, _)| at).collect();
        let slots: Vec<_> = waiting.iter().map(|at| items[*at].prepared.slot).collect();
        let results = self.hot.read(&slots).await;
        for (at, result) in waiting.into_iter().zip(results) {
            match result {
                Ok(found) => items[at].step = Step::Judge(found),
                Err(error) => items[at].hot_tier_failed(&error, Step::Wait),
            }
        }
    }
}

/// What became of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Durable,
    Refused,
    Unknown,
    TooLate,
}

fn cold_answer(
    prepared: &Prepared<'_>,
    registration_id: RegistrationId,
    registered: &Registered,
    replayed: bool,
    now: Timestamp,
) -> Answer {
    match registered {
        Registered::Ours(record) => {
            let replayed = replayed || record.registration_id != registration_id;
            Ok(Verdict::New(new_verdict(record, replayed, DecidedBy::Cold)))
        }
        Registered::Theirs(record) => {
            seen_verdict(record, &prepared.check.payload, prepared.nonce, now, DecidedBy::Cold)
        }
    }
}

fn cold_ledger_failed(error: &StoreError) -> Undecided {
    tracing::warn!(error = chain(error), "the cold ledger was needed and did not answer");
    Undecided::ColdLedger
}

/// Facts about repeats leave the response's body out.
fn without_response(record: &Record) -> Record {
    Record { response: None, ..record.clone() }
}
