//! Redis down, full, or not to be believed; the queue down: the cold ledger decides, under a cold session where Redis does not
//! learn of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::join_all;
use ledger_domain::claims::ActProblem;
use ledger_domain::ports::{Clock as _, EventQueue, QueueDepth, StoreError};
use ledger_domain::transition::{ActRefused, Found};
use ledger_domain::{DecidedBy, Disposition, PolicyFields, PolicySet, State, Tenant, Unconfirmed, Undecided, Verdict};
use ledger_testkit::between::Op;
use ledger_testkit::house::{Send, check, claiming, with_request_id};

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, response, token};

super::on_each_place!(
    while_the_hot_tier_is_down_the_cold_ledger_decides,
    without_a_cold_session_nothing_is_decided_and_nothing_registered,
    of_many_that_are_all_cut_off_one_is_told_new,
    a_claim_lives_its_whole_life_while_the_hot_tier_is_down,
    a_hit_that_the_hot_tier_cannot_vouch_for_is_settled_and_the_hot_tier_learns_of_it,
    a_holder_whose_claim_was_taken_over_in_the_cold_ledger_is_stale_in_the_hot_tier_too,
    what_only_the_hot_tier_knows_is_told_to_the_cold_ledger_before_it_decides,
    a_full_hot_tier_is_read_before_the_cold_ledger_decides,
    a_first_one_under_way_in_a_full_hot_tier_is_waited_for,
    what_outlives_its_session_is_not_answered_and_its_retry_is,
    a_hot_tier_that_does_not_learn_of_a_decision_is_believed_by_nobody,
    the_queue_down_makes_nobody_wait,
    while_the_queue_is_down_take_overs_and_acts_are_durable_too,
    a_batch_and_an_atomic_one_are_decided_in_the_cold_ledger,
    where_no_tier_can_say_the_policy_chooses_between_no_answer_and_new,
    a_take_over_without_the_queue_that_the_hot_tier_does_not_learn_of_is_told_to_everybody,
    an_act_whose_record_was_lost_and_filled_meanwhile_stands_in_the_hot_tier,
    an_end_that_was_not_acknowledged_does_not_undo_a_take_over_in_the_cold_ledger,
    a_queue_that_says_nothing_is_not_asked_three_times,
);

async fn while_the_hot_tier_is_down_the_cold_ledger_decides(p: Place) {
    p.cut_off_hot();
    let new = p.told_new(plain(1)).await;
    assert_eq!((new.decided_by, new.durable, new.retry_count), (DecidedBy::Cold, true, 0));
    for count in 1..=3 {
        let seen = p.told_seen(plain(2)).await;
        assert_eq!((seen.decided_by, seen.disposition), (DecidedBy::Cold, Disposition::Discard));
        assert_eq!((seen.retry_count, seen.payload_hash_drift), (count, true));
    }
    assert!(p.house.queue.taken().is_empty(), "the statement has written both tables");
    assert_eq!(p.house.sessions.ensured(), 4);
    // Back again, and not believed: it learns of what was decided meanwhile.
    p.reach_hot();
    assert_eq!(p.stands().await, Found::Absent);
    let seen = p.told_seen(plain(1)).await;
    assert_eq!((seen.decided_by, seen.retry_count), (DecidedBy::Cold, 4));
    assert_eq!(p.told_seen(plain(1)).await.decided_by, DecidedBy::Hot);
    assert_eq!(p.record().await.retry_count, 5);
}

async fn without_a_cold_session_nothing_is_decided_and_nothing_registered(p: Place) {
    p.cut_off_hot();
    p.house.sessions.refuse(true);
    assert_eq!(p.undecided(claim(1, 60)).await, Undecided::ColdSession);
    assert_eq!(p.cold.standing(&plain(1).subject).await.expect("answers"), None);
    p.house.sessions.refuse(false);
    let new = p.told_new(claim(1, 60)).await;
    p.house.sessions.refuse(true);
    let problem = p.act(&token(&new), resolve(b"x")).await;
    assert_eq!(problem, Err(ActProblem::Undecided(Undecided::ColdSession)));
    let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
    assert_eq!(row.state, State::InProgress);
}

