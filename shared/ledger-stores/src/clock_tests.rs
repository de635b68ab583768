use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::os_time::manual::ManualTime;

const WALL_MS: i64 = 1_790_000_000_000;
const MINUTE_MS: i64 = 60_000;

/// A server whose clock is `skew_ms` ahead of the process's at the start, and runs on by itself.
#[derive(Debug)]
struct Server {
    time: Arc<ManualTime>,
    /// True time, which no jump of the process's wall clock moves.
    start: Reading,
    skew_ms: i64,
    /// The ways there and back of the next calls, in ms; then 1 and 1.
    ways: Mutex<VecDeque<(i64, i64)>>,
    down: AtomicBool,
    calls: AtomicUsize,
}

#[async_trait]
impl TimeReference for Server {
    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen("read the time", "down"));
        }
        let (there, back) = self.ways.lock().unwrap().pop_front().unwrap_or((1, 1));
        self.time.pass_ms(there);
        let answer = self.true_time();
        self.time.pass_ms(back);
        Ok(answer)
    }
}

impl Server {
    fn new(time: &Arc<ManualTime>, skew_ms: i64) -> Arc<Self> {
        Arc::new(Self {
            time: Arc::clone(time),
            start: time.read(),
            skew_ms,
            ways: Mutex::default(),
            down: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
        })
    }

    fn true_time(&self) -> Timestamp {
        let passed_us = self.time.read().monotonic_us - self.start.monotonic_us;
        Timestamp::from_millis((self.start.wall_us + passed_us) / 1_000 + self.skew_ms)
    }

    fn ways(&self, ways: &[(i64, i64)]) {
        self.ways.lock().unwrap().extend(ways);
    }
}

fn clock(servers: &[&Arc<Server>], time: &Arc<ManualTime>) -> Arc<LedgerClock> {
    let references = servers.iter().map(|server| Arc::clone(server) as Arc<dyn TimeReference>).collect();
    Arc::new(LedgerClock::with_time(references, LedgerClockSettings::default(), Arc::clone(time) as _))
}

fn one(skew_ms: i64) -> (Arc<ManualTime>, Arc<Server>, Arc<LedgerClock>) {
    let time = ManualTime::new(WALL_MS);
    let server = Server::new(&time, skew_ms);
    let clock = clock(&[&server], &time);
    (time, server, clock)
}

fn off_by_ms(clock: &LedgerClock, server: &Server) -> i64 {
    clock.now().expect("known").millis_since(server.true_time()).abs()
}

#[tokio::test]
async fn before_the_first_measurement_the_time_is_unknown() {
    let (_time, server, clock) = one(0);
    server.down.store(true, Ordering::SeqCst);
    assert_eq!(clock.now(), Err(ClockUnknown));
    assert_eq!(clock.measure().await, Err(ClockUnknown));
    assert_eq!(clock.now(), Err(ClockUnknown));
    assert_eq!(server.calls.load(Ordering::SeqCst), 1, "one that is down is asked once");
}

#[tokio::test]
async fn skews_of_five_minutes_either_way_are_corrected() {
    for skew_ms in [-5 * MINUTE_MS, 0, 5 * MINUTE_MS] {
        let (time, server, clock) = one(skew_ms);
        clock.measure().await.expect("measured");
        assert!(off_by_ms(&clock, &server) <= 1);
        time.pass_ms(MINUTE_MS);
        assert!(off_by_ms(&clock, &server) <= 1);
    }
}

#[tokio::test]
async fn the_sample_with_the_shortest_way_counts() {
    let (_time, server, clock) = one(MINUTE_MS);
    server.ways(&[(90, 0), (0, 80), (3, 1), (70, 0), (0, 60)]);
    clock.measure().await.expect("measured");
    assert!(off_by_ms(&clock, &server) <= 2, "half of 3 + 1, not of 90");
}

#[tokio::test]
async fn a_way_of_almost_two_epsilon_is_just_short_enough() {
    let (_time, server, clock) = one(MINUTE_MS);
    server.ways(&[(2 * EPSILON_MS - 1, 0); SAMPLES]);
    clock.measure().await.expect("known to within ε");
    assert!(off_by_ms(&clock, &server) <= EPSILON_MS);
    server.ways(&[(2 * EPSILON_MS, 0); SAMPLES]);
    assert_eq!(clock.measure().await, Err(ClockUnknown));
}

/// A black hole.
struct Hangs(AtomicUsize);

