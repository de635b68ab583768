//! Several keys registered in one transaction.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use ledger_domain::ports::{ColdLedger, Together};
use ledger_domain::{Record, State, Subject};

use super::{Place, REPLAY_SECONDS, assert_stands, attempt, claimed, fact, history, now, ours, registration, subject};

async fn together(ledger: &dyn ColdLedger, wanted: &[(Subject, Record)]) -> Together {
    ledger.register_together(wanted, REPLAY_SECONDS).await.expect("an answer")
}

/// Keys that are new, failed, lapsed, and over, asked for in no order of theirs: all are the caller's own.
pub async fn all_are_registered_in_the_order_asked_for(place: Place) {
    let at = now().plus_seconds(20);
    let lapsed = claimed(1, now(), 60, 10);
    let failed = Record { state: State::Failed, ..claimed(1, now(), 60, 40) };
    let over = claimed(1, now(), 20, 10);
    let [new, lapsed_key, failed_key, over_key] = ["d", "b", "c", "a"].map(|name| subject("t1:as4", name));
    for (key, record) in [(&lapsed_key, &lapsed), (&failed_key, &failed), (&over_key, &over)] {
        place.a.persist(&[fact(key, record)], now()).await.expect("persisted");
    }
    let wanted: Vec<_> = (2..)
        .zip([new, lapsed_key.clone(), failed_key.clone(), over_key])
        .map(|(n, key)| (key, claimed(n, at, 60, 10)))
        .collect();
    let Together::All(records) = together(&*place.b, &wanted).await else { panic!("expected all") };
    let taken = |stood: &Record, taker: &Record| Record {
        state: State::InProgress,
        attempt: 2,
        nonce: taker.nonce,
        won_at: at,
        lease_ends_at: taker.lease_ends_at,
        attempt_source: taker.source_service.clone(),
        retry_count: 1,
        last_seen_at: at,
        ..stood.clone()
    };
    let expected =
        [wanted[0].1.clone(), taken(&lapsed, &wanted[1].1), taken(&failed, &wanted[2].1), wanted[3].1.clone()];
    assert_eq!(records, expected);
    for ((key, _), record) in wanted.iter().zip(&records) {
        assert_eq!(place.a.standing(key).await.expect("an answer").as_ref(), Some(record), "{key:?}");
    }
    assert_stands(&*place.a, &lapsed_key, &records[1], &[attempt(&lapsed), attempt(&records[1])]).await;
    assert_stands(&*place.a, &failed_key, &records[2], &[attempt(&failed), attempt(&records[2])]).await;
    assert_eq!(together(&*place.a, &[]).await, Together::All(Vec::new()));
}

/// One key stands, first, last or between: none is registered, taken over or counted, and each is shown as it stands inside
/// its window.
pub async fn one_that_stands_leaves_all_as_they_were(place: Place) {
    let at = now().plus_seconds(20);
    for standing_name in ["a", "m", "z"] {
        let key = |name: &str| subject(&format!("t1:{standing_name}"), name);
        let stands = registration(1, now(), 60);
        let lapsed = claimed(1, now(), 60, 10);
        let over = registration(1, now(), 20);
        let rows = [(key(standing_name), stands.clone()), (key("lapsed"), lapsed.clone()), (key("over"), over.clone())];
        for (key, record) in &rows {
            place.a.persist(&[fact(key, record)], now()).await.expect("persisted");
        }
        let wanted: Vec<_> = (2..)
            .zip([key("over"), key("new"), key(standing_name), key("lapsed")])
            .map(|(n, key)| (key, claimed(n, at, 60, 10)))
            .collect();
        let expected = vec![None, None, Some(stands), Some(lapsed)];
        assert_eq!(together(&*place.b, &wanted).await, Together::None(expected), "{standing_name}");
        for (key, record) in &rows {
            let trail: Vec<_> = ledger_domain::Attempt::of(record).into_iter().collect();
            assert_stands(&*place.a, key, record, &trail).await;
        }
        assert_eq!(place.a.standing(&key("new")).await.expect("an answer"), None);
        assert!(history(&*place.a, &key("new")).await.is_empty());
    }
}

/// After an unknown outcome it is asked for again: all are still its own, and nothing is counted.
pub async fn the_very_same_again_is_ours(place: Place) {
    let failed = Record { state: State::Failed, ..claimed(1, now(), 60, 40) };
    place.a.persist(&[fact(&subject("t1:as4", "b"), &failed)], now()).await.expect("persisted");
    let at = now().plus_seconds(1);
    let wanted = [
        (subject("t1:as4", "b"), claimed(2, at, 60, 10)),
        (subject("t1:as4", "a"), claimed(3, at, 60, 10)),
        (subject("t1:as4", "c"), registration(4, at, 60)),
    ];
    let first = together(&*place.a, &wanted).await;
    let Together::All(records) = &first else { panic!("expected all, got {first:?}") };
    assert_eq!(place.b.register_together(&wanted, 0).await.expect("an answer"), first);
    for ((key, wanted), record) in wanted.iter().zip(records) {
        assert_eq!(&ours(place.b.register(key, wanted, REPLAY_SECONDS).await.expect("our own")), record);
    }
}

/// Twelve that want the same keys in different orders: one gets all of them, and the others leave no trace.
pub async fn of_rivals_over_the_same_keys_exactly_one_gets_them_all(place: Place) {
    let keys: Vec<_> = (0..8).map(|n| subject("t1:as4", &format!("{n}"))).collect();
    let mut rivals = tokio::task::JoinSet::new();
    for n in 1..=12_u64 {
        let ledger = if n % 2 == 0 { place.a.clone() } else { place.b.clone() };
        let mut wanted: Vec<_> = keys.iter().map(|key| (key.clone(), claimed(n, now(), 60, 10))).collect();
        wanted.rotate_left(usize::try_from(n % 8).expect("small"));
        if n % 3 == 0 {
            wanted.reverse();
        }
        rivals.spawn(async move { (n, ledger.register_together(&wanted, REPLAY_SECONDS).await.expect("an answer")) });
    }
    let mut winners = Vec::new();
    for (n, came_to) in rivals.join_all().await {
        match came_to {
            Together::All(records) => {
                assert_eq!(records, vec![claimed(n, now(), 60, 10); keys.len()]);
                winners.push(n);
            }
            Together::None(found) => assert!(found.iter().all(Option::is_some), "{n} lost to nobody: {found:?}"),
        }
    }
    let [winner] = winners.as_slice() else { panic!("expected one winner, got {winners:?}") };
    let won = claimed(*winner, now(), 60, 10);
    for key in &keys {
        assert_stands(&*place.a, key, &won, &[attempt(&won)]).await;
    }
}