async fn of_many_that_are_all_cut_off_one_is_told_new(p: Place) {
    p.cut_off_hot();
    let answers = join_all((0..40).map(|_| p.ask(plain(1)))).await;
    let mut counts = BTreeSet::new();
    for answer in answers {
        match answer.expect("decided") {
            Verdict::New(new) => assert!(counts.insert(new.retry_count)),
            Verdict::Seen(seen) => assert!(counts.insert(seen.retry_count)),
        }
    }
    assert_eq!(counts, (0..40).collect());
}

async fn a_claim_lives_its_whole_life_while_the_hot_tier_is_down(p: Place) {
    p.cut_off_hot();
    let first = p.told_new(claim(1, 60)).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Retry);
    assert_eq!(p.done(&token(&first), renew(120)).await.decided_by, DecidedBy::Cold);
    p.clock.advance(MINUTE_MS);
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Retry, "renewed");
    p.done(&token(&first), fail("partner is down")).await;
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!(second.attempt, Some(2));
    assert_eq!(p.act(&token(&first), resolve(b"x")).await, Err(ActProblem::Refused(ActRefused::Stale)));
    p.done(&token(&second), resolve(b"x")).await;
    p.done(&token(&second), resolve(b"x")).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
    p.reach_hot();
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.response, seen.attempt), (Some(response(b"x")), Some(2)));
    assert_eq!(p.record().await.state, State::Resolved);
}

async fn a_hit_that_the_hot_tier_cannot_vouch_for_is_settled_and_the_hot_tier_learns_of_it(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    p.cut_off_hot();
    p.done(&token(&new), resolve(b"x")).await;
    p.reach_hot();
    assert_eq!(p.record().await.state, State::InProgress, "it has not heard of it");
    p.clock.advance(MINUTE_MS);
    // By what the hot tier shows this would be a take-over, and the message processed again.
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.decided_by, seen.response), (DecidedBy::Cold, Some(response(b"x"))));
    assert_eq!(p.record().await.response, Some(response(b"x")));
    p.house.trust.set(true);
    assert_eq!(p.told_seen(claim(1, 60)).await.decided_by, DecidedBy::Hot);
}

async fn a_holder_whose_claim_was_taken_over_in_the_cold_ledger_is_stale_in_the_hot_tier_too(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.drain().await;
    p.clock.advance(MINUTE_MS);
    p.cut_off_hot();
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!((second.attempt, second.taken_over), (Some(2), true));
    p.reach_hot();
    for act in [resolve(b"first"), renew(60), fail("x")] {
        assert_eq!(p.act(&token(&first), act).await, Err(ActProblem::Refused(ActRefused::Stale)));
    }
    p.done(&token(&second), resolve(b"second")).await;
    let record = p.record().await;
    assert_eq!((record.attempt, record.response), (2, Some(response(b"second"))));
}

async fn what_only_the_hot_tier_knows_is_told_to_the_cold_ledger_before_it_decides(p: Place) {
    // Attempt 2 is under way, and no fact has been drained.
    let first = p.told_new(claim(1, 60)).await;
    p.done(&token(&first), fail("x")).await;
    let second = p.told_new(claim(1, 60)).await;
    p.house.trust.set(false);
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.attempt, seen.decided_by), (Disposition::Retry, Some(2), DecidedBy::Cold));
    let done = p.done(&token(&second), resolve(b"x")).await;
    assert_eq!((done.attempt, done.decided_by), (2, DecidedBy::Cold));
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
    assert_eq!(p.drain().await.false_new, 0);
}

