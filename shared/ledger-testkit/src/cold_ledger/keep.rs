//! What keeps the ledger: live rows newest first, and the purge.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ClaimRow, ColdLedger, Position};
use ledger_domain::{MessageKey, Record, Subject, Timestamp};

use super::{
    Place, REPLAY_SECONDS, attempt, claimed, drift, fact, history, live, now, ours, registration, response, subject,
};

const DAY_SECONDS: u64 = 86_400;
const DAY_MS: i64 = 86_400_000;

fn position(row: &ClaimRow) -> Position {
    Position { first_seen_at: row.record.first_seen_at, registration_id: row.record.registration_id }
}

/// All live rows in pages of `limit`.
async fn pages(ledger: &dyn ColdLedger, at: Timestamp, limit: usize) -> Vec<ClaimRow> {
    let mut seen: Vec<ClaimRow> = Vec::new();
    loop {
        let rows = ledger.newest_live(at, seen.last().map(position), limit).await.expect("live rows");
        assert!(rows.len() <= limit);
        if rows.is_empty() {
            return seen;
        }
        seen.extend(rows);
    }
}

async fn persist(place: &Place, rows: &[(Subject, Record)], at: Timestamp) {
    let facts: Vec<_> = rows.iter().map(|(key, record)| fact(key, record)).collect();
    place.a.persist(&facts, at).await.expect("persisted");
}

/// The keys that stand, in their order.
async fn standing(place: &Place, keys: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for key in keys {
        if place.b.standing(&subject("t1:as4", key)).await.expect("an answer").is_some() {
            found.push((*key).to_owned());
        }
    }
    found
}

/// Pages of any size show each row once, newest first, also where many have one first sighting; those whose window is over at
/// the time asked do not come.
pub async fn live_rows_come_newest_first_and_end_with_their_window(place: Place) {
    let tuple = Subject { key: MessageKey::parts(&["a", "b"]).expect("parts"), ..subject("t1:as4", "k") };
    let text = subject("t1:as4", tuple.key.as_str());
    // Their keys are in no order that their times or numbers are in.
    let mut rows: Vec<_> = (1..=9_u64)
        .map(|n| (subject("t1:as4", &format!("{}", n * 7 % 10)), registration(n, now().plus_millis(n as i64 / 4), 60)))
        .chain([(tuple, registration(0x80_00_00_00_00_00_00_00, now(), 60)), (text, registration(10, now(), 60))])
        .collect();
    let mut all = rows.clone();
    all.push((subject("t1:as4", "over"), registration(11, now(), 10)));
    all.push((subject("t1:as4", "long over"), registration(12, now().plus_seconds(1), 1)));
    persist(&place, &all, now()).await;
    rows.sort_by_key(|(_, record)| std::cmp::Reverse(record.standing()));
    for limit in [1, 2, 3, 11, 100] {
        let seen = pages(&*place.b, now().plus_seconds(10), limit).await;
        let seen: Vec<_> = seen.into_iter().map(|row| (row.subject, row.record)).collect();
        assert_eq!(seen, rows, "limit {limit}");
    }
    assert_eq!(place.a.newest_live(now().plus_seconds(61), None, 100).await.expect("live rows"), []);
    assert_eq!(place.a.newest_live(now(), None, 0).await.expect("live rows"), []);
    // The window's end is not in the window.
    let last = place.a.newest_live(now().plus_seconds(60), None, 100).await.expect("live rows");
    assert!(last.iter().all(|row| row.record.first_seen_at > now()) && !last.is_empty());
}

/// A year between two rows, and between live ones some that have ended long ago.
pub async fn live_rows_are_found_behind_long_gaps_and_many_ended_ones(place: Place) {
    let days_ago = |days: i64| now().plus_millis(-days * DAY_MS);
    let mut rows = vec![
        (subject("t1:as4", "a year"), registration(1, days_ago(365).plus_millis(1), 365 * DAY_SECONDS)),
        (subject("t1:as4", "a month"), registration(2, days_ago(30), 31 * DAY_SECONDS)),
        (subject("t1:as4", "today"), registration(3, now(), 60)),
        (subject("t1:as4", "ahead"), registration(4, days_ago(-1), 60)),
    ];
    let ended = (0..300_i64).map(|n| {
        let at = days_ago(100).plus_millis(n * DAY_MS / 4);
        (subject("t1:as4", &format!("ended {n}")), registration(9, at, 3_600))
    });
    let all: Vec<_> = ended.chain(rows.clone()).collect();
    persist(&place, &all, now()).await;
    rows.reverse();
    for limit in [1, 3, 100] {
        let seen: Vec<_> =
            pages(&*place.b, now(), limit).await.into_iter().map(|row| (row.subject, row.record)).collect();
        assert_eq!(seen, rows, "limit {limit}");
    }
}

