//! The registering statement.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::collections::BTreeSet;

use ledger_domain::ports::Registered;
use ledger_domain::{MessageKey, PayloadHash, Record, State, Subject};

use super::{Place, REPLAY_SECONDS, drift, fact, history, live, now, ours, registration, subject, theirs};

/// Of 50 concurrent checks of one key under 50 nonces exactly one registers; the others count 1 to 49, each once.
pub async fn of_fifty_concurrent_checks_exactly_one_registers_and_each_other_counts_once(place: Place) {
    let key = subject("t1:as4", "k");
    let mut checks = tokio::task::JoinSet::new();
    for n in 1..=50_u64 {
        let ledger = if n % 2 == 0 { place.a.clone() } else { place.b.clone() };
        let key = key.clone();
        checks.spawn(async move {
            let wanted = registration(n, now(), 60);
            (n, ledger.register(&key, &wanted, REPLAY_SECONDS).await.expect("an answer"))
        });
    }
    let (mut winners, mut counts) = (Vec::new(), BTreeSet::new());
    for (n, registered) in checks.join_all().await {
        match registered {
            Registered::Ours(record) => winners.push((n, *record)),
            Registered::Theirs(record) => assert!(counts.insert(record.retry_count), "{record:?}"),
        }
    }
    let [(winner, won)] = winners.as_slice() else { panic!("expected one winner, got {winners:?}") };
    assert_eq!(*won, registration(*winner, now(), 60));
    assert_eq!(counts, (1..=49).collect());
    let expected = Record { retry_count: 49, ..won.clone() };
    assert_eq!(live(&*place.a, &key, now()).await, Some(expected.clone()));
    let rows = history(&*place.b, &key).await;
    assert_eq!(rows.into_iter().map(|row| row.record).collect::<Vec<_>>(), [expected]);
}

/// A check that comes again under its nonce gets the registration it won, from whatever handle; no count moves.
pub async fn the_same_nonce_gets_its_registration_again_and_is_not_counted(place: Place) {
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 3_600);
    assert_eq!(ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new")), first);
    let again = Record { nonce: first.nonce, ..registration(2, now().plus_millis(899_999), 3_600) };
    assert_eq!(ours(place.b.register(&key, &again, REPLAY_SECONDS).await.expect("again")), first);
    assert_eq!(live(&*place.b, &key, now()).await, Some(first.clone()));
    assert_eq!(history(&*place.a, &key).await.len(), 1);
}

/// 15 minutes after it won, a check's nonce is a repeat like any other: constant nonces do not switch deduplication off.
pub async fn after_the_replay_time_the_same_nonce_is_a_repeat(place: Place) {
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 3_600);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let late = Record { nonce: first.nonce, ..registration(2, now().plus_millis(900_000), 3_600) };
    let counted = theirs(place.b.register(&key, &late, REPLAY_SECONDS).await.expect("late"));
    assert_eq!(counted, Record { retry_count: 1, last_seen_at: late.first_seen_at, ..first });
}

/// Repeating with the same record after an unknown outcome is safe, also where the policy allows no replay.
pub async fn the_very_record_again_is_ours_whatever_the_replay_time(place: Place) {
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 60);
    for ledger in [&place.a, &place.b, &place.a] {
        assert_eq!(ours(ledger.register(&key, &first, 0).await.expect("an answer")), first);
    }
}

/// Once another check has taken a claim over, the first winner's retry is no longer given it.
pub async fn a_taken_over_registration_is_not_given_to_its_first_winner(place: Place) {
    let key = subject("t1:as4", "k");
    let first =
        Record { state: State::InProgress, lease_ends_at: Some(now().plus_seconds(10)), ..registration(1, now(), 60) };
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let taken = Record {
        attempt: 2,
        nonce: registration(2, now(), 60).nonce,
        won_at: now().plus_seconds(11),
        lease_ends_at: Some(now().plus_seconds(21)),
        ..first.clone()
    };
    place.a.persist(&[fact(&key, &taken)], now()).await.expect("persisted");
    let counted = theirs(place.b.register(&key, &first, REPLAY_SECONDS).await.expect("an answer"));
    assert_eq!(counted, Record { retry_count: 1, ..taken });
}

/// At the end of its window, to the millisecond, a registration is replaced; history keeps it.
pub async fn a_window_that_is_over_is_replaced_and_history_keeps_both(place: Place) {
    let key = subject("t1:as4", "k");
    let old = registration(1, now(), 60);
    ours(place.a.register(&key, &old, REPLAY_SECONDS).await.expect("new"));
    // Under the same nonce, even: a new window asks anew.
    let new = Record { nonce: old.nonce, ..registration(2, old.window_ends_at, 60) };
    assert_eq!(ours(place.b.register(&key, &new, REPLAY_SECONDS).await.expect("new again")), new);
    assert_eq!(live(&*place.a, &key, new.first_seen_at).await, Some(new.clone()));
    let rows = history(&*place.a, &key).await;
    assert!(rows.iter().all(|row| row.false_new_of.is_none()));
    assert_eq!(rows.into_iter().map(|row| row.record).collect::<Vec<_>>(), [new, old]);
}

