//! False NEWs: registrations whose windows overlap an earlier one's under another nonce.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::collections::BTreeMap;

use ledger_domain::ports::ColdLedger;
use ledger_domain::{Record, RegistrationId, Subject};
use proptest::prelude::*;

use super::model::{batches, random_cases};
use super::{Place, REPLAY_SECONDS, fact, history, live, now, ours, registration, subject};

/// Which registration each false NEW of a key names, by number.
async fn links(ledger: &dyn ColdLedger, subject: &Subject) -> BTreeMap<u64, Option<u64>> {
    let number = |id: RegistrationId| u64::from_be_bytes(*id.as_bytes());
    let rows = history(ledger, subject).await;
    rows.iter().map(|row| (number(row.record.registration_id), row.false_new_of.map(number))).collect()
}

async fn persist(ledger: &dyn ColdLedger, subject: &Subject, records: &[Record]) -> u64 {
    let facts: Vec<_> = records.iter().map(|record| fact(subject, record)).collect();
    ledger.persist(&facts, now()).await.expect("persisted").false_new
}

/// Whichever of two overlapping registrations arrives first, the later one names the earlier one; told once.
pub async fn is_found_in_either_order_and_counted_once(place: Place) {
    let (a, b) = (registration(1, now(), 60), registration(2, now().plus_seconds(59), 60));
    for (name, order) in [("in order", [&a, &b]), ("reversed", [&b, &a])] {
        let key = subject("t1:as4", name);
        let mut found = Vec::new();
        for record in order.into_iter().chain(order) {
            found.push(persist(&*place.a, &key, std::slice::from_ref(record)).await);
        }
        assert_eq!(found, [0, 1, 0, 0], "{name}");
        assert_eq!(links(&*place.b, &key).await, BTreeMap::from([(1, None), (2, Some(1))]), "{name}");
        assert_eq!(live(&*place.b, &key, now()).await, Some(b.clone()), "{name}");
    }
}

/// Both in one batch.
pub async fn in_one_batch_is_found(place: Place) {
    let key = subject("t1:as4", "k");
    // Of the same millisecond: the greater id is the later one.
    let (a, b) = (registration(1, now(), 60), registration(2, now(), 60));
    assert_eq!(persist(&*place.a, &key, &[b.clone(), a.clone(), b.clone()]).await, 1);
    assert_eq!(persist(&*place.b, &key, &[a, b]).await, 0);
    assert_eq!(links(&*place.a, &key).await, BTreeMap::from([(1, None), (2, Some(1))]));
}

/// Three that all overlap: in each of the six orders, one by one or with two in a batch, two are found and both name the
/// first one.
pub async fn of_three_registrations_each_names_the_least_earlier_in_every_order(place: Place) {
    let records: Vec<_> = (1..=3).map(|n| registration(n, now().plus_millis(n as i64), 60)).collect();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for sizes in [&[1, 1, 1][..], &[2, 1], &[1, 2], &[3]] {
            let key = subject("t1:as4", &format!("{order:?} {sizes:?}"));
            let mut left = order.map(|at| records[at].clone()).to_vec();
            let mut found = 0;
            for size in sizes {
                let batch: Vec<_> = left.drain(..size).collect();
                found += persist(&*place.a, &key, &batch).await;
            }
            let expected = BTreeMap::from([(1, None), (2, Some(1)), (3, Some(1))]);
            assert_eq!((found, links(&*place.b, &key).await), (2, expected), "{order:?} {sizes:?}");
        }
    }
}

/// The second overlaps the first, the third only the second.
pub async fn a_chain_names_what_each_overlaps(place: Place) {
    let records = [
        registration(1, now(), 10),
        registration(2, now().plus_seconds(8), 10),
        registration(3, now().plus_seconds(16), 10),
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let key = subject("t1:as4", &format!("{order:?}"));
        let mut found = 0;
        for at in order {
            found += persist(&*place.a, &key, &records[at..=at]).await;
        }
        let expected = BTreeMap::from([(1, None), (2, Some(1)), (3, Some(2))]);
        assert_eq!((found, links(&*place.b, &key).await), (2, expected), "{order:?}");
    }
}

/// A short false NEW stood over a long window and is over; the next registration still overlaps the long one. So it is
/// where the registering statement, which sees what stands, made it.
pub async fn a_longer_window_hidden_behind_a_shorter_one_is_found(place: Place) {
    let long = registration(1, now(), 3_600);
    let short = registration(2, now().plus_seconds(10), 10);
    let next = registration(3, now().plus_seconds(30), 10);
    let expected = BTreeMap::from([(1, None), (2, Some(1)), (3, Some(1))]);

    let key = subject("t1:as4", "by facts");
    let mut found = Vec::new();
    for record in [&long, &short, &next] {
        found.push(persist(&*place.a, &key, std::slice::from_ref(record)).await);
    }
    assert_eq!((found, links(&*place.b, &key).await), (vec![0, 1, 1], expected.clone()));

    let key = subject("t1:as4", "by registering");
    persist(&*place.a, &key, &[long, short]).await;
    ours(place.b.register(&key, &next, REPLAY_SECONDS).await.expect("new"));
    assert_eq!(persist(&*place.a, &key, &[next]).await, 1);
    assert_eq!(links(&*place.b, &key).await, expected);
}

