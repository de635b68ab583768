//! Checks that meet each other, or a tier, at a bad moment: what a careless order of steps would get wrong.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use ledger_domain::check::Check;
use ledger_domain::ports::{Clock, ClockUnknown, ColdLedger, HotTier};
use ledger_domain::{NewVerdict, Refusal, Timestamp, Undecided, Verdict};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::sqlite::SqliteLedger;
use ledger_testkit::between::Between;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::house::{House, Send, check, with_request_id};

const START: i64 = 1_790_000_000_000;

struct Test {
    house: House,
    hot: Arc<Between>,
    cold: Arc<Faulty<SqliteLedger>>,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

async fn start() -> Test {
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(START)));
    let hot = Between::new(Arc::new(MemoryHotTier::new(1_000, Arc::clone(&clock) as Arc<dyn Clock>)));
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens");
    let cold = Arc::new(Faulty::new(Arc::new(sqlite), 1, FaultRates::NONE));
    let house = House::new(
        Arc::clone(&hot) as Arc<dyn HotTier>,
        Some(Arc::clone(&cold) as Arc<dyn ColdLedger>),
        Arc::clone(&clock) as Arc<dyn Clock>,
    );
    Test { house, hot, cold, clock, _folder: folder }
}

impl Test {
    async fn ask(&self, check: Check) -> Result<Verdict, Refusal> {
        self.house.ledger.check(&[check]).await.pop().expect("one answer")
    }

    async fn told_new(&self, check: Check) -> NewVerdict {
        match self.ask(check).await {
            Ok(Verdict::New(new)) => new,
            other => panic!("expected NEW, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_refused_retry_does_not_let_go_of_what_its_first_try_may_have_made_durable() {
    let t = start().await;
    let asked = with_request_id(check("t:as4", "k", 1), "delivery-1");
    t.cold.set_rates(FaultRates::DOWN);
    t.house.queue.script([Send::TakeAndLoseReply; 3]);
    assert!(!t.told_new(asked.clone()).await.durable, "the fact is on the queue, but nobody knows");
    t.house.queue.script([Send::Refuse]);
    assert_eq!(t.ask(asked.clone()).await, Err(Undecided::Queue.into()));
    assert_eq!(
        t.ask(check("t:as4", "k", 1)).await,
        Err(Undecided::Pending.into()),
        "a second NEW would be a false one"
    );
    let again = t.told_new(asked).await;
    assert!(again.replayed && again.durable && again.confirmed);
}

#[tokio::test]
async fn its_own_pending_past_the_deadline_is_not_adopted_but_won_anew_once_it_is_gone() {
    let t = start().await;
    let asked = with_request_id(check("t:as4", "k", 1), "delivery-1");
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    t.cold.set_rates(FaultRates::DOWN);
    let first = t.told_new(asked.clone()).await;
    // The deadline is over, but the store keeps it for 2 ε more, and this check waits for that.
    t.clock.advance(10_000);
    let again = t.told_new(asked).await;
    assert!(again.durable && !again.replayed);
    assert!(again.first_seen_at.millis_since(first.first_seen_at) >= 10_200);
}

#[tokio::test]
async fn a_batch_waits_once_for_first_ones_and_repeats_together() {
    let t = start().await;
    t.cold.set_rates(FaultRates::DOWN);
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    t.told_new(check("t:as4", "pending", 1)).await;
    let before = t.clock.now().expect("known");
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    let of = |key| check("t:as4", key, 1);
    let answers = t.house.ledger.check(&[of("pending"), of("fresh"), of("fresh")]).await;
    assert_eq!(answers[0], Err(Undecided::Pending.into()));
    assert!(matches!(&answers[1], Ok(Verdict::New(new)) if !new.durable));
    assert_eq!(answers[2], Err(Undecided::Pending.into()));
    assert_eq!(t.clock.now().expect("known").millis_since(before), 500);
}

#[tokio::test]
async fn past_its_pendings_deadline_a_check_does_not_ask_the_cold_ledger_again() {
    let t = start().await;
    t.cold.set_rates(FaultRates { request_lost: 1_000, ..FaultRates::NONE });
    // Each look at the clock comes 6 s after the one before: the first request goes out in time, a second one would not.
    let slow = SlowClock(AtomicI64::new(START));
    let cold = Arc::clone(&t.cold) as Arc<dyn ColdLedger>;
    let house = House::new(Arc::clone(&t.hot) as Arc<dyn HotTier>, Some(cold), Arc::new(slow));
    house.trust.set(false);
    let answers = house.ledger.check(&[check("t:as4", "k", 1)]).await;
    assert_eq!(answers, [Err(Undecided::ColdLedger.into())]);
    assert_eq!(t.cold.faults(), 1, "one request");
}

/// A clock that is 6 s on at each look.
struct SlowClock(AtomicI64);

#[async_trait]
impl Clock for SlowClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Ok(Timestamp::from_millis(self.0.fetch_add(6_000, Ordering::SeqCst)))
    }

    async fn pause(&self, _millis: u64) {}
}
