//! The check use case on every hot tier: in memory, one Redis, Redis Cluster (3 + 3) and Redis behind Sentinels.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod commands;
mod queue;

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use futures::future::join_all;
use ledger_domain::check::Check;
use ledger_domain::ports::{Clock, ClockUnknown, HotTier};
use ledger_domain::{Refusal, Slot, Timestamp, Undecided, Verdict};
use ledger_stores::clock::{HotTime, LedgerClock, LedgerClockSettings, OsEntropy, SystemClock};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::hot_tier::{MemoryRaw, RawAccess, RedisRaw};
use ledger_testkit::house::{House, Send, check};
use ledger_testkit::redis_server::{RedisCluster, RedisSentinel, RedisServer};

/// Two processes' worth of ledgers on one hot tier, each with a connection of its own where there are connections.
struct Place {
    first: Arc<House>,
    second: Arc<House>,
    hot: Arc<dyn HotTier>,
    raw: Box<dyn RawAccess>,
    _server: Box<dyn Any + std::marker::Send + Sync>,
}

/// A case on each hot tier.
macro_rules! on_each_hot_tier {
    ($($case:ident),+ $(,)?) => {
        on_each_hot_tier! { memory $($case)+ }
        on_each_hot_tier! { redis $($case)+ }
        on_each_hot_tier! { redis_cluster $($case)+ }
        on_each_hot_tier! { redis_sentinel $($case)+ }
    };
    ($place:ident $($case:ident)+) => {
        mod $place {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::$place().await).await;
            })+
        }
    };
}

on_each_hot_tier!(
    of_200_concurrent_checks_of_one_key_one_is_new_and_each_repeat_is_counted_once,
    a_batch_of_100_is_new_and_then_seen_each_counted_once,
    an_item_that_cannot_be_read_fails_alone,
    what_this_release_cannot_read_is_never_new,
    two_processes_that_race_on_20_keys_are_told_new_once_for_each,
    what_the_queue_refuses_is_undecided_and_nobody_is_told_seen,
);

/// A server that the tests running at one time share; it ends with the last of them.
struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self, start: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *shared = Arc::downgrade(&started);
            started
        })
    }
}

async fn memory() -> Place {
    let hot = Arc::new(MemoryHotTier::new(100_000, Arc::new(SystemClock)));
    let raw = Box::new(MemoryRaw(Arc::clone(&hot)));
    let house = || house(Arc::clone(&hot) as _, Arc::new(SystemClock));
    Place { first: house(), second: house(), hot: Arc::clone(&hot) as _, raw, _server: Box::new(()) }
}

async fn redis() -> Place {
    static SERVER: Shared<RedisServer> = Shared::new();
    let server = SERVER.get(RedisServer::start);
    let url = server.url().to_owned();
    on_redis(server, &url, &url).await
}

async fn redis_cluster() -> Place {
    static CLUSTER: Shared<RedisCluster> = Shared::new();
    let cluster = CLUSTER.get(RedisCluster::start);
    let url = cluster.url().to_owned();
    on_redis(cluster, &url, &url).await
}

async fn redis_sentinel() -> Place {
    static SERVERS: Shared<RedisSentinel> = Shared::new();
    let servers = SERVERS.get(RedisSentinel::start);
    let (url, primary_url) = (servers.url().to_owned(), servers.primary_url());
    on_redis(servers, &url, &primary_url).await
}

async fn on_redis<T: std::marker::Send + Sync + 'static>(server: Arc<T>, url: &str, raw_url: &str) -> Place {
    let hot = open(url);
    let first = house(Arc::clone(&hot), ledger_clock(&hot).await);
    let other = open(url);
    let second = house(Arc::clone(&other), ledger_clock(&other).await);
    let raw = Box::new(RedisRaw::connect(raw_url).await);
    Place { first, second, hot, raw, _server: Box::new(server) }
}

fn open(url: &str) -> Arc<dyn HotTier> {
    Arc::new(RedisHotTier::open(url).expect("a fixture's URL"))
}

async fn ledger_clock(hot: &Arc<dyn HotTier>) -> Arc<dyn Clock> {
    let references = vec![Arc::new(HotTime(Arc::clone(hot))) as _];
    let clock = LedgerClock::new(references, LedgerClockSettings::default());
    clock.measure().await.expect("the tier tells its time");
    Arc::new(clock)
}

fn house(hot: Arc<dyn HotTier>, clock: Arc<dyn Clock>) -> Arc<House> {
    let mut house = House::new(hot, None, Arc::new(Patient(clock)));
    // Each process has ids of its own.
    house.ledger.entropy = Arc::new(OsEntropy);
    Arc::new(house)
}

/// A check waits 500 ms of pauses for another's registration. Here they take ten times as long: 200 checks at once, on few
/// cores that others use too, are no reason to give up.
struct Patient(Arc<dyn Clock>);

#[async_trait]
impl Clock for Patient {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        self.0.now()
    }

    async fn pause(&self, millis: u64) {
        self.0.pause(millis * 10).await;
    }
}

type Answer = Result<Verdict, Refusal>;

async fn ask(house: &House, check: Check) -> Answer {
    house.ledger.check(&[check]).await.pop().expect("one answer")
}

fn is_new(answer: &Answer) -> bool {
    matches!(answer, Ok(Verdict::New(new)) if !new.replayed && new.durable && new.confirmed)
}

/// How often it was seen after its first sighting; `None` for any other answer.
fn repeats(answer: &Answer) -> Option<u32> {
    match answer {
        Ok(Verdict::Seen(seen)) => Some(seen.retry_count),
        Ok(Verdict::New(_)) | Err(_) => None,
    }
}

