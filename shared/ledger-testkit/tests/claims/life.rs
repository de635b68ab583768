//! The record's life in claim mode, and plain and claim checks mixed on one key: the table of DESIGN section 4.

use ledger_domain::{DecidedBy, Disposition, State};
use ledger_testkit::between::Op;
use ledger_testkit::house::{from_service, with_request_id};

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, response, token};

super::on_each_place!(
    a_claim_is_handed_out_once_and_others_are_told_to_retry,
    a_resolved_claim_replays_its_answer_byte_for_byte_until_the_window_ends,
    a_failed_claim_is_taken_over_by_the_next_check,
    a_lapsed_claim_is_taken_over_and_what_was_seen_survives,
    a_renewed_lease_holds_and_never_gets_shorter,
    a_lease_never_runs_past_the_window,
    a_plain_check_takes_over_and_leaves_a_plain_record,
    a_claim_check_of_a_plain_record_is_a_repeat,
    each_state_answers_a_plain_check_as_it_answers_a_claim,
    an_act_repeated_with_the_same_content_is_acknowledged_again,
    a_window_that_is_over_is_a_new_registration_and_the_old_token_is_stale,
    the_same_check_gets_its_token_again_while_its_claim_is_live,
    concurrent_takers_of_a_lapsed_claim_give_one_new,
);

async fn a_claim_is_handed_out_once_and_others_are_told_to_retry(p: Place) {
    let new = p.told_new(from_service(claim(1, 60), "as4-ingest")).await;
    let handed = new.claim.clone().expect("a claim");
    assert_eq!((new.state, new.attempt, new.retry_count), (State::InProgress, Some(1), 0));
    assert_eq!(handed.lease_ends_at, new.first_seen_at.plus_seconds(60));
    assert!(new.durable && new.confirmed && !new.replayed && new.decided_by == DecidedBy::Hot);

    p.clock.advance(MINUTE_MS / 2 + 1);
    for (count, check) in [(1, claim(1, 60)), (2, plain(1))] {
        let seen = p.told_seen(check).await;
        assert_eq!((seen.disposition, seen.state, seen.attempt), (Disposition::Retry, State::InProgress, Some(1)));
        assert_eq!((seen.retry_after_seconds, seen.retry_count), (Some(30), count));
        assert_eq!(seen.first_source_service.map(|source| source.to_string()).as_deref(), Some("as4-ingest"));
        assert_eq!(seen.response, None);
    }
}

async fn a_resolved_claim_replays_its_answer_byte_for_byte_until_the_window_ends(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    let body: Vec<u8> = (0..65_536_u32).map(|n| u8::try_from(n * 7 % 256).expect("a byte")).collect();
    let done = p.done(&token(&new), resolve(&body)).await;
    assert_eq!((done.state, done.attempt, done.window_ends_at), (State::Resolved, 1, new.window_ends_at));
    assert!(!p.record().await.undurable, "its fact is durable, so the mark is gone");

    for count in 1..=3 {
        p.clock.advance(MINUTE_MS);
        let seen = p.told_seen(if count == 2 { plain(1) } else { claim(1, 60) }).await;
        assert_eq!((seen.disposition, seen.state, seen.attempt), (Disposition::Discard, State::Resolved, Some(1)));
        assert_eq!((seen.retry_count, seen.retry_after_seconds), (count, None));
        assert_eq!(seen.response, Some(response(&body)));
    }
    p.drain().await;
    let row = p.cold.standing(&plain(1).subject).await.expect("answers").expect("a row");
    assert_eq!(row.response, Some(response(&body)), "and in the cold ledger");
}

async fn a_failed_claim_is_taken_over_by_the_next_check(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    let failed = p.done(&token(&first), fail("partner is down")).await;
    assert_eq!((failed.state, failed.attempt), (State::Failed, 1));

    let second = p.told_new(claim(1, 120)).await;
    assert_eq!((second.state, second.attempt, second.retry_count), (State::InProgress, Some(2), 1));
    assert_eq!((second.first_seen_at, second.window_ends_at), (first.first_seen_at, first.window_ends_at));
    assert!(!second.replayed && second.taken_over && token(&second) != token(&first));
}

