#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ledger_domain::ports::{Clock, WarmMarker};
use ledger_domain::{MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, State};

use super::*;
use crate::clock::SystemClock;
use crate::memory::MemoryHotTier;
use crate::os_time::manual::ManualTime;

/// What a tier does with the calls on some lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// What it is asked to.
    Work,
    /// Nothing: the reply does not come within the limit.
    TimeOut,
    /// Nothing: no connection is made within the limit.
    ConnectTimeOut,
    /// Nothing: the connection breaks.
    Reset,
    /// Refuses writes at once, like a full server.
    Full,
    /// Refuses everything at once, without saying who.
    Refuse,
    /// Never comes back.
    Hang,
}

const LIMIT_MS: i64 = 100;

/// A tier in memory that does as told, whose calls take manual time.
struct Scripted {
    inner: MemoryHotTier,
    time: Arc<ManualTime>,
    does: Mutex<Does>,
    /// The lanes that this is about; all where empty.
    lanes: Mutex<HashSet<usize>>,
    calls: AtomicUsize,
    requests: AtomicUsize,
    reads: AtomicUsize,
}

impl Scripted {
    fn tell(&self, does: Does) {
        *self.does.lock().unwrap_or_else(PoisonError::into_inner) = does;
    }

    /// The calls and requests that came through since this was last asked.
    fn came(&self) -> (usize, usize) {
        (self.calls.swap(0, Ordering::SeqCst), self.requests.swap(0, Ordering::SeqCst))
    }

    async fn answer<R: OnSlot, T>(
        &self,
        kind: Kind,
        requests: &[R],
        work: impl Future<Output = Vec<Result<T, StoreError>>>,
    ) -> Vec<Result<T, StoreError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.requests.fetch_add(requests.len(), Ordering::SeqCst);
        let does = *self.does.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::task::yield_now().await;
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_hit = |request: &R| lanes.is_empty() || lanes.contains(&lane(request.slot()));
        if requests.iter().any(is_hit) {
            match does {
                Does::TimeOut | Does::ConnectTimeOut => self.time.pass_ms(LIMIT_MS),
                Does::Hang => std::future::pending().await,
                Does::Work | Does::Reset | Does::Full | Does::Refuse => {}
            }
        }
        let worked = work.await;
        requests
            .iter()
            .zip(worked)
            .map(|(request, worked)| match does {
                _ if !is_hit(request) => worked,
                Does::Work | Does::Hang => worked,
                Does::TimeOut | Does::Reset => Err(StoreError::may_have_happened("test", "no reply")),
                Does::ConnectTimeOut | Does::Refuse => Err(StoreError::did_not_happen("test", "refused")),
                Does::Full if kind == Kind::Read => worked,
                Does::Full => Err(StoreError::did_not_happen("test", "no room")),
            })
            .collect()
    }
}

#[async_trait]
impl HotTier for Scripted {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.begin(requests)).await
    }
    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.settle(requests)).await
    }
    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.count(requests)).await
    }
    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.replace(requests)).await
    }
    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.amend(requests)).await
    }
    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        self.answer(Kind::Write, requests, self.inner.release(requests)).await
    }
    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.answer(Kind::Read, slots, self.inner.read(slots)).await
    }
    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.fill(requests)).await
    }
    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.answer(Kind::Write, requests, self.inner.heal(requests)).await
    }
    async fn time(&self) -> Result<Timestamp, StoreError> {
        let now = self.inner.time().await;
        self.answer(Kind::Read, &[slot(0)], async { vec![now] }).await.pop().expect("one result")
    }
    async fn health(&self) -> Result<HotHealth, StoreError> {
        Ok(HotHealth { marker: WarmMarker::Warm(ledger_domain::FillPass::from_bytes([1; 8])), problems: Vec::new() })
    }

    async fn begin_fill(&self, _: ledger_domain::FillPass) -> Result<(), StoreError> {
        unreachable!("nobody fills it")
    }

    async fn end_fill(&self, _: ledger_domain::FillPass) -> Result<bool, StoreError> {
        unreachable!("nobody fills it")
    }
}

/// The lane of a slot in a cluster.
fn lane(slot: &Slot) -> usize {
    usize::from(hash_slot(slot.as_bytes())) * CLUSTER_LANES / usize::from(HASH_SLOTS)
}

