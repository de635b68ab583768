//! Facts.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::collections::BTreeMap;

use ledger_domain::ports::{Persisted, StoreError};
use ledger_domain::{
    Attempt, Ended, Fact, FailReason, Nonce, PayloadHash, Record, SourceService, State, StoredResponse, Timestamp,
    Trail,
};
use proptest::prelude::*;

use super::model::{batches, random_cases};
use super::{
    Place, REPLAY_SECONDS, assert_stands, attempt, drift, fact, history, live, now, ours, registration, response,
    service, subject, theirs,
};

const DAY_SECONDS: u64 = 86_400;

/// A claim's life as its facts tell it: won, seen twice, failed, taken over, resolved.
fn life() -> Vec<Record> {
    let won = Record {
        state: State::InProgress,
        lease_ends_at: Some(now().plus_seconds(10)),
        source_service: Some(SourceService::parse("as4-ingest").expect("a service")),
        ..registration(1, now(), 60)
    };
    let seen = Record { retry_count: 1, last_seen_at: now().plus_seconds(1), ..won.clone() };
    let drifted = Record {
        retry_count: 2,
        last_seen_at: now().plus_seconds(2),
        drift: Some(drift(1, [9; 32], now().plus_seconds(2))),
        source_service: None,
        ..won.clone()
    };
    let failed = Record { state: State::Failed, ..drifted.clone() };
    let taken = Record {
        state: State::InProgress,
        attempt: 2,
        nonce: Nonce::from_bytes([2; 8]),
        won_at: now().plus_seconds(3),
        lease_ends_at: Some(now().plus_seconds(30)),
        retry_count: 3,
        last_seen_at: now().plus_seconds(3),
        ..failed.clone()
    };
    let resolved = Record { state: State::Resolved, response: Some(response(b"<ok/>")), ..taken.clone() };
    vec![won, seen, drifted, failed, taken, resolved]
}

fn merged(records: &[Record]) -> Record {
    let mut merged = records[0].clone();
    records.iter().for_each(|record| merged.merge(record));
    merged
}

/// In order, reversed, each twice, one by one or all at once: one row, as the domain merges it.
pub async fn facts_merge_in_any_order_and_however_often(place: Place) {
    let life = life();
    let expected = merged(&life);
    let trail = Trail::of(life.iter().filter_map(Attempt::of));
    let reversed: Vec<_> = life.iter().rev().cloned().collect();
    let twice: Vec<_> = reversed.iter().chain(&life).cloned().collect();
    for (name, records) in [("in order", &life), ("reversed", &reversed), ("twice", &twice)] {
        for size in [1, 2, records.len()] {
            let key = subject("t1:as4", &format!("{name} by {size}"));
            for chunk in records.chunks(size) {
                let facts: Vec<_> = chunk.iter().map(|record| fact(&key, record)).collect();
                let persisted = place.a.persist(&facts, now()).await.expect("persisted");
                assert_eq!((persisted.claims.len(), persisted.false_new), (1, 0));
            }
            assert_stands(&*place.b, &key, &expected, trail.attempts()).await;
        }
    }
}

/// R32: two registrations of one key in one batch do not fail the statement. The greater one stands, by time and then id;
/// history keeps both.
pub async fn of_two_registrations_in_one_batch_the_greater_stands(place: Place) {
    let key = subject("t1:as4", "k");
    let (a, b, c) = (registration(9, now(), 60), registration(1, now().plus_millis(1), 60), registration(2, now(), 60));
    let b_seen = Record { retry_count: 4, ..b.clone() };
    let facts = [&b, &a, &b_seen, &c].map(|record| fact(&key, record));
    let persisted = place.a.persist(&facts, now()).await.expect("persisted");
    assert_eq!(persisted.claims.len(), 1);
    assert_eq!((&persisted.claims[0].subject, &persisted.claims[0].record), (&key, &b_seen));
    let rows: Vec<_> = history(&*place.b, &key).await.into_iter().map(|row| row.record).collect();
    assert_eq!(rows, [b_seen, a, c]);
}