async fn a_full_hot_tier_is_read_before_the_cold_ledger_decides(p: Place) {
    // Its fact is still on the queue: the cold ledger alone would tell NEW.
    p.told_new(plain(1)).await;
    p.hot.lose_request(Op::Begin);
    p.hot.lose_request(Op::Begin);
    let seen = p.told_seen(plain(1)).await;
    assert_eq!((seen.decided_by, seen.retry_count), (DecidedBy::Cold, 1));
    assert_eq!(p.house.sessions.ensured(), 1);
    let written = p.drain().await;
    assert_eq!(written.false_new, 0);
}

async fn a_first_one_under_way_in_a_full_hot_tier_is_waited_for(p: Place) {
    p.cut_off_cold();
    p.house.queue.script([Send::TakeAndLoseReply; 3]);
    assert!(!p.told_new(plain(1)).await.durable, "its PENDING stands");
    p.reach_cold();
    p.hot.lose_request(Op::Begin);
    p.hot.lose_request(Op::Begin);
    assert_eq!(p.undecided(plain(1)).await, Undecided::Pending, "a second NEW would be a false one");
}

async fn what_outlives_its_session_is_not_answered_and_its_retry_is(p: Place) {
    p.cut_off_hot();
    let asked = || with_request_id(claim(1, 60), "delivery-1");
    let now = p.clock.now().expect("known");
    // The process is frozen between the statement and its answer.
    p.house.sessions.end_at(now);
    assert_eq!(p.undecided(asked()).await, Undecided::ColdSession);
    p.house.sessions.end_at(now.plus_seconds(60));
    let new = p.told_new(asked()).await;
    assert!(new.replayed);
    p.done(&token(&new), resolve(b"x")).await;
}

async fn a_hot_tier_that_does_not_learn_of_a_decision_is_believed_by_nobody(p: Place) {
    let of = |key: &str| check("t:as4", key, 1);
    p.house.trust.set(false);
    p.hot.lose_reply(Op::Fill);
    assert_eq!(p.told_new(of("a")).await.decided_by, DecidedBy::Cold);
    assert_eq!(p.house.sessions.ensured(), 1, "nobody knows whether it has learnt of it");
    p.house.sessions.refuse(true);
    let with_id = || with_request_id(of("b"), "delivery-1");
    p.hot.lose_reply(Op::Fill);
    assert_eq!(p.undecided(with_id()).await, Undecided::ColdSession);
    assert!(p.told_new(with_id()).await.replayed, "its own answer");
    // Its caller could not be recognised: a 503 would have it told to discard what nobody processed.
    p.hot.lose_reply(Op::Fill);
    let new = p.told_new(of("c")).await;
    assert!(new.durable && !new.confirmed);
    assert_eq!(p.house.queue.offered().len(), 1, "the cold writer will heal it");
}

async fn the_queue_down_makes_nobody_wait(p: Place) {
    for sends in [vec![Send::Refuse], vec![Send::TakeAndLoseReply; 3], vec![Send::DropAndLoseReply; 3]] {
        p.clock.advance(40 * 86_400_000);
        let is_refused = sends == [Send::Refuse];
        p.house.queue.script(sends);
        let new = p.told_new(plain(1)).await;
        assert!(new.durable && new.confirmed, "{new:?}");
        assert_eq!(new.decided_by, DecidedBy::Cold);
        assert!(p.cold.standing(&plain(1).subject).await.expect("answers").is_some());
        let seen = p.told_seen(plain(1)).await;
        assert_eq!((seen.decided_by, seen.retry_count), (DecidedBy::Hot, 1), "refused {is_refused}");
    }
    assert_eq!(p.house.sessions.ensured(), 0, "the hot tier knows it all");
    assert_eq!(p.drain().await.false_new, 0);
    assert_eq!(p.history().await.len(), 3);
}

