//! Facts first: nobody is told to discard what is not durable, whatever is lost between Redis and the queue.

use ledger_domain::claims::ActProblem;
use ledger_domain::{DecidedBy, Disposition, State, Undecided, Verdict};
use ledger_testkit::between::Op;
use ledger_testkit::house::{Send, with_request_id};

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, response, token};

super::on_each_place!(
    a_claims_fact_is_durable_before_it_is_handed_out,
    a_claim_whose_fact_is_refused_is_nobodys_and_the_key_is_free_again,
    a_claim_whose_fact_may_be_durable_is_handed_out_marked_and_its_next_act_tells_all,
    a_claim_that_was_not_confirmed_is_not_handed_out,
    a_claim_whose_pending_is_gone_starts_again_as_another_registration,
    an_act_is_acknowledged_only_once_its_fact_is_durable,
    who_meets_a_marked_answer_makes_it_durable_before_discarding,
    a_mark_that_cannot_be_cleared_hinders_nobody,
    an_act_whose_reply_was_lost_is_done_once,
    a_take_over_whose_fact_is_refused_lapses_and_the_record_beneath_stands,
    a_lost_confirmation_of_a_take_over_is_healed_by_the_cold_writer,
    an_act_that_meets_a_take_over_waits_and_is_then_stale,
    a_claim_that_only_the_cold_ledger_knows_is_acted_on_there_and_healed,
    a_claim_decided_in_the_cold_ledger_is_a_claim_like_any_other,
    a_plain_take_over_whose_fact_may_be_durable_is_told_so_and_lapses,
    an_act_in_the_cold_ledger_is_not_undone_by_an_older_row_that_reaches_the_hot_tier_first,
    another_registrations_pending_is_waited_for_and_no_refusal,
    a_row_that_is_behind_refuses_no_holder,
    a_row_of_an_earlier_window_refuses_no_holder_where_the_hot_tier_may_have_lost_the_claim,
    an_act_in_the_cold_ledger_stands_though_another_registration_has_come_to_the_hot_tier,
    a_second_call_of_one_check_is_not_told_new_once_the_first_has_resolved,
);

async fn a_claims_fact_is_durable_before_it_is_handed_out(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    let facts = p.house.queue.taken();
    let [fact] = facts.as_slice() else { panic!("one fact, got {facts:?}") };
    assert_eq!((fact.record.state, fact.record.attempt), (State::InProgress, 1));
    assert_eq!(fact.record.lease_ends_at, new.claim.map(|claim| claim.lease_ends_at));
    assert_eq!(fact.record, p.record().await);
}

async fn a_claim_whose_fact_is_refused_is_nobodys_and_the_key_is_free_again(p: Place) {
    p.cut_off_cold();
    p.house.queue.script([Send::Refuse]);
    assert_eq!(p.undecided(claim(1, 60)).await, Undecided::Queue);
    assert_eq!(p.told_new(claim(1, 60)).await.attempt, Some(1));
    assert_eq!(p.house.queue.taken().len(), 1);
}

async fn a_claim_whose_fact_may_be_durable_is_handed_out_marked_and_its_next_act_tells_all(p: Place) {
    p.cut_off_cold();
    p.house.queue.script([Send::DropAndLoseReply; 3]);
    let new = p.told_new(claim(1, 60)).await;
    assert!(!new.durable && new.confirmed);
    assert!(p.record().await.undurable);
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!(seen.disposition, Disposition::Retry, "RETRY is no discard");
    p.done(&token(&new), resolve(b"x")).await;
    assert!(!p.record().await.undurable);
    p.drain().await;
    let history = p.history().await;
    let [(record, trail)] = history.as_slice() else { panic!("one row, got {history:?}") };
    assert_eq!((record.state, record.first_seen_at, record.retry_count), (State::Resolved, new.first_seen_at, 1));
    assert_eq!(trail.attempts().len(), 1);
}

async fn a_claim_that_was_not_confirmed_is_not_handed_out(p: Place) {
    p.cut_off_cold();
    let asked = || with_request_id(claim(1, 60), "delivery-1");
    p.hot.lose_reply(Op::Settle);
    p.hot.lose_reply(Op::Settle);
    assert_eq!(p.undecided(asked()).await, Undecided::ColdLedger);
    let again = p.told_new(asked()).await;
    assert!(again.replayed && again.durable && again.claim.is_some());
    assert_eq!(p.house.queue.taken().len(), 1);
}

