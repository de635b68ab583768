//! What a claim's holder does.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ActedCold, ColdLedger, Registered, StoreError};
use ledger_domain::transition::{Acted, act};
use ledger_domain::{Ended, FailReason, Nonce, Record, RegistrationId, State, StoredResponse, Subject, Timestamp};

use super::{
    Place, REPLAY_SECONDS, assert_stands, attempt, claimed, fact, history, live, now, ours, registration, response,
    subject, theirs,
};

fn reason(text: &str) -> Option<FailReason> {
    Some(FailReason::parse(text).expect("a reason"))
}

async fn done(ledger: &dyn ColdLedger, key: &Subject, of: &Record, act: &Act, at: Timestamp) -> Record {
    match ledger.act(key, &ClaimId::of(of), act, at).await.expect("an answer") {
        ActedCold::Done(record) => *record,
        ActedCold::Unchanged(found) => panic!("expected it done, found {found:?}"),
    }
}

async fn unchanged(ledger: &dyn ColdLedger, key: &Subject, of: &ClaimId, act: &Act, at: Timestamp) -> Option<Record> {
    match ledger.act(key, of, act, at).await.expect("an answer") {
        ActedCold::Done(record) => panic!("expected nothing done, got {record:?}"),
        ActedCold::Unchanged(found) => found.map(|found| *found),
    }
}

async fn claim(ledger: &dyn ColdLedger, key: &Subject, wanted: &Record) -> Record {
    ours(ledger.register(key, wanted, REPLAY_SECONDS).await.expect("an answer"))
}

/// Renewed from now, then resolved without and with an answer.
pub async fn a_claim_is_renewed_and_resolved(place: Place) {
    for (name, answer) in [("without an answer", None), ("with one", Some(response(b"<ok/>")))] {
        let key = subject("t1:as4", name);
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        let at = now().plus_seconds(5);
        let renewed = done(&*place.b, &key, &first, &Act::Renew { lease_seconds: 20 }, at).await;
        assert_eq!(renewed, Record { lease_ends_at: Some(now().plus_seconds(25)), ..first.clone() });
        assert_stands(&*place.a, &key, &renewed, &[attempt(&renewed)]).await;
        let at = now().plus_seconds(6);
        let resolved = done(&*place.a, &key, &first, &Act::Resolve(answer.clone()), at).await;
        let ended = Some(Ended { at, reason: None });
        assert_eq!(resolved, Record { state: State::Resolved, response: answer, ended, ..renewed });
        assert_stands(&*place.b, &key, &resolved, &[attempt(&resolved)]).await;
    }
}

/// Two attempts fail, one with a reason and one without; a third is resolved. The trail tells how each one ended.
pub async fn a_claim_fails_with_its_reason_and_leaves_it_in_the_trail(place: Place) {
    let key = subject("t1:as4", "k");
    let mut trail = Vec::new();
    for (n, seconds, why) in [(1, 0, reason("no route to \"host\"")), (2, 10, None)] {
        let taken = claim(&*place.a, &key, &claimed(n, now().plus_seconds(seconds), 60, 20)).await;
        let at = now().plus_seconds(seconds + 1);
        let failed = done(&*place.b, &key, &taken, &Act::Fail(why.clone()), at).await;
        assert_eq!(failed, Record { state: State::Failed, ended: Some(Ended { at, reason: why }), ..taken });
        trail.push(attempt(&failed));
        assert_stands(&*place.a, &key, &failed, &trail).await;
    }
    let third = claim(&*place.a, &key, &claimed(3, now().plus_seconds(20), 60, 20)).await;
    assert_eq!((third.attempt, third.ended.clone(), third.retry_count), (3, None, 2));
    let resolved = done(&*place.a, &key, &third, &Act::Resolve(None), now().plus_seconds(21)).await;
    trail.push(attempt(&resolved));
    assert_stands(&*place.b, &key, &resolved, &trail).await;
    let services: Vec<_> = trail.iter().map(|one| one.source_service.as_ref().map(ToString::to_string)).collect();
    assert_eq!(services, ["service-1", "service-2", "service-3"].map(|name| Some(name.to_owned())));
}

