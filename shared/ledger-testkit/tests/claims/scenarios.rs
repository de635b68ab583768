//! The regression scenarios of the peers' research (section 4) that a claim can meet, by their numbers.

use std::sync::Arc;

use ledger_domain::check::Check;
use ledger_domain::claims::{ActProblem, ClaimAct};
use ledger_domain::ports::HotTier;
use ledger_domain::transition::ActRefused;
use ledger_domain::{Disposition, State, Verdict};
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::between::Op;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::house::{House, with_request_id};
use ledger_testkit::redis_server::RedisServer;

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, response, token};

super::on_each_place!(
    r1_what_was_resolved_between_a_readers_look_and_its_write_is_seen_and_not_claimed_again,
    r2_of_two_that_judged_one_orphan_one_wins_even_ten_seconds_later,
    r3_a_second_caller_at_once_is_told_in_progress,
    r5_a_holder_that_outlived_its_lease_is_refused_and_its_successor_is_intact,
    r6_a_lease_that_is_over_and_was_not_taken_over_can_still_be_resolved,
    r7_a_renewal_that_races_a_taker_keeps_the_claim,
    r8_a_clock_read_before_a_long_wait_decides_nothing,
    r10_another_payload_is_drift_on_every_path,
    r12_a_message_that_failed_is_new_again_as_attempt_2,
    r13_a_holder_that_died_is_followed_after_its_lease,
    r14_a_caller_that_lost_its_answer_gets_the_same_token_again,
    r15_each_of_many_repeats_gets_the_same_answer,
    r17_neither_repeats_nor_renewals_move_the_window,
    r19_the_clock_ends_leases_and_windows_and_not_the_stores_eviction,
);

/// Another process on the same tiers.
fn other(p: &Place) -> Arc<House> {
    let mut house = House::new(Arc::clone(&p.hot) as _, Some(Arc::clone(&p.cold)), Arc::clone(&p.clock) as _);
    house.ledger.entropy = Arc::new(ledger_stores::clock::OsEntropy);
    Arc::new(house)
}

async fn r1_what_was_resolved_between_a_readers_look_and_its_write_is_seen_and_not_claimed_again(p: Place) {
    let a = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    // B has read a lapsed claim; before it writes, A, late but not taken over, resolves.
    let (house, act) = (other(&p), ClaimAct { subject: plain(1).subject, token: token(&a), act: resolve(b"done") });
    p.hot.before(Op::Amend, async move {
        house.ledger.act(&act).await.expect("nobody took over");
    });
    let b = p.told_seen(claim(1, 60)).await;
    assert_eq!((b.state, b.disposition, b.response), (State::Resolved, Disposition::Discard, Some(response(b"done"))));
    assert_eq!(b.retry_count, 1);
}

async fn r2_of_two_that_judged_one_orphan_one_wins_even_ten_seconds_later(p: Place) {
    p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    // C has judged the same orphan as B, and is held up before its write for longer than any lock would hold.
    let (house, clock) = (other(&p), Arc::clone(&p.clock));
    p.hot.before(Op::Amend, async move {
        let b = house.ledger.check(&[claim(1, 60)]).await;
        assert!(matches!(&b[0], Ok(Verdict::New(new)) if new.attempt == Some(2)), "{b:?}");
        clock.advance(10_001);
    });
    let c = p.told_seen(claim(1, 60)).await;
    assert_eq!((c.disposition, c.attempt, c.retry_count), (Disposition::Retry, Some(2), 2));
}

async fn r3_a_second_caller_at_once_is_told_in_progress(p: Place) {
    p.told_new(claim(1, 1)).await;
    let seen = p.told_seen(claim(1, 1)).await;
    assert_eq!(
        (seen.disposition, seen.state, seen.retry_after_seconds),
        (Disposition::Retry, State::InProgress, Some(1))
    );
}

