//! The check use case on the in-memory tier, the SQLite ledger, a manual clock and a queue that does as told.
//! Each test is a rule of DESIGN section 4 or a regression scenario R… of the peers' research.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;

use async_trait::async_trait;
use ledger_domain::check::Check;
use ledger_domain::ports::{Clock, ClockUnknown, HotTier};
use ledger_domain::transition::Found;
use ledger_domain::{
    ConfirmMiss, DecidedBy, Disposition, NewVerdict, PolicyFields, PolicySet, Refusal, SeenVerdict, Slot, State,
    Tenant, Timestamp, Undecided, Verdict,
};
use ledger_stores::memory::MemoryHotTier;
use ledger_testkit::between::{Between, Op};
use ledger_testkit::clock::ManualClock;
use ledger_testkit::house::{House, Send, check, from_service, with_request_id};

const START: i64 = 1_790_000_000_000;
const MINUTE_MS: u64 = 60_000;

struct Test {
    house: House,
    hot: Arc<MemoryHotTier>,
    clock: Arc<ManualClock>,
}

fn start() -> Test {
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(START)));
    let hot = Arc::new(MemoryHotTier::new(10_000, Arc::clone(&clock) as Arc<dyn Clock>));
    let house = House::new(Arc::clone(&hot) as Arc<dyn HotTier>, None, Arc::clone(&clock) as Arc<dyn Clock>);
    Test { house, hot, clock }
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

    async fn told_seen(&self, check: Check) -> SeenVerdict {
        match self.ask(check).await {
            Ok(Verdict::Seen(seen)) => seen,
            other => panic!("expected SEEN, got {other:?}"),
        }
    }

    async fn undecided(&self, check: Check) -> Undecided {
        match self.ask(check).await {
            Err(Refusal::Undecided(undecided)) => undecided,
            other => panic!("expected no verdict, got {other:?}"),
        }
    }

    async fn stands(&self, check: &Check) -> Found {
        let slot = Slot::of(&check.subject.scope, &check.subject.key);
        self.hot.read(&[slot]).await.pop().expect("one result").expect("readable")
    }

    fn policy(&self, fields: PolicyFields) {
        let mut set = PolicySet::default();
        set.set_tenant(&Tenant::parse("t").expect("valid"), fields).expect("valid");
        self.house.policies.set(Some(set));
    }
}

#[tokio::test]
async fn the_first_sighting_is_new_and_the_next_is_seen_with_the_facts_of_the_first() {
    let t = start();
    let new = t.told_new(from_service(check("t:as2", "k", 1), "as2-ingest")).await;
    assert_eq!(new.first_seen_at, Timestamp::from_millis(START));
    assert_eq!(new.window_ends_at, new.first_seen_at.plus_seconds(7 * 86_400));
    assert!(!new.replayed && new.durable && new.confirmed && new.decided_by == DecidedBy::Hot);

    t.clock.advance(MINUTE_MS);
    let seen = t.told_seen(from_service(check("t:as2", "k", 1), "other")).await;
    assert_eq!((seen.disposition, seen.state, seen.retry_count), (Disposition::Discard, State::Registered, 1));
    assert_eq!((seen.first_seen_at, seen.window_ends_at), (new.first_seen_at, new.window_ends_at));
    assert_eq!(seen.last_seen_at, new.first_seen_at.plus_seconds(60));
    assert_eq!(seen.first_source_service.map(|s| s.to_string()).as_deref(), Some("as2-ingest"));
    assert!(!seen.payload_hash_drift && !seen.constant_request_id && seen.attempt.is_none());
}