async fn a_claim_whose_pending_is_gone_starts_again_as_another_registration(p: Place) {
    // Between the fact and the confirmation Redis loses the PENDING.
    let slot = ledger_domain::Slot::of(&plain(1).subject.scope, &plain(1).subject.key);
    let hot = std::sync::Arc::clone(&p.hot);
    p.hot.before(Op::Settle, async move {
        use ledger_domain::ports::{HotTier, Release};
        use ledger_domain::transition::{Found, Guard};
        let Some(Ok(Found::Record(pending))) = hot.read(&[slot]).await.pop() else { panic!("a PENDING stands") };
        drop(hot.release(&[Release { slot, guard: Guard::of(&pending) }]).await);
    });
    let new = p.told_new(claim(1, 60)).await;
    assert!(new.durable && new.confirmed);
    let facts = p.house.queue.taken();
    assert_eq!(facts.len(), 2);
    assert_ne!(facts[0].record.registration_id, facts[1].record.registration_id);
    p.done(&token(&new), resolve(b"x")).await;
    let written = p.drain().await;
    assert_eq!(written.false_new, 0, "one check's two registrations are no false NEW");
}

async fn an_act_is_acknowledged_only_once_its_fact_is_durable(p: Place) {
    p.cut_off_cold();
    for (key, act) in [(1, resolve(b"x")), (2, fail("x")), (3, renew(120))] {
        p.clock.advance(40 * 86_400_000);
        let new = p.told_new(claim(key, 60)).await;
        for sends in [vec![Send::Refuse], vec![Send::DropAndLoseReply; 3]] {
            p.house.queue.script(sends);
            assert_eq!(p.act(&token(&new), act.clone()).await, Err(ActProblem::Undecided(Undecided::Queue)));
            assert!(p.record().await.undurable);
        }
        p.done(&token(&new), act).await;
        assert!(!p.record().await.undurable);
    }
}

async fn who_meets_a_marked_answer_makes_it_durable_before_discarding(p: Place) {
    p.cut_off_cold();
    let new = p.told_new(claim(1, 60)).await;
    p.house.queue.script([Send::Refuse]);
    assert_eq!(p.act(&token(&new), resolve(b"x")).await, Err(ActProblem::Undecided(Undecided::Queue)));
    p.house.queue.script([Send::Refuse]);
    assert_eq!(p.undecided(claim(1, 60)).await, Undecided::Queue, "not durable: nobody discards");
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.retry_count, seen.response), (Disposition::Discard, 1, Some(response(b"x"))));
    let facts = p.house.queue.taken();
    let resolved = &facts.last().expect("a fact").record;
    assert_eq!((resolved.state, resolved.response.clone()), (State::Resolved, Some(response(b"x"))));
    assert_eq!(p.done(&token(&new), resolve(b"x")).await.state, State::Resolved);
    assert_eq!(p.house.queue.taken().len(), facts.len(), "nothing is left to be sent");
}

async fn a_mark_that_cannot_be_cleared_hinders_nobody(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    let hot = std::sync::Arc::clone(&p.hot);
    p.hot.after(Op::Amend, async move { hot.lose_request(Op::Amend) });
    p.done(&token(&new), resolve(b"x")).await;
    assert!(p.record().await.undurable);
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Discard);
    assert!(!p.record().await.undurable);
}

async fn an_act_whose_reply_was_lost_is_done_once(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.hot.lose_reply(Op::Amend);
    let done = p.done(&token(&new), resolve(b"x")).await;
    assert_eq!(done.state, State::Resolved);
    let record = p.record().await;
    assert!(!record.undurable);
    assert_eq!((record.retry_count, record.response), (0, Some(response(b"x"))));
}

async fn a_take_over_whose_fact_is_refused_lapses_and_the_record_beneath_stands(p: Place) {
    p.cut_off_cold();
    let first = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    p.house.queue.script([Send::Refuse]);
    assert_eq!(p.undecided(claim(1, 60)).await, Undecided::Queue);
    assert_eq!(p.undecided(claim(1, 60)).await, Undecided::Pending, "for 10 s it lies over the record");
    p.clock.advance(10_000);
    // The holder of the record beneath was never followed.
    p.done(&token(&first), renew(60)).await;
    p.clock.advance(MINUTE_MS);
    let next = p.told_new(claim(1, 60)).await;
    assert_eq!((next.attempt, next.retry_count), (Some(3), 1), "a 503 is no sighting");
}

