//! Check, cold writer and search together, on the in-memory tier and each cold ledger: what the tiers owe each other.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::path::Path;
use std::sync::Arc;

use ledger_domain::check::{Check, ClaimRequest};
use ledger_domain::claim::Act;
use ledger_domain::claims::{Acknowledged, ActProblem, ClaimAct};
use ledger_domain::keep::{Keeper, KeeperSettings};
use ledger_domain::persist::{Failure, Writer, Written};
use ledger_domain::ports::{Clock, ColdLedger, EventQueue, HistoryQuery, HotTier, StoreError};
use ledger_domain::search::{Auditor, Location};
use ledger_domain::transition::{ActRefused, Found};
use ledger_domain::{
    ConfirmMiss, DecidedBy, Disposition, Ended, Fact, FailReason, NewVerdict, PolicyFields, PolicySet, Record, Refusal,
    SeenVerdict, Slot, State, Tenant, Timestamp, Undecided, Verdict,
};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::sqlite::SqliteLedger;
use ledger_stores::toml_file::TomlControlPlane;
use ledger_testkit::between::{Between, Op};
use ledger_testkit::clock::{ManualClock, SeededEntropy};
use ledger_testkit::cold_ledger::{response, service};
use ledger_testkit::house::{House, Send, check, from_service, with_request_id};
use ledger_testkit::postgres_server::PostgresServer;

const START: i64 = 1_790_000_000_000;

struct Test {
    house: House,
    hot: Arc<MemoryHotTier>,
    cold: Arc<dyn ColdLedger>,
    clock: Arc<ManualClock>,
    _folder: Option<tempfile::TempDir>,
}

/// Runs a case on SQLite and on PostgreSQL.
macro_rules! on_each_ledger {
    ($($(#[$meta:meta])* $case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::on_sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::on_postgres().await).await;
            })+
        }
    };
}

on_each_ledger!(
    a_policy_that_confirms_each_miss_gives_one_new_whatever_the_hot_tier_forgets,
    concurrent_misses_of_a_tier_that_forgets_give_one_new,
    a_tier_that_cannot_vouch_for_its_misses_has_them_settled,
    a_process_that_dies_before_the_hot_tier_knows_leaves_a_row_that_is_nobodys,
    its_own_retry_is_recognised_in_the_cold_ledger,
    a_claim_outlives_the_hot_tier_and_is_resolved_in_the_cold_ledger,
    a_claim_that_failed_in_the_cold_ledger_is_taken_over_there,
    an_unreadable_value_is_settled_by_the_row_and_left_as_it_is,
    a_lost_confirmation_is_healed_by_the_cold_writer,
    a_lost_key_is_healed_and_a_newer_one_is_not_overwritten,
    repeats_go_past_the_queue_while_the_hot_tier_is_not_complete,
    a_false_new_is_linked_and_counted_once_in_either_order,
    poison_fails_alone_and_the_rest_is_written,
    a_ledger_that_refuses_a_fact_fails_it_alone,
    the_hot_tier_is_refilled_with_what_is_inside_its_window,
    a_search_by_key_shows_hot_and_cold_as_one_newest_first,
    a_search_by_hash_shows_one_tenant_and_says_up_to_when,
);

async fn on_sqlite() -> Test {
    let folder = tempfile::tempdir().expect("a folder");
    let cold = SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens");
    start(Arc::new(cold), Some(folder))
}

async fn on_postgres() -> Test {
    let url = PostgresServer::shared().database().await;
    let cold = PostgresLedger::connect_lazy(&url, &PostgresConfig::default()).expect("a valid URL");
    start(Arc::new(cold), None)
}

fn start(cold: Arc<dyn ColdLedger>, folder: Option<tempfile::TempDir>) -> Test {
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(START)));
    let hot = Arc::new(MemoryHotTier::new(10_000, Arc::clone(&clock) as Arc<dyn Clock>));
    let house = house(&hot, &cold, &clock);
    Test { house, hot, cold, clock, _folder: folder }
}