#[tokio::test]
async fn the_fact_is_durable_before_new_is_answered_and_carries_the_whole_record() {
    let t = start();
    let new = t.told_new(from_service(check("t:as2", "k", 1), "as2-ingest")).await;
    let facts = t.house.queue.taken();
    assert_eq!(facts.len(), 1);
    let record = &facts[0].record;
    assert_eq!((record.state, record.attempt, record.retry_count), (State::Registered, 1, 0));
    assert_eq!((record.first_seen_at, record.window_ends_at), (new.first_seen_at, new.window_ends_at));
    assert_eq!(facts[0].subject, check("t:as2", "k", 1).subject);
    assert_eq!(ledger_domain::Fact::all_from_json(&facts[0].to_json()), Ok(vec![facts[0].clone()]));
}

#[tokio::test]
async fn a_repeats_fact_is_offered_with_the_count_and_nobody_waits_for_it() {
    let t = start();
    t.told_new(check("t:as2", "k", 1)).await;
    t.told_seen(check("t:as2", "k", 2)).await;
    t.told_seen(check("t:as2", "k", 3)).await;
    let counts: Vec<_> = t.house.queue.offered().iter().map(|fact| fact.record.retry_count).collect();
    assert_eq!(counts, [1, 2]);
    let drift = t.house.queue.offered()[1].record.drift.expect("drifted");
    assert_eq!((drift.count, drift.last_hash.as_bytes()[0]), (2, 3));
    assert_eq!(t.house.queue.taken().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_concurrent_checks_of_one_key_give_one_new_and_each_count_once() {
    let t = Arc::new(start());
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let t = Arc::clone(&t);
            tokio::spawn(async move { t.ask(check("t:as4", "k", 1)).await })
        })
        .collect();
    let (mut new, mut counts) = (0, Vec::new());
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(Verdict::New(_)) => new += 1,
            Ok(Verdict::Seen(seen)) => counts.push(seen.retry_count),
            Err(refusal) => panic!("no 503 is wanted: {refusal}"),
        }
    }
    counts.sort_unstable();
    assert_eq!(new, 1);
    assert_eq!(counts, (1..=199).collect::<Vec<_>>());
}

#[tokio::test]
async fn queue_refuses_nobody_is_told_seen_and_the_next_check_is_new() {
    let t = start();
    t.house.queue.script([Send::Refuse, Send::Refuse]);
    for _ in 0..2 {
        assert_eq!(t.undecided(check("t:as4", "k", 1)).await, Undecided::Queue);
        assert_eq!(t.stands(&check("t:as4", "k", 1)).await, Found::Absent, "the PENDING is let go");
    }
    assert!(!t.told_new(check("t:as4", "k", 1)).await.replayed);
}

#[tokio::test]
async fn a_check_that_meets_anothers_pending_waits_500_ms_and_is_then_told_nothing() {
    let t = start();
    // Nobody knows whether the first fact is durable: NEW, but its record stays PENDING.
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    let new = t.told_new(check("t:as4", "k", 1)).await;
    assert!(!new.durable && !new.confirmed);
    let before = t.clock.now().expect("known");
    assert_eq!(t.undecided(check("t:as4", "k", 1)).await, Undecided::Pending);
    assert_eq!(t.clock.now().expect("known").millis_since(before), 500);
    // It lapses at its deadline, and then the key is free.
    t.clock.advance(11_000);
    t.told_new(check("t:as4", "k", 1)).await;
}

#[tokio::test]
async fn a_fact_that_may_be_durable_is_sent_again_under_one_registration_id() {
    let t = start();
    t.house.queue.script([Send::TakeAndLoseReply, Send::TakeAndLoseReply, Send::Take]);
    let new = t.told_new(check("t:as4", "k", 1)).await;
    assert!(new.durable && new.confirmed);
    let facts = t.house.queue.taken();
    assert_eq!(facts.len(), 3);
    assert!(facts.iter().all(|fact| fact == &facts[0]), "merging makes them one");
}

#[tokio::test]
async fn a_fact_refused_after_it_may_have_been_taken_is_still_not_known() {
    let t = start();
    t.house.queue.script([Send::TakeAndLoseReply, Send::Refuse]);
    assert!(!t.told_new(check("t:as4", "k", 1)).await.durable, "503 would lose a message that the queue may hold");
}