async fn a_lapsed_claim_is_taken_over_and_what_was_seen_survives(p: Place) {
    let first = p.told_new(from_service(claim(1, 60), "as4-ingest")).await;
    p.told_seen(claim(2, 60)).await;
    p.clock.advance(MINUTE_MS - 1);
    assert_eq!(p.told_seen(claim(3, 60)).await.retry_after_seconds, Some(1), "a millisecond before its end");
    p.clock.advance(1);
    let second = p.told_new(from_service(claim(1, 60), "edifact")).await;
    assert_eq!((second.attempt, second.retry_count, second.first_seen_at), (Some(2), 3, first.first_seen_at));

    let record = p.record().await;
    assert_eq!(record.payload_hash.as_bytes(), &[1; 32], "the first hash");
    assert_eq!(record.drift.map(|drift| (drift.count, drift.last_hash.as_bytes()[0])), Some((2, 3)));
    assert_eq!(record.source_service.map(|source| source.to_string()).as_deref(), Some("as4-ingest"));
    assert_eq!(record.attempt_source.map(|source| source.to_string()).as_deref(), Some("edifact"));
    assert_eq!(record.last_seen_at, first.first_seen_at.plus_seconds(60));
}

async fn a_renewed_lease_holds_and_never_gets_shorter(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS / 2);
    let longer = p.done(&token(&new), renew(600)).await;
    assert_eq!(longer.lease_ends_at, Some(new.first_seen_at.plus_seconds(630)));
    assert_eq!(p.done(&token(&new), renew(1)).await.lease_ends_at, longer.lease_ends_at);
    p.clock.advance(9 * MINUTE_MS);
    assert_eq!(p.told_seen(claim(1, 60)).await.disposition, Disposition::Retry);
    p.clock.advance(MINUTE_MS);
    assert_eq!(p.told_new(claim(1, 60)).await.attempt, Some(2));
}

async fn a_lease_never_runs_past_the_window(p: Place) {
    let asked = ledger_domain::check::Check { ttl_seconds: Some(100), ..claim(1, 3_600) };
    let new = p.told_new(asked).await;
    assert_eq!(new.claim.as_ref().map(|claim| claim.lease_ends_at), Some(new.window_ends_at));
    assert_eq!(p.done(&token(&new), renew(3_600)).await.lease_ends_at, Some(new.window_ends_at));
    p.done(&token(&new), fail("x")).await;
    p.clock.advance(50_000);
    let second = p.told_new(claim(1, 3_600)).await;
    assert_eq!(second.claim.map(|claim| claim.lease_ends_at), Some(new.window_ends_at));
}

async fn a_plain_check_takes_over_and_leaves_a_plain_record(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.done(&token(&first), fail("x")).await;
    let second = p.told_new(plain(1)).await;
    assert_eq!((second.state, second.attempt, second.claim.clone()), (State::Registered, None, None));
    assert_eq!((second.retry_count, second.first_seen_at), (1, first.first_seen_at));
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.state, seen.attempt), (Disposition::Discard, State::Registered, None));
    assert_eq!(seen.retry_count, 2);
}

async fn a_claim_check_of_a_plain_record_is_a_repeat(p: Place) {
    p.told_new(plain(1)).await;
    let seen = p.told_seen(claim(1, 60)).await;
    assert_eq!((seen.disposition, seen.state, seen.attempt), (Disposition::Discard, State::Registered, None));
}