fn house(hot: &Arc<MemoryHotTier>, cold: &Arc<dyn ColdLedger>, clock: &Arc<ManualClock>) -> House {
    let hot = Arc::clone(hot) as Arc<dyn HotTier>;
    House::new(hot, Some(Arc::clone(cold)), Arc::clone(clock) as Arc<dyn Clock>)
}

impl Test {
    async fn told_new(&self, check: Check) -> NewVerdict {
        match self.house.ledger.check(&[check]).await.pop() {
            Some(Ok(Verdict::New(new))) => new,
            other => panic!("expected NEW, got {other:?}"),
        }
    }

    async fn told_seen(&self, check: Check) -> SeenVerdict {
        match self.house.ledger.check(&[check]).await.pop() {
            Some(Ok(Verdict::Seen(seen))) => seen,
            other => panic!("expected SEEN, got {other:?}"),
        }
    }

    /// The hot tier loses all it knew.
    fn lose_the_hot_tier(&mut self) {
        let queue = Arc::clone(&self.house.queue);
        self.hot = Arc::new(MemoryHotTier::new(10_000, Arc::clone(&self.clock) as Arc<dyn Clock>));
        self.house.ledger.hot = Arc::clone(&self.hot) as Arc<dyn HotTier>;
        self.house.queue = queue;
    }

    fn confirm_each_miss(&self) {
        let mut set = PolicySet::default();
        let fields = PolicyFields { confirm_miss: Some(ConfirmMiss::Always), ..PolicyFields::default() };
        set.set_tenant(&Tenant::parse("t").expect("valid"), fields).expect("valid");
        self.house.policies.set(Some(set));
    }

    fn writer(&self) -> Writer {
        Writer {
            trust: None,
            sessions: None,
            poison: None,
            cold: Arc::clone(&self.cold),
            hot: Some(Arc::clone(&self.hot) as Arc<dyn HotTier>),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
        }
    }

    async fn drain(&self, facts: &[Fact]) -> Written {
        let bodies: Vec<_> = facts.iter().map(Fact::to_json).collect();
        self.writer().write(&bodies).await
    }

    fn keeper(&self, folder: &Path) -> Keeper {
        let control_plane = TomlControlPlane::optional(folder.join("policies.toml"));
        Keeper {
            hot: Arc::clone(&self.hot) as Arc<dyn HotTier>,
            cold: Arc::clone(&self.cold),
            queue: Arc::clone(&self.house.queue) as Arc<dyn EventQueue>,
            control_plane: Arc::new(control_plane.with_state(folder.join("control.json"))),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::new(SeededEntropy::new(1)),
            settings: KeeperSettings::default(),
        }
    }

    fn auditor(&self) -> Auditor {
        Auditor {
            hot: Arc::clone(&self.hot) as Arc<dyn HotTier>,
            cold: Arc::clone(&self.cold),
            queue: Arc::clone(&self.house.queue) as Arc<dyn EventQueue>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
        }
    }

    async fn stands(&self, check: &Check) -> Found {
        let slot = Slot::of(&check.subject.scope, &check.subject.key);
        self.hot.read(&[slot]).await.pop().expect("one result").expect("readable")
    }
}

fn all() -> HistoryQuery {
    HistoryQuery { from: Timestamp::MIN, to: Timestamp::MAX, after: None, limit: 100 }
}

async fn a_policy_that_confirms_each_miss_gives_one_new_whatever_the_hot_tier_forgets(mut t: Test) {
    t.confirm_each_miss();
    let new = t.told_new(check("t:as4", "k", 1)).await;
    assert_eq!(new.decided_by, DecidedBy::Cold);
    assert!(t.house.queue.taken().is_empty(), "the registering statement is durable by itself");
    // A repeat needs the hot tier only.
    let seen = t.told_seen(check("t:as4", "k", 1)).await;
    assert_eq!((seen.retry_count, seen.decided_by), (1, DecidedBy::Hot));
    t.lose_the_hot_tier();
    let seen = t.told_seen(check("t:as4", "k", 2)).await;
    assert_eq!((seen.decided_by, seen.first_seen_at), (DecidedBy::Cold, new.first_seen_at));
    assert!(seen.payload_hash_drift, "drift on this path too");
    // And the verdict went to the hot tier.
    let again = t.told_seen(check("t:as4", "k", 1)).await;
    assert_eq!((again.decided_by, again.retry_count), (DecidedBy::Hot, seen.retry_count + 1));
}