/// A millisecond before its end a window still recognises its repeats.
pub async fn a_window_that_is_not_over_is_not_replaced(place: Place) {
    let key = subject("t1:as4", "k");
    let old = registration(1, now(), 60);
    ours(place.a.register(&key, &old, REPLAY_SECONDS).await.expect("new"));
    let repeat = registration(2, old.window_ends_at.plus_millis(-1), 60);
    let counted = theirs(place.b.register(&key, &repeat, REPLAY_SECONDS).await.expect("a repeat"));
    assert_eq!((counted.registration_id, counted.window_ends_at), (old.registration_id, old.window_ends_at));
}

/// Each repeat adds one; the last sighting only moves on; the last drift is the latest one.
pub async fn a_repeat_is_counted_with_its_drift_in_both_tables(place: Place) {
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 60);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    let repeat = |n: u64, after_ms: i64, hash: u8| Record {
        payload_hash: PayloadHash::from_bytes([hash; 32]),
        ..registration(n, now().plus_millis(after_ms), 60)
    };
    let mut last = None;
    for (n, after_ms, hash) in [(2, 500, 7), (3, 400, 8), (4, 300, 9), (5, 100, 7)] {
        last =
            Some(theirs(place.b.register(&key, &repeat(n, after_ms, hash), REPLAY_SECONDS).await.expect("a repeat")));
    }
    let expected = Record {
        retry_count: 4,
        last_seen_at: now().plus_millis(500),
        drift: Some(drift(2, [8; 32], now().plus_millis(400))),
        ..first
    };
    assert_eq!(last, Some(expected.clone()));
    assert_eq!(live(&*place.a, &key, now()).await, Some(expected.clone()));
    assert_eq!(history(&*place.a, &key).await[0].record, expected);
}

/// Counts are 32 bits wide and saturate.
pub async fn counts_stop_at_the_greatest_number(place: Place) {
    let key = subject("t1:as4", "k");
    let full =
        Record { retry_count: u32::MAX, drift: Some(drift(u32::MAX, [9; 32], now())), ..registration(1, now(), 60) };
    place.a.persist(&[fact(&key, &full)], now()).await.expect("persisted");
    let at = now().plus_millis(1);
    let repeat = Record { payload_hash: PayloadHash::from_bytes([8; 32]), ..registration(2, at, 60) };
    let counted = theirs(place.b.register(&key, &repeat, REPLAY_SECONDS).await.expect("a repeat"));
    assert_eq!(counted, Record { last_seen_at: at, drift: Some(drift(u32::MAX, [8; 32], at)), ..full });
    assert_eq!(history(&*place.a, &key).await[0].record, counted);
}

/// `["a","b"]` as a text and as a tuple are two keys.
pub async fn a_text_and_a_tuple_of_the_same_text_are_two_keys(place: Place) {
    let tuple = Subject { key: MessageKey::parts(&["a", "b"]).expect("parts"), ..subject("t1:x12", "k") };
    let text = subject("t1:x12", tuple.key.as_str());
    ours(place.a.register(&tuple, &registration(1, now(), 60), REPLAY_SECONDS).await.expect("new"));
    ours(place.b.register(&text, &registration(2, now(), 60), REPLAY_SECONDS).await.expect("new as well"));
    let facts = [fact(&tuple, &registration(1, now(), 60)), fact(&text, &registration(2, now(), 60))];
    let persisted = place.a.persist(&facts, now()).await.expect("persisted");
    assert_eq!((persisted.claims.len(), persisted.false_new), (2, 0));
    for (key, n) in [(tuple, 1), (text, 2)] {
        let rows = history(&*place.a, &key).await;
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0].subject, &rows[0].record), (&key, &registration(n, now(), 60)));
    }
}

/// Keys and scopes that differ in case, in spaces or in their Unicode form only are different.
pub async fn keys_are_never_folded(place: Place) {
    let keys = [
        subject("t1:as4", "key"),
        subject("t1:as4", "KEY"),
        subject("t1:as4", "key "),
        subject("t1:as4", " key"),
        subject("t1:as4", "k\u{e9}y"),
        subject("t1:as4", "ke\u{301}y"),
        subject("t1:AS4", "key"),
        subject("t1:as", "4key"),
    ];
    for (n, key) in (1..).zip(&keys) {
        ours(place.a.register(key, &registration(n, now(), 60), REPLAY_SECONDS).await.expect("new"));
    }
    for (n, key) in (1..).zip(&keys) {
        assert_eq!(live(&*place.b, key, now()).await, Some(registration(n, now(), 60)), "{key:?}");
    }
}

/// A scope of 128 bytes with a key of 1,024.
pub async fn the_longest_scope_and_key_are_stored_and_found(place: Place) {
    let key = subject(&format!("{}:{}", "t".repeat(32), "F".repeat(95)), &"\u{e9}".repeat(512));
    let first = registration(1, now(), 60);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    theirs(place.b.register(&key, &registration(2, now(), 60), REPLAY_SECONDS).await.expect("a repeat"));
    place.b.persist(&[fact(&key, &first)], now()).await.expect("persisted");
    let rows = history(&*place.a, &key).await;
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0].subject, rows[0].record.retry_count), (&key, 1));
}