async fn r5_a_holder_that_outlived_its_lease_is_refused_and_its_successor_is_intact(p: Place) {
    let old = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    let new = p.told_new(claim(1, 60)).await;
    let before = p.record().await;
    for act in [resolve(b"late"), fail("late"), renew(600)] {
        assert_eq!(p.act(&token(&old), act).await, Err(ActProblem::Refused(ActRefused::Stale)));
    }
    assert_eq!(p.record().await, before);
    p.done(&token(&new), resolve(b"mine")).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"mine")));
    assert_eq!(p.act(&token(&old), resolve(b"mine")).await, Err(ActProblem::Refused(ActRefused::Stale)));
}

async fn r6_a_lease_that_is_over_and_was_not_taken_over_can_still_be_resolved(p: Place) {
    for act in [resolve(b"late"), fail("late"), renew(60)] {
        p.clock.advance(40 * 86_400_000);
        let new = p.told_new(claim(1, 60)).await;
        p.clock.advance(2 * MINUTE_MS);
        let done = p.done(&token(&new), act).await;
        assert_eq!(done.attempt, 1);
    }
}

async fn r7_a_renewal_that_races_a_taker_keeps_the_claim(p: Place) {
    let a = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    let (house, act) = (other(&p), ClaimAct { subject: plain(1).subject, token: token(&a), act: renew(60) });
    p.hot.before(Op::Amend, async move {
        house.ledger.act(&act).await.expect("nobody took over");
    });
    let b = p.told_seen(claim(1, 60)).await;
    assert_eq!((b.disposition, b.attempt), (Disposition::Retry, Some(1)));
    p.done(&token(&a), resolve(b"done")).await;
}

async fn r8_a_clock_read_before_a_long_wait_decides_nothing(p: Place) {
    // The taker is frozen for a minute between its write and the sending of its fact: that PENDING is over.
    p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    let clock = Arc::clone(&p.clock);
    p.hot.after(Op::Amend, async move { clock.advance(MINUTE_MS) });
    let sent_before = p.house.queue.taken().len();
    assert_eq!(p.undecided(claim(1, 60)).await, ledger_domain::Undecided::TooSlow);
    assert_eq!(p.house.queue.taken().len(), sent_before, "no fact of it");
    let next = p.told_new(claim(1, 60)).await;
    assert_eq!(next.attempt, Some(3), "the lapsed attempt's number is spent");
}

async fn r10_another_payload_is_drift_on_every_path(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    assert!(p.told_seen(claim(2, 60)).await.payload_hash_drift, "in progress");
    p.done(&token(&new), fail("x")).await;
    let second = p.told_new(claim(3, 60)).await;
    assert_eq!(
        p.record().await.drift.map(|drift| (drift.count, drift.last_hash.as_bytes()[0])),
        Some((2, 3)),
        "taken over"
    );
    assert_eq!(p.record().await.payload_hash.as_bytes(), &[1; 32]);
    p.done(&token(&second), resolve(b"x")).await;
    assert!(p.told_seen(plain(4)).await.payload_hash_drift, "resolved");
    assert!(!p.told_seen(plain(1)).await.payload_hash_drift, "the first payload again");
    // The hot tier forgets, and the cold ledger decides.
    p.drain().await;
    p.confirm_each_miss();
    let forgets = ledger_stores::memory::MemoryHotTier::new(100, Arc::clone(&p.clock) as _);
    let mut house = House::new(Arc::new(forgets), Some(Arc::clone(&p.cold)), Arc::clone(&p.clock) as _);
    house.policies = Arc::clone(&p.house.policies);
    house.ledger.policies = Arc::clone(&p.house.policies) as _;
    let answer = house.ledger.check(&[claim(5, 60)]).await;
    let Ok(Verdict::Seen(seen)) = &answer[0] else { panic!("expected SEEN, got {answer:?}") };
    assert!(seen.payload_hash_drift && seen.state == State::Resolved, "{seen:?}");
}

async fn r12_a_message_that_failed_is_new_again_as_attempt_2(p: Place) {
    let mut last = p.told_new(claim(1, 60)).await;
    for attempt in 2..=5 {
        p.done(&token(&last), fail("the application refused it")).await;
        last = p.told_new(claim(1, 60)).await;
        assert_eq!((last.attempt, last.retry_count), (Some(attempt), u32::from(attempt) - 1));
    }
    p.done(&token(&last), resolve(b"at last")).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"at last")));
}