#[async_trait]
impl TimeReference for Hangs {
    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_hangs_is_waited_for_once_and_the_next_is_asked() {
    let time = ManualTime::new(WALL_MS);
    let (hot, cold) = (Arc::new(Hangs(AtomicUsize::new(0))), Server::new(&time, MINUTE_MS));
    let references: Vec<Arc<dyn TimeReference>> = vec![Arc::clone(&hot) as _, Arc::clone(&cold) as _];
    let clock = LedgerClock::with_time(references, LedgerClockSettings::default(), Arc::clone(&time) as _);
    let before = tokio::time::Instant::now();
    for outcome in futures::future::join_all((0..20).map(|_| clock.ensure_known())).await {
        outcome.expect("the cold ledger tells the time");
    }
    assert_eq!(before.elapsed(), Duration::from_millis(200));
    assert_eq!((hot.0.load(Ordering::SeqCst), cold.calls.load(Ordering::SeqCst)), (1, SAMPLES));
    assert!(off_by_ms(&clock, &cold) <= 1);
}

#[tokio::test(start_paused = true)]
async fn where_no_reference_answers_that_costs_one_wait_a_second() {
    let time = ManualTime::new(WALL_MS);
    let hangs = Arc::new(Hangs(AtomicUsize::new(0)));
    let references = vec![Arc::clone(&hangs) as Arc<dyn TimeReference>];
    let clock = LedgerClock::with_time(references, LedgerClockSettings::default(), Arc::clone(&time) as _);
    let before = tokio::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(clock.ensure_known().await, Err(ClockUnknown));
    }
    assert_eq!((before.elapsed(), hangs.0.load(Ordering::SeqCst)), (Duration::from_millis(1_000), 1));
    time.pass_ms(1_000);
    assert_eq!(clock.ensure_known().await, Err(ClockUnknown));
    assert_eq!(hangs.0.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_last_reference_that_needs_a_connection_first_is_waited_for() {
    let (_time, server, clock) = one(MINUTE_MS);
    server.ways(&[(700, 200)]);
    clock.measure().await.expect("by the samples after the first");
    assert!(off_by_ms(&clock, &server) <= 1);
}

#[tokio::test]
async fn the_second_reference_is_asked_where_the_first_gives_no_time() {
    let time = ManualTime::new(WALL_MS);
    let (hot, cold) = (Server::new(&time, 1_000), Server::new(&time, 2_000));
    let clock = clock(&[&hot, &cold], &time);
    clock.measure().await.expect("measured");
    assert!(off_by_ms(&clock, &hot) <= 1);
    hot.down.store(true, Ordering::SeqCst);
    clock.measure().await.expect("measured");
    assert!(off_by_ms(&clock, &cold) <= 1);
    hot.down.store(false, Ordering::SeqCst);
    hot.ways(&[(500, 500); SAMPLES]);
    clock.measure().await.expect("measured");
    assert!(off_by_ms(&clock, &cold) <= 1, "too slow is no time either");
}

#[tokio::test]
async fn an_offset_is_used_up_to_its_age() {
    let (time, server, clock) = one(MINUTE_MS);
    clock.measure().await.expect("measured");
    server.down.store(true, Ordering::SeqCst);
    time.pass_ms(5 * MINUTE_MS - 10);
    assert_eq!(clock.measure().await, Err(ClockUnknown));
    assert!(off_by_ms(&clock, &server) <= 1, "the last one stays in use");
    time.pass_ms(20);
    assert_eq!(clock.now(), Err(ClockUnknown));
}

#[tokio::test]
async fn after_a_freeze_the_time_is_unknown_until_it_is_measured() {
    // Stopped: both clocks go on. Suspended: the monotonic clock stands still, so its "true time" does too.
    for suspended in [false, true] {
        let (time, _server, clock) = one(0);
        clock.measure().await.expect("measured");
        if suspended {
            time.set_wall_ms_by(MINUTE_MS)
        } else {
            time.pass_ms(6 * MINUTE_MS)
        }
        assert_eq!(clock.now(), Err(ClockUnknown));
        clock.ensure_known().await.expect("measured");
        assert!(clock.now().is_ok());
    }
}

#[tokio::test]
async fn a_wall_clock_that_was_set_is_noticed_beyond_epsilon() {
    for jump_ms in [-5 * MINUTE_MS, -EPSILON_MS, EPSILON_MS, 5 * MINUTE_MS] {
        let (time, server, clock) = one(0);
        clock.measure().await.expect("measured");
        time.pass_ms(1_000);
        time.set_wall_ms_by(jump_ms);
        assert_eq!(clock.now(), Err(ClockUnknown), "{jump_ms}");
        clock.ensure_known().await.expect("measured");
        assert!(off_by_ms(&clock, &server) <= 1);
    }
}

#[tokio::test]
async fn doubt_and_a_small_jump_add_up() {
    let (time, server, clock) = one(0);
    server.ways(&[(EPSILON_MS, 0); SAMPLES]);
    clock.measure().await.expect("known to half of ε");
    time.set_wall_ms_by(EPSILON_MS / 2 - 1);
    assert!(off_by_ms(&clock, &server) <= EPSILON_MS);
    time.set_wall_ms_by(1);
    assert_eq!(clock.now(), Err(ClockUnknown));
}

#[tokio::test]
async fn all_who_ask_after_a_freeze_share_one_measurement() {
    let (time, server, clock) = one(0);
    clock.measure().await.expect("measured");
    clock.ensure_known().await.expect("known");
    assert_eq!(server.calls.load(Ordering::SeqCst), SAMPLES);
    time.set_wall_ms_by(MINUTE_MS);
    for outcome in futures::future::join_all((0..20).map(|_| clock.ensure_known())).await {
        outcome.expect("measured");
    }
    assert_eq!(server.calls.load(Ordering::SeqCst), 2 * SAMPLES);
}

#[tokio::test(start_paused = true)]
async fn the_background_measures_each_minute_and_ends_with_the_clock() {
    let (_time, server, clock) = one(0);
    clock.refresh_in_background();
    tokio::time::sleep(Duration::from_millis(150_000)).await;
    assert_eq!(server.calls.load(Ordering::SeqCst), 2 * SAMPLES);
    drop(clock);
    tokio::time::sleep(Duration::from_millis(600_000)).await;
    assert_eq!(server.calls.load(Ordering::SeqCst), 2 * SAMPLES);
}

#[test]
fn entropy_does_not_repeat() {
    let one_by_one = (0..5_000).map(|_| OsEntropy.eight_bytes());
    let drawn: std::collections::BTreeSet<[u8; 8]> = one_by_one.chain(OsEntropy.many_eight_bytes(5_000)).collect();
    assert_eq!(drawn.len(), 10_000);
}

#[test]
fn the_system_clock_knows_the_time() {
    assert!(SystemClock.now().expect("known") > Timestamp::from_millis(WALL_MS - 365 * 24 * 60 * MINUTE_MS));
}