async fn while_the_queue_is_down_take_overs_and_acts_are_durable_too(p: Place) {
    p.house.queue.script([Send::Refuse; 20]);
    let first = p.told_new(claim(1, 60)).await;
    p.done(&token(&first), fail("x")).await;
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!((second.attempt, second.durable, second.confirmed), (Some(2), true, true));
    p.done(&token(&second), renew(120)).await;
    p.done(&token(&second), resolve(b"x")).await;
    assert!(!p.record().await.undurable);
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
    let history = p.history().await;
    let [(record, trail)] = history.as_slice() else { panic!("one row, got {history:?}") };
    assert_eq!((record.state, record.attempt), (State::Resolved, 2));
    let states: Vec<_> = trail.attempts().iter().map(|attempt| attempt.state).collect();
    assert_eq!(states, [State::Failed, State::Resolved]);
    assert!(p.house.queue.taken().is_empty());
}

async fn a_batch_and_an_atomic_one_are_decided_in_the_cold_ledger(p: Place) {
    p.cut_off_hot();
    let of = |key: &str| with_request_id(claiming(check("t:as4", key, 1), 60), &format!("delivery-1/{key}"));
    let answers = p.house.ledger.check(&[of("a"), of("b"), of("a")]).await;
    let decided: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(Verdict::New(new)) => ("NEW", new.decided_by),
            Ok(Verdict::Seen(seen)) => ("SEEN", seen.decided_by),
            Err(refusal) => panic!("{refusal}"),
        })
        .collect();
    assert_eq!(decided, [("NEW", DecidedBy::Cold), ("NEW", DecidedBy::Cold), ("SEEN", DecidedBy::Cold)]);
    let together = p.house.ledger.check_together(&[of("c"), of("d")]).await;
    assert!(together.applied, "{together:?}");
    let other = |key: &str| with_request_id(claiming(check("t:as4", key, 1), 60), "another");
    let together = p.house.ledger.check_together(&[other("e"), other("d")]).await;
    assert!(!together.applied, "{together:?}");
    assert_eq!(p.cold.standing(&check("t:as4", "e", 1).subject).await.expect("answers"), None);
    // Its own retry gets its answer again.
    let again = p.house.ledger.check_together(&[of("c"), of("d")]).await;
    assert!(again.applied, "{again:?}");
}

async fn where_no_tier_can_say_the_policy_chooses_between_no_answer_and_new(p: Place) {
    let allow = || {
        let mut set = PolicySet::default();
        let fields = PolicyFields { unconfirmed: Some(Unconfirmed::Allow), ..PolicyFields::default() };
        set.set_tenant(&Tenant::parse("t").expect("valid"), fields).expect("valid");
        p.house.policies.set(Some(set));
    };
    let of = |key: &str| check("t:as4", key, 1);
    p.cut_off_cold();
    // Redis is not to be believed.
    p.house.trust.set(false);
    assert_eq!(p.undecided(of("a")).await, Undecided::ColdLedger);
    allow();
    let new = p.told_new(of("a")).await;
    assert!(new.unconfirmed && new.durable && new.decided_by == DecidedBy::Hot, "{new:?}");
    assert_eq!(p.told_seen(of("a")).await.disposition, Disposition::Discard, "it is durable in the queue");
    let new = p.told_new(claiming(of("b"), 60)).await;
    assert!(new.unconfirmed && new.claim.is_some());
    // Redis is down.
    p.cut_off_hot();
    let new = p.told_new(of("c")).await;
    assert!(new.unconfirmed && new.durable, "{new:?}");
    assert_eq!(p.undecided(claiming(of("d"), 60)).await, Undecided::ColdLedger, "nobody would fence a claim");
    let again = p.told_new(of("c")).await;
    assert!(again.unconfirmed, "nobody knows of the first");
    p.house.queue.script([Send::Refuse]);
    assert_eq!(p.undecided(of("e")).await, Undecided::ColdLedger);
    // The two are found and linked when their facts arrive.
    p.reach_cold();
    p.reach_hot();
    assert_eq!(p.drain().await.false_new, 1);
}

