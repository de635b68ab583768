//! Faults on purpose, with a seed, on both axes: whether it happened, and what was reported.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{
    ActedCold, Amend, Begin, Begun, ClaimRow, ColdLedger, Count, EventQueue, Fill, Heal, HistoryPage, HistoryQuery,
    HotHealth, HotTier, Persisted, Position, QueueDepth, Registered, Release, Replace, Settle, StoreError, Together,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{Fact, FillPass, PayloadHash, Record, Slot, Subject, Tenant, Timestamp};

/// Set to a number, it is the seed of every [`seed`] of the run: how a failure is run again.
pub const SEED_VARIABLE: &str = "LEDGER_FAULT_SEED";

/// Set to a number, it is how many runs a test of random runs makes instead of its own number.
pub const RUNS_VARIABLE: &str = "LEDGER_FAULT_RUNS";

/// How many of a thousand operations go wrong, and how. The sum is at most 1,000; the rest goes right.
///
/// "It happened, and is reported as not" is missing: no store may say that, and no caller can survive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultRates {
    /// Not done, and reported so.
    pub did_not_happen: u16,
    /// Not done, reported as "may have happened": the request was lost.
    pub request_lost: u16,
    /// Done, reported as "may have happened": the reply was lost.
    pub reply_lost: u16,
}

impl FaultRates {
    /// No faults.
    pub const NONE: Self = Self { did_not_happen: 0, request_lost: 0, reply_lost: 0 };
    /// Nothing is done, and every caller is told so.
    pub const DOWN: Self = Self { did_not_happen: 1_000, request_lost: 0, reply_lost: 0 };
    /// A third of each fault in one of ten operations.
    pub const FLAKY: Self = Self { did_not_happen: 34, request_lost: 33, reply_lost: 33 };
}

/// A port's implementation with faults before and after it.
///
/// Each operation, in a batch each item, draws its own fate. One seed gives one sequence of fates; which operation gets which
/// follows the order of the calls, so a test that is to run again exactly runs on one thread.
pub struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    seed: u64,
    yields: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    rates: FaultRates,
    faults: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Right,
    DidNotHappen,
    RequestLost,
    ReplyLost,
}

impl Fate {
    fn is_done(self) -> bool {
        match self {
            Self::Right | Self::ReplyLost => true,
            Self::DidNotHappen | Self::RequestLost => false,
        }
    }

    /// The error of an operation that was not done.
    fn refusal(self, operation: &'static str) -> StoreError {
        match self {
            Self::DidNotHappen => StoreError::did_not_happen(operation, "fault: refused"),
            Self::RequestLost | Self::ReplyLost | Self::Right => {
                StoreError::may_have_happened(operation, "fault: request lost")
            }
        }
    }

    /// What is reported of an operation that was done.
    fn report<O>(self, operation: &'static str, outcome: Result<O, StoreError>) -> Result<O, StoreError> {
        match self {
            Self::Right => outcome,
            Self::ReplyLost | Self::DidNotHappen | Self::RequestLost => {
                Err(StoreError::may_have_happened(operation, "fault: reply lost"))
            }
        }
    }
}

/// A seed: that of [`SEED_VARIABLE`], else a new one.
///
/// # Panics
/// Where the variable holds no number.
#[must_use]
pub fn seed() -> u64 {
    number(SEED_VARIABLE).unwrap_or_else(|| std::hash::RandomState::new().build_hasher().finish())
}

/// How many runs to make: the number in [`RUNS_VARIABLE`], else `usual`.
///
/// # Panics
/// Where the variable holds no number.
#[must_use]
pub fn runs(usual: u64) -> u64 {
    number(RUNS_VARIABLE).unwrap_or(usual)
}

/// The number in an environment variable, where it is set.
///
/// # Panics
/// Where it holds something else.
#[must_use]
pub fn number(variable: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "how a developer runs a failed test again, or longer")]
    let given = std::env::var(variable).ok();
    given.map(|text| text.parse().unwrap_or_else(|e| panic!("{variable}: {text:?}: {e}")))
}

impl<T: ?Sized> fmt::Debug for Faulty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("seed", &self.seed).field("state", &*self.state()).finish_non_exhaustive()
    }
}

impl<T: ?Sized> Faulty<T> {
    /// Puts faults around `inner` and prints the seed, which the test's output then shows where the test fails.
    ///
    /// # Panics
    /// Where the rates add up to more than 1,000.
    #[must_use]
    pub fn new(inner: Arc<T>, seed: u64, rates: FaultRates) -> Self {
        println!("faults: {SEED_VARIABLE}={seed} {rates:?}");
        let faulty = Self { inner, seed, yields: false, state: Mutex::new(State { random: seed, rates, faults: 0 }) };
        faulty.set_rates(rates);
        faulty
    }