fn slot(number: usize) -> Slot {
    Slot::of(&Scope::parse("t:guard", None).unwrap(), &MessageKey::text(&format!("k{number}")).unwrap())
}

fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(slot).collect()
}

fn begins(count: usize) -> Vec<Begin> {
    let now = SystemClock.now().expect("known");
    let pending = |number: usize| Record {
        registration_id: RegistrationId::from_bytes(number.to_be_bytes()),
        state: State::Pending,
        attempt: 1,
        nonce: Nonce::from_bytes(number.to_be_bytes()),
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        window_ends_at: now.plus_seconds(60),
        payload_hash: PayloadHash::from_bytes([1; 32]),
        retry_count: 0,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    };
    (0..count).map(|number| Begin { slot: slot(number), pending: pending(number), ttl_ms: 10_000 }).collect()
}

fn start(lanes: Lanes) -> (Arc<Scripted>, Arc<ManualTime>, GuardedHotTier) {
    let time = ManualTime::new(1_790_000_000_000);
    let scripted = Arc::new(Scripted {
        inner: MemoryHotTier::new(10_000, Arc::new(SystemClock)),
        time: Arc::clone(&time),
        does: Mutex::new(Does::Work),
        lanes: Mutex::default(),
        calls: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
        reads: AtomicUsize::new(0),
    });
    let guarded = GuardedHotTier::with_time(
        Arc::clone(&scripted) as _,
        lanes,
        BreakerSettings::default(),
        Arc::clone(&time) as _,
    );
    (scripted, time, guarded)
}

fn is_refused<T>(result: &Result<T, StoreError>) -> bool {
    match result {
        Err(StoreError::DidNotHappen { source, .. }) => source.downcast_ref::<CircuitOpen>().is_some(),
        Ok(_) | Err(StoreError::MayHaveHappened { .. } | StoreError::Rejected { .. }) => false,
    }
}

/// Lets a probe's task run to its end.
async fn let_probes_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_that_timed_out_is_the_last_that_waits_until_a_probe_is_answered() {
    for does in [Does::TimeOut, Does::ConnectTimeOut] {
        let (tier, time, guarded) = start(Lanes::One);
        tier.tell(does);
        assert!(!is_refused(&guarded.begin(&begins(1)).await[0]));
        assert_eq!(tier.came(), (1, 1));
        let began = time.read();
        for result in guarded.begin(&begins(3)).await {
            assert!(is_refused(&result));
        }
        assert!(is_refused(&guarded.read(&slots(1)).await[0]), "no call waits for the limit a second time");
        assert_eq!((tier.came(), time.read()), ((0, 0), began), "{does:?}");
        tier.tell(Does::Work);
        time.pass_ms(199);
        assert!(is_refused(&guarded.read(&slots(1)).await[0]));
        time.pass_ms(1);
        assert!(is_refused(&guarded.begin(&begins(1)).await[0]), "whoever starts the probe does not wait for it");
        assert!(is_refused(&guarded.begin(&begins(1)).await[0]));
        let_probes_run().await;
        assert_eq!((tier.came(), tier.reads.load(Ordering::SeqCst)), ((1, 1), 1), "the probe, a read");
        assert!(guarded.begin(&begins(1)).await[0].is_ok());
    }
}

