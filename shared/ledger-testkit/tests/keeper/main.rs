//! The keeper on a small world: whatever happens between its calls, a tier that is believed lacks nothing.

#![expect(clippy::expect_used, reason = "a test; its helpers too may fail loudly")]

mod ports;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use ledger_domain::keep::{Keeper, KeeperSettings, KeptReport, WaitsFor};
use ledger_domain::ports::WarmMarker;
use ledger_testkit::clock::SeededEntropy;
use ledger_testkit::faulty::{runs, seed};

use ports::Ports;
use world::{Weather, World};

const LAG_MS: u64 = 60_000;
/// What a run may take, as on Lambda.
const RUN_MS: i64 = 60_000;
const CALM: Weather = Weather { lag_ms: LAG_MS, eventful: false, faulty: false };

fn ports(world: &Arc<World>) -> Ports {
    Ports { world: Arc::clone(world), skew_ms: 0, dead_is_known: true, problems: Vec::new() }
}

/// A keeper in small steps, so that much happens between them.
fn keeper(ports: &Ports, seed: u64) -> Keeper {
    let settings = KeeperSettings { chunk_rows: 7, slice_ms: 2_000, ..KeeperSettings::default() };
    let ports = Arc::new(ports.clone());
    Keeper {
        hot: Arc::clone(&ports) as _,
        cold: Arc::clone(&ports) as _,
        queue: Arc::clone(&ports) as _,
        control_plane: Arc::clone(&ports) as _,
        clock: ports,
        entropy: Arc::new(SeededEntropy::new(seed)),
        settings,
    }
}

async fn run(keeper: &Keeper, world: &World) -> KeptReport {
    run_for(keeper, world, RUN_MS).await
}

async fn run_for(keeper: &Keeper, world: &World, millis: i64) -> KeptReport {
    keeper.run(world.now().plus_millis(millis)).await.expect("the time is known")
}

/// Runs, a minute apart, until the tier is complete.
async fn run_until_complete(keeper: &Keeper, world: &World, runs_max: u32) -> KeptReport {
    for _ in 0..runs_max {
        let kept = run(keeper, world).await;
        assert!(kept.errors.is_empty(), "{:?}", kept.errors);
        if kept.is_complete {
            return kept;
        }
        world.clock.advance(60_000);
    }
    panic!("not complete after {runs_max} runs: {:?}", world.state());
}

/// A keeper whose runs start each minute, but for the time they take.
async fn runs_of(world: &Arc<World>, seed: u64, skew_ms: i64, runs: u32) -> u32 {
    let ports = Ports { skew_ms, ..ports(world) };
    let keeper = keeper(&ports, seed);
    let mut complete = 0;
    for _ in 0..runs {
        complete += u32::from(run(&keeper, world).await.is_complete);
        world.clock.advance(20_000 + world.random.below(40_000));
        tokio::task::yield_now().await;
    }
    complete
}

async fn one_life(seed: u64, lag_ms: u64, seen: &mut BTreeSet<&'static str>) {
    let world = Arc::new(World::new(seed, Weather { lag_ms, eventful: true, faulty: true }));
    let (a, b) = tokio::join!(runs_of(&world, seed, 100, 40), runs_of(&world, !seed, -100, 40));
    if a + b > 0 {
        world.note("complete in the storm");
    }
    world.calm_down();
    let keeper = keeper(&ports(&world), seed ^ 1);
    run_until_complete(&keeper, &world, 12).await;
    world.check();
    seen.extend(world.seen());
}

const HAPPENED: [&str; 10] = [
    "a cold session",
    "a fact was given up",
    "a fact was sent of what was lost",
    "a false NEW",
    "a heal failed",
    "a loss",
    "a pass ended",
    "a run lost the state",
    "a run was frozen",
    "complete in the storm",
];

/// Lives, so many as asked for, and more until each thing that makes them hard has happened in one.
const LIVES: u64 = 60;
/// Where it has not happened in so many, it does not.
const LIVES_MAX: u64 = 1_000;

async fn lives(lag_ms: u64) {
    let first = seed();
    println!("seed {first}");
    let mut seen = BTreeSet::new();
    let count = runs(LIVES);
    let is_missing = |seen: &BTreeSet<&str>, what: &&'static str| !seen.contains(*what);
    for run in 0..count.max(LIVES_MAX) {
        if run >= count && (count < LIVES || !HAPPENED.iter().any(|what| is_missing(&seen, what))) {
            return;
        }
        one_life(first.wrapping_add(run), lag_ms, &mut seen).await;
    }
    let missing: Vec<_> = HAPPENED.iter().filter(|what| is_missing(&seen, what)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}; seed {first}");
}

#[tokio::test]
async fn who_is_believed_lacks_nothing_though_the_queue_s_counts_lag() {
    lives(LAG_MS).await;
}

#[tokio::test]
async fn who_is_believed_lacks_nothing_where_counts_are_exact() {
    lives(0).await;
}