#[tokio::test]
async fn r14_a_caller_that_lost_its_answer_recognises_itself_by_its_request_id() {
    let t = start();
    let asked = with_request_id(check("t:as4", "k", 1), "delivery-1");
    let first = t.told_new(asked.clone()).await;
    t.told_seen(check("t:as4", "k", 1)).await;
    let again = t.told_new(asked.clone()).await;
    assert!(again.replayed && !first.replayed);
    assert_eq!(NewVerdict { replayed: false, ..again }, first, "its own answer, as it was");
    // Another requestId, another payload, another caller: each is a repeat.
    t.told_seen(with_request_id(check("t:as4", "k", 1), "delivery-2")).await;
    assert!(t.told_seen(with_request_id(check("t:as4", "k", 2), "delivery-1")).await.payload_hash_drift);
    let mut other = asked;
    other.principal = ledger_domain::Principal::parse("arn:aws:iam::123456789012:user/other").expect("valid");
    t.told_seen(other).await;
}

#[tokio::test]
async fn a_retry_that_meets_its_own_pending_adopts_it_and_sends_the_same_fact() {
    let t = start();
    let asked = with_request_id(check("t:as4", "k", 1), "delivery-1");
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    assert!(!t.told_new(asked.clone()).await.durable);
    let adopted = t.told_new(asked).await;
    assert!(adopted.replayed && adopted.durable && adopted.confirmed);
    assert_eq!(t.house.queue.taken().len(), 1);
    assert_eq!(t.told_seen(check("t:as4", "k", 1)).await.retry_count, 1);
}

#[tokio::test]
async fn a_constant_request_id_switches_deduplication_off_for_15_minutes_at_most_and_is_counted() {
    let t = start();
    let asked = with_request_id(check("t:as4", "k", 1), "always-the-same");
    t.told_new(asked.clone()).await;
    t.clock.advance(15 * MINUTE_MS - 1);
    assert!(t.told_new(asked.clone()).await.replayed);
    t.clock.advance(1);
    let seen = t.told_seen(asked).await;
    assert!(seen.constant_request_id);
    assert_eq!(seen.retry_count, 1);
    let counted = t.house.ledger.counters.snapshot();
    assert!(counted.contains(&("constantRequestId", 1)) && counted.contains(&("replayed", 1)));
}

#[tokio::test]
async fn r17_repeats_do_not_move_the_window() {
    let t = start();
    let asked = || Check { ttl_seconds: Some(300), ..check("t:as4", "k", 1) };
    t.told_new(asked()).await;
    t.clock.advance(4 * MINUTE_MS);
    t.told_seen(asked()).await;
    t.clock.advance(4 * MINUTE_MS);
    t.told_new(asked()).await;
}

#[tokio::test]
async fn r19_the_clock_ends_a_window_and_not_the_stores_eviction() {
    let t = start();
    let asked = || Check { ttl_seconds: Some(60), ..check("t:as4", "k", 1) };
    let first = t.told_new(asked()).await;
    t.clock.advance(MINUTE_MS - 1);
    t.told_seen(asked()).await;
    t.clock.advance(1);
    assert!(matches!(t.stands(&asked()).await, Found::Record(_)), "the store still has it");
    // Exact after the end: the first redelivery is NEW, the second SEEN.
    let second = t.told_new(asked()).await;
    assert_eq!(second.first_seen_at, first.window_ends_at);
    assert_eq!(t.told_seen(asked()).await.retry_count, 1);
    let ids: Vec<_> = t.house.queue.taken().iter().map(|fact| fact.record.registration_id).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1], "a new registration");
}