async fn each_state_answers_a_plain_check_as_it_answers_a_claim(p: Place) {
    // Under one requestId the two modes are two checks: a plain one is not a claim's retry.
    let new = p.told_new(with_request_id(claim(1, 60), "delivery-1")).await;
    let seen = p.told_seen(with_request_id(plain(1), "delivery-1")).await;
    assert_eq!((seen.disposition, seen.retry_count), (Disposition::Retry, 1));
    p.done(&token(&new), resolve(b"x")).await;
    let own = p.told_seen(with_request_id(claim(1, 60), "delivery-1")).await;
    assert!(!own.constant_request_id, "the holder's own retry, in time, of a claim that is resolved");
    let seen = p.told_seen(with_request_id(plain(1), "delivery-1")).await;
    assert_eq!((seen.disposition, seen.response), (Disposition::Discard, Some(response(b"x"))));
}

async fn an_act_repeated_with_the_same_content_is_acknowledged_again(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    let first = p.done(&token(&new), resolve(b"x")).await;
    p.clock.advance(MINUTE_MS);
    assert_eq!(p.done(&token(&new), resolve(b"x")).await, first);

    let p2 = plain(1);
    assert_eq!(p.told_seen(p2).await.disposition, Disposition::Discard);
}

async fn a_window_that_is_over_is_a_new_registration_and_the_old_token_is_stale(p: Place) {
    use ledger_domain::claims::ActProblem;
    use ledger_domain::transition::ActRefused;

    let asked = || ledger_domain::check::Check { ttl_seconds: Some(120), ..claim(1, 60) };
    let first = p.told_new(asked()).await;
    p.done(&token(&first), resolve(b"old")).await;
    p.clock.advance(2 * MINUTE_MS);
    assert_eq!(
        p.act(&token(&first), renew(60)).await,
        Err(ActProblem::Refused(ActRefused::WindowOver)),
        "the value may still be there"
    );
    let second = p.told_new(asked()).await;
    assert_eq!((second.attempt, second.retry_count), (Some(1), 0));
    assert_eq!(second.first_seen_at, first.window_ends_at);
    for act in [resolve(b"old"), fail("x"), renew(60)] {
        assert_eq!(p.act(&token(&first), act).await, Err(ActProblem::Refused(ActRefused::Stale)));
    }
    assert_eq!(p.record().await.state, State::InProgress);
    p.drain().await;
    assert_eq!(p.history().await.len(), 2, "the old row of history stays");
}

async fn the_same_check_gets_its_token_again_while_its_claim_is_live(p: Place) {
    let asked = || with_request_id(claim(1, 1_800), "delivery-1");
    let new = p.told_new(asked()).await;
    p.clock.advance(14 * MINUTE_MS);
    let again = p.told_new(asked()).await;
    assert!(again.replayed);
    assert_eq!((again.claim, again.attempt, again.retry_count), (new.claim.clone(), Some(1), 0));
    p.clock.advance(MINUTE_MS);
    let seen = p.told_seen(asked()).await;
    assert!(seen.constant_request_id && seen.disposition == Disposition::Retry, "15 minutes are over");

    p.done(&token(&new), fail("x")).await;
    let second = p.told_new(asked()).await;
    assert!(!second.replayed && second.attempt == Some(2), "a failed claim is nobody's any more");
    // The reply to the confirmation is lost, and the record found is its own: no replay.
    p.done(&token(&second), fail("y")).await;
    p.hot.lose_reply(Op::Amend);
    let third = p.told_new(asked()).await;
    assert!(!third.replayed && third.attempt == Some(3));
}

async fn concurrent_takers_of_a_lapsed_claim_give_one_new(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    let checks = (0..20).map(|n| p.ask(if n % 4 == 0 { claim(2, 60) } else { claim(1, 60) }));
    let answers = futures::future::join_all(checks).await;
    let new = answers.iter().filter(|answer| matches!(answer, Ok(ledger_domain::Verdict::New(_)))).count();
    assert_eq!(new, 1, "{answers:?}");
    let record = p.record().await;
    assert_eq!((record.attempt, record.first_seen_at), (2, first.first_seen_at));
    let counted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(record.retry_count as usize, counted, "what is answered 503 is no sighting");
}
