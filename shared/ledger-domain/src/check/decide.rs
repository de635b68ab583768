//! The use case that orders hot tier, queue and cold ledger.
//!
//! ```text
//! begin ── won ──> make durable (queue, or the registering statement) ──> confirm ──> NEW
//!   │ present
//!   └─> judge ── own PENDING ──> make durable ... ──> NEW, replayed      own record ──> NEW, replayed
//!              ── window over ──> replace ──> make durable ...           repeat ──> count ──> SEEN
//!              ── failed, lease over ──> take over ──> make durable ...  marked ──> make durable, clear ──> count
//!              ── another's PENDING ──> wait, once, up to 500 ms         unreadable ──> the cold ledger counts it
//! anywhere: the hot tier fails, or is not in place ──> peek ──> settle in the cold ledger, under a cold session
//! not complete: a hit on a claim ──> settle in the cold ledger, and tell the hot tier
//! ```
//! A batch goes through each step together, so a step is one round trip for all its items; what was won is durable and
//! confirmed before anything waits for others.
//!
//! The order is what keeps the first promise: nobody is answered SEEN from a record that is not durable, because a record
//! leaves PENDING only after its fact is.

use futures::future::join_all;

use super::confirm::repeat_fact;
use super::item::{Answer, Item, Settling, Step, Won, give_up, pending_ttl_ms, take_steps};
use super::judge::{Judged, judge, seen_verdict};
use super::settle::cold_ledger_failed;
use super::{Ledger, Prepared};
use crate::policy::ConfirmMiss;
use crate::ports::{Begin, Begun, Count, Replace};
use crate::record::State;
use crate::time::Timestamp;
use crate::transition::{Counted, Found, Guard, Swapped};
use crate::verdict::{DecidedBy, Undecided, Verdict};