#[tokio::test]
async fn r10_drift_is_reported_each_time_and_the_first_hash_kept() {
    let t = start();
    t.told_new(check("t:as4", "k", 1)).await;
    for (payload, drift) in [(2, true), (1, false), (3, true), (2, true)] {
        t.clock.advance(1);
        assert_eq!(t.told_seen(check("t:as4", "k", payload)).await.payload_hash_drift, drift);
    }
    let Found::Record(record) = t.stands(&check("t:as4", "k", 1)).await else { panic!("it stands") };
    assert_eq!(record.payload_hash.as_bytes(), &[1; 32]);
    assert_eq!(record.drift.map(|drift| (drift.count, drift.last_hash.as_bytes()[0])), Some((3, 2)));
}

#[tokio::test]
async fn r22_scopes_and_keys_are_independent() {
    let t = start();
    for (scope, key) in
        [("t:as4", "k"), ("t:as4/in", "k"), ("t2:as4", "k"), ("t:as4", "K"), ("t:as4", "k "), ("t:as4", "k:")]
    {
        t.told_new(check(scope, key, 1)).await;
    }
}

#[tokio::test]
async fn r36_reading_is_no_registration() {
    let t = start();
    assert_eq!(t.stands(&check("t:as4", "k", 1)).await, Found::Absent);
    t.told_new(check("t:as4", "k", 1)).await;
}

#[tokio::test]
async fn a_value_of_an_unknown_version_is_never_new() {
    let t = start();
    let asked = check("t:as4", "k", 1);
    let slot = Slot::of(&asked.subject.scope, &asked.subject.key);
    let until = Timestamp::from_millis(START).plus_seconds(3_600);
    for value in [&b"\x02another release's value"[..], b"", b"\x01\x02cut short"] {
        t.hot.put_raw(slot, value, until).expect("room");
        assert_eq!(t.undecided(asked.clone()).await, Undecided::ColdLedger, "and nobody can settle it here");
        assert_eq!(t.stands(&asked).await, Found::Unreadable, "it is left as it is");
    }
}

#[tokio::test]
async fn a_batch_is_decided_in_order_and_one_bad_item_fails_alone() {
    let t = start();
    t.policy(PolicyFields { window_max_seconds: Some(3_600), ..PolicyFields::default() });
    let answers = t
        .house
        .ledger
        .check(&[
            check("t:as4", "a", 1),
            Check { ttl_seconds: Some(3_601), ..check("t:as4", "b", 1) },
            check("t:as4", "a", 2),
            check("t:as4", "c", 1),
            check("t:as4", "a", 1),
        ])
        .await;
    assert!(matches!(&answers[0], Ok(Verdict::New(_))));
    assert!(matches!(&answers[1], Err(Refusal::Invalid(invalid)) if invalid.field == "ttlSeconds"));
    assert!(matches!(&answers[2], Ok(Verdict::Seen(seen)) if seen.retry_count == 1 && seen.payload_hash_drift));
    assert!(matches!(&answers[3], Ok(Verdict::New(_))));
    assert!(matches!(&answers[4], Ok(Verdict::Seen(seen)) if seen.retry_count == 2 && !seen.payload_hash_drift));
}

#[tokio::test]
async fn a_message_twice_in_one_delivery_is_new_once_also_when_the_delivery_is_retried() {
    let t = start();
    let delivery = || [1, 1].map(|payload| with_request_id(check("t:as4", "k", payload), "delivery-1"));
    for replayed in [false, true] {
        let answers = t.house.ledger.check(&delivery()).await;
        assert!(matches!(&answers[0], Ok(Verdict::New(new)) if new.replayed == replayed), "{answers:?}");
        assert!(matches!(&answers[1], Ok(Verdict::Seen(seen)) if !seen.constant_request_id), "{answers:?}");
    }
}

