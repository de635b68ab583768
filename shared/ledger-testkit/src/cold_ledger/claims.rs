//! Claims in the registering statement: who takes one over, and who is given it again.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::collections::BTreeSet;

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ActedCold, Registered};
use ledger_domain::{Ended, FailReason, PayloadHash, Record, State, Trail};

use super::{
    Place, REPLAY_SECONDS, assert_stands, attempt, claimed, drift, fact, history, now, ours, registration, response,
    service, subject, theirs,
};

/// A claim that failed, one whose lease ends this very millisecond, and one that has none: the next check gets the next
/// attempt on the same registration, as a claim or plain, and is counted with its drift. The trail tells of both attempts.
pub async fn a_failed_or_lapsed_claim_is_taken_over_as_the_next_attempt(place: Place) {
    let at = now().plus_seconds(10);
    let lapsed = claimed(1, now(), 60, 10);
    let reason = Some(FailReason::parse("disk full").expect("a reason"));
    let ended = Some(Ended { at: now().plus_seconds(4), reason });
    let failed = Record { state: State::Failed, lease_ends_at: Some(now().plus_seconds(50)), ended, ..lapsed.clone() };
    let other_payload = PayloadHash::from_bytes([8; 32]);
    for (name, stood) in [("lapsed", lapsed), ("failed", failed)] {
        for (mode, taker) in [
            ("claimed", Record { payload_hash: other_payload, ..claimed(2, at, 60, 20) }),
            ("plain", Record { payload_hash: other_payload, source_service: None, ..registration(2, at, 60) }),
        ] {
            let key = subject("t1:as4", &format!("{name} {mode}"));
            place.a.persist(&[fact(&key, &stood)], now()).await.expect("persisted");
            let taken = ours(place.b.register(&key, &taker, REPLAY_SECONDS).await.expect("taken over"));
            let expected = Record {
                state: taker.state,
                attempt: 2,
                nonce: taker.nonce,
                won_at: at,
                lease_ends_at: taker.lease_ends_at,
                attempt_source: taker.source_service.clone(),
                ended: None,
                retry_count: 1,
                last_seen_at: at,
                drift: Some(drift(1, [8; 32], at)),
                ..stood.clone()
            };
            assert_eq!(taken, expected, "{name} {mode}");
            assert_stands(&*place.a, &key, &expected, &[attempt(&stood), attempt(&expected)]).await;
        }
    }
    // No caller makes a claim without a lease; a fact may tell of one, and then nobody holds it.
    let key = subject("t1:as4", "without a lease");
    let held_by_nobody = Record { state: State::InProgress, ..registration(1, now(), 60) };
    place.a.persist(&[fact(&key, &held_by_nobody)], now()).await.expect("persisted");
    let taken = ours(place.b.register(&key, &claimed(2, at, 60, 20), REPLAY_SECONDS).await.expect("taken over"));
    assert_eq!((taken.attempt, taken.lease_ends_at), (2, Some(at.plus_seconds(20))));
}

/// A plain caller and a claim took over the same failed attempt, each in a tier of its own, and the claim has failed and been
/// taken over since. The plain caller processes the message whatever becomes of the others: in any order of facts it stands, and
/// nobody takes over after it.
pub async fn a_plain_take_over_stands_before_claims_of_any_attempt(place: Place) {
    let failed = Record { state: State::Failed, ..claimed(1, now(), 60, 10) };
    let at = |seconds| now().plus_seconds(seconds);
    let over = |attempt, taker: Record| Record {
        registration_id: failed.registration_id,
        first_seen_at: failed.first_seen_at,
        window_ends_at: failed.window_ends_at,
        attempt,
        ..taker
    };
    let plain = over(2, registration(2, at(5), 60));
    let claims = [over(2, claimed(3, at(6), 60, 1)), over(3, claimed(4, at(8), 60, 1))];
    for (name, plain_at) in [("first", 0), ("in the middle", 2), ("last", 3)] {
        let key = subject("t1:as4", name);
        let mut facts = vec![failed.clone(), claims[0].clone(), claims[1].clone()];
        facts.insert(plain_at, plain.clone());
        for record in &facts {
            place.a.persist(&[fact(&key, record)], at(9)).await.expect("persisted");
        }
        let stands = place.a.standing(&key).await.expect("answers").expect("a row");
        assert_eq!((stands.state, stands.identity()), (State::Registered, plain.identity()), "{name}");
        let later = theirs(place.b.register(&key, &claimed(5, at(30), 60, 10), REPLAY_SECONDS).await.expect("answers"));
        assert_eq!((later.state, later.identity()), (State::Registered, plain.identity()), "{name}");
        let rows = history(&*place.a, &key).await;
        let [row] = rows.as_slice() else { panic!("expected one row, got {rows:?}") };
        assert_eq!(
            (row.record.state, row.record.identity(), row.trail.attempts().len()),
            (State::Registered, plain.identity(), 4),
            "{name}"
        );
    }
}