/// Claim, response, drift and count: what the hot tier needs of a row.
pub async fn live_rows_come_as_they_stand(place: Place) {
    let (resolved, failed, drifted) = (subject("t1:as4", "r"), subject("t1:as4", "f"), subject("t1:as4", "d"));
    for (n, key) in [(1, &resolved), (2, &failed)] {
        ours(place.a.register(key, &claimed(n, now(), 60, 10), REPLAY_SECONDS).await.expect("new"));
    }
    let act = async |key, n, act| {
        let claim = ClaimId::of(&claimed(n, now(), 60, 10));
        place.a.act(key, &claim, &act, now().plus_seconds(1)).await.expect("an answer");
    };
    act(&resolved, 1, Act::Resolve(Some(response(b"\0answer")))).await;
    act(&failed, 2, Act::Fail(None)).await;
    let record = registration(3, now(), 60);
    persist(
        &place,
        &[(drifted.clone(), Record { drift: Some(drift(2, [9; 32], now())), retry_count: 5, ..record })],
        now(),
    )
    .await;
    let rows = place.b.newest_live(now(), None, 10).await.expect("live rows");
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(place.a.standing(&row.subject).await.expect("an answer"), Some(row.record), "{:?}", row.subject);
    }
}

/// Newer rows than the first page's do not come on later ones; what is older, and not read yet, does.
pub async fn rows_that_arrive_while_pages_are_read_are_no_part_of_them(place: Place) {
    let row = |n: u64, ms: i64| (subject("t1:as4", &format!("{n}")), registration(n, now().plus_millis(ms), 60));
    persist(&place, &[row(1, 10), row(2, 20), row(3, 30)], now()).await;
    let first = place.a.newest_live(now(), None, 2).await.expect("live rows");
    persist(&place, &[row(4, 40), row(5, 25), row(6, 5)], now()).await;
    let rest = place.a.newest_live(now(), first.last().map(position), 9).await.expect("live rows");
    let ids = |rows: &[ClaimRow]| -> Vec<_> { rows.iter().map(|row| row.subject.key.to_string()).collect() };
    assert_eq!((ids(&first), ids(&rest)), (vec!["3".into(), "2".into()], vec!["1".into(), "6".into()]));
}

/// The window's end must lie before the time given, to the millisecond; history keeps all.
pub async fn a_purge_removes_what_ended_before_and_nothing_else(place: Place) {
    let before = now().plus_seconds(100);
    let rows = [("past", 99_999), ("at", 100_000), ("later", 100_001)].map(|(key, ends)| {
        let record = registration(1, now(), 1);
        (subject("t1:as4", key), Record { window_ends_at: now().plus_millis(ends), ..record })
    });
    persist(&place, &rows, now()).await;
    assert_eq!(place.a.purge(now(), 100).await.expect("purged"), 0);
    assert_eq!(place.a.purge(before, 100).await.expect("purged"), 1);
    assert_eq!(standing(&place, &["past", "at", "later"]).await, ["at", "later"]);
    assert_eq!(place.b.purge(before, 100).await.expect("purged"), 0);
    for (key, record) in &rows {
        assert_eq!(history(&*place.b, key).await[0].record, *record);
    }
}

/// No more than asked for with a call, what ended first goes first, and in the end nothing is left.
pub async fn a_purge_is_bounded_and_comes_to_an_end(place: Place) {
    let rows: Vec<_> =
        (0..50_u64).map(|n| (subject("t1:as4", &format!("{n}")), registration(n + 1, now(), 1 + n * 7 % 50))).collect();
    persist(&place, &rows, now()).await;
    let before = now().plus_seconds(1_000);
    assert_eq!(place.a.purge(before, 0).await.expect("purged"), 0);
    assert_eq!(place.a.purge(before, 20).await.expect("purged"), 20);
    let left = pages(&*place.b, now(), 100).await;
    assert!(left.iter().all(|row| row.record.window_ends_at > now().plus_seconds(20)), "{left:?}");
    assert_eq!(left.len(), 30);
    assert_eq!(place.b.purge(before, 20).await.expect("purged"), 20);
    assert_eq!(place.a.purge(before, 20).await.expect("purged"), 10);
    assert_eq!(place.a.purge(before, 20).await.expect("purged"), 0);
}