#[tokio::test]
async fn in_a_batch_a_repeat_inherits_the_refusal_of_its_first() {
    let t = start();
    t.house.queue.script([Send::Refuse, Send::Take]);
    let answers = t.house.ledger.check(&[check("t:as4", "a", 1), check("t:as4", "b", 1), check("t:as4", "a", 1)]).await;
    assert_eq!(answers[0], Err(Undecided::Queue.into()));
    assert!(matches!(&answers[1], Ok(Verdict::New(_))));
    assert_eq!(answers[2], Err(Undecided::Queue.into()), "not NEW behind the caller's back, and not SEEN");
}

#[tokio::test]
async fn a_batch_confirms_what_it_won_before_it_waits_for_others() {
    let t = start();
    t.house.queue.script([Send::DropAndLoseReply; 3]);
    t.told_new(check("t:as4", "pending", 1)).await;
    let answers = t.house.ledger.check(&[check("t:as4", "pending", 1), check("t:as4", "fresh", 1)]).await;
    assert_eq!(answers[0], Err(Undecided::Pending.into()));
    let Ok(Verdict::New(fresh)) = &answers[1] else { panic!("expected NEW, got {:?}", answers[1]) };
    let sent_at = t.house.queue.taken().last().map(|fact| fact.record.first_seen_at);
    assert_eq!(sent_at, Some(fresh.first_seen_at));
    let waited = t.clock.now().expect("known").millis_since(fresh.first_seen_at);
    assert_eq!(waited, 500, "one wait for the whole batch, after the fresh one was decided");
}

#[tokio::test]
async fn a_policy_may_require_a_request_id() {
    let t = start();
    t.policy(PolicyFields { require_request_id: Some(true), ..PolicyFields::default() });
    let refused = t.ask(check("t:as4", "k", 1)).await;
    assert!(matches!(refused, Err(Refusal::Invalid(invalid)) if invalid.field == "requestId"));
    t.told_new(with_request_id(check("t:as4", "k", 1), "r")).await;
}

#[tokio::test]
async fn without_a_policy_or_a_clock_nothing_is_decided() {
    let t = start();
    t.house.policies.set(None);
    assert_eq!(t.undecided(check("t:as4", "k", 1)).await, Undecided::Policy);
    t.policy(PolicyFields::default());
    let blind = House::new(Arc::clone(&t.hot) as Arc<dyn HotTier>, None, Arc::new(NoClock));
    let answer = blind.ledger.check(&[check("t:as4", "k", 1)]).await.pop();
    assert_eq!(answer, Some(Err(Undecided::Clock.into())));
    assert_eq!(t.stands(&check("t:as4", "k", 1)).await, Found::Absent);
}

struct NoClock;

#[async_trait]
impl Clock for NoClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Err(ClockUnknown)
    }

    async fn pause(&self, _millis: u64) {}
}

#[tokio::test]
async fn past_its_pendings_deadline_a_check_sends_no_fact() {
    let t = start();
    let frozen = Between::new(Arc::clone(&t.hot) as Arc<dyn HotTier>);
    let clock = Arc::clone(&t.clock);
    frozen.after(Op::Begin, async move { clock.advance(10_000) });
    let house = House::new(frozen, None, Arc::clone(&t.clock) as Arc<dyn Clock>);
    let answer = house.ledger.check(&[check("t:as4", "k", 1)]).await.pop();
    assert_eq!(answer, Some(Err(Undecided::TooSlow.into())));
    assert!(house.queue.taken().is_empty());
}

#[tokio::test]
async fn a_policy_that_confirms_each_miss_needs_the_cold_ledger() {
    let t = start();
    t.policy(PolicyFields { confirm_miss: Some(ConfirmMiss::Always), ..PolicyFields::default() });
    assert_eq!(t.undecided(check("t:as4", "k", 1)).await, Undecided::ColdLedger);
    assert_eq!(t.stands(&check("t:as4", "k", 1)).await, Found::Absent);
    // The same where the tier cannot vouch for a miss.
    t.policy(PolicyFields::default());
    t.house.trust.set(false);
    assert_eq!(t.undecided(check("t:as4", "k", 1)).await, Undecided::ColdLedger);
}
