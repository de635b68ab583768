//! Cases of many requests at once.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use ledger_domain::Record;
use ledger_domain::ports::{Begin, Begun, Count, Heal, Release, Replace, Settle};
use ledger_domain::transition::{Counted, Found, Guard, Swapped};

use super::{Place, TTL_MS, begin, hash, pending, slot};

/// As many as a batch check takes.
const BATCH: u8 = 100;

/// Each operation on 100 slots, spread over all shards, answers in the order of its requests.
pub async fn a_batch_of_100_answers_in_order(place: &Place) {
    let now = place.now().await;
    let slot = |n: u8| slot("batch", u64::from(n));
    // Every third is there already.
    let there = |n: u8| n.is_multiple_of(3);
    for n in (0..BATCH).filter(|n| there(*n)) {
        assert_eq!(begin(&*place.second, slot(n), &pending(now, n ^ 0xFF)).await, Begun::Won);
    }
    let standing = |n: u8| if there(n) { pending(now, n ^ 0xFF) } else { pending(now, n) };

    let begins: Vec<Begin> =
        (0..BATCH).map(|n| Begin { slot: slot(n), pending: pending(now, n), ttl_ms: TTL_MS }).collect();
    let begun = all(place.first.begin(&begins).await);
    let expected = |n| if there(n) { Begun::Present(Found::record(standing(n))) } else { Begun::Won };
    assert_eq!(begun, (0..BATCH).map(expected).collect::<Vec<_>>());

    let slots: Vec<_> = (0..BATCH).map(slot).collect();
    let found = all(place.first.read(&slots).await);
    assert_eq!(found, (0..BATCH).map(|n| Found::record(standing(n))).collect::<Vec<_>>());

    let settle = |n| {
        let guard = Guard::of(&pending(now, n));
        Settle { slot: slot(n), guard, settled: pending(now, n).confirmed() }
    };
    let settled = all(place.first.settle(&(0..BATCH).map(settle).collect::<Vec<_>>()).await);
    let expected = |n| if there(n) { Swapped::Moved(Found::record(standing(n))) } else { Swapped::Done };
    assert_eq!(settled, (0..BATCH).map(expected).collect::<Vec<_>>());

    let standing = |n: u8| if there(n) { standing(n) } else { standing(n).confirmed() };
    let count = |n| {
        let read = pending(now, n).confirmed();
        Count { slot: slot(n), guard: Guard::of(&read), now, payload: hash(n), read }
    };
    let counted = all(place.first.count(&(0..BATCH).map(count).collect::<Vec<_>>()).await);
    let expected = |n| {
        if there(n) {
            Counted::Moved(Found::record(standing(n)))
        } else {
            Counted::Counted(Box::new(Record { retry_count: 1, ..standing(n) }))
        }
    };
    assert_eq!(counted, (0..BATCH).map(expected).collect::<Vec<_>>());

    let heal = |n| Heal { slot: slot(n), row: pending(now, n ^ 0xFF).confirmed() };
    let healed = all(place.first.heal(&(0..BATCH).map(heal).collect::<Vec<_>>()).await);
    assert_eq!(healed, (0..BATCH).map(there).collect::<Vec<_>>());

    let replace = |n| {
        let guard = Guard::of(&pending(now, n ^ 0xFF).confirmed());
        Replace { slot: slot(n), guard, pending: pending(now, n), ttl_ms: TTL_MS }
    };
    let replaced = all(place.first.replace(&(0..BATCH).map(replace).collect::<Vec<_>>()).await);
    assert_eq!(replaced.iter().map(|swapped| *swapped == Swapped::Done).collect::<Vec<_>>(), healed);

    let release = |n| Release { slot: slot(n), guard: Guard::of(&pending(now, n)) };
    all(place.first.release(&(0..BATCH).map(release).collect::<Vec<_>>()).await);
    let left = all(place.first.read(&slots).await);
    assert_eq!(left.iter().map(|found| *found == Found::Absent).collect::<Vec<_>>(), healed);
}

/// Requests on one slot take effect in the order of the batch.
pub async fn repeats_of_a_slot_in_a_batch_take_effect_in_order(place: &Place) {
    let now = place.now().await;
    let slot = |n: u8| slot("repeats", u64::from(n % 10));
    let begins: Vec<Begin> =
        (0..BATCH).map(|n| Begin { slot: slot(n), pending: pending(now, n), ttl_ms: TTL_MS }).collect();
    let begun = all(place.first.begin(&begins).await);
    let expected = |n: u8| if n < 10 { Begun::Won } else { Begun::Present(Found::record(pending(now, n % 10))) };
    assert_eq!(begun, (0..BATCH).map(expected).collect::<Vec<_>>());

    // Each counts what the first begin wrote; the third of a slot drifts.
    let count = |n: u8| {
        let read = pending(now, n % 10);
        let payload = if n / 10 == 2 { hash(200) } else { read.payload_hash };
        Count { slot: slot(n), guard: Guard::of(&read), now: now.plus_millis(i64::from(n)), payload, read }
    };
    let counts: Vec<Count> = (0..BATCH).map(count).collect();
    let counted = all(place.first.count(&counts).await);
    let mut standing: Vec<Record> = (0..10).map(|n| pending(now, n)).collect();
    for (n, (request, counted)) in (0..).zip(counts.iter().zip(counted)) {
        let record = &mut standing[n % 10];
        record.sight(request.now, &request.payload);
        assert_eq!(counted, Counted::Counted(Box::new(record.clone())), "{n}");
    }
}

/// One item that finds something else does not keep the others from being done.
pub async fn an_items_failure_to_swap_is_its_own(place: &Place) {
    let now = place.now().await;
    let slot = |n: u8| slot("own-failure", u64::from(n));
    place.raw.put(slot(1), b"\x09 of another version", now.plus_seconds(60)).await;
    let begins: Vec<Begin> =
        (0..3).map(|n| Begin { slot: slot(n), pending: pending(now, n), ttl_ms: TTL_MS }).collect();
    let begun = all(place.first.begin(&begins).await);
    assert_eq!(begun, [Begun::Won, Begun::Present(Found::Unreadable), Begun::Won]);
}

fn all<T>(outcomes: Vec<Result<T, ledger_domain::ports::StoreError>>) -> Vec<T> {
    outcomes.into_iter().map(|outcome| outcome.expect("the tier answers")).collect()
}