async fn concurrent_misses_of_a_tier_that_forgets_give_one_new(t: Test) {
    let houses: Vec<_> = (0..20)
        .map(|_| {
            let hot = Arc::new(MemoryHotTier::new(100, Arc::clone(&t.clock) as Arc<dyn Clock>));
            let house = house(&hot, &t.cold, &t.clock);
            house.trust.set(false);
            house
        })
        .collect();
    let tasks: Vec<_> = houses
        .into_iter()
        .enumerate()
        .map(|(n, house)| {
            // Entropy counts from 1 in each house: a requestId keeps their nonces apart.
            let asked = with_request_id(check("t:as4", "k", 1), &n.to_string());
            tokio::spawn(async move { house.ledger.check(&[asked]).await.pop() })
        })
        .collect();
    let mut new = 0;
    let mut counts = Vec::new();
    for task in tasks {
        match task.await.expect("no panic") {
            Some(Ok(Verdict::New(_))) => new += 1,
            Some(Ok(Verdict::Seen(seen))) => counts.push(seen.retry_count),
            other => panic!("expected a verdict, got {other:?}"),
        }
    }
    counts.sort_unstable();
    assert_eq!((new, counts), (1, (1..=19).collect::<Vec<_>>()));
}

async fn a_tier_that_cannot_vouch_for_its_misses_has_them_settled(mut t: Test) {
    t.told_new(check("t:as4", "k", 1)).await;
    assert_eq!(t.drain(&t.house.queue.taken()).await.persisted, 1);
    t.lose_the_hot_tier();
    t.house.trust.set(false);
    assert_eq!(t.told_seen(check("t:as4", "k", 1)).await.decided_by, DecidedBy::Cold);
    assert_eq!(t.told_new(check("t:as4", "other", 1)).await.decided_by, DecidedBy::Cold);
}

async fn a_process_that_dies_before_the_hot_tier_knows_leaves_a_row_that_is_nobodys(mut t: Test) {
    let (asked, other) = (check("t:as4", "k", 1), with_request_id(check("t:as4", "k", 1), "another"));
    let dying = with_request_id(asked.clone(), "of one that died");
    let between = Between::new(Arc::clone(&t.hot) as Arc<dyn HotTier>);
    t.house.ledger.hot = Arc::clone(&between) as Arc<dyn HotTier>;
    let (decided, is_decided) = tokio::sync::oneshot::channel();
    between.before(Op::Fill, async move {
        decided.send(()).expect("it is waited for");
        std::future::pending().await
    });
    // As while the control plane is down: the hot tier lacks nothing, and nobody knows that.
    t.house.trust.set(false);
    tokio::select! {
        answer = t.house.ledger.check(std::slice::from_ref(&dying)) => panic!("it died, and said {answer:?}"),
        decided = is_decided => decided.expect("the cold ledger has decided"),
    }
    t.house.trust.set(true);
    let undecided = t.house.ledger.check(std::slice::from_ref(&other)).await.pop();
    assert!(matches!(undecided, Some(Err(Refusal::Undecided(Undecided::Pending)))), "{undecided:?}");
    // Nobody was told to process it, so the next caller is.
    t.clock.advance(Record::PENDING_MS.unsigned_abs());
    let new = t.told_new(other).await;
    let written = t.drain(&t.house.queue.taken()).await;
    assert_eq!((written.persisted, written.false_new), (1, 1), "an alarm too many, and never one too few");
    let page = t.auditor().by_key(&asked.subject, &all()).await.expect("a page");
    assert_eq!(page.messages.iter().filter(|message| message.false_new_of.is_some()).count(), 1);
    // Whose process died asks again, and somebody else has it.
    let seen = t.told_seen(dying).await;
    assert_eq!((seen.first_seen_at, seen.disposition), (new.first_seen_at, Disposition::Discard));
}