/// A registration decided here, and one decided elsewhere whose fact arrives later: earlier or later than the first.
pub async fn of_one_registered_here_is_found_when_the_fact_arrives(place: Place) {
    let here = registration(5, now(), 60);
    for (n, at, expected) in [
        (1, now().plus_seconds(1), BTreeMap::from([(5, None), (1, Some(5))])),
        (9, now().plus_millis(-1), BTreeMap::from([(9, None), (5, Some(9))])),
    ] {
        let key = subject("t1:as4", &format!("{n}"));
        ours(place.a.register(&key, &here, REPLAY_SECONDS).await.expect("new"));
        let elsewhere = registration(n, at, 60);
        assert_eq!(persist(&*place.b, &key, &[elsewhere]).await, 1, "{n}");
        assert_eq!(links(&*place.a, &key).await, expected, "{n}");
    }
}

/// A window that begins where the last one ends overlaps nothing.
pub async fn a_new_window_is_none(place: Place) {
    let old = registration(1, now(), 60);
    let new = registration(2, old.window_ends_at, 60);
    for (name, order) in [("in order", [&old, &new]), ("reversed", [&new, &old])] {
        let key = subject("t1:as4", name);
        for record in order {
            assert_eq!(persist(&*place.a, &key, std::slice::from_ref(record)).await, 0, "{name}");
        }
        assert_eq!(links(&*place.b, &key).await, BTreeMap::from([(1, None), (2, None)]), "{name}");
    }
}

/// One check that registered in two tiers told one caller NEW, twice: nobody else processes it.
pub async fn the_same_check_registered_twice_is_none(place: Place) {
    let key = subject("t1:as4", "k");
    let a = registration(1, now(), 60);
    let b = Record { nonce: a.nonce, ..registration(2, now().plus_seconds(1), 60) };
    assert_eq!(persist(&*place.a, &key, &[a]).await + persist(&*place.b, &key, &[b]).await, 0);
    assert_eq!(links(&*place.b, &key).await, BTreeMap::from([(1, None), (2, None)]));
}

/// Twelve registrations of one key by concurrent writers, each told twice: eleven are false, and told once each.
pub async fn concurrent_writers_count_each_once(place: Place) {
    let key = subject("t1:as4", "k");
    let mut writers = tokio::task::JoinSet::new();
    for n in (1..=12).chain(1..=12) {
        let ledger = if writers.len() % 2 == 0 { place.a.clone() } else { place.b.clone() };
        let key = key.clone();
        writers.spawn(async move { persist(&*ledger, &key, &[registration(n, now(), 60)]).await });
    }
    assert_eq!(writers.join_all().await.into_iter().sum::<u64>(), 11);
    let expected = (1..=12).map(|n| (n, (n > 1).then_some(1))).collect();
    assert_eq!(links(&*place.a, &key).await, expected);
}

/// The registrations of one key, and the batches in which they come.
type Case = (Vec<Record>, Vec<Vec<Record>>);

fn overlapping_registrations() -> Vec<Case> {
    let drawn = proptest::collection::vec((0..40_i64, 1..20_u64, 1..4_u64), 1..8);
    random_cases(&drawn.prop_flat_map(|drawn| {
        let numbered = (1..).zip(drawn).map(|(n, (at, seconds, nonce))| Record {
            nonce: registration(nonce, now(), 1).nonce,
            ..registration(n, now().plus_millis(at * 1_000), seconds)
        });
        let records: Vec<_> = numbered.collect();
        (Just(records.clone()), batches(records))
    }))
}

/// Random registrations under few nonces, in random batches: the links are those that the definition gives, and as many
/// are told.
pub async fn random_batches_give_the_canonical_links(place: Place) {
    for (case, (records, batches)) in overlapping_registrations().into_iter().enumerate() {
        let key = subject("t1:as4", &format!("{case}"));
        let mut found = 0;
        for batch in &batches {
            found += persist(&*place.a, &key, batch).await;
        }
        let canonical = |record: &Record| {
            let earlier = |other: &&Record| {
                other.standing() < record.standing() && other.overlaps(record) && other.nonce != record.nonce
            };
            records.iter().filter(earlier).min_by_key(|other| other.standing()).map(|other| other.registration_id)
        };
        let rows = history(&*place.b, &key).await;
        assert_eq!(rows.len(), records.len());
        for row in &rows {
            assert_eq!(row.false_new_of, canonical(&row.record), "{records:?} in {batches:?}");
        }
        assert_eq!(found, rows.iter().filter(|row| row.false_new_of.is_some()).count() as u64);
    }
}
