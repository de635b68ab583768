//! What stands between the check and a hot tier that does not answer: nobody waits for it twice.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use ledger_domain::FillPass;
use ledger_domain::breaker::{Admission, Breaker, BreakerSettings, Pass, Probe};
use ledger_domain::ports::{
    Amend, Begin, Begun, Count, Fill, Heal, HotHealth, HotTier, Release, Replace, Settle, StoreError, chain,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{Slot, Timestamp};

use crate::hash_slot::{HASH_SLOTS, hash_slot};
use crate::os_time::{OsTime, Reading, TimeSource};

/// Lanes of a cluster. A shard holds ranges of hash slots, so a lane lies on one shard, or on two where it holds a border; of
/// a cluster of n shards at most n - 1 of the 16 do.
const CLUSTER_LANES: usize = 16;

/// What goes down together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// One server: everything.
    One,
    /// A cluster: sixteen ranges of hash slots, each with a breaker of its own.
    Cluster,
}

/// The hot tier does not answer, and is not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hot tier did not answer lately; it is probed before it is asked again")]
pub struct CircuitOpen;

/// A hot tier behind circuit breakers.
///
/// A call that a breaker refuses did not happen ([`CircuitOpen`]) and takes no time. Of a batch only the requests of the lanes
/// that are down are refused; the others go through together. Where a breaker wants to know whether the tier answers again, one
/// read is made in a task of its own, and the caller that was told to start it is refused like the others.
///
/// Only silence opens a breaker: a time-out, or lost and refused connections in a row. A server that answers, if only that it
/// is full, read-only or loading, is not down: what can be read must be read.
///
/// Health, time and markers are asked past the breakers, for each knows its own limit; with one lane their failures are news
/// like any other.
pub struct GuardedHotTier(Arc<Shared>);

struct Shared {
    inner: Arc<dyn HotTier>,
    settings: BreakerSettings,
    breakers: Box<[Breaker]>,
    time: Arc<dyn TimeSource>,
}

impl fmt::Debug for GuardedHotTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedHotTier").field("breakers", &self.0.breakers).finish_non_exhaustive()
    }
}

/// A call of the tier behind.
type Call<R, T> = for<'a> fn(&'a dyn HotTier, &'a [R]) -> BoxFuture<'a, Vec<Result<T, StoreError>>>;

/// Whether a call changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// What a failure says of the tier, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    /// It answered.
    Answer,
    /// It did not happen, and nothing says why: a refusal, or no connection.
    Either,
    /// It did not answer.
    Silence,
}

impl GuardedHotTier {
    /// Guards `inner`; nothing is known against it yet.
    #[must_use]
    pub fn new(inner: Arc<dyn HotTier>, lanes: Lanes, settings: BreakerSettings) -> Self {
        Self::with_time(inner, lanes, settings, Arc::new(OsTime))
    }

    fn with_time(inner: Arc<dyn HotTier>, lanes: Lanes, settings: BreakerSettings, time: Arc<dyn TimeSource>) -> Self {
        let lanes = match lanes {
            Lanes::One => 1,
            Lanes::Cluster => CLUSTER_LANES,
        };
        let breakers = (0..lanes).map(|_| Breaker::new(settings)).collect();
        Self(Arc::new(Shared { inner, settings, breakers, time }))
    }

    /// How many of how many breakers are open now.
    #[must_use]
    pub fn open_of(&self) -> (usize, usize) {
        let breakers = &self.0.breakers;
        (breakers.iter().filter(|breaker| breaker.is_open()).count(), breakers.len())
    }

    async fn call<R: OnSlot, T: Send>(
        &self,
        operation: &'static str,
        kind: Kind,
        requests: &[R],
        call: Call<R, T>,
    ) -> Vec<Result<T, StoreError>> {
        let shared = &self.0;
        let Some(first) = requests.first() else { return Vec::new() };
        if requests.len() > 1 && shared.breakers.len() > 1 {
            // A large future, in which that of one request would be lost.
            return Box::pin(by_lane(shared, operation, kind, requests, call)).await;
        }
        let lane = shared.lane_of(first.slot());
        let Some(pass) = shared.admit(lane, first.slot()) else {
            return requests.iter().map(|_| Err(refused(operation))).collect();
        };
        let (results, began) = shared.timed(call(&*shared.inner, requests)).await;
        shared.note(lane, pass, kind, began, results.iter().filter_map(|result| result.as_ref().err()));
        results
    }

