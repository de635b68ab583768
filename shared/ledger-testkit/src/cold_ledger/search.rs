//! Reading.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use ledger_domain::ports::{HistoryPage, HistoryQuery, Position};
use ledger_domain::{PayloadHash, Record, Subject, Tenant, Timestamp};

use super::{Place, all, fact, now, registration, subject};

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).expect("a tenant")
}

/// Pages of any size, by key and by payload, show each row once, newest first, also where many have one first sighting.
pub async fn history_pages_are_newest_first_also_among_equal_times(place: Place) {
    let key = subject("t1:as4", "k");
    // Two months, three rows of one millisecond in each.
    let month_later = now().plus_seconds(30 * 86_400);
    let mut records: Vec<_> = (1..=6)
        .map(|n| registration(n, if n <= 3 { now() } else { month_later }, 1))
        .chain([registration(7, now().plus_millis(-1), 1), registration(8, month_later.plus_millis(1), 1)])
        .collect();
    let facts: Vec<_> = records.iter().map(|record| fact(&key, record)).collect();
    place.a.persist(&facts, month_later).await.expect("persisted");
    records.sort_by_key(|record| std::cmp::Reverse(record.standing()));

    for limit in 1..=9 {
        for by_hash in [false, true] {
            let mut query = HistoryQuery { limit, ..all() };
            let mut seen = Vec::new();
            loop {
                let page = read(&place, by_hash, &key, &query).await;
                assert!(page.rows.len() == limit || !page.more);
                let Some(last) = page.rows.last() else { break };
                let Record { first_seen_at, registration_id, .. } = last.record;
                query.after = Some(Position { first_seen_at, registration_id });
                seen.extend(page.rows.into_iter().map(|row| row.record));
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, records, "limit {limit}, by hash {by_hash}");
        }
    }
}

async fn read(place: &Place, by_hash: bool, key: &Subject, query: &HistoryQuery) -> HistoryPage {
    if by_hash {
        let hash = PayloadHash::from_bytes([7; 32]);
        place.b.by_hash(&tenant(key.scope.tenant()), &hash, query).await.expect("a page")
    } else {
        place.b.by_key(key, query).await.expect("a page")
    }
}

/// `from` is inclusive and `to` exclusive, on the first sighting, to the millisecond.
pub async fn from_is_inclusive_and_to_exclusive(place: Place) {
    let key = subject("t1:as4", "k");
    let facts: Vec<_> = (1..=4).map(|n| fact(&key, &registration(n, now().plus_millis(n as i64), 1))).collect();
    place.a.persist(&facts, now()).await.expect("persisted");
    for by_hash in [false, true] {
        for (from, to, expected) in
            [(2, 4, vec![3, 2]), (2, 3, vec![2]), (3, 3, vec![]), (4, 2, vec![]), (4, 9, vec![4])]
        {
            let query = HistoryQuery { from: now().plus_millis(from), to: now().plus_millis(to), ..all() };
            let page = read(&place, by_hash, &key, &query).await;
            let numbers: Vec<_> = page.rows.iter().map(|row| row.record.first_seen_at.millis_since(now())).collect();
            assert_eq!((numbers, page.more), (expected, false), "{from} to {to}");
        }
    }
    let nothing = HistoryQuery { from: Timestamp::MIN, to: Timestamp::MIN, ..all() };
    assert_eq!(place.b.by_key(&key, &nothing).await.expect("a page"), HistoryPage::default());
}

/// A payload is found under its own tenant only, in whichever flow; `t1` is not `t10`, nor `t`.
pub async fn tenants_do_not_see_each_other_by_payload(place: Place) {
    let scopes = ["t1:as4", "t1:sftp", "t10:as4", "t:as4", "t1-:as4"];
    let other = Record { payload_hash: PayloadHash::from_bytes([8; 32]), ..registration(9, now(), 1) };
    let mut facts = vec![fact(&subject("t1:as4", "other"), &other)];
    for (n, scope) in (1..).zip(scopes) {
        facts.push(fact(&subject(scope, "k"), &registration(n, now(), 1)));
    }
    place.a.persist(&facts, now()).await.expect("persisted");
    let hash = PayloadHash::from_bytes([7; 32]);
    for (name, expected) in [
        ("t1", vec!["t1:sftp", "t1:as4"]),
        ("t10", vec!["t10:as4"]),
        ("t", vec!["t:as4"]),
        ("t1-", vec!["t1-:as4"]),
        ("t2", vec![]),
    ] {
        let page = place.b.by_hash(&tenant(name), &hash, &all()).await.expect("a page");
        let found: Vec<_> = page.rows.iter().map(|row| row.subject.scope.as_str()).collect();
        assert_eq!(found, expected, "{name}");
    }
}

/// The time up to which facts are drained: none at first, and later only later.
pub async fn the_watermark_never_moves_back(place: Place) {
    assert_eq!(place.a.drained_until().await.expect("a watermark"), None);
    for (noted, expected) in [(5, 5), (3, 5), (7, 7), (7, 7)] {
        place.a.note_drained(now().plus_millis(noted)).await.expect("noted");
        let until = place.b.drained_until().await.expect("a watermark");
        assert_eq!(until, Some(now().plus_millis(expected)));
    }
}

/// It is later than the year in which this was written, and both handles read the same clock.
pub async fn the_ledger_tells_its_time(place: Place) {
    let first = place.a.time().await.expect("a time");
    let second = place.b.time().await.expect("a time");
    assert!(first > Timestamp::from_millis(1_750_000_000_000));
    assert!(second >= first);
}
