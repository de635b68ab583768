//! Seeded faults around the use cases: many callers, few keys, and an oracle that judges the history of each run.
//!
//! A few seeds are fixed, one is new each time. `LEDGER_FAULT_SEED` is that one instead, `LEDGER_FAULT_RUNS` is how many there
//! are: with 1 and a seed, a failed run is run again; with hundreds, a hunt.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

mod holders;
mod oracle;
mod world;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use ledger_domain::Timestamp;
use ledger_domain::ports::{Clock, ClockUnknown};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::redis::RedisHotTier;
use ledger_stores::sqlite::SqliteLedger;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::faulty::{FaultRates, runs, seed};
use ledger_testkit::hot_tier::{MemoryRaw, RedisRaw};
use ledger_testkit::postgres_server::PostgresServer;
use ledger_testkit::redis_server::RedisServer;

use self::oracle::Numbers;
use self::world::{Profile, Tiers, Trust, World, lock};

const START: i64 = 1_790_000_000_000;

const CALM: Profile = Profile {
    faults: FaultRates::NONE,
    kills: false,
    losses: false,
    trust: Trust::Always,
    claims: false,
    clock_moves: false,
};
const FLAKY: Profile = Profile { faults: FaultRates::FLAKY, kills: true, clock_moves: true, ..CALM };
const FORGETFUL: Profile = Profile { losses: true, ..FLAKY };

/// A few seeds of its own for each profile, and one that is new each time.
async fn run_all<F: AsyncFn() -> (Tiers, Option<tempfile::TempDir>)>(
    name: &str,
    profile: Profile,
    usual: u64,
    rounds: u64,
    tiers: F,
) {
    let new_seed = seed();
    let mut sum = Numbers::default();
    let count = runs(usual);
    for seed in (1..count).chain([new_seed]) {
        let (tiers, _folder) = tiers().await;
        let world = World::new(seed, profile, tiers);
        let mut owners_asked = 0;
        for _ in 0..rounds {
            let from = lock(&world.told).len();
            world.round().await;
            owners_asked += world.nobody_discards_what_nobody_processes(from).await;
            world.advance(&[0, 0, 50, 1_000, 4_900, 5_100, 10_300, 61_000]);
            world.refill().await;
        }
        let numbers = world.judge().await;
        let violations = lock(&world.violations).clone();
        assert!(
            violations.is_empty(),
            "{name}, LEDGER_FAULT_SEED={seed}: {} violations\n{}",
            violations.len(),
            violations.join("\n")
        );
        sum = Numbers {
            checks: sum.checks + numbers.checks,
            new: sum.new + numbers.new,
            seen: sum.seen + numbers.seen,
            faults: sum.faults + numbers.faults,
            false_new: sum.false_new + numbers.false_new,
            owners_asked: sum.owners_asked + owners_asked,
        };
    }
    println!("{name}: {count} seeds, {sum:?}");
    assert!(sum.new > 0 && sum.seen > sum.new / 4, "{name} shows nothing: {sum:?}");
    assert_eq!(profile.faults == FaultRates::NONE, sum.faults == 0, "{name}: {sum:?}");
}

async fn embedded(clock_moves: bool) -> (Tiers, Option<tempfile::TempDir>) {
    let manual = Arc::new(ManualClock::new(Timestamp::from_millis(START)));
    let clock: Arc<dyn Clock> = Arc::new(Creeping { clock: Arc::clone(&manual), moves: clock_moves });
    let hot = Arc::new(MemoryHotTier::new(1_000, Arc::clone(&clock)));
    let folder = tempfile::tempdir().expect("a folder");
    let cold = SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens");
    let raw = Box::new(MemoryRaw(Arc::clone(&hot)));
    let windows = vec![5, 60, 600];
    (Tiers { hot, raw, cold: Arc::new(cold), clock, manual: Some(manual), windows }, Some(folder))
}

macro_rules! embedded_runs {
    ($($name:ident: $profile:expr;)+) => {$(
        #[tokio::test]
        async fn $name() {
            let profile = $profile;
            run_all(stringify!($name), profile, 7, 12, async || embedded(profile.clock_moves).await).await;
        }
    )+};
}

embedded_runs! {
    without_faults_each_window_has_one_new_and_each_repeat_is_counted_once: CALM;
    without_faults_the_cold_ledger_decides_as_exactly: Profile { trust: Trust::Never, ..CALM };
    with_faults_and_deaths_nobody_discards_what_nobody_processes: FLAKY;
    a_hot_tier_that_forgets_leads_to_false_news_that_are_found: FORGETFUL;
    losses_alone_lead_to_false_news_that_are_found: Profile { losses: true, clock_moves: true, ..CALM };
    where_each_miss_is_settled_in_the_cold_ledger_no_loss_leads_to_a_false_new:
        Profile { trust: Trust::Never, ..FORGETFUL };
    without_faults_a_claim_has_one_holder_at_a_time_and_one_answer: Profile { claims: true, ..CALM };
    with_faults_and_deaths_a_claim_has_one_holder_at_a_time_and_one_answer: Profile { claims: true, ..FLAKY };
    trust_that_comes_and_goes_breaks_no_promise: Profile { trust: Trust::ByTurns, ..FORGETFUL };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_real_servers_too() {
    let redis = RedisServer::start();
    for (name, profile, usual) in [
        ("calm servers", CALM, 2),
        ("calm servers with claims", Profile { claims: true, ..CALM }, 2),
        ("flaky servers with claims", Profile { claims: true, ..FLAKY }, 2),
        ("forgetful servers", FORGETFUL, 2),
        ("settled servers", Profile { trust: Trust::Never, ..FORGETFUL }, 2),
    ] {
        let tiers = async || {
            let url = PostgresServer::shared().database().await;
            let cold = PostgresLedger::connect_lazy(&url, &PostgresConfig::default()).expect("a valid URL");
            // The keys of a seed are its own, but a profile runs each seed anew.
            let _: String = redis.command(&["FLUSHALL"]);
            let hot = RedisHotTier::open(redis.url()).expect("a fixture's URL");
            let raw = Box::new(RedisRaw::connect(redis.url()).await);
            let windows = vec![600, 3_600, 7_200];
            let clock: Arc<dyn Clock> = Arc::new(WallClock);
            (Tiers { hot: Arc::new(hot), raw, cold: Arc::new(cold), clock, manual: None, windows }, None)
        };
        run_all(name, profile, usual, 8, tiers).await;
    }
}

/// A manual clock whose pauses let many other steps go by, and a little time where time moves.
struct Creeping {
    clock: Arc<ManualClock>,
    moves: bool,
}

#[async_trait]
impl Clock for Creeping {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        self.clock.now()
    }

    async fn pause(&self, millis: u64) {
        if self.moves {
            self.clock.advance(millis / 10);
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

/// The servers' own time: all of them run on this machine. It does not wait as long as it is told to.
struct WallClock;

#[async_trait]
impl Clock for WallClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        #[expect(clippy::disallowed_methods, reason = "real servers judge expiry by real time")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).map_err(|_| ClockUnknown)?;
        Ok(Timestamp::from_millis(i64::try_from(since.as_millis()).map_err(|_| ClockUnknown)?))
    }

    async fn pause(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis.div_ceil(10))).await;
    }
}