/// How long a check waits for another's PENDING, in milliseconds (DESIGN section 4).
const WAIT_MS: u64 = 500;
/// The first pause of that wait; each further one is twice as long.
const FIRST_PAUSE_MS: u64 = 5;
impl Ledger {
    /// Decides items of distinct keys, or repeats of keys that were decided. `waited_ms` is how long this call of the use
    /// case has waited for others: it does so once, whatever it decides.
    pub(super) async fn decide(&self, prepared: &[Prepared<'_>], waited_ms: &mut u64) -> Vec<Answer> {
        let mut items: Vec<_> = prepared.iter().map(|prepared| Item::new(prepared, self.cold.is_some())).collect();
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            while items.iter().any(|item| !matches!(item.step, Step::Wait | Step::Done(_))) {
                // A fresh look each round: a frozen process must not decide on the time it went to sleep.
                let Ok(now) = self.clock.now() else { return give_up(items, Undecided::Clock) };
                self.begin(&mut items, now).await;
                self.judge(&mut items, now);
                self.replace(&mut items, now).await;
                self.take_over(&mut items, now).await;
                self.make_marked_durable(&mut items).await;
                self.register(&mut items).await;
                self.count(&mut items, now).await;
                if items.iter().any(|item| matches!(item.step, Step::Peek | Step::Settle(_) | Step::Unreadable)) {
                    // Rare and large: in a place of its own it does not weigh on every check.
                    Box::pin(self.decide_without_hot(&mut items, now)).await;
                }
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

    pub(super) async fn begin(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Begin => ());
        if taken.is_empty() {
            return;
        }
        if self.cold.is_some() && !self.trust.is_in_place() {
            // What it is told nobody else hears: it may be read, and the cold ledger decides.
            for (at, ()) in taken {
                items[at].step = Step::Peek;
            }
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
                Ok(Begun::Won) => items[at].step = Step::Register(Won::first(request.pending, false)),
                Ok(Begun::Present(found)) => items[at].step = Step::Judge(found),
                // It may stand there now: the nonce tells, so asking again is safe.
                Err(error) => items[at].hot_tier_failed(&error, Step::Begin),
            }
        }
    }

    pub(super) fn judge(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        for (at, found) in take_steps!(items, Step::Judge(found) => found) {
            let item = &mut items[at];
            let prepared = item.prepared;
            item.step = match found {
                Found::Absent => Step::Begin,
                Found::Unreadable => Step::Unreadable,
                Found::Record(record) => match judge(&record, prepared.nonce, now, prepared.policy.replay_seconds) {
                    Judged::Wait => Step::Wait,
                    // What this very call won, its reply lost, is no replay.
                    Judged::Adopt => {
                        let replayed = record.registration_id != item.registration_id;
                        Step::Register(Won::first(*record, replayed))
                    }
                    Judged::AdoptTakeOver(_) | Judged::TakeOver if !self.trust.vouches() => Settling::hit(record),
                    Judged::Replay | Judged::Repeat if record.state == State::InProgress && !self.trust.vouches() => {
                        Settling::hit(record)
                    }
                    Judged::Mark if !self.trust.vouches() => Settling::hit(record),
                    Judged::AdoptTakeOver(take_over) => {
                        let replayed = item.took_over_at != Some(take_over.won_at);
                        Step::Register(Won::over(record, &take_over, prepared.check, replayed))
                    }
                    Judged::Replay => {
                        let own = item.took_over_at == Some(record.won_at)
                            || (record.attempt == 1 && record.registration_id == item.registration_id);
                        Step::Done(Ok(Verdict::New(self.new_verdict(prepared, &record, !own, DecidedBy::Hot))))
                    }
                    Judged::Over => {
                        if record.registration_id == item.registration_id {
                            // Its own, written too late. Under the same id another check that read it would take the new
                            // one for it, and replace that.
                            item.registration_id = self.entropy.eight_bytes().into();
                        }
                        Step::Replace(record)
                    }
                    Judged::TakeOver => Step::TakeOver(record),
                    Judged::Mark => Step::Mark(record),
                    Judged::Repeat => Step::Count(record),
                },
            };
        }
    }

    pub(super) async fn replace(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
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
                Ok(Swapped::Done) => items[at].step = Step::Register(Won::first(request.pending, false)),
                Ok(Swapped::Moved(found)) => items[at].moved(found),
                Err(error) => items[at].hot_tier_failed(&error, Step::Begin),
            }
        }
    }

    /// What the hot tier does not decide.
    async fn decide_without_hot(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        self.peek(items, now).await;
        self.settle(items).await;
        self.answer_unconfirmed(items).await;
        self.ask_cold_ledger(items, now).await;
    }

    /// Looks whether a hot tier that does not do what it is asked can at least be read, as a full one can: what it holds is not
    /// registered anew. No answer is an answer too.
    async fn peek(&self, items: &mut [Item<'_, '_>], now: Timestamp) {
        let taken = take_steps!(items, Step::Peek => ());
        if taken.is_empty() {
            return;
        }
        let slots: Vec<_> = taken.iter().map(|(at, ())| items[*at].prepared.slot).collect();
        for ((at, ()), result) in taken.into_iter().zip(self.hot.read(&slots).await) {
            let item = &mut items[at];
            let nonce = item.prepared.nonce;
            item.step = match result {
                Ok(Found::Absent) | Err(_) => Settling::cut_off(None),
                Ok(Found::Unreadable) => Step::Unreadable,
                Ok(Found::Record(record)) if record.is_over(now) => Settling::cut_off(None),
                Ok(Found::Record(record)) => match judge(&record, nonce, now, item.prepared.policy.replay_seconds) {
                    Judged::Wait => Step::Done(Err(Undecided::Pending)),
                    // Its fact may be sent already: another registration of this check would be one too many.
                    Judged::Adopt => {
                        let won = Some(Box::new(record.confirmed()));
                        Step::Settle(Box::new(Settling { read: None, won, cut_off: true }))
                    }
                    Judged::AdoptTakeOver(_)
                    | Judged::Replay
                    | Judged::Over
                    | Judged::TakeOver
                    | Judged::Mark
                    | Judged::Repeat => Settling::cut_off(Some(record)),
                },
            };
        }
    }

    /// Makes won PENDINGs durable and confirms them.
    async fn register(&self, items: &mut [Item<'_, '_>]) {
        let taken = take_steps!(items, Step::Register(won) => won);
        if taken.is_empty() {
            return;
        }
        let vouched = self.trust.vouches();
        let (mut by_queue, mut by_cold) = (Vec::with_capacity(taken.len()), Vec::new());
        for (at, won) in taken {
            match items[at].prepared.policy.confirm_miss {
                // What is taken over was no miss.
                ConfirmMiss::WhenIncomplete | ConfirmMiss::Always if won.over.is_some() => by_queue.push((at, won)),
                ConfirmMiss::WhenIncomplete if vouched => by_queue.push((at, won)),
                ConfirmMiss::WhenIncomplete | ConfirmMiss::Always => by_cold.push((at, won)),
            }
        }
        if !by_queue.is_empty() {
            self.register_by_queue(items, by_queue).await;
        }
        if !by_cold.is_empty() {
            Box::pin(async {
                let left = self.register_in_cold(items, by_cold).await;
                let left = self.register_unconfirmed(items, left).await;
                self.let_go(items, left).await;
            })
            .await;
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
                (at, Count { slot, guard: Guard::of(&read), now, payload, read: *read })
            })
            .collect();
        let (places, requests): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let results = self.hot.count(&requests).await;
        for ((at, request), result) in places.into_iter().zip(requests).zip(results) {
            let item = &mut items[at];
            match result {
                Ok(Counted::Counted(record)) => {
                    let prepared = item.prepared;
                    self.repeats.offer(repeat_fact(prepared.check.subject.clone(), &record));
                    item.step = Step::Done(seen_verdict(&record, prepared, now, DecidedBy::Hot));
                }
                Ok(Counted::Moved(found)) => item.moved(found),
                // Perhaps counted: asking again may count twice, which a lost reply is allowed to.
                Err(error) => item.hot_tier_failed(&error, Step::Count(Box::new(request.read))),
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
                    Some(registered) => self.cold_answer(prepared, &sighted, &registered, true, now),
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
