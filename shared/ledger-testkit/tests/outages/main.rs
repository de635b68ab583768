//! Outages of real servers under load: many callers with retries, something goes wrong and is healed, and the whole history is
//! judged.
//!
//! Each kind of outage runs once, two at a time once more, each with a seed of its own. `LEDGER_OUTAGE_SEED` is the first seed
//! instead of a new one, `LEDGER_OUTAGE_RUNS` how often all of it runs, and `LEDGER_OUTAGE_SECONDS` how long the callers call
//! in each run: with more of them, a hunt. `LEDGER_OUTAGE_ONLY` leaves out all whose names do not hold it.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

mod control_plane;
mod load;
mod oracle;
mod process;
mod queue;
mod servers;
mod world;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use ledger_testkit::clock::SeededEntropy;
use ledger_testkit::faulty::{number, seed};

use self::load::pause_ms;
use self::oracle::{Numbers, Trouble};
use self::servers::{Outage, Part};
use self::world::World;

/// How often all of it runs.
const RUNS_VARIABLE: &str = "LEDGER_OUTAGE_RUNS";
/// The seed of the first run.
const SEED_VARIABLE: &str = "LEDGER_OUTAGE_SEED";
/// Only the outages whose name holds this.
const ONLY_VARIABLE: &str = "LEDGER_OUTAGE_ONLY";
/// How long the callers call in each run.
const SECONDS_VARIABLE: &str = "LEDGER_OUTAGE_SECONDS";
/// Runs at once: most of a run is waiting.
const AT_ONCE: usize = 7;
const CALLERS: u64 = 10;

/// What came of one run.
struct Outcome {
    name: String,
    seed: u64,
    numbers: Numbers,
    /// How long after its end the hot tier was complete again, where it was while callers called.
    complete_after: Option<Duration>,
    /// The same for everything, after they stopped.
    healed_after: Duration,
    violations: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_fails_no_message_is_lost_and_no_lie_is_silent() {
    let first_seed = number(SEED_VARIABLE).unwrap_or_else(seed);
    let random = SeededEntropy::new(first_seed);
    let mut runs = Vec::new();
    for _ in 0..number(RUNS_VARIABLE).unwrap_or(1) {
        runs.push((random.next(), Vec::new()));
        runs.extend(Outage::ALL.map(|outage| (random.next(), vec![outage])));
        runs.extend([(); 2].map(|()| (random.next(), two_at_once(&random))));
    }
    if let Some(only) = only() {
        runs.retain(|(_, outages)| name_of(outages).contains(&only));
    }
    let length = Duration::from_secs(number(SECONDS_VARIABLE).unwrap_or(6));
    println!("{SEED_VARIABLE}={first_seed}");
    let outcomes: Vec<Outcome> =
        futures::stream::iter(runs).map(|(seed, outages)| run(seed, outages, length)).buffered(AT_ONCE).collect().await;
    print!("{}", table(&outcomes));
    let violations: Vec<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.violations.is_empty())
        .map(|Outcome { name, seed, violations, .. }| {
            format!(
                "{name} ({seed}): {} violations\n{}",
                violations.len(),
                violations[..violations.len().min(5)].join("\n")
            )
        })
        .collect();
    assert!(violations.is_empty(), "{SEED_VARIABLE}={first_seed}\n{}", violations.join("\n"));
}

/// Two outages of different parts, as a seed has it.
fn two_at_once(random: &SeededEntropy) -> Vec<Outage> {
    let pick = || Outage::ALL[usize::try_from(random.below(Outage::ALL.len() as u64)).expect("few")];
    let first = pick();
    loop {
        let second = pick();
        if first.goes_with(second) {
            return vec![first, second];
        }
    }
}