/// A renewal that a longer one has overtaken changes nothing.
pub async fn a_renewal_never_shortens_a_lease_and_ends_with_the_window_at_the_latest(place: Place) {
    let key = subject("t1:as4", "k");
    let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
    for (after, lease_seconds, ends_at) in [
        (1, 1, now().plus_seconds(10)),
        (2, 30, now().plus_seconds(32)),
        (3, 5, now().plus_seconds(32)),
        (40, 30, first.window_ends_at),
    ] {
        let at = now().plus_seconds(after);
        let renewed = done(&*place.b, &key, &first, &Act::Renew { lease_seconds }, at).await;
        assert_eq!(renewed, Record { lease_ends_at: Some(ends_at), ..first.clone() }, "after {after} s");
        assert_stands(&*place.a, &key, &renewed, &[attempt(&renewed)]).await;
    }
}

/// Its lease is over, but nobody has taken it over: each act is still its holder's. Then none is.
pub async fn a_lapsed_claim_is_its_holders_until_somebody_takes_it_over(place: Place) {
    let at = now().plus_seconds(30);
    for act in [Act::Resolve(Some(response(b"late"))), Act::Fail(reason("late")), Act::Renew { lease_seconds: 5 }] {
        let key = subject("t1:as4", act.as_str());
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        done(&*place.a, &key, &first, &act, at).await;

        let key = subject("t1:as4", &format!("{} after a take-over", act.as_str()));
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        let taken = claim(&*place.b, &key, &claimed(2, at, 60, 10)).await;
        assert_eq!(unchanged(&*place.a, &key, &ClaimId::of(&first), &act, at).await, Some(taken.clone()));
        assert_stands(&*place.b, &key, &taken, &[attempt(&first), attempt(&taken)]).await;
    }
}

/// Whose reply was lost asks again, and finds what it asked for; other content is refused, and the first one stands.
pub async fn an_act_again_finds_its_record_standing_and_the_first_one_stands(place: Place) {
    let (first_body, other_body) = (Act::Resolve(Some(response(b"one"))), Act::Resolve(Some(response(b"two"))));
    let (first_reason, other_reason) = (Act::Fail(reason("one")), Act::Fail(None));
    for (first_act, other) in [(first_body, other_body), (first_reason, other_reason)] {
        let key = subject("t1:as4", first_act.as_str());
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        let stands = done(&*place.a, &key, &first, &first_act, now()).await;
        let (id, at) = (ClaimId::of(&first), now().plus_seconds(1));
        for (again, expected) in [(&first_act, true), (&other, false), (&Act::Renew { lease_seconds: 9 }, false)] {
            assert_eq!(unchanged(&*place.b, &key, &id, again, at).await.as_ref(), Some(&stands), "{again:?}");
            assert_eq!(act(&stands, &id, again, at) == Acted::Stands, expected, "{again:?}");
        }
        assert_stands(&*place.b, &key, &stands, &[attempt(&stands)]).await;
    }
}

/// Another registration, attempt or nonce; a plain record; a window that is over to the millisecond; a key nobody knows.
pub async fn stale_and_foreign_claims_change_nothing(place: Place) {
    let acts = [Act::Resolve(Some(response(b"x"))), Act::Fail(reason("x")), Act::Renew { lease_seconds: 600 }];
    let key = subject("t1:as4", "claimed");
    let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
    let id = ClaimId::of(&first);
    let plain_key = subject("t1:as4", "plain");
    let plain = claim(&*place.a, &plain_key, &registration(1, now(), 60)).await;
    for act in &acts {
        for foreign in [
            ClaimId { registration_id: RegistrationId::from_bytes([9; 8]), ..id },
            ClaimId { attempt: 2, ..id },
            ClaimId { attempt: 0, ..id },
            ClaimId { nonce: Nonce::from_bytes([9; 8]), ..id },
        ] {
            assert_eq!(unchanged(&*place.b, &key, &foreign, act, now()).await, Some(first.clone()), "{foreign:?}");
        }
        let over = first.window_ends_at;
        assert_eq!(unchanged(&*place.b, &key, &id, act, over).await, Some(first.clone()));
        assert_eq!(unchanged(&*place.b, &plain_key, &ClaimId::of(&plain), act, now()).await, Some(plain.clone()));
        let unknown = subject("t1:as4", "unknown");
        assert_eq!(unchanged(&*place.b, &unknown, &id, act, now()).await, None);
        assert!(history(&*place.b, &unknown).await.is_empty());
    }
    assert_stands(&*place.a, &key, &first, &[attempt(&first)]).await;
    assert_stands(&*place.a, &plain_key, &plain, &[]).await;
    // A millisecond earlier the window is not over.
    done(&*place.a, &key, &first, &acts[0], first.window_ends_at.plus_millis(-1)).await;
}