/// A late fact of an older registration goes to history only, and its call is told what stands.
pub async fn a_late_fact_of_an_older_registration_replaces_nothing(place: Place) {
    let key = subject("t1:as4", "k");
    let old = Record { retry_count: 5, response: Some(response(b"old")), ..registration(1, now(), 10) };
    let new = registration(2, now().plus_seconds(20), 60);
    place.a.persist(&[fact(&key, &new)], now()).await.expect("persisted");
    let persisted = place.b.persist(&[fact(&key, &old)], now()).await.expect("persisted");
    assert_eq!(persisted.claims[0].record, new);
    assert_eq!(live(&*place.a, &key, now()).await, Some(new.clone()));
    let rows: Vec<_> = history(&*place.a, &key).await.into_iter().map(|row| row.record).collect();
    assert_eq!(rows, [new, Record { response: None, ..old }]);
}

/// Facts about repeats leave the body out.
pub async fn a_fact_about_a_repeat_does_not_erase_the_response(place: Place) {
    let key = subject("t1:as4", "k");
    let body = vec![0xa5; StoredResponse::MAX_BYTES];
    let resolved = Record { state: State::Resolved, response: Some(response(&body)), ..registration(1, now(), 60) };
    let repeat = Record { retry_count: 1, response: None, ..resolved.clone() };
    place.a.persist(&[fact(&key, &resolved)], now()).await.expect("persisted");
    let persisted = place.b.persist(&[fact(&key, &repeat)], now()).await.expect("persisted");
    assert_eq!(persisted.claims[0].record, Record { retry_count: 1, ..resolved.clone() });
    // Nor does counting here.
    let found = place.b.register(&key, &registration(2, now(), 60), REPLAY_SECONDS).await.expect("a repeat");
    assert_eq!(theirs(found), Record { retry_count: 2, ..resolved });
}

/// A fact that knows less than the row changes nothing in it.
pub async fn a_fact_counts_on_what_was_registered_here(place: Place) {
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 60);
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    theirs(place.a.register(&key, &registration(2, now(), 60), REPLAY_SECONDS).await.expect("a repeat"));
    let persisted = place.b.persist(&[fact(&key, &first)], now()).await.expect("persisted");
    assert_eq!(persisted.claims[0].record, Record { retry_count: 1, ..first.clone() });
    assert_stands(&*place.b, &key, &Record { retry_count: 1, ..first }, &[]).await;
}

/// Facts may wait for two weeks: a window that is over by then is still part of what happened.
pub async fn a_registration_whose_window_is_over_is_kept(place: Place) {
    let key = subject("t1:as4", "k");
    let old = registration(1, now().plus_millis(-13 * 86_400_000), 60);
    let persisted = place.a.persist(&[fact(&key, &old)], now()).await.expect("persisted");
    assert_eq!(persisted.claims[0].record, old);
    assert_eq!(live(&*place.b, &key, now()).await, None);
    assert_eq!(history(&*place.b, &key).await[0].record, old);
}

/// Every field at its bounds, among them times at the end of a month and far ahead.
pub async fn every_field_is_kept_to_the_letter(place: Place) {
    let key = subject("t1:as4", "k");
    let month_end = Timestamp::parse_rfc3339("2026-08-31T23:59:59.999Z").expect("a time");
    let full = Record {
        state: State::Resolved,
        attempt: u16::MAX,
        nonce: Nonce::from_bytes([0xff; 8]),
        won_at: Timestamp::MIN,
        last_seen_at: Timestamp::MAX,
        retry_count: u32::MAX,
        payload_hash: PayloadHash::from_bytes([0xff; 32]),
        source_service: Some(SourceService::parse(&"\u{e9}".repeat(20)).expect("a service")),
        drift: Some(drift(u32::MAX, [0; 32], Timestamp::MAX)),
        lease_ends_at: Some(Timestamp::MIN),
        response: Some(response(b"")),
        attempt_source: Some(service(&"\u{e8}".repeat(20))),
        ended: Some(Ended {
            at: Timestamp::MAX,
            reason: Some(FailReason::parse(&"\u{1d11e}\"\\".repeat(33)).expect("a reason")),
        }),
        ..registration(u64::MAX, month_end, 366 * DAY_SECONDS)
    };
    let persisted = place.a.persist(&[fact(&key, &full)], now()).await.expect("persisted");
    assert_eq!(persisted.claims[0].record, full);
    assert_stands(&*place.b, &key, &full, &[attempt(&full)]).await;
}