async fn its_own_retry_is_recognised_in_the_cold_ledger(mut t: Test) {
    t.confirm_each_miss();
    let asked = with_request_id(check("t:as4", "k", 1), "delivery-1");
    let first = t.told_new(asked.clone()).await;
    t.lose_the_hot_tier();
    let again = t.told_new(asked).await;
    assert!(again.replayed);
    assert_eq!(again.first_seen_at, first.first_seen_at);
    assert_eq!(t.told_seen(check("t:as4", "k", 1)).await.retry_count, 1, "a replay is no sighting");
}

fn claiming(key: &str, service: &str) -> Check {
    Check { claim: Some(ClaimRequest { lease_seconds: 60 }), ..from_service(check("t:as4", key, 1), service) }
}

/// What the holder of the claim that `new` gave asks for, where the hot tier has just lost all it knew.
async fn act_without_the_hot_tier(t: &mut Test, new: &NewVerdict, act: Act) -> Result<Acknowledged, ActProblem> {
    t.lose_the_hot_tier();
    let token = new.claim.as_ref().expect("a claim").token.clone();
    t.house.ledger.act(&ClaimAct { subject: check("t:as4", "k", 1).subject, token, act }).await
}

async fn a_claim_outlives_the_hot_tier_and_is_resolved_in_the_cold_ledger(mut t: Test) {
    let new = t.told_new(claiming("k", "as4-ingest")).await;
    t.drain(&t.house.queue.taken()).await;
    t.house.trust.set(false);
    t.lose_the_hot_tier();
    let seen = t.told_seen(claiming("k", "edifact")).await;
    assert_eq!(
        (seen.disposition, seen.decided_by, seen.retry_after_seconds),
        (Disposition::Retry, DecidedBy::Cold, Some(60))
    );
    let renewed = act_without_the_hot_tier(&mut t, &new, Act::Renew { lease_seconds: 90 }).await.expect("renewed");
    assert_eq!(renewed.lease_ends_at, Some(Timestamp::from_millis(START + 90_000)));
    let answer = Some(response(b"<ok/>"));
    for _ in 0..2 {
        // Once more where the reply was lost, and the same comes of it.
        let act = Act::Resolve(answer.clone());
        let resolved = act_without_the_hot_tier(&mut t, &new, act).await.expect("resolved");
        assert_eq!((resolved.state, resolved.attempt, resolved.decided_by), (State::Resolved, 1, DecidedBy::Cold));
    }
    let other = act_without_the_hot_tier(&mut t, &new, Act::Resolve(None)).await;
    assert_eq!(other, Err(ActProblem::Refused(ActRefused::Resolved)));
    let seen = t.told_seen(claiming("k", "edifact")).await;
    assert_eq!((seen.disposition, seen.state, seen.response), (Disposition::Discard, State::Resolved, answer));
    assert_eq!(seen.retry_count, 2);
}