/// 64 KiB of every byte, and none at all: given to every repeat until the window ends, whatever facts and counts come.
pub async fn a_stored_response_is_kept_byte_for_byte_and_no_repeat_erases_it(place: Place) {
    let large: Vec<u8> = (0..=u8::MAX).cycle().take(StoredResponse::MAX_BYTES).collect();
    for (name, body) in [("empty", Vec::new()), ("large", large)] {
        let key = subject("t1:as4", name);
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        let answer = Some(response(&body));
        let resolved = done(&*place.a, &key, &first, &Act::Resolve(answer.clone()), now()).await;
        assert_eq!(resolved.response, answer, "{name}");
        let last = first.window_ends_at.plus_millis(-1);
        let repeat = claimed(2, last, 60, 10);
        let counted = theirs(place.b.register(&key, &repeat, REPLAY_SECONDS).await.expect("a repeat"));
        assert_eq!((counted.retry_count, &counted.response), (1, &answer), "{name}");
        let without = Record { response: None, retry_count: 2, ..counted };
        place.b.persist(&[fact(&key, &without), fact(&key, &first)], now()).await.expect("persisted");
        let sighted = place.a.sight(&key, &repeat, REPLAY_SECONDS).await.expect("an answer");
        let Some(Registered::Theirs(counted)) = sighted else { panic!("expected a repeat, got {sighted:?}") };
        assert_eq!((counted.retry_count, &counted.response), (3, &answer), "{name}");
        assert_eq!(live(&*place.b, &key, last).await.as_ref(), Some(&*counted), "{name}");
        assert_stands(&*place.b, &key, &counted, &[attempt(&resolved)]).await;
        // A new window asks anew, and has no answer yet.
        let new = claimed(3, first.window_ends_at, 60, 10);
        assert_eq!(claim(&*place.a, &key, &new).await, new, "{name}");
        assert_eq!(place.b.standing(&key).await.expect("an answer"), Some(new), "{name}");
    }
}

/// 65,537 bytes are refused as content, and the claim stands.
pub async fn a_response_too_large_is_refused_and_changes_nothing(place: Place) {
    let key = subject("t1:as4", "k");
    let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
    let act = Act::Resolve(Some(response(&vec![7; StoredResponse::MAX_BYTES + 1])));
    let refused = place.a.act(&key, &ClaimId::of(&first), &act, now()).await;
    assert!(matches!(refused, Err(StoreError::Rejected { .. })), "{refused:?}");
    assert_stands(&*place.b, &key, &first, &[attempt(&first)]).await;
}

/// A holder that comes back late and a check that takes its lapsed claim over, at once: the holder resolves and the check is a
/// repeat, or the check has attempt 2 and the holder nothing.
pub async fn of_a_holder_and_a_taker_exactly_one_wins(place: Place) {
    let at = now().plus_seconds(10);
    for n in 0..20 {
        let key = subject("t1:as4", &format!("{n}"));
        let first = claim(&*place.a, &key, &claimed(1, now(), 60, 10)).await;
        let (holder, taker) = (place.a.clone(), place.b.clone());
        let (holders_key, takers_key, id) = (key.clone(), key.clone(), ClaimId::of(&first));
        let resolving = tokio::spawn(async move { holder.act(&holders_key, &id, &Act::Resolve(None), at).await });
        let taking =
            tokio::spawn(async move { taker.register(&takers_key, &claimed(2, at, 60, 10), REPLAY_SECONDS).await });
        let acted = resolving.await.expect("no panic").expect("an answer");
        let registered = taking.await.expect("no panic").expect("an answer");
        let stands = place.a.standing(&key).await.expect("an answer").expect("a row");
        match (acted, registered) {
            (ActedCold::Done(resolved), Registered::Theirs(counted)) => {
                assert_eq!(*counted, Record { retry_count: 1, last_seen_at: at, ..*resolved });
                assert_stands(&*place.b, &key, &counted, &[attempt(&counted)]).await;
            }
            (ActedCold::Unchanged(found), Registered::Ours(taken)) => {
                assert_eq!((found.map(|found| *found), taken.attempt), (Some(stands), 2));
                assert_stands(&*place.b, &key, &taken, &[attempt(&first), attempt(&taken)]).await;
            }
            both => panic!("expected one winner, got {both:?}"),
        }
    }
}