/// No month is made for a first sighting more than 400 days ago or 2 days ahead: the call is refused, with all it carried.
pub async fn an_implausible_first_sighting_is_refused_and_nothing_is_written(place: Place) {
    let good = subject("t1:as4", "good");
    let day_ms = 86_400_000;
    for (n, after_ms) in [(1, -400 * day_ms - 1), (2, 2 * day_ms + 1)] {
        let bad = subject("t1:as4", &format!("bad {n}"));
        let facts =
            [fact(&good, &registration(9, now(), 60)), fact(&bad, &registration(n, now().plus_millis(after_ms), 60))];
        let refused = place.a.persist(&facts, now()).await;
        assert!(matches!(refused, Err(StoreError::Rejected { .. })), "{refused:?}");
        assert!(history(&*place.b, &good).await.is_empty());
        assert!(history(&*place.b, &bad).await.is_empty());
    }
    for (n, after_ms) in [(1, -400 * day_ms), (2, 2 * day_ms)] {
        let key = subject("t1:as4", &format!("just so {n}"));
        let record = registration(n, now().plus_millis(after_ms), 60);
        place.a.persist(&[fact(&key, &record)], now()).await.expect("persisted");
        assert_eq!(history(&*place.b, &key).await.len(), 1);
    }
}

/// PENDING is no fact, and no window is longer than 366 days: refused, and nothing of the batch is written.
pub async fn what_no_caller_can_have_sent_is_refused_and_nothing_is_written(place: Place) {
    let good = subject("t1:as4", "good");
    let pending = Record { state: State::Pending, ..registration(1, now(), 60) };
    let endless = registration(1, now(), 366 * DAY_SECONDS + 1);
    let empty = registration(1, now(), 0);
    for (name, record) in [("a pending", pending), ("b endless", endless), ("h empty", empty)] {
        // The good key comes between them in order, so that a writer without a transaction would be found out.
        let bad = Fact { subject: subject("t1:as4", name), record, before: None };
        let facts = [fact(&good, &registration(9, now(), 60)), bad];
        let refused = place.a.persist(&facts, now()).await;
        assert!(matches!(refused, Err(StoreError::Rejected { .. })), "{name}: {refused:?}");
        assert_eq!(live(&*place.b, &good, now()).await, None, "{name}");
        assert!(history(&*place.b, &good).await.is_empty(), "{name}");
    }
    // The others succeed without it.
    place.a.persist(&[fact(&good, &registration(9, now(), 60))], now()).await.expect("persisted");
}

/// An empty batch.
pub async fn no_facts_are_no_work(place: Place) {
    assert_eq!(place.a.persist(&[], now()).await.expect("nothing"), Persisted::default());
}

/// 3,000 facts about 1,000 keys: one row each, in the order of the keys.
pub async fn a_large_batch_is_one_call(place: Place) {
    let facts: Vec<_> = (0..3_000_u64)
        .map(|n| {
            let key = subject("t1:as4", &format!("{:04}", n * 7 % 1_000));
            let record = registration(n * 7 % 1_000 + 1, now(), 60);
            fact(&key, &Record { retry_count: u32::try_from(n / 1_000).expect("small"), ..record })
        })
        .collect();
    let persisted = place.a.persist(&facts, now()).await.expect("persisted");
    assert_eq!(persisted.claims.len(), 1_000);
    assert!(persisted.claims.is_sorted_by(|a, b| a.subject < b.subject));
    assert!(persisted.claims.iter().all(|claim| claim.record.retry_count == 2));
    let mut live = place.b.newest_live(now(), None, 10_000).await.expect("live rows");
    live.sort_by(|a, b| a.subject.cmp(&b.subject));
    assert_eq!(live, persisted.claims);
}