async fn a_take_over_without_the_queue_that_the_hot_tier_does_not_learn_of_is_told_to_everybody(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.done(&token(&first), fail("x")).await;
    p.house.queue.script([Send::Refuse]);
    p.hot.lose_request(Op::Fill);
    // Plain, and durable in the cold ledger alone: no message will heal the hot tier.
    let new = p.told_new(plain(1)).await;
    assert!(new.taken_over && new.durable);
    assert_eq!(p.house.sessions.ensured(), 1);
    let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
    assert_eq!((row.state, row.attempt), (State::Registered, 2));
    p.house.trust.set(false);
    p.clock.advance(20_000);
    assert_eq!(p.told_seen(plain(1)).await.disposition, Disposition::Discard, "by the cold ledger");
}

async fn an_act_whose_record_was_lost_and_filled_meanwhile_stands_in_the_hot_tier(p: Place) {
    use ledger_domain::Slot;
    use ledger_domain::ports::{Amend, Fill, HotTier as _};
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
    let slot = Slot::of(&plain(1).subject.scope, &plain(1).subject.key);
    let hot = std::sync::Arc::clone(&p.hot);
    // Between the fact and the end of the mark the record is lost, and filled again as the cold ledger knew it.
    p.hot.after(Op::Amend, async move {
        let before = std::sync::Arc::clone(&hot);
        hot.before(Op::Amend, async move {
            let Some(Ok(Found::Record(marked))) = before.read(&[slot]).await.pop() else { panic!("a record") };
            assert_eq!(marked.state, State::Resolved);
            let lost = Amend { slot, read: (*marked).clone(), to: row.clone(), sighting: None };
            drop(before.amend(&[lost]).await);
            drop(before.fill(&[Fill { slot, row }]).await);
        });
    });
    p.done(&token(&new), resolve(b"x")).await;
    p.clock.advance(2 * MINUTE_MS);
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.response), (Disposition::Discard, Some(response(b"x"))), "nobody takes over");
}

async fn an_end_that_was_not_acknowledged_does_not_undo_a_take_over_in_the_cold_ledger(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.drain().await;
    p.clock.advance(MINUTE_MS);
    // Marked in the hot tier, and durable nowhere: its holder is told to ask again.
    p.cut_off_cold();
    p.house.queue.script([Send::Refuse]);
    p.act(&token(&first), resolve(b"late")).await.expect_err("not durable");
    p.reach_cold();
    p.cut_off_hot();
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!(second.attempt, Some(2));
    p.reach_hot();
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.attempt), (Disposition::Retry, Some(2)));
    let record = p.record().await;
    assert_eq!((record.state, record.attempt, record.undurable), (State::InProgress, 2, false));
    assert_eq!(p.act(&token(&first), resolve(b"late")).await, Err(ActProblem::Refused(ActRefused::Stale)));
    p.done(&token(&second), resolve(b"x")).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
}

async fn a_queue_that_says_nothing_is_not_asked_three_times(mut p: Place) {
    let queue = std::sync::Arc::new(Silent { clock: std::sync::Arc::clone(&p.clock), asked: AtomicU32::new(0) });
    p.house.ledger.queue = std::sync::Arc::clone(&queue) as _;
    let new = p.told_new(claim(1, 60)).await;
    assert!(new.durable && new.decided_by == DecidedBy::Cold, "{new:?}");
    p.done(&token(&new), resolve(b"x")).await;
    assert_eq!(queue.asked.load(Ordering::SeqCst), 2, "once for each");
}

/// A queue that takes four seconds to say nothing.
struct Silent {
    clock: std::sync::Arc<ledger_testkit::clock::ManualClock>,
    asked: AtomicU32,
}

#[async_trait::async_trait]
impl EventQueue for Silent {
    async fn send(&self, facts: &[ledger_domain::Fact]) -> Vec<Result<(), StoreError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.clock.advance(4_000);
        facts.iter().map(|_| Err(StoreError::may_have_happened("send facts", "no answer"))).collect()
    }

    async fn send_together(&self, _: &[ledger_domain::Fact]) -> Result<(), StoreError> {
        Err(StoreError::may_have_happened("send facts together", "no answer"))
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        Err(StoreError::did_not_happen("read the depth", "no answer"))
    }
}