    /// Lets other tasks run before and after each operation, so that tasks on one thread meet in every order.
    #[must_use]
    pub fn yielding(self) -> Self {
        Self { yields: true, ..self }
    }

    /// How often to let other tasks run now.
    fn yields(&self) -> u64 {
        if self.yields { self.state().next() % 4 } else { 0 }
    }

    /// Other rates from now on: an outage, or calm in which a test looks at what came of it all.
    ///
    /// # Panics
    /// Where the rates add up to more than 1,000.
    pub fn set_rates(&self, rates: FaultRates) {
        let sum = u32::from(rates.did_not_happen) + u32::from(rates.request_lost) + u32::from(rates.reply_lost);
        assert!(sum <= 1_000, "{rates:?} add up to {sum} of 1,000");
        self.state().rates = rates;
    }

    /// How many faults there were so far: none would mean that a test has shown nothing.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.state().faults
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Fate {
        let mut state = self.state();
        let rates = state.rates;
        let number = u16::try_from(state.next() % 1_000).unwrap_or(0);
        let lost_from = rates.did_not_happen;
        let reply_from = lost_from + rates.request_lost;
        let fate = match number {
            n if n < lost_from => Fate::DidNotHappen,
            n if n < reply_from => Fate::RequestLost,
            n if n < reply_from + rates.reply_lost => Fate::ReplyLost,
            _ => Fate::Right,
        };
        state.faults += u64::from(fate != Fate::Right);
        fate
    }

    /// The requests that are passed on, and the fate of each.
    fn fated<R: Clone>(&self, requests: &[R]) -> (Vec<Fate>, Vec<R>) {
        let fates: Vec<Fate> = requests.iter().map(|_| self.draw()).collect();
        let passed = requests.iter().zip(&fates).filter(|(_, fate)| fate.is_done()).map(|(r, _)| r.clone()).collect();
        (fates, passed)
    }
}

impl State {
    /// SplitMix64 (Steele, Lea and Flood, 2014): any seed will do.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Reports a batch: what was passed on with its outcomes in order, what was not with its fault.
fn reported<O>(
    operation: &'static str,
    fates: Vec<Fate>,
    outcomes: Vec<Result<O, StoreError>>,
) -> Vec<Result<O, StoreError>> {
    let done = fates.iter().filter(|fate| fate.is_done()).count();
    assert_eq!(outcomes.len(), done, "{operation}: one outcome per request");
    let mut outcomes = outcomes.into_iter();
    let report = |fate: Fate| match if fate.is_done() { outcomes.next() } else { None } {
        Some(outcome) => fate.report(operation, outcome),
        None => Err(fate.refusal(operation)),
    };
    fates.into_iter().map(report).collect()
}

async fn yield_times(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

macro_rules! batch {
    ($self:ident.$method:ident($requests:ident)) => {{
        let (fates, passed) = $self.fated($requests);
        yield_times($self.yields()).await;
        let outcomes = if passed.is_empty() { Vec::new() } else { $self.inner.$method(&passed).await };
        yield_times($self.yields()).await;
        reported(stringify!($method), fates, outcomes)
    }};
}

macro_rules! single {
    ($self:ident.$method:ident($($argument:expr),*)) => {{
        let fate = $self.draw();
        yield_times($self.yields()).await;
        if fate.is_done() {
            fate.report(stringify!($method), $self.inner.$method($($argument),*).await)
        } else {
            Err(fate.refusal(stringify!($method)))
        }
    }};
}

#[async_trait]
impl<T: EventQueue + ?Sized> EventQueue for Faulty<T> {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        batch!(self.send(facts))
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        single!(self.send_together(facts))
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        single!(self.depth())
    }
}

#[async_trait]
impl<T: HotTier + ?Sized> HotTier for Faulty<T> {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        batch!(self.begin(requests))
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        batch!(self.settle(requests))
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        batch!(self.count(requests))
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        batch!(self.replace(requests))
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        batch!(self.amend(requests))
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        batch!(self.release(requests))
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        batch!(self.read(slots))
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        batch!(self.fill(requests))
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        single!(self.begin_fill(pass))
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        single!(self.end_fill(pass))
    }

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        batch!(self.heal(requests))
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        single!(self.time())
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        single!(self.health())
    }
}