    /// A call past the breakers. With one lane its outcome is noted.
    async fn past<T: Send>(&self, answer: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        let shared = &self.0;
        let [breaker] = &*shared.breakers else { return answer.await };
        let Some(pass) = breaker.pass() else { return answer.await };
        let (outcome, began) = shared.timed(answer).await;
        shared.note(0, pass, Kind::Read, began, outcome.as_ref().err().into_iter());
        outcome
    }
}

/// A batch over several lanes.
async fn by_lane<R: OnSlot, T: Send>(
    shared: &Arc<Shared>,
    operation: &'static str,
    kind: Kind,
    requests: &[R],
    call: Call<R, T>,
) -> Vec<Result<T, StoreError>> {
    let lanes: Vec<usize> = requests.iter().map(|request| shared.lane_of(request.slot())).collect();
    let mut admitted: [Option<Option<Pass>>; CLUSTER_LANES] = [None; CLUSTER_LANES];
    for (request, lane) in requests.iter().zip(&lanes) {
        if admitted[*lane].is_none() {
            admitted[*lane] = Some(shared.admit(*lane, request.slot()));
        }
    }
    let passes = admitted.map(Option::flatten);
    let (results, began) = if lanes.iter().all(|lane| passes[*lane].is_some()) {
        shared.timed(call(&*shared.inner, requests)).await
    } else {
        let let_through: Vec<R> =
            requests.iter().zip(&lanes).filter(|(_, lane)| passes[**lane].is_some()).map(|(r, _)| r.clone()).collect();
        let (answers, began) = if let_through.is_empty() {
            (Vec::new(), None)
        } else {
            shared.timed(call(&*shared.inner, &let_through)).await
        };
        let mut answers = answers.into_iter();
        let missing = || Err(StoreError::may_have_happened(operation, "the hot tier gave too few results"));
        let in_order = lanes.iter().map(|lane| match passes[*lane] {
            Some(_) => answers.next().unwrap_or_else(missing),
            None => Err(refused(operation)),
        });
        (in_order.collect(), began)
    };
    for (lane, pass) in passes.iter().enumerate() {
        if let Some(pass) = pass {
            let of_lane = results.iter().zip(&lanes).filter(|(_, of)| **of == lane);
            shared.note(lane, *pass, kind, began, of_lane.filter_map(|(result, _)| result.as_ref().err()));
        }
    }
    results
}

impl Shared {
    fn lane_of(&self, slot: &Slot) -> usize {
        match self.breakers.len() {
            1 => 0,
            lanes => usize::from(hash_slot(slot.as_bytes())) * lanes / usize::from(HASH_SLOTS),
        }
    }

    /// `None`: refused. Starts a probe where it is time for one.
    fn admit(self: &Arc<Self>, lane: usize, slot: &Slot) -> Option<Pass> {
        let breaker = &self.breakers[lane];
        if let Some(pass) = breaker.pass() {
            return Some(pass);
        }
        // The wall clock knows of every freeze, and a breaker takes every jump for the end of an interval.
        match breaker.admit(self.time.read().wall_us) {
            Admission::Call(pass) => Some(pass),
            Admission::Refused => None,
            Admission::Probe(probe) => {
                self.start_probe(lane, *slot, probe);
                None
            }
        }
    }

    fn start_probe(self: &Arc<Self>, lane: usize, slot: Slot, probe: Probe) {
        let shared = Arc::clone(self);
        let limit = Duration::from_micros(self.settings.probe_limit_us.unsigned_abs());
        tokio::spawn(async move {
            let outcome = tokio::time::timeout(limit, shared.inner.read(&[slot])).await;
            let answered = outcome.is_ok_and(|results| results.first().is_some_and(Result::is_ok));
            if shared.breakers[lane].probe_ended(&probe, answered, shared.time.read().wall_us) {
                tracing::info!(lane, "the hot tier answers again");
            }
        });
    }