async fn a_claim_that_failed_in_the_cold_ledger_is_taken_over_there(mut t: Test) {
    let first = t.told_new(claiming("k", "as4-ingest")).await;
    t.drain(&t.house.queue.taken()).await;
    t.house.trust.set(false);
    let reason = Some(FailReason::parse("disk full").expect("a reason"));
    act_without_the_hot_tier(&mut t, &first, Act::Fail(reason.clone())).await.expect("failed");
    t.lose_the_hot_tier();
    t.clock.advance(1);
    let second = t.told_new(claiming("k", "edifact")).await;
    assert_eq!((second.attempt, second.taken_over, second.replayed), (Some(2), true, false));
    assert_eq!(
        (second.retry_count, second.first_seen_at, second.decided_by),
        (1, first.first_seen_at, DecidedBy::Cold)
    );
    let stale = act_without_the_hot_tier(&mut t, &first, Act::Resolve(None)).await;
    assert_eq!(stale, Err(ActProblem::Refused(ActRefused::Stale)));
    act_without_the_hot_tier(&mut t, &second, Act::Resolve(None)).await.expect("resolved");
    t.lose_the_hot_tier();
    let page = t.auditor().by_key(&check("t:as4", "k", 1).subject, &all()).await.expect("a page");
    let [message] = page.messages.as_slice() else { panic!("expected one message, got {page:?}") };
    let told: Vec<_> = message.trail.attempts().iter().map(|one| (one.attempt, one.state, one.ended.clone())).collect();
    let ended = |at, reason| Some(Ended { at: Timestamp::from_millis(at), reason });
    let expected = [(1, State::Failed, ended(START, reason)), (2, State::Resolved, ended(START + 1, None))];
    assert_eq!(told, expected);
    let services: Vec<_> = message.trail.attempts().iter().map(|one| one.source_service.clone()).collect();
    assert_eq!(services, [Some(service("as4-ingest")), Some(service("edifact"))]);
}

async fn an_unreadable_value_is_settled_by_the_row_and_left_as_it_is(t: Test) {
    let asked = check("t:as4", "k", 1);
    let new = t.told_new(asked.clone()).await;
    t.drain(&t.house.queue.taken()).await;
    let slot = Slot::of(&asked.subject.scope, &asked.subject.key);
    t.hot.put_raw(slot, b"\x02of another release", new.window_ends_at).expect("room");
    let seen = t.told_seen(check("t:as4", "k", 2)).await;
    assert_eq!((seen.decided_by, seen.retry_count, seen.payload_hash_drift), (DecidedBy::Cold, 1, true));
    assert_eq!(t.told_seen(asked.clone()).await.retry_count, 2);
    assert_eq!(t.stands(&asked).await, Found::Unreadable);
    // A key that the cold ledger does not know either: never NEW.
    let other = check("t:as4", "other", 1);
    let slot = Slot::of(&other.subject.scope, &other.subject.key);
    t.hot.put_raw(slot, b"\x02of another release", new.window_ends_at).expect("room");
    assert!(t.house.ledger.check(&[other]).await[0].is_err());
}

async fn a_lost_confirmation_is_healed_by_the_cold_writer(mut t: Test) {
    let asked = check("t:as4", "k", 1);
    // The fact is taken, but nobody knows, and nothing else makes it durable: NEW, and the record stays PENDING.
    let cold = t.house.ledger.cold.take();
    t.house.queue.script([Send::TakeAndLoseReply; 3]);
    assert!(!t.told_new(asked.clone()).await.durable);
    t.house.ledger.cold = cold;
    let written = t.drain(&t.house.queue.taken()).await;
    assert_eq!((written.persisted, written.healed, written.false_new), (3, 1, 0));
    assert_eq!(t.told_seen(asked).await.retry_count, 1);
}

async fn repeats_go_past_the_queue_while_the_hot_tier_is_not_complete(t: Test) {
    use ledger_domain::ports::{EventQueue, HotTrust};
    use ledger_stores::repeats::RepeatsQueue;
    use ledger_testkit::cold_ledger::{fact, registration};
    use ledger_testkit::faulty::{FaultRates, Faulty};
    let cold = Arc::new(Faulty::new(Arc::clone(&t.cold), 1, FaultRates::NONE));
    let repeats = RepeatsQueue::new(
        Arc::clone(&t.house.queue) as Arc<dyn EventQueue>,
        Arc::clone(&cold) as Arc<dyn ColdLedger>,
        Arc::clone(&t.house.trust) as Arc<dyn HotTrust>,
        Arc::clone(&t.clock) as Arc<dyn Clock>,
    );
    let of = |key: &str| fact(&check("t:as4", key, 1).subject, &registration(1, Timestamp::from_millis(START), 60));
    let stands = async |key: &str| t.cold.standing(&check("t:as4", key, 1).subject).await.expect("answers").is_some();
    assert_eq!(repeats.send(&[of("complete")]).await.len(), 1);
    assert_eq!((t.house.queue.taken().len(), stands("complete").await), (1, false));
    // A queue that takes each repeat would never count zero, and the keeper waits for that.
    t.house.trust.set(false);
    assert!(repeats.send(&[of("not complete")]).await[0].is_ok());
    assert_eq!((t.house.queue.taken().len(), stands("not complete").await), (1, true));
    cold.set_rates(FaultRates::DOWN);
    assert!(repeats.send(&[of("cold ledger down")]).await[0].is_ok());
    assert_eq!(t.house.queue.taken().len(), 2);
}