/// The row that stands ended first, but one that it displaced, or one that came late, had a longer window: a fact may still
/// come that overlaps that one.
pub async fn a_purge_waits_for_the_windows_of_the_keys_other_registrations(place: Place) {
    let (displaced, late) = (subject("t1:as4", "displaced"), subject("t1:as4", "late"));
    let (long, short) = (registration(1, now(), 1_000), registration(2, now().plus_seconds(1), 10));
    for facts in [[fact(&displaced, &long), fact(&late, &short)], [fact(&displaced, &short), fact(&late, &long)]] {
        place.a.persist(&facts, now()).await.expect("persisted");
    }
    assert_eq!(place.a.purge(now().plus_seconds(1_000), 100).await.expect("purged"), 0);
    assert_eq!(standing(&place, &["displaced", "late"]).await, ["displaced", "late"]);
    assert_eq!(place.a.purge(now().plus_seconds(1_001), 100).await.expect("purged"), 2);
}

/// A purged key is free, and facts about what was purged do no harm when they come.
pub async fn what_was_purged_registers_anew_and_late_facts_still_merge(place: Place) {
    let key = subject("t1:as4", "k");
    let (first, second) = (registration(1, now(), 10), registration(2, now().plus_seconds(30), 10));
    ours(place.a.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    assert_eq!(place.a.purge(now().plus_seconds(20), 100).await.expect("purged"), 1);
    assert_eq!(place.b.standing(&key).await.expect("an answer"), None);
    ours(place.a.register(&key, &second, REPLAY_SECONDS).await.expect("new"));
    let repeated = Record { retry_count: 3, ..first };
    place.a.persist(&[fact(&key, &repeated)], now()).await.expect("persisted");
    assert_eq!(live(&*place.b, &key, now().plus_seconds(30)).await, Some(second.clone()));
    let rows: Vec<_> = history(&*place.b, &key).await.into_iter().map(|row| (row.record, row.false_new_of)).collect();
    assert_eq!(rows, [(second, None), (repeated, None)]);
}

/// History knows a registration that no claim stands for any more, and its check comes again: both rows are its own, merged.
pub async fn what_was_purged_is_registered_again_by_its_own_check_in_one_row(place: Place) {
    let key = subject("t1:as4", "k");
    let counted = Record { retry_count: 3, ..registration(1, now(), 10) };
    place.a.persist(&[fact(&key, &counted)], now()).await.expect("persisted");
    assert_eq!(place.a.purge(now().plus_seconds(20), 100).await.expect("purged"), 1);
    let again = Record { retry_count: 0, ..claimed(1, now(), 10, 5) };
    assert_eq!(ours(place.b.register(&key, &again, REPLAY_SECONDS).await.expect("new")), again);
    assert_eq!(place.a.standing(&key).await.expect("an answer"), Some(again.clone()));
    let rows = history(&*place.a, &key).await;
    let [row] = rows.as_slice() else { panic!("expected one row, got {rows:#?}") };
    assert_eq!((row.record.retry_count, &row.record.source_service), (3, &again.source_service));
    assert_eq!(row.trail.attempts(), [attempt(&again)]);
}

/// Keys that have ended are registered again while they are purged, over and over: whoever was told that a registration is
/// theirs finds it standing.
pub async fn a_purge_beside_writers_removes_no_row_that_was_registered_again(place: Place) {
    const KEYS: u64 = 12;
    const ROUNDS: u64 = 15;
    let key = |n: u64| subject("t1:as4", &format!("{n}"));
    let ended = async |round: u64| {
        // Facts of another, earlier registration of each key, which has ended.
        let at = now().plus_seconds(round * 100);
        let facts: Vec<_> = (0..KEYS).map(|n| fact(&key(n), &registration(1_000 * round + 1, at, 1))).collect();
        place.a.persist(&facts, now()).await.expect("persisted");
    };
    for round in 0..ROUNDS {
        ended(round).await;
        let (at, done) = (now().plus_seconds(round * 100 + 10), Arc::new(AtomicBool::new(false)));
        let (ledger, over) = (Arc::clone(&place.b), Arc::clone(&done));
        let purging = tokio::spawn(async move {
            let mut purged = 0;
            while !over.load(Ordering::SeqCst) {
                purged += ledger.purge(at, 5).await.expect("purged");
            }
            purged
        });
        let writers = (0..KEYS).map(|n| {
            let (ledger, key) = (Arc::clone(&place.a), key(n));
            tokio::spawn(async move {
                let wanted = registration(1_000 * round + 2, at, 60);
                ours(ledger.register(&key, &wanted, REPLAY_SECONDS).await.expect("new"));
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("no panic");
        }
        done.store(true, Ordering::SeqCst);
        assert!(purging.await.expect("no panic") <= KEYS);
        for n in 0..KEYS {
            let standing = place.a.standing(&key(n)).await.expect("an answer");
            assert_eq!(standing, Some(registration(1_000 * round + 2, at, 60)), "round {round}, key {n}");
        }
    }
    // History has each round's two registrations.
    assert_eq!(history(&*place.b, &key(0)).await.len() as u64, 2 * ROUNDS);
}