    /// The answer, and since when it was waited for: `None` where it came at once. A tier in memory costs no look at the clock.
    async fn timed<T>(&self, mut answer: BoxFuture<'_, T>) -> (T, Option<Reading>) {
        let mut began = None;
        let answer = poll_fn(|context| {
            let polled = answer.as_mut().poll(context);
            if polled.is_pending() && began.is_none() {
                began = Some(self.time.read());
            }
            polled
        })
        .await;
        (answer, began)
    }

    /// Notes what came of a call: `errors` are those of its requests on this lane.
    fn note<'a>(
        &self,
        lane: usize,
        pass: Pass,
        kind: Kind,
        began: Option<Reading>,
        errors: impl Iterator<Item = &'a StoreError>,
    ) {
        let breaker = &self.breakers[lane];
        let Some((heard, error)) = errors.map(|error| (heard(error), error)).max_by_key(|(heard, _)| *heard) else {
            return breaker.answered(pass);
        };
        if heard == Heard::Answer {
            return breaker.answered(pass);
        }
        let now = self.time.read();
        let took_us = began.map_or(0, |began| now.age_us(began));
        // No server refuses a read without an answer that says so, nor takes this long to refuse a write.
        let is_silence = heard == Heard::Silence || kind == Kind::Read || took_us >= self.settings.slow_us;
        if is_silence && breaker.failed(pass, took_us, now.wall_us) {
            let (error, took_ms) = (chain(error), took_us / 1_000);
            tracing::error!(lane, took_ms, error, "ALARM: the hot tier does not answer; it is not asked until it does");
        }
    }
}

fn refused(operation: &'static str) -> StoreError {
    StoreError::did_not_happen(operation, CircuitOpen)
}

fn heard(error: &StoreError) -> Heard {
    match error {
        StoreError::Rejected { .. } => Heard::Answer,
        StoreError::DidNotHappen { source, .. } => said_by_client(&**source).unwrap_or(Heard::Either),
        StoreError::MayHaveHappened { source, .. } => said_by_client(&**source).unwrap_or(Heard::Silence),
    }
}

/// What the Redis client says, where the error is its own.
#[cfg(feature = "redis")]
fn said_by_client(source: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<Heard> {
    use ::redis::{ErrorKind, RedisError};
    let error: &RedisError = source.downcast_ref()?;
    let is_reply =
        matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType);
    Some(if is_reply { Heard::Answer } else { Heard::Silence })
}

/// Without that client no error is its own.
#[cfg(not(feature = "redis"))]
fn said_by_client(_source: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<Heard> {
    None
}

/// A request on one slot.
trait OnSlot: Clone + Send + Sync {
    fn slot(&self) -> &Slot;
}

impl OnSlot for Slot {
    fn slot(&self) -> &Slot {
        self
    }
}

macro_rules! on_slot {
    ($($request:ty),*) => {
        $(impl OnSlot for $request {
            fn slot(&self) -> &Slot {
                &self.slot
            }
        })*
    };
}

on_slot!(Amend, Begin, Count, Fill, Heal, Release, Replace, Settle);

#[async_trait]
impl HotTier for GuardedHotTier {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        self.call("begin a registration", Kind::Write, requests, |tier, requests| tier.begin(requests)).await
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        self.call("settle a registration", Kind::Write, requests, |tier, requests| tier.settle(requests)).await
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        self.call("count a sighting", Kind::Write, requests, |tier, requests| tier.count(requests)).await
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        self.call("replace a registration whose window is over", Kind::Write, requests, |tier, requests| {
            tier.replace(requests)
        })
        .await
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        self.call("make a claim's transition", Kind::Write, requests, |tier, requests| tier.amend(requests)).await
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        self.call("release a registration", Kind::Write, requests, |tier, requests| tier.release(requests)).await
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        self.call("read a slot", Kind::Read, slots, |tier, slots| tier.read(slots)).await
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        self.call("fill a key", Kind::Write, requests, |tier, requests| tier.fill(requests)).await
    }

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.call("heal a registration", Kind::Write, requests, |tier, requests| tier.heal(requests)).await
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        self.past(self.0.inner.begin_fill(pass)).await
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        self.past(self.0.inner.end_fill(pass)).await
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.past(self.0.inner.time()).await
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        self.past(self.0.inner.health()).await
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests;