async fn a_lost_key_is_healed_and_a_newer_one_is_not_overwritten(mut t: Test) {
    let asked = check("t:as4", "k", 1);
    let new = t.told_new(asked.clone()).await;
    let facts = t.house.queue.taken();
    t.lose_the_hot_tier();
    assert_eq!(t.drain(&facts).await.healed, 1);
    let seen = t.told_seen(asked.clone()).await;
    assert_eq!((seen.first_seen_at, seen.decided_by), (new.first_seen_at, DecidedBy::Hot));
    // Delivered again, it changes nothing: what stands there is newer.
    assert_eq!(t.drain(&facts).await.healed, 0);
    assert_eq!(t.told_seen(asked).await.retry_count, 2);
}

async fn a_false_new_is_linked_and_counted_once_in_either_order(mut t: Test) {
    for (key, reversed) in [("in order", false), ("reversed", true)] {
        let sent_before = t.house.queue.taken().len();
        let first = t.told_new(check("t:as4", key, 1)).await;
        t.lose_the_hot_tier();
        t.clock.advance(1_000);
        t.told_new(check("t:as4", key, 1)).await;
        let mut facts = t.house.queue.taken().split_off(sent_before);
        if reversed {
            facts.reverse();
        }
        let mut false_new = 0;
        for fact in facts.iter().chain(&facts) {
            false_new += t.drain(std::slice::from_ref(fact)).await.false_new;
        }
        assert_eq!(false_new, 1, "{key}: counted once, however often it is delivered");
        let page = t.auditor().by_key(&check("t:as4", key, 1).subject, &all()).await.expect("answers");
        let [newer, older] = &page.messages[..] else { panic!("both rows are kept: {page:?}") };
        assert_eq!((older.record.first_seen_at, older.false_new_of), (first.first_seen_at, None));
        assert_eq!(newer.false_new_of, Some(older.record.registration_id), "linked");
    }
}

async fn poison_fails_alone_and_the_rest_is_written(t: Test) {
    t.told_new(check("t:as4", "a", 1)).await;
    t.told_new(check("t:as4", "b", 1)).await;
    let good: Vec<_> = t.house.queue.taken().iter().map(Fact::to_json).collect();
    let unknown_version = good[0].replacen("\"v\":1", "\"v\":2", 1);
    let bodies = [good[0].as_str(), "not JSON", &unknown_version, "{}", "", &good[1]];
    let written = t.writer().write(&bodies).await;
    assert_eq!(written.persisted, 2);
    let failed: Vec<_> = written.failures.iter().map(|(at, _)| *at).collect();
    assert_eq!(failed, [1, 2, 3, 4]);
    assert!(written.failures.iter().all(|(_, failure)| matches!(failure, Failure::NotAFact(_))));
}