async fn a_lost_confirmation_of_a_take_over_is_healed_by_the_cold_writer(p: Place) {
    p.cut_off_cold();
    p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    let asked = || with_request_id(claim(2, 60), "delivery-2");
    // The second and third amend are the confirmation and its second try.
    let hot = std::sync::Arc::clone(&p.hot);
    p.hot.after(Op::Amend, async move {
        hot.lose_request(Op::Amend);
        hot.lose_request(Op::Amend);
    });
    assert_eq!(p.undecided(asked()).await, Undecided::ColdLedger);
    assert!(p.record().await.take_over.is_some());
    assert_eq!(p.drain().await.healed, 1);
    let record = p.record().await;
    assert_eq!((record.take_over, record.state, record.attempt), (None, State::InProgress, 2));
    assert_eq!((record.retry_count, record.drift.map(|drift| drift.count)), (1, Some(1)));
    let again = p.told_new(asked()).await;
    assert!(again.replayed && again.attempt == Some(2));
}

async fn an_act_that_meets_a_take_over_waits_and_is_then_stale(p: Place) {
    p.cut_off_cold();
    let first = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    p.house.queue.script([Send::Refuse]);
    let asked = || with_request_id(claim(1, 60), "delivery-2");
    assert_eq!(p.undecided(asked()).await, Undecided::Queue);
    let before = p.record().await;
    assert_eq!(p.act(&token(&first), resolve(b"x")).await, Err(ActProblem::Undecided(Undecided::Pending)));
    assert_eq!(p.record().await, before);
    let second = p.told_new(asked()).await;
    assert_eq!((second.attempt, second.replayed), (Some(2), true), "its own take-over is adopted");
    assert_eq!(
        p.act(&token(&first), resolve(b"x")).await,
        Err(ActProblem::Refused(ledger_domain::transition::ActRefused::Stale))
    );
}

async fn a_claim_that_only_the_cold_ledger_knows_is_acted_on_there_and_healed(mut p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    forget(&mut p);
    let done = p.done(&token(&new), resolve(b"x")).await;
    assert_eq!((done.state, done.attempt, done.decided_by), (State::Resolved, 1, DecidedBy::Cold));
    assert_eq!(p.record().await.response, Some(response(b"x")), "healed");
    assert_eq!(p.done(&token(&new), resolve(b"x")).await.decided_by, DecidedBy::Hot);
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
}

async fn a_claim_decided_in_the_cold_ledger_is_a_claim_like_any_other(mut p: Place) {
    p.confirm_each_miss();
    let first = p.told_new(claim(1, 60)).await;
    assert_eq!((first.decided_by, first.attempt, first.state), (DecidedBy::Cold, Some(1), State::InProgress));
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Retry, "the hot tier has learnt of it");
    forget(&mut p);
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.decided_by), (Disposition::Retry, DecidedBy::Cold));
    forget(&mut p);
    p.clock.advance(MINUTE_MS);
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!(
        (second.attempt, second.decided_by, second.first_seen_at),
        (Some(2), DecidedBy::Cold, first.first_seen_at)
    );
    assert!(second.taken_over && !second.replayed);
    p.done(&token(&second), resolve(b"x")).await;
    assert_eq!(p.told_seen(claim(1, 60)).await.response, Some(response(b"x")));
}

async fn a_plain_take_over_whose_fact_may_be_durable_is_told_so_and_lapses(p: Place) {
    p.cut_off_cold();
    let first = p.told_new(claim(1, 60)).await;
    p.done(&token(&first), fail("x")).await;
    p.house.queue.script([Send::DropAndLoseReply; 3]);
    let told = p.told_new(plain(1)).await;
    assert!(!told.durable && !told.confirmed);
    assert_eq!(p.undecided(plain(1)).await, Undecided::Pending, "nobody is told SEEN from it");
    p.clock.advance(10_000);
    let answer = p.ask(plain(1)).await;
    assert!(matches!(&answer, Ok(Verdict::New(new)) if new.durable), "{answer:?}");
}

/// The hot tier loses all it knew.
pub(crate) fn forget(p: &mut Place) {
    let memory = ledger_stores::memory::MemoryHotTier::new(100, std::sync::Arc::clone(&p.clock) as _);
    p.hot = ledger_testkit::between::Between::new(std::sync::Arc::new(memory));
    p.house.ledger.hot = std::sync::Arc::clone(&p.hot) as _;
}