async fn run(seed: u64, outages: Vec<Outage>, length: Duration) -> Outcome {
    let name = name_of(&outages);
    let world = World::start(seed, &outages).await;
    let background = [tokio::spawn(Arc::clone(&world).write()), tokio::spawn(Arc::clone(&world).keep())];
    world.heal().await;
    let calling = tokio::spawn({
        let world = Arc::clone(&world);
        async move { world.callers(CALLERS).await }
    });
    tokio::time::sleep(length / 4).await;
    let (began_at, from) = (world.now(), world.at());
    let lasts_ms = u64::try_from(length.as_millis() / 3).expect("some seconds");
    let is_alone = outages.len() == 1;
    let mut suffered = Vec::new();
    for outage in &outages {
        let (world, outage) = (Arc::clone(&world), *outage);
        suffered.push(tokio::spawn(async move {
            // One of two comes later than the other.
            pause_ms(if is_alone { 0 } else { world.random.below(lasts_ms / 2) }).await;
            world.suffer(outage, lasts_ms).await;
        }));
    }
    for suffered in suffered {
        suffered.await.expect("no outage panics");
    }
    let trouble = (!outages.is_empty()).then(|| Trouble {
        began_at,
        from,
        to: world.at(),
        noticed_after_ms: outages.iter().map(|outage| outage.noticed_after_ms()).max().unwrap_or(i64::MAX),
    });
    let over = world.at();
    *lock(&world.over_at) = Some(over);
    tokio::time::sleep((length / 4).max(length.saturating_sub(world.at()))).await;
    world.calling.store(false, Ordering::SeqCst);
    *lock(&world.stopped_at) = Some(world.at());
    // While callers call, or not at all.
    let complete_after = lock(&world.complete_at).map(|complete| complete - over);
    calling.await.expect("no caller panics");
    world.heal().await;
    let healed_after = world.at() - over;
    let owners_asked = world.nobody_discards_what_nobody_processes().await;
    world.heal().await;
    let false_new_can_be = outages.iter().any(|outage| !outage.leaves_redis_alone());
    let numbers = Numbers { owners_asked, ..world.judge(trouble, false_new_can_be).await };
    background.iter().for_each(tokio::task::JoinHandle::abort);
    let mut violations = lock(&world.violations).clone();
    // While Redis is not complete, or nobody knows whether it is, nothing goes by the queue: beside such an outage one of the
    // queue, or of its writer, may be met by nobody.
    let by_queue = |outage: &Outage| matches!(outage.part(), Part::Queue | Part::Postgres);
    let past_queue = outages.iter().any(|outage| !matches!(outage.part(), Part::Postgres | Part::Queue));
    let shows = outages.iter().all(|outage| numbers.show(*outage) || (past_queue && by_queue(outage)));
    if numbers.new == 0 || numbers.seen < numbers.new / 4 || !shows {
        violations.push(format!("it shows nothing: {numbers:?}"));
    }
    Outcome { name, seed, numbers, complete_after, healed_after, violations }
}

fn name_of(outages: &[Outage]) -> String {
    let names: Vec<_> = outages.iter().map(|outage| format!("{outage:?}")).collect();
    if names.is_empty() { "Calm".to_owned() } else { names.join(" and ") }
}

fn only() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "how a developer runs one of many")]
    std::env::var(ONLY_VARIABLE).ok()
}

fn table(outcomes: &[Outcome]) -> String {
    let line = |name: &str, seed: &str, columns: [&str; 17], last: &str| {
        let columns: Vec<_> = columns.iter().map(|column| format!("{column:>8}")).collect();
        format!("{name:<36} {seed:>20} {} {last}\n", columns.join(" "))
    };
    let titles = [
        "checks", "acts", "NEW", "SEEN", "cold", "503", "not dur.", "owners", "false", "until ms", "2 claims",
        "longest", "complete", "healed", "failed", "redriven", "bad",
    ];
    let mut text = line("outage", "seed", titles, "why 503");
    for Outcome { name, seed, numbers: n, complete_after, healed_after, violations } in outcomes {
        let counts = [
            n.checks,
            n.acts,
            n.new,
            n.seen,
            n.by_cold,
            n.undecided.values().sum(),
            n.undurable,
            n.owners_asked,
            n.false_new,
        ];
        let times = [
            n.false_new_until_ms.to_string(),
            n.double_claims.to_string(),
            n.longest.as_millis().to_string(),
            complete_after.map_or_else(|| "-".to_owned(), |after| after.as_millis().to_string()),
            healed_after.as_millis().to_string(),
        ];
        let rest = [n.failed, n.redriven, violations.len()].map(|count| count.to_string());
        let all: Vec<String> = counts.iter().map(ToString::to_string).chain(times).chain(rest).collect();
        let columns = std::array::from_fn(|at| all[at].as_str());
        text += &line(name, &seed.to_string(), columns, &format!("{:?}", n.undecided));
    }
    text
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