#[tokio::test]
async fn a_probe_that_is_not_answered_keeps_it_open_for_twice_as_long() {
    let (tier, time, guarded) = start(Lanes::One);
    tier.tell(Does::TimeOut);
    guarded.read(&slots(1)).await;
    for interval_ms in [200, 400, 800, 1_600, 2_000, 2_000] {
        tier.came();
        time.pass_ms(interval_ms - 1);
        assert!(is_refused(&guarded.read(&slots(1)).await[0]));
        let_probes_run().await;
        assert_eq!(tier.came(), (0, 0), "{interval_ms}");
        time.pass_ms(1);
        for _ in 0..10 {
            assert!(is_refused(&guarded.read(&slots(1)).await[0]));
        }
        let_probes_run().await;
        assert_eq!(tier.came(), (1, 1), "one probe at {interval_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_is_given_up_and_the_next_is_made() {
    let (tier, time, guarded) = start(Lanes::One);
    tier.tell(Does::TimeOut);
    guarded.read(&slots(1)).await;
    tier.tell(Does::Hang);
    time.pass_ms(200);
    guarded.read(&slots(1)).await;
    let_probes_run().await;
    tier.tell(Does::Work);
    time.pass_ms(4_999);
    guarded.read(&slots(1)).await;
    let_probes_run().await;
    assert_eq!(guarded.open_of(), (1, 1));
    time.pass_ms(1);
    guarded.read(&slots(1)).await;
    let_probes_run().await;
    assert_eq!(guarded.open_of(), (0, 1));
    // The hanging task ends too.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(Arc::strong_count(&guarded.0), 1);
}

#[tokio::test]
async fn a_server_that_refuses_writes_at_once_is_read_as_before() {
    let (tier, _time, guarded) = start(Lanes::One);
    tier.tell(Does::Full);
    for _ in 0..50 {
        assert!(matches!(guarded.begin(&begins(1)).await[0], Err(StoreError::DidNotHappen { .. })));
        assert!(guarded.read(&slots(1)).await[0].is_ok());
    }
    for _ in 0..50 {
        guarded.begin(&begins(2)).await;
    }
    assert_eq!((guarded.open_of(), tier.came().0), ((0, 1), 150));
}

#[tokio::test]
async fn quick_failures_in_a_row_open_it() {
    let (tier, _time, guarded) = start(Lanes::One);
    tier.tell(Does::Reset);
    for _ in 0..4 {
        guarded.begin(&begins(3)).await;
    }
    tier.tell(Does::Work);
    assert!(guarded.begin(&begins(1)).await[0].is_ok(), "a batch is one call, and four are not five");
    for does in [Does::Reset, Does::Refuse] {
        let (tier, _time, guarded) = start(Lanes::One);
        tier.tell(does);
        for _ in 0..5 {
            assert_eq!(guarded.open_of(), (0, 1));
            guarded.read(&slots(1)).await;
        }
        assert_eq!(guarded.open_of(), (1, 1), "{does:?}");
    }
}

#[tokio::test]
async fn health_time_and_markers_are_asked_also_while_it_is_open_and_a_silent_one_opens_it() {
    let (tier, time, guarded) = start(Lanes::One);
    tier.tell(Does::TimeOut);
    assert!(guarded.time().await.is_err());
    assert_eq!(guarded.open_of(), (1, 1));
    tier.came();
    assert!(guarded.time().await.is_err());
    assert_eq!(tier.came(), (1, 1));
    tier.tell(Does::Work);
    assert!(guarded.time().await.is_ok());
    assert!(guarded.health().await.is_ok());
    assert_eq!(guarded.open_of(), (1, 1), "only a probe closes it");
    time.pass_ms(200);
    guarded.read(&slots(1)).await;
    let_probes_run().await;
    assert_eq!(guarded.open_of(), (0, 1));
}

/// Of 200 keys every lane of a cluster has some.
const MANY: usize = 200;

#[tokio::test]
async fn in_a_cluster_a_shard_that_is_down_takes_its_own_lanes_and_no_others() {
    let (tier, time, guarded) = start(Lanes::Cluster);
    let all = begins(MANY);
    assert_eq!(all.iter().map(|begin| lane(&begin.slot)).collect::<HashSet<_>>().len(), CLUSTER_LANES);
    let down: HashSet<usize> = (0..6).collect();
    let is_down = |request: &Begin| down.contains(&lane(&request.slot));
    *tier.lanes.lock().unwrap() = down.clone();
    tier.tell(Does::TimeOut);

    let results = guarded.begin(&all).await;
    assert_eq!(tier.came(), (1, MANY), "one batch");
    for (request, result) in all.iter().zip(&results) {
        assert_eq!(result.is_ok(), !is_down(request));
    }
    assert_eq!(guarded.open_of(), (6, 16));

    // What is refused is not sent, the rest goes in one batch, and each answer stands where its request does: what was won
    // above is present now, each with its own nonce.
    let began = time.read();
    let results = guarded.begin(&all).await;
    assert_eq!(tier.came(), (1, all.iter().filter(|request| !is_down(request)).count()));
    assert_eq!(time.read(), began);
    for (request, result) in all.iter().zip(&results) {
        match result {
            Ok(Begun::Present(Found::Record(record))) => {
                assert!(!is_down(request));
                assert_eq!(record.nonce, request.pending.nonce);
            }
            Ok(Begun::Won | Begun::Present(Found::Absent | Found::Unreadable)) => panic!("{result:?}"),
            Err(_) => assert!(is_down(request) && is_refused(result)),
        }
    }
    for request in all.chunks(1) {
        assert_eq!(is_refused(&guarded.begin(request).await[0]), is_down(&request[0]));
    }
    tier.came();

    // All down: nothing is sent at all.
    let of_down: Vec<Begin> = all.iter().filter(|request| is_down(request)).cloned().collect();
    assert!(guarded.begin(&of_down).await.iter().all(is_refused));
    assert_eq!(tier.came(), (0, 0));

    // One batch brings one probe for each lane, and each closes its own.
    tier.lanes.lock().unwrap().remove(&0);
    time.pass_ms(200);
    guarded.begin(&of_down).await;
    let_probes_run().await;
    assert_eq!((tier.came(), guarded.open_of()), ((6, 6), (5, 16)));
}

#[cfg(feature = "redis")]
#[test]
fn the_clients_own_errors_tell_replies_from_silence() {
    use ::redis::{ErrorKind, RedisError};
    let reply = |line: &str| {
        let value = ::redis::parse_redis_value(format!("{line}\r\n").as_bytes());
        value.and_then(::redis::Value::extract_error).expect_err("an error reply")
    };
    for line in
        ["-OOM no room", "-READONLY a replica", "-MISCONF disk", "-LOADING the dataset", "-ERR whatever", "-NEW kind"]
    {
        assert_eq!(heard(&StoreError::did_not_happen("test", reply(line))), Heard::Answer, "{line}");
        assert_eq!(heard(&StoreError::may_have_happened("test", reply(line))), Heard::Answer, "{line}");
    }
    let io = |kind: std::io::ErrorKind| RedisError::from(std::io::Error::from(kind));
    for error in [
        io(std::io::ErrorKind::TimedOut),
        io(std::io::ErrorKind::ConnectionRefused),
        io(std::io::ErrorKind::BrokenPipe),
        RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node")),
    ] {
        assert_eq!(heard(&StoreError::did_not_happen("test", error.clone())), Heard::Silence, "{error}");
        assert_eq!(heard(&StoreError::may_have_happened("test", error.clone())), Heard::Silence, "{error}");
    }
}

#[tokio::test]
async fn a_thawed_process_probes_before_it_calls_and_believes_no_probe_of_before() {
    for minutes_are_seen_by_the_monotonic_clock in [true, false] {
        let (tier, time, guarded) = start(Lanes::One);
        let freeze = || match minutes_are_seen_by_the_monotonic_clock {
            true => time.pass_ms(5 * 60_000),
            false => time.set_wall_ms_by(5 * 60_000),
        };
        tier.tell(Does::TimeOut);
        guarded.read(&slots(1)).await;
        tier.tell(Does::Work);
        freeze();
        assert!(is_refused(&guarded.read(&slots(1)).await[0]), "time alone closes nothing");
        // Frozen again before the probe's task got its answer.
        freeze();
        let_probes_run().await;
        assert_eq!(guarded.open_of(), (1, 1));
        assert!(is_refused(&guarded.read(&slots(1)).await[0]));
        let_probes_run().await;
        assert_eq!(guarded.open_of(), (0, 1));
    }
}

/// A clock that counts how often it is looked at.
#[derive(Debug)]
struct Watched(Arc<ManualTime>, AtomicUsize);

impl TimeSource for Watched {
    fn read(&self) -> Reading {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.read()
    }
}

#[tokio::test]
async fn while_all_is_well_a_call_costs_one_look_at_the_clock_and_none_where_the_answer_is_there_at_once() {
    let (tier, time, _guarded) = start(Lanes::One);
    let memory: Arc<dyn HotTier> = Arc::new(MemoryHotTier::new(10, Arc::new(SystemClock)));
    for (inner, looks) in [(memory, 0), (Arc::clone(&tier) as Arc<dyn HotTier>, 1)] {
        for lanes in [Lanes::One, Lanes::Cluster] {
            let counted = Arc::new(Watched(Arc::clone(&time), AtomicUsize::new(0)));
            let settings = BreakerSettings::default();
            let guarded = GuardedHotTier::with_time(Arc::clone(&inner), lanes, settings, Arc::clone(&counted) as _);
            assert!(guarded.begin(&begins(1)).await[0].is_ok());
            assert!(guarded.read(&slots(10)).await.iter().all(Result::is_ok));
            assert_eq!(counted.1.load(Ordering::SeqCst), 2 * looks, "{lanes:?}");
        }
    }
}