/// A millisecond before its end a lease still runs: a repeat, counted.
pub async fn a_claim_whose_lease_runs_is_not_taken_over(place: Place) {
    let key = subject("t1:as4", "k");
    let first = claimed(1, now(), 60, 10);
    assert_eq!(ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new")), first);
    assert_stands(&*place.b, &key, &first, &[attempt(&first)]).await;
    let at = now().plus_millis(9_999);
    let counted = theirs(place.b.register(&key, &claimed(2, at, 60, 10), REPLAY_SECONDS).await.expect("a repeat"));
    let expected = Record { retry_count: 1, last_seen_at: at, ..first.clone() };
    assert_eq!(counted, expected);
    assert_stands(&*place.a, &key, &expected, &[attempt(&first)]).await;
}

/// The window is anchored at the first sighting: no take-over moves its end.
pub async fn a_take_overs_lease_ends_with_the_window_at_the_latest(place: Place) {
    let first = claimed(1, now(), 60, 10);
    for (name, lease_seconds, ends_at) in [("within", 49, now().plus_seconds(59)), ("past", 51, first.window_ends_at)] {
        let key = subject("t1:as4", name);
        ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
        let taker = claimed(2, now().plus_seconds(10), 3_600, lease_seconds);
        let taken = ours(place.b.register(&key, &taker, REPLAY_SECONDS).await.expect("taken over"));
        assert_eq!((taken.lease_ends_at, taken.window_ends_at), (Some(ends_at), first.window_ends_at), "{name}");
    }
}

/// Attempts are 16 bits wide and saturate.
pub async fn attempts_stop_at_the_greatest_number(place: Place) {
    let key = subject("t1:as4", "k");
    let last = Record { attempt: u16::MAX, state: State::Failed, ..claimed(1, now(), 60, 10) };
    place.a.persist(&[fact(&key, &last)], now()).await.expect("persisted");
    let taker = claimed(2, now().plus_seconds(1), 60, 10);
    let taken = ours(place.b.register(&key, &taker, REPLAY_SECONDS).await.expect("taken over"));
    assert_eq!((taken.attempt, taken.nonce, taken.state), (u16::MAX, taker.nonce, State::InProgress));
    let rows = history(&*place.a, &key).await;
    assert_eq!(rows[0].trail, Trail::of([attempt(&last), attempt(&taken)]));
}

/// Of 30 that come for one lapsed claim at once one gets attempt 2; the others count 2 to 30, each once.
pub async fn of_many_takers_of_a_lapsed_claim_exactly_one_wins(place: Place) {
    let key = subject("t1:as4", "k");
    let first = claimed(1, now(), 60, 10);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let at = now().plus_seconds(10);
    let mut takers = tokio::task::JoinSet::new();
    for n in 2..=31_u64 {
        let ledger = if n % 2 == 0 { place.a.clone() } else { place.b.clone() };
        let key = key.clone();
        takers.spawn(async move {
            (n, ledger.register(&key, &claimed(n, at, 60, 10), REPLAY_SECONDS).await.expect("an answer"))
        });
    }
    let (mut winners, mut counts) = (Vec::new(), BTreeSet::new());
    for (n, registered) in takers.join_all().await {
        match registered {
            Registered::Ours(record) => winners.push((n, *record)),
            Registered::Theirs(record) => assert!(counts.insert(record.retry_count), "{record:?}"),
        }
    }
    let [(winner, won)] = winners.as_slice() else { panic!("expected one winner, got {winners:?}") };
    assert_eq!((won.attempt, won.nonce, won.retry_count), (2, claimed(*winner, at, 60, 10).nonce, 1));
    assert_eq!(counts, (2..=30).collect());
    let expected = Record { retry_count: 30, ..won.clone() };
    assert_stands(&*place.b, &key, &expected, &[attempt(&first), attempt(won)]).await;
}

/// While its lease runs, and no longer than the replay time, a claim is given to its own check again, uncounted.
pub async fn a_live_claim_is_given_to_its_own_check_again(place: Place) {
    let key = subject("t1:as4", "k");
    let first = claimed(1, now(), 3_600, 1_200);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let again = |after_ms| Record { nonce: first.nonce, ..claimed(2, now().plus_millis(after_ms), 3_600, 1_200) };
    assert_eq!(ours(place.b.register(&key, &again(899_999), REPLAY_SECONDS).await.expect("again")), first);
    assert_eq!(ours(place.b.register(&key, &first, 0).await.expect("the very same")), first);
    let sighted = place.a.sight(&key, &again(899_999), REPLAY_SECONDS).await.expect("an answer");
    assert_eq!(sighted, Some(Registered::Ours(Box::new(first.clone()))));
    assert_stands(&*place.a, &key, &first, &[attempt(&first)]).await;
    // Past the replay time a constant nonce is a repeat like any other.
    let counted = theirs(place.b.register(&key, &again(900_000), REPLAY_SECONDS).await.expect("a repeat"));
    assert_eq!((counted.attempt, counted.retry_count), (1, 1));
}

/// A check whose own claim failed or lapsed has a new attempt of it, as anybody would; one whose claim is resolved is a
/// repeat, and gets the answer.
pub async fn its_own_claim_that_is_over_is_taken_over_and_a_resolved_one_is_a_repeat(place: Place) {
    let first = claimed(1, now(), 60, 10);
    let failed = Record { state: State::Failed, ended: Some(Ended { at: now(), reason: None }), ..first.clone() };
    let at = now().plus_seconds(10);
    let again = Record { nonce: first.nonce, ..claimed(2, at, 60, 10) };
    for (name, stood) in [("lapsed", &first), ("failed", &failed)] {
        let key = subject("t1:as4", name);
        place.a.persist(&[fact(&key, stood)], now()).await.expect("persisted");
        let taken = ours(place.b.register(&key, &again, REPLAY_SECONDS).await.expect("taken over"));
        assert_eq!(
            (taken.registration_id, taken.attempt, taken.nonce),
            (first.registration_id, 2, first.nonce),
            "{name}"
        );
        assert_stands(&*place.a, &key, &taken, &[attempt(stood), attempt(&taken)]).await;
    }
    let key = subject("t1:as4", "resolved");
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let act = Act::Resolve(Some(response(b"done")));
    let done = place.a.act(&key, &ClaimId::of(&first), &act, now()).await.expect("an answer");
    let ActedCold::Done(resolved) = done else { panic!("expected it done, got {done:?}") };
    let counted = theirs(place.b.register(&key, &again, REPLAY_SECONDS).await.expect("a repeat"));
    assert_eq!(counted, Record { retry_count: 1, last_seen_at: at, ..*resolved });
    assert_eq!(counted.response, Some(response(b"done")));
}

/// Repeating a take-over after an unknown outcome is safe, also where the policy allows no replay; nothing is counted twice.
pub async fn the_very_take_over_again_is_ours_whatever_the_replay_time(place: Place) {
    let first = Record { state: State::Failed, ..claimed(1, now(), 60, 10) };
    let at = now().plus_seconds(1);
    for (name, taker) in [("claimed", claimed(2, at, 60, 10)), ("plain", registration(2, at, 60))] {
        let key = subject("t1:as4", name);
        place.a.persist(&[fact(&key, &first)], now()).await.expect("persisted");
        let taken = ours(place.a.register(&key, &taker, 0).await.expect("taken over"));
        assert_eq!((taken.attempt, taken.retry_count), (2, 1), "{name}");
        assert_eq!(ours(place.b.register(&key, &taker, 0).await.expect("the very same")), taken, "{name}");
        // Another check of the same nonce at another time is none of it.
        let other = Record { won_at: at.plus_millis(1), first_seen_at: at.plus_millis(1), ..taker };
        assert_eq!(theirs(place.b.register(&key, &other, 0).await.expect("a repeat")).retry_count, 2, "{name}");
    }
}

/// What only counts gives nobody a claim.
pub async fn a_sighting_alone_takes_nothing_over(place: Place) {
    let at = now().plus_seconds(10);
    let lapsed = claimed(1, now(), 60, 10);
    let failed = Record { state: State::Failed, ..lapsed.clone() };
    for (name, stood) in [("lapsed", lapsed), ("failed", failed)] {
        let key = subject("t1:as4", name);
        place.a.persist(&[fact(&key, &stood)], now()).await.expect("persisted");
        let sighted = place.b.sight(&key, &claimed(2, at, 60, 10), REPLAY_SECONDS).await.expect("an answer");
        let counted = Record { retry_count: 1, last_seen_at: at, ..stood.clone() };
        assert_eq!(sighted, Some(Registered::Theirs(Box::new(counted.clone()))), "{name}");
        assert_stands(&*place.a, &key, &counted, &[attempt(&stood)]).await;
    }
}

/// The live row of a key, also after its window; none where there is none.
pub async fn what_stands_is_read_whatever_its_window(place: Place) {
    let key = subject("t1:as4", "k");
    assert_eq!(place.a.standing(&key).await.expect("an answer"), None);
    let old = Record {
        attempt_source: Some(service("edifact")),
        response: Some(response(b"old")),
        ..claimed(1, now().plus_millis(-86_400_000), 60, 10)
    };
    place.a.persist(&[fact(&key, &old)], now()).await.expect("persisted");
    assert_eq!(place.b.standing(&key).await.expect("an answer"), Some(old));
    assert_eq!(place.b.standing(&subject("t1:as4", "K")).await.expect("an answer"), None);
}