async fn r13_a_holder_that_died_is_followed_after_its_lease(p: Place) {
    p.told_new(claim(1, 60)).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Retry);
    p.clock.advance(MINUTE_MS);
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!((second.attempt, second.retry_count), (Some(2), 2));
}

async fn r14_a_caller_that_lost_its_answer_gets_the_same_token_again(p: Place) {
    let asked = || with_request_id(claim(1, 60), "delivery-1");
    let lost = p.told_new(asked()).await;
    let again = p.told_new(asked()).await;
    assert!(again.replayed);
    assert_eq!(again.claim, lost.claim);
    // Lost already on the way: the PENDING is its own.
    p.done(&token(&again), fail("x")).await;
    p.cut_off_cold();
    p.hot.lose_request(Op::Amend);
    p.hot.lose_request(Op::Amend);
    assert_eq!(p.undecided(asked()).await, ledger_domain::Undecided::ColdLedger);
    assert_eq!(p.told_new(asked()).await.attempt, Some(2));
}

async fn r15_each_of_many_repeats_gets_the_same_answer(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.done(&token(&new), resolve(b"receipt")).await;
    for count in 1..=30 {
        p.clock.advance(MINUTE_MS);
        let seen = p.told_seen(claim(1, 60)).await;
        assert_eq!((seen.retry_count, seen.response), (count, Some(response(b"receipt"))));
    }
    let acts = p.house.queue.taken().len();
    assert_eq!(acts, 2, "a claim and its end: repeats send nothing that anybody waits for");
}

async fn r17_neither_repeats_nor_renewals_move_the_window(p: Place) {
    let asked = || Check { ttl_seconds: Some(300), ..claim(1, 240) };
    let new = p.told_new(asked()).await;
    p.clock.advance(200_000);
    p.done(&token(&new), renew(240)).await;
    assert_eq!(p.told_seen(asked()).await.window_ends_at, new.window_ends_at);
    p.clock.advance(99_999);
    assert_eq!(p.told_seen(asked()).await.disposition, Disposition::Retry);
    p.clock.advance(1);
    let next = p.told_new(asked()).await;
    assert_eq!((next.first_seen_at, next.attempt), (new.window_ends_at, Some(1)));
}

async fn r19_the_clock_ends_leases_and_windows_and_not_the_stores_eviction(p: Place) {
    let asked = || Check { ttl_seconds: Some(60), ..claim(1, 30) };
    let first = p.told_new(asked()).await;
    p.clock.advance(MINUTE_MS);
    assert_ne!(p.stands().await, ledger_domain::transition::Found::Absent, "the store keeps it 2 ε longer");
    let second = p.told_new(asked()).await;
    assert_eq!((second.attempt, second.first_seen_at), (Some(1), first.window_ends_at));
}

#[tokio::test]
async fn r20_of_a_million_live_keys_the_oldest_is_still_seen() {
    let server = RedisServer::start();
    let hot: Arc<dyn HotTier> = Arc::new(RedisHotTier::open(server.url()).expect("a fixture's URL"));
    let clock = Arc::new(ManualClock::new(hot.time().await.expect("Redis answers")));
    let house = House::new(hot, None, clock);
    let oldest = house.ledger.check(&[plain(1)]).await;
    assert!(matches!(&oldest[0], Ok(Verdict::New(_))), "{oldest:?}");
    let others = "for n = 1, 1000000 do redis.call('SET', 'other' .. n, string.rep('v', 75), 'PX', 3600000) end";
    let () = server.command(&["EVAL", others, "0"]);
    let keys: u64 = server.command(&["DBSIZE"]);
    assert_eq!(keys, 1_000_001);
    let again = house.ledger.check(&[plain(1)]).await;
    assert!(matches!(&again[0], Ok(Verdict::Seen(seen)) if seen.retry_count == 1), "{again:?}");
}
