//! Processes whose wall clocks are wrong, on one real Redis: the verdicts are those of Redis's time.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use ledger_domain::check::Check;
use ledger_domain::claim::Act;
use ledger_domain::claims::{ActProblem, ClaimAct};
use ledger_domain::transition::ActRefused;
use ledger_domain::{Disposition, Verdict};
use ledger_testkit::house::{House, check, claiming};
use ledger_testkit::redis_server::RedisServer;

use super::*;
use crate::redis::RedisHotTier;

const FIVE_MINUTES_US: i64 = 5 * 60 * 1_000_000;

/// The operating system's clocks, the wall clock set wrong.
#[derive(Debug)]
struct Wrong {
    by_us: i64,
}

impl TimeSource for Wrong {
    fn read(&self) -> Reading {
        let right = OsTime.read();
        Reading { wall_us: right.wall_us + self.by_us, ..right }
    }
}

/// A process with a connection of its own and a wall clock that is wrong.
struct Process {
    hot: Arc<dyn HotTier>,
    clock: Arc<LedgerClock>,
    house: House,
}

async fn process(server: &RedisServer, wrong_by_us: i64) -> Process {
    let hot: Arc<dyn HotTier> = Arc::new(RedisHotTier::open(server.url()).expect("a fixture's URL"));
    let references = vec![Arc::new(HotTime(Arc::clone(&hot))) as Arc<dyn TimeReference>];
    let time = Arc::new(Wrong { by_us: wrong_by_us });
    let clock = Arc::new(LedgerClock::with_time(references, LedgerClockSettings::default(), time));
    clock.measure().await.expect("Redis tells its time");
    let mut house = House::new(Arc::clone(&hot), None, Arc::clone(&clock) as Arc<dyn Clock>);
    house.ledger.entropy = Arc::new(OsEntropy);
    Process { hot, clock, house }
}

impl Process {
    async fn redis_time(&self) -> Timestamp {
        self.hot.time().await.expect("Redis tells its time")
    }

    /// The verdict, between two looks at Redis's time.
    async fn ask(&self, check: Check) -> (Timestamp, Verdict, Timestamp) {
        let before = self.redis_time().await;
        let answer = self.house.ledger.check(&[check]).await.pop();
        let verdict = answer.expect("one answer").expect("a verdict");
        (before, verdict, self.redis_time().await)
    }
}

#[tokio::test]
async fn each_process_tells_the_time_of_redis_to_within_epsilon() {
    let server = RedisServer::start();
    for wrong_by_us in [-FIVE_MINUTES_US, 0, FIVE_MINUTES_US] {
        let process = process(&server, wrong_by_us).await;
        let before = process.redis_time().await;
        let told = process.clock.now().expect("known");
        let after = process.redis_time().await;
        assert!(told >= before.plus_millis(-EPSILON_MS) && told <= after.plus_millis(EPSILON_MS), "{wrong_by_us}");
    }
}

#[tokio::test]
async fn a_wall_clock_wrong_by_five_minutes_moves_no_windows_end_beyond_epsilon() {
    let server = RedisServer::start();
    let processes =
        [process(&server, -FIVE_MINUTES_US).await, process(&server, FIVE_MINUTES_US).await, process(&server, 0).await];
    let asked = || Check { ttl_seconds: Some(1), ..check("t:as4", "k", 1) };
    let (before, verdict, after) = processes[0].ask(asked()).await;
    let Verdict::New(mut standing) = verdict else { panic!("expected NEW, got {verdict:?}") };
    assert!(standing.first_seen_at >= before.plus_millis(-EPSILON_MS));
    assert!(standing.first_seen_at <= after.plus_millis(EPSILON_MS));
    // Each asks in turn until the window has ended twice; every answer is true of Redis's time, give or take ε.
    let mut windows_ended = 0;
    for process in processes.iter().cycle() {
        let (before, verdict, after) = process.ask(asked()).await;
        let ended = standing.window_ends_at;
        match verdict {
            Verdict::Seen(seen) => {
                assert_eq!(seen.first_seen_at, standing.first_seen_at);
                assert!(before < ended.plus_millis(EPSILON_MS), "SEEN at {before} or later, the window ended {ended}");
            }
            Verdict::New(new) => {
                assert!(after > ended.plus_millis(-EPSILON_MS), "NEW at {after} or before, the window ended {ended}");
                standing = new;
                windows_ended += 1;
                if windows_ended == 2 {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn r8_a_wall_clock_wrong_by_five_minutes_moves_no_leases_end_beyond_epsilon() {
    let server = RedisServer::start();
    let processes =
        [process(&server, -FIVE_MINUTES_US).await, process(&server, FIVE_MINUTES_US).await, process(&server, 0).await];
    let asked = || claiming(check("t:as4", "k", 1), 1);
    let (_, verdict, _) = processes[0].ask(asked()).await;
    let Verdict::New(mut holder) = verdict else { panic!("expected NEW, got {verdict:?}") };
    // Each asks in turn until the claim was followed twice; every answer is true of Redis's time, give or take ε.
    for process in processes.iter().cycle() {
        let (before, verdict, after) = process.ask(asked()).await;
        let claim = holder.claim.clone().expect("a claim");
        let ended = claim.lease_ends_at;
        match verdict {
            Verdict::Seen(seen) => {
                assert_eq!((seen.disposition, seen.attempt), (Disposition::Retry, holder.attempt));
                assert!(before < ended.plus_millis(EPSILON_MS), "RETRY at {before} or later, the lease ended {ended}");
            }
            Verdict::New(new) => {
                assert!(after > ended.plus_millis(-EPSILON_MS), "NEW at {after} or before, the lease ended {ended}");
                assert_eq!(new.first_seen_at, holder.first_seen_at);
                // Whose lease was followed is refused, whatever the clock of the process that it asks.
                for process in &processes {
                    let act = ClaimAct { subject: asked().subject, token: claim.token.clone(), act: Act::Fail(None) };
                    let refused = process.house.ledger.act(&act).await;
                    assert_eq!(refused, Err(ActProblem::Refused(ActRefused::Stale)));
                }
                holder = new;
                if holder.attempt == Some(3) {
                    break;
                }
            }
        }
    }
}