/// Writers that take the same keys in opposite orders, while others register them, all come to an end, and no count is
/// lost.
pub async fn writers_of_the_same_keys_do_not_stop_each_other(place: Place) {
    let keys: Vec<_> = (0..40).map(|n| subject("t1:as4", &format!("{n:02}"))).collect();
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..12_u32 {
        let ledger = if n % 2 == 0 { place.a.clone() } else { place.b.clone() };
        let mut keys = keys.clone();
        if n % 3 == 0 {
            keys.reverse();
        }
        writers.spawn(async move {
            if n < 8 {
                let record = Record { retry_count: n, ..registration(1, now(), 60) };
                let facts: Vec<_> = keys.iter().map(|key| fact(key, &record)).collect();
                ledger.persist(&facts, now()).await.expect("persisted");
            } else {
                for key in &keys {
                    let wanted = registration(1, now(), 60);
                    ours(ledger.register(key, &wanted, REPLAY_SECONDS).await.expect("our own"));
                }
            }
        });
    }
    writers.join_all().await;
    for key in &keys {
        assert_stands(&*place.a, key, &Record { retry_count: 7, ..registration(1, now(), 60) }, &[]).await;
    }
}

/// What varies among the facts of one registration.
fn facts_of(n: u64) -> impl Strategy<Value = Vec<Record>> {
    let state =
        prop_oneof![Just(State::Registered), Just(State::InProgress), Just(State::Failed), Just(State::Resolved)];
    let drifts = proptest::option::of((0..3_u32, 0..3_u8, 0..3_i64));
    let one = (
        state,
        1..4_u16,
        0..3_i64,
        0..3_u8,
        proptest::option::of(0..3_i64),
        0..5_i64,
        0..5_u32,
        drifts,
        any::<(bool, bool)>(),
    );
    proptest::collection::vec(one, 1..5).prop_map(move |drawn| {
        let facts =
            drawn.into_iter().map(|(state, attempt, won, nonce, lease, seen, count, drifted, (body, service))| {
                Record {
                    state,
                    attempt,
                    nonce: Nonce::from_bytes([nonce; 8]),
                    won_at: now().plus_millis(won),
                    lease_ends_at: lease.map(|ms| now().plus_millis(ms)),
                    last_seen_at: now().plus_millis(seen),
                    retry_count: count,
                    drift: drifted.map(|(count, hash, at)| drift(count, [hash; 32], now().plus_millis(at))),
                    // One registration has one answer and one first service; a fact may leave them out.
                    response: body.then(|| response(&n.to_be_bytes())),
                    source_service: service.then(|| SourceService::parse(&format!("s{n}")).expect("a service")),
                    // Some of the same millisecond, some apart; all of them overlap or not by chance.
                    ..registration(n, now().plus_millis(i64::try_from(n / 2).expect("small") * 1_000), n)
                }
            });
        facts.collect()
    })
}

/// Random facts of up to four registrations of one key, some twice, in random batches: both tables hold what
/// [`Record::merge`] makes of each registration, and the greatest stands.
pub async fn random_batches_give_what_the_domain_merges(place: Place) {
    let cases = || {
        let per_registration = (1..5_u64).prop_flat_map(|count| (1..=count).map(facts_of).collect::<Vec<_>>());
        random_cases(&per_registration.prop_flat_map(|facts| batches(facts.concat())))
    };
    for (case, batches) in cases().into_iter().enumerate() {
        let key = subject("t1:as4", &format!("{case}"));
        let mut expected: BTreeMap<_, Record> = BTreeMap::new();
        for batch in &batches {
            let facts: Vec<_> = batch.iter().map(|record| fact(&key, record)).collect();
            for record in batch {
                expected.entry(record.standing()).and_modify(|m| m.merge(record)).or_insert_with(|| record.clone());
            }
            let persisted = place.a.persist(&facts, now()).await.expect("persisted");
            let standing = expected.last_key_value().map(|(_, record)| record);
            assert_eq!(Some(&persisted.claims[0].record), standing, "{batches:#?}");
        }
        let rows: Vec<_> = history(&*place.b, &key).await.into_iter().map(|row| row.record).collect();
        let merged: Vec<_> = expected.into_values().rev().map(|record| Record { response: None, ..record }).collect();
        assert_eq!(rows, merged, "{batches:#?}");
    }
}