async fn of_200_concurrent_checks_of_one_key_one_is_new_and_each_repeat_is_counted_once(place: Place) {
    let tasks = (0..200).map(|_| {
        let house = Arc::clone(&place.first);
        tokio::spawn(async move { ask(&house, check("t:one-key", "k", 1)).await })
    });
    let answers: Vec<Answer> = join_all(tasks).await.into_iter().map(|answer| answer.expect("no panic")).collect();
    assert_eq!(answers.iter().filter(|answer| is_new(answer)).count(), 1, "{answers:?}");
    let mut counts: Vec<u32> = answers.iter().filter_map(repeats).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=199).collect::<Vec<_>>());
    assert_eq!(place.first.queue.taken().len(), 1, "one registration, one fact");
}

async fn a_batch_of_100_is_new_and_then_seen_each_counted_once(place: Place) {
    let checks: Vec<Check> = (0..100).map(|n| check("t:batch", &n.to_string(), 1)).collect();
    let answers = place.first.ledger.check(&checks).await;
    assert!(answers.iter().all(is_new), "{answers:?}");
    // By another process, and in another order.
    let reversed: Vec<Check> = checks.into_iter().rev().collect();
    let answers = place.second.ledger.check(&reversed).await;
    assert!(answers.iter().all(|answer| repeats(answer) == Some(1)), "{answers:?}");
}

async fn an_item_that_cannot_be_read_fails_alone(place: Place) {
    let checks: Vec<Check> = (0..30).map(|n| check("t:alone", &n.to_string(), 1)).collect();
    let until = place.hot.time().await.expect("the tier tells its time").plus_seconds(3_600);
    let slot = Slot::of(&checks[7].subject.scope, &checks[7].subject.key);
    place.raw.put(slot, b"\x02another release's value", until).await;
    for expected in [None, Some(1)] {
        for (n, answer) in place.first.ledger.check(&checks).await.iter().enumerate() {
            match expected {
                _ if n == 7 => assert_eq!(*answer, Err(Undecided::ColdLedger.into())),
                None => assert!(is_new(answer), "{n}: {answer:?}"),
                Some(_) => assert_eq!(repeats(answer), expected, "{n}: {answer:?}"),
            }
        }
    }
}

async fn what_this_release_cannot_read_is_never_new(place: Place) {
    let asked = check("t:unreadable", "k", 1);
    let slot = Slot::of(&asked.subject.scope, &asked.subject.key);
    let until = place.hot.time().await.expect("the tier tells its time").plus_seconds(3_600);
    for value in [&b"\x02another release's value"[..], b"", b"\x01\x02cut short", &[0xFF; 200]] {
        place.raw.put(slot, value, until).await;
        for house in [&place.first, &place.second] {
            assert_eq!(ask(house, asked.clone()).await, Err(Undecided::ColdLedger.into()), "nobody here can settle it");
        }
        let stands = place.raw.get(slot).await.expect("it stands");
        assert_eq!((stands.value.as_slice(), stands.expires_at), (value, Some(until)), "left as it is");
    }
    assert!(place.first.queue.taken().is_empty() && place.second.queue.taken().is_empty());
}

async fn two_processes_that_race_on_20_keys_are_told_new_once_for_each(place: Place) {
    let checks: Vec<Check> = (0..20).map(|n| check("t:race", &n.to_string(), 1)).collect();
    let reversed: Vec<Check> = checks.iter().rev().cloned().collect();
    // Each process asks as a batch and one by one, all at once.
    let tasks = [&place.first, &place.second].into_iter().flat_map(|house| {
        let batches =
            [checks.clone(), reversed.clone()].into_iter().chain(checks.iter().map(|check| vec![check.clone()]));
        batches.map(|batch| {
            let house = Arc::clone(house);
            tokio::spawn(async move {
                let answers = house.ledger.check(&batch).await;
                batch.into_iter().map(|check| check.subject.key.to_string()).zip(answers).collect::<Vec<_>>()
            })
        })
    });
    let answers: Vec<(String, Answer)> =
        join_all(tasks).await.into_iter().flat_map(|answers| answers.expect("no panic")).collect();
    for n in 0..20 {
        let of_key = answers.iter().filter(|(key, _)| *key == n.to_string()).map(|(_, answer)| answer);
        assert_eq!(of_key.clone().filter(|answer| is_new(answer)).count(), 1, "{n}");
        let mut counts: Vec<u32> = of_key.filter_map(repeats).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 2, 3, 4, 5], "{n}");
    }
    assert_eq!(place.first.queue.taken().len() + place.second.queue.taken().len(), 20);
}

async fn what_the_queue_refuses_is_undecided_and_nobody_is_told_seen(place: Place) {
    let checks: Vec<Check> = (0..30).map(|n| check("t:refused", &n.to_string(), 1)).collect();
    let refused = |n: usize| n.is_multiple_of(3);
    place.first.queue.script((0..30).map(|n| if refused(n) { Send::Refuse } else { Send::Take }));
    for (n, answer) in place.first.ledger.check(&checks).await.iter().enumerate() {
        if refused(n) {
            assert_eq!(*answer, Err(Undecided::Queue.into()), "{n}");
        } else {
            assert!(is_new(answer), "{n}: {answer:?}");
        }
    }
    assert_eq!(place.first.queue.taken().len(), 20);
    // To others what was refused is not there.
    for (n, answer) in place.second.ledger.check(&checks).await.iter().enumerate() {
        if refused(n) {
            assert!(is_new(answer), "{n}: {answer:?}");
        } else {
            assert_eq!(repeats(answer), Some(1), "{n}: {answer:?}");
        }
    }
}