#[tokio::test]
async fn a_tier_that_lost_everything_is_filled_at_once_and_believed_once_the_queue_is_known_to_be_empty() {
    let world = Arc::new(World::new(1, CALM));
    (0..50).for_each(|_| world.plant());
    let keeper = keeper(&ports(&world), 1);
    let first = run(&keeper, &world).await;
    assert_eq!((first.rows_filled, first.is_complete, first.waits_for), (50, false, Some(WaitsFor::Drained)));
    assert_eq!(world.hot_records(), 50, "filled, though not believed yet");
    // The count lags a minute, and the first is made 15 s after the loss: three counts are three more runs.
    for zero_runs in 1..=2 {
        world.clock.advance(LAG_MS);
        let kept = run(&keeper, &world).await;
        assert_eq!((kept.zero_runs, kept.is_complete, kept.waits_for), (zero_runs, false, Some(WaitsFor::Drained)));
    }
    // Too soon after the one before to count.
    assert_eq!(run(&keeper, &world).await.zero_runs, 2);
    world.clock.advance(LAG_MS);
    let last = run(&keeper, &world).await;
    assert_eq!((last.zero_runs, last.is_complete, last.waits_for), (3, true, None));
    assert_eq!((last.rows_read, last.rows_filled), (50, 0), "read again after the last count");
    let healthy = run(&keeper, &world).await;
    assert!(healthy.is_complete && healthy.rows_read == 0, "{healthy:?}");
}

#[tokio::test]
async fn dead_letters_that_nobody_can_count_are_never_zero() {
    let world = Arc::new(World::new(2, Weather { lag_ms: 0, ..CALM }));
    let blind = keeper(&Ports { dead_is_known: false, ..ports(&world) }, 2);
    for _ in 0..10 {
        let kept = run(&blind, &world).await;
        assert_eq!((kept.zero_runs, kept.is_complete, kept.waits_for), (0, false, Some(WaitsFor::Drained)));
        world.clock.advance(60_000);
    }
    run_until_complete(&keeper(&ports(&world), 3), &world, 2).await;
}

#[tokio::test]
async fn a_tier_with_a_problem_is_left_alone_and_the_operator_told() {
    let world = Arc::new(World::new(3, CALM));
    world.plant();
    let problems = vec!["maxmemory-policy is allkeys-lru".to_owned()];
    let kept = run(&keeper(&Ports { problems: problems.clone(), ..ports(&world) }, 3), &world).await;
    assert_eq!((kept.is_complete, kept.waits_for, kept.rows_read), (false, Some(WaitsFor::Operator), 0));
    assert_eq!(kept.health.map(|health| health.problems), Some(problems));
}

#[tokio::test]
async fn a_session_is_waited_for_filled_from_and_removed() {
    let world = Arc::new(World::new(4, Weather { lag_ms: 0, ..CALM }));
    let keeper = keeper(&ports(&world), 4);
    run_until_complete(&keeper, &world, 3).await;
    world.decide_in_the_cold_ledger();
    world.decide_in_the_cold_ledger();
    assert_eq!(world.sessions(10).len(), 1);
    let kept = run(&keeper, &world).await;
    assert_eq!((kept.sessions_live, kept.is_complete, kept.waits_for), (1, false, Some(WaitsFor::Sessions)));
    assert!(matches!(world.marker(), WarmMarker::Warm(_)), "nothing was lost");
    let kept = run_until_complete(&keeper, &world, 3).await;
    assert_eq!((world.sessions(10), kept.sessions_ended), (Vec::new(), 0));
    assert_eq!(world.hot_records(), 2);
}

#[tokio::test]
async fn what_is_lost_while_it_is_filled_makes_the_pass_void() {
    let world = Arc::new(World::new(5, CALM));
    (0..50).for_each(|_| world.plant());
    let keeper = keeper(&ports(&world), 5);
    for _ in 0..3 {
        run(&keeper, &world).await;
        world.clock.advance(LAG_MS);
    }
    let pass = world.state().and_then(|state| state.pass);
    // Both shards, so that nothing of it is left; the marker goes with it.
    world.flush();
    let kept = run(&keeper, &world).await;
    assert_eq!((kept.is_complete, kept.zero_runs, kept.rows_filled), (false, 0, 50));
    assert_ne!(world.state().and_then(|state| state.pass), pass);
}

#[tokio::test]
async fn a_run_that_has_no_more_time_is_gone_on_with() {
    let world = Arc::new(World::new(6, CALM));
    (0..500).for_each(|_| world.plant());
    let mut keeper = keeper(&ports(&world), 6);
    keeper.settings.rows_per_second = 100;
    let kept = run_for(&keeper, &world, 2_000).await;
    assert_eq!(kept.waits_for, Some(WaitsFor::Time));
    assert!((100..=260).contains(&kept.rows_read), "100 rows a second: {}", kept.rows_read);
    let read = kept.rows_read;
    let kept = run_for(&keeper, &world, 60_000).await;
    assert_eq!((kept.rows_read, kept.waits_for), (500 - read, Some(WaitsFor::Drained)), "from where it stopped");
}

#[tokio::test]
async fn a_run_leaves_another_alone_until_its_time_is_over() {
    let world = Arc::new(World::new(7, CALM));
    let keeper = keeper(&ports(&world), 7);
    run(&keeper, &world).await;
    let mut state = world.state().expect("written");
    state.version += 1;
    state.busy_until = world.now().plus_millis(60_000);
    assert!(world.save(&state));
    let kept = run(&keeper, &world).await;
    assert_eq!((kept.waits_for, world.state()), (Some(WaitsFor::AnotherRun), Some(state)));
    world.clock.advance(60_001);
    assert_eq!(run(&keeper, &world).await.zero_runs, 1);
}