#[async_trait]
impl<T: ColdLedger + ?Sized> ColdLedger for Faulty<T> {
    async fn register(
        &self,
        subject: &Subject,
        wanted: &Record,
        replay_seconds: u64,
    ) -> Result<Registered, StoreError> {
        single!(self.register(subject, wanted, replay_seconds))
    }

    async fn sight(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError> {
        single!(self.sight(subject, sighted, replay_seconds))
    }

    async fn register_together(
        &self,
        wanted: &[(Subject, Record)],
        replay_seconds: u64,
    ) -> Result<Together, StoreError> {
        single!(self.register_together(wanted, replay_seconds))
    }

    async fn act(
        &self,
        subject: &Subject,
        claim: &ClaimId,
        act: &Act,
        now: Timestamp,
    ) -> Result<ActedCold, StoreError> {
        single!(self.act(subject, claim, act, now))
    }

    async fn standing(&self, subject: &Subject) -> Result<Option<Record>, StoreError> {
        single!(self.standing(subject))
    }

    async fn persist(&self, facts: &[Fact], now: Timestamp) -> Result<Persisted, StoreError> {
        single!(self.persist(facts, now))
    }

    async fn newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError> {
        single!(self.newest_live(now, after, limit))
    }

    async fn purge(&self, ended_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        single!(self.purge(ended_before, limit))
    }

    async fn by_key(&self, subject: &Subject, query: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        single!(self.by_key(subject, query))
    }

    async fn by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        query: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError> {
        single!(self.by_hash(tenant, payload, query))
    }

    async fn note_drained(&self, at: Timestamp) -> Result<(), StoreError> {
        single!(self.note_drained(at))
    }

    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError> {
        single!(self.drained_until())
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        single!(self.time())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::event_queue::sample_fact;

    #[derive(Default)]
    struct Takes(Mutex<Vec<Fact>>);

    #[async_trait]
    impl EventQueue for Takes {
        async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
            self.0.lock().unwrap().extend_from_slice(facts);
            vec![Ok(()); facts.len()]
        }

        async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
            self.send(facts).await.into_iter().collect()
        }

        async fn depth(&self) -> Result<QueueDepth, StoreError> {
            Ok(QueueDepth { waiting: 0, dead: None, lag_ms: 0 })
        }
    }

    fn facts() -> Vec<Fact> {
        (0..1_000).map(|number| sample_fact(&format!("m{number}"), number)).collect()
    }

    async fn run(seed: u64, rates: FaultRates) -> (Vec<String>, BTreeSet<u64>, u64) {
        let queue = Arc::new(Takes::default());
        let faulty = Faulty::new(Arc::clone(&queue), seed, rates);
        let outcomes = faulty.send(&facts()).await.iter().map(|outcome| format!("{outcome:?}")).collect();
        let number = |fact: &Fact| u64::from_be_bytes(*fact.record.registration_id.as_bytes());
        let arrived = queue.0.lock().unwrap().iter().map(number).collect();
        (outcomes, arrived, faulty.faults())
    }

    #[tokio::test]
    async fn every_outcome_is_true_of_what_happened_and_all_kinds_occur() {
        let rates = FaultRates { did_not_happen: 250, request_lost: 250, reply_lost: 250 };
        let (outcomes, arrived, faults) = run(seed(), rates).await;
        let mut kinds = BTreeSet::new();
        for (number, outcome) in (0..).zip(&outcomes) {
            let there = arrived.contains(&number);
            assert!(there || !outcome.starts_with("Ok"), "{number}");
            assert!(!there || !outcome.contains("DidNotHappen"), "{number}");
            kinds.insert((there, outcome.clone()));
        }
        assert_eq!(kinds.len(), 4, "{kinds:?}");
        assert_eq!(faults, outcomes.iter().filter(|outcome| !outcome.starts_with("Ok")).count() as u64);
    }

    #[tokio::test]
    async fn one_seed_gives_one_run() {
        assert_eq!(run(7, FaultRates::FLAKY).await, run(7, FaultRates::FLAKY).await);
        assert_ne!(run(7, FaultRates::FLAKY).await, run(8, FaultRates::FLAKY).await);
    }

    #[tokio::test]
    async fn down_is_down_and_none_is_none() {
        let (outcomes, arrived, faults) = run(seed(), FaultRates::DOWN).await;
        assert!(outcomes.iter().all(|outcome| outcome.contains("DidNotHappen")));
        assert_eq!((arrived.len(), faults), (0, 1_000));
        let (outcomes, arrived, faults) = run(seed(), FaultRates::NONE).await;
        assert!(outcomes.iter().all(|outcome| outcome.starts_with("Ok")));
        assert_eq!((arrived.len(), faults), (1_000, 0));
    }
}