async fn an_act_in_the_cold_ledger_is_not_undone_by_an_older_row_that_reaches_the_hot_tier_first(mut p: Place) {
    use ledger_domain::Slot;
    use ledger_domain::ports::{Heal, HotTier};
    for (payload, act) in [(1, resolve(b"x")), (2, renew(600))] {
        p.clock.advance(40 * 86_400_000);
        let new = p.told_new(claim(payload, 60)).await;
        p.drain().await;
        forget(&mut p);
        // A refill has read the row before the act, and writes it after.
        let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
        let (hot, slot) = (std::sync::Arc::clone(&p.hot), Slot::of(&plain(1).subject.scope, &plain(1).subject.key));
        p.hot.before(Op::Fill, async move { assert!(matches!(hot.heal(&[Heal { slot, row }]).await[..], [Ok(true)])) });
        let done = p.done(&token(&new), act).await;
        assert_eq!(done.decided_by, DecidedBy::Cold);
        assert_eq!(p.record().await.state, done.state, "made good there");
        p.clock.advance(2 * MINUTE_MS);
        let seen = p.told_seen(claim(payload, 60)).await;
        assert_eq!((seen.state, seen.attempt), (done.state, Some(1)), "nobody takes over");
    }
}

async fn another_registrations_pending_is_waited_for_and_no_refusal(mut p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    forget(&mut p);
    p.cut_off_cold();
    p.house.queue.script([Send::DropAndLoseReply; 3]);
    assert!(!p.told_new(plain(1)).await.durable, "another registration's PENDING stands");
    p.reach_cold();
    assert_eq!(p.act(&token(&new), resolve(b"x")).await, Err(ActProblem::Undecided(Undecided::Pending)));
    p.clock.advance(10_200);
    assert_eq!(p.done(&token(&new), resolve(b"x")).await.decided_by, DecidedBy::Cold);
}

async fn a_row_that_is_behind_refuses_no_holder(mut p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.drain().await;
    p.done(&token(&first), fail("x")).await;
    let second = p.told_new(claim(1, 60)).await;
    forget(&mut p);
    assert_eq!(p.act(&token(&second), resolve(b"x")).await, Err(ActProblem::Undecided(Undecided::Absence)));
    p.drain().await;
    assert_eq!(p.done(&token(&second), resolve(b"x")).await.attempt, 2);
}

async fn a_second_call_of_one_check_is_not_told_new_once_the_first_has_resolved(p: Place) {
    // The caller gave up on its first call, and its second one went on with that PENDING; now the first comes to its end.
    let asked = || with_request_id(claim(1, 60), "delivery-1");
    let mut house = ledger_testkit::house::House::new(
        std::sync::Arc::clone(&p.hot) as _,
        Some(std::sync::Arc::clone(&p.cold)),
        std::sync::Arc::clone(&p.clock) as _,
    );
    house.ledger.entropy = std::sync::Arc::new(ledger_stores::clock::OsEntropy);
    p.hot.before(Op::Settle, async move {
        let answer = house.ledger.check(&[asked()]).await;
        let Ok(Verdict::New(new)) = &answer[0] else { panic!("expected NEW, got {answer:?}") };
        let act = ledger_domain::claims::ClaimAct { subject: plain(1).subject, token: token(new), act: resolve(b"x") };
        house.ledger.act(&act).await.expect("resolved");
    });
    let late = p.told_seen(asked()).await;
    assert_eq!((late.disposition, late.response), (Disposition::Discard, Some(response(b"x"))));
}

async fn a_row_of_an_earlier_window_refuses_no_holder_where_the_hot_tier_may_have_lost_the_claim(mut p: Place) {
    let asked = || ledger_domain::check::Check { ttl_seconds: Some(60), ..claim(1, 60) };
    p.told_new(asked()).await;
    p.drain().await;
    p.clock.advance(2 * MINUTE_MS);
    let new = p.told_new(asked()).await;
    forget(&mut p);
    p.house.trust.set(false);
    assert_eq!(p.act(&token(&new), resolve(b"x")).await, Err(ActProblem::Undecided(Undecided::Absence)));
    p.drain().await;
    assert_eq!(p.done(&token(&new), resolve(b"x")).await.state, State::Resolved);
}

async fn an_act_in_the_cold_ledger_stands_though_another_registration_has_come_to_the_hot_tier(mut p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    forget(&mut p);
    let other = ledger_testkit::house::House::new(
        std::sync::Arc::clone(&p.hot) as _,
        Some(std::sync::Arc::clone(&p.cold)),
        std::sync::Arc::clone(&p.clock) as _,
    );
    p.hot.before(Op::Fill, async move {
        let answer = other.ledger.check(&[plain(1)]).await;
        assert!(matches!(&answer[0], Ok(Verdict::New(_))), "a false NEW: the hot tier has forgotten, {answer:?}");
    });
    let done = p.done(&token(&new), resolve(b"x")).await;
    assert_eq!((done.state, done.decided_by), (State::Resolved, DecidedBy::Cold));
    let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
    assert_eq!((row.state, row.response), (State::Resolved, Some(response(b"x"))));
}