async fn a_ledger_that_refuses_a_fact_fails_it_alone(t: Test) {
    for n in 0..20 {
        t.told_new(check("t:as4", &n.to_string(), 1)).await;
    }
    let mut facts = t.house.queue.taken();
    // Two first sightings so long ago that no month is made for them.
    for at in [3, 17] {
        let record = &mut facts[at].record;
        record.first_seen_at = Timestamp::from_millis(1);
        record.window_ends_at = Timestamp::from_millis(1_000);
    }
    let written = t.drain(&facts).await;
    let failed: Vec<_> = written.failures.iter().map(|(at, _)| *at).collect();
    assert_eq!((written.persisted, failed), (18, vec![3, 17]));
    assert!(written.failures.iter().all(|(_, f)| matches!(f, Failure::Store(StoreError::Rejected { .. }))));
}

async fn the_hot_tier_is_refilled_with_what_is_inside_its_window(mut t: Test) {
    let short = Check { ttl_seconds: Some(60), ..check("t:as4", "short", 1) };
    t.told_new(short.clone()).await;
    t.told_new(check("t:as4", "long", 1)).await;
    t.told_seen(check("t:as4", "long", 2)).await;
    t.drain(&t.house.queue.taken()).await;
    t.drain(&t.house.queue.offered()).await;
    t.lose_the_hot_tier();
    t.clock.advance(61_000);
    let folder = tempfile::tempdir().expect("a folder");
    let kept =
        t.keeper(folder.path()).run(t.clock.now().expect("known").plus_seconds(60)).await.expect("the time is known");
    assert_eq!((kept.rows_filled, kept.errors.len()), (1, 0), "{kept:?}");
    assert_eq!(t.told_seen(check("t:as4", "long", 1)).await.retry_count, 2, "history goes on where it was");
    t.told_new(short).await;
}

async fn a_search_by_key_shows_hot_and_cold_as_one_newest_first(t: Test) {
    let asked = || Check { ttl_seconds: Some(60), ..check("t:as4", "k", 1) };
    let subject = asked().subject;
    for _ in 0..3 {
        t.told_new(asked()).await;
        t.clock.advance(60_000);
    }
    t.drain(&t.house.queue.taken()[..2]).await;
    t.told_new(asked()).await;
    t.told_seen(asked()).await;
    // Drained: the first two. Only hot: the fourth; the third is lost to view until its fact is drained.
    let page = t.auditor().by_key(&subject, &all()).await.expect("answers");
    let shown: Vec<_> = page.messages.iter().map(|m| (m.location, m.record.retry_count, m.record.state)).collect();
    let registered = State::Registered;
    assert_eq!(
        shown,
        [(Location::Hot, 1, registered), (Location::Cold, 0, registered), (Location::Cold, 0, registered)]
    );
    t.drain(&t.house.queue.taken()).await;
    // Known to both: shown once, with the newer facts. And page by page it is the same list.
    let whole = t.auditor().by_key(&subject, &all()).await.expect("answers");
    assert_eq!(whole.messages.len(), 4);
    assert_eq!((whole.messages[0].location, whole.messages[0].record.retry_count), (Location::Hot, 1));
    let mut paged = Vec::new();
    let mut query = HistoryQuery { limit: 1, ..all() };
    loop {
        let page = t.auditor().by_key(&subject, &query).await.expect("answers");
        paged.extend(page.messages);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(paged, whole.messages);
    assert!(!whole.hot_missing);
}

async fn a_search_by_hash_shows_one_tenant_and_says_up_to_when(t: Test) {
    for (scope, key) in [("t:as4", "a"), ("t:as2", "b"), ("t1:as4", "c"), ("t10:as4", "d")] {
        t.told_new(check(scope, key, 1)).await;
        t.clock.advance(1_000);
    }
    t.told_new(check("t:as4", "other payload", 2)).await;
    let auditor = t.auditor();
    assert_eq!(auditor.as_of().await.expect("answers"), None, "five facts wait, and it was never drained");
    t.drain(&t.house.queue.taken()).await;
    let tenant = Tenant::parse("t").expect("valid");
    let page = auditor.by_hash(&tenant, &check("t:as4", "a", 1).payload, &all()).await.expect("answers");
    let keys: Vec<_> = page.messages.iter().map(|m| m.subject.key.to_string()).collect();
    assert_eq!(keys, ["b", "a"]);
}
