//! One case per line of the contract.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use ledger_domain::ports::{Amend, Begin, Begun, Count, Heal, HotTier, Release, Replace};
use ledger_domain::transition::{Amended, Counted, Found, Guard, Swapped};
use ledger_domain::{
    Drift, EPSILON_MS, Ended, FailReason, Nonce, PayloadHash, Record, Slot, SourceService, State, TakeOver, Timestamp,
    value,
};

use super::{Place, TTL_MS, begin, hash, only, pending, read, response, settle, slot};

pub(super) const MANY: u8 = 200;

/// What `step` makes of each number below [`MANY`], all at once, in turns on both handles.
pub(super) async fn at_once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    place: &Place,
    step: impl Fn(Arc<dyn HotTier>, u8) -> F,
) -> Vec<T> {
    let tasks = (0..MANY).map(|n| {
        let tier = if n % 2 == 0 { &place.first } else { &place.second };
        tokio::spawn(step(Arc::clone(tier), n))
    });
    join_all(tasks).await.into_iter().map(|task| task.expect("no task panics")).collect()
}

pub(super) async fn count(
    tier: &dyn HotTier,
    slot: Slot,
    read: &Record,
    now: Timestamp,
    payload: PayloadHash,
) -> Counted {
    only(tier.count(&[Count { slot, guard: Guard::of(read), now, payload, read: read.clone() }]).await)
}

async fn replace(tier: &dyn HotTier, slot: Slot, guard: Guard, pending: &Record) -> Swapped {
    only(tier.replace(&[Replace { slot, guard, pending: pending.clone(), ttl_ms: TTL_MS }]).await)
}

/// Exactly one of many concurrent begins wins, and all others see what it wrote.
pub async fn one_of_200_concurrent_begins_wins(place: &Place) {
    let (now, slot) = (place.now().await, slot("begins", 0));
    let outcomes = at_once(place, |tier, n| async move { (n, begin(&*tier, slot, &pending(now, n)).await) }).await;
    let winners: Vec<u8> = outcomes.iter().filter(|(_, begun)| *begun == Begun::Won).map(|(n, _)| *n).collect();
    let [winner] = winners.as_slice() else { panic!("won: {winners:?}") };
    let present = Begun::Present(Found::record(pending(now, *winner)));
    assert!(outcomes.iter().all(|(n, begun)| n == winner || *begun == present));
}

/// A write is seen by every handle once its result is returned.
pub async fn what_one_handle_wrote_the_other_sees(place: &Place) {
    let (now, slot) = (place.now().await, slot("handles", 0));
    let won = pending(now, 1);
    assert_eq!(begin(&*place.first, slot, &won).await, Begun::Won);
    assert_eq!(read(&*place.second, slot).await, Found::record(won.clone()));
    assert_eq!(settle(&*place.second, slot, Guard::of(&won), &won.confirmed()).await, Swapped::Done);
    assert_eq!(begin(&*place.first, slot, &pending(now, 2)).await, Begun::Present(Found::record(won.confirmed())));
}

/// Concurrent counts of one record are each counted once.
pub async fn each_of_200_concurrent_counts_is_counted_once(place: &Place) {
    let (now, slot) = (place.now().await, slot("counts", 0));
    let record = pending(now, 1).confirmed();
    place.settled(slot, &record).await;
    let counted = at_once(place, |tier, n| {
        let record = record.clone();
        async move { count(&*tier, slot, &record, now.plus_millis(i64::from(n)), record.payload_hash).await }
    });
    let retry_counts: BTreeSet<u32> = counted
        .await
        .into_iter()
        .map(|counted| match counted {
            Counted::Counted(record) => record.retry_count,
            Counted::Moved(found) => panic!("moved: {found:?}"),
        })
        .collect();
    assert_eq!(retry_counts, (1..=u32::from(MANY)).collect());
    let last_seen_at = now.plus_millis(i64::from(MANY) - 1);
    let expected = Record { retry_count: u32::from(MANY), last_seen_at, ..record };
    assert_eq!(read(&*place.first, slot).await, Found::record(expected));
}

/// The first hash stays; drift is counted, with the last differing hash and its time: the latest, also where a process whose
/// clock is behind comes after it; of two at one time the greater, so that order makes no difference.
pub async fn drift_keeps_the_first_hash_and_the_last_one(place: &Place) {
    let (now, slot) = (place.now().await, slot("drift", 0));
    let mut record = Record { lease_ends_at: Some(now.plus_seconds(60)), ..pending(now, 1) }.confirmed();
    place.settled(slot, &record).await;
    let sightings = [(5, 1), (6, 9), (4, 1), (3, 8), (9, 7), (8, 6), (9, 5)];
    for (millis, payload) in sightings {
        let (at, payload) = (now.plus_millis(millis), hash(payload));
        let counted = count(&*place.first, slot, &record, at, payload).await;
        record.sight(at, &payload);
        assert_eq!(counted, Counted::Counted(Box::new(record.clone())));
    }
    assert_eq!(record.payload_hash, hash(1));
    let last = Drift { count: 5, last_hash: hash(7), last_at: now.plus_millis(9) };
    assert_eq!((record.retry_count, record.last_seen_at, record.drift), (7, now.plus_millis(9), Some(last)));
    assert_eq!(place.value(slot).await, Some(value::encode(&record)));
}

/// A count at its highest stays there, whether the caller's reading is fresh or not.
pub async fn counts_saturate(place: &Place) {
    let now = place.now().await;
    for (n, stale) in [(0, false), (1, true)] {
        let slot = slot("saturation", n);
        let drift = Some(Drift { count: u32::MAX, last_hash: hash(2), last_at: now });
        let full = Record { retry_count: u32::MAX, drift, ..pending(now, 1) }.confirmed();
        place.settled(slot, &full).await;
        let seen = if stale { Record { retry_count: 3, drift: None, ..full.clone() } } else { full.clone() };
        let mut expected = full;
        expected.sight(now.plus_millis(1), &hash(3));
        assert_eq!((expected.retry_count, expected.drift.map(|drift| drift.count)), (u32::MAX, Some(u32::MAX)));
        let counted = count(&*place.first, slot, &seen, now.plus_millis(1), hash(3)).await;
        assert_eq!(counted, Counted::Counted(Box::new(expected.clone())));
        assert_eq!(place.value(slot).await, Some(value::encode(&expected)));
    }
}

/// Repeating a settle that was done is done again, and writes nothing.
pub async fn settling_twice_is_done_twice(place: &Place) {
    let (now, slot) = (place.now().await, slot("settle-twice", 0));
    let won = pending(now, 1);
    place.settled(slot, &won.confirmed()).await;
    let counted = count(&*place.first, slot, &won.confirmed(), now, won.payload_hash).await;
    assert!(matches!(counted, Counted::Counted(_)));
    let before = place.raw.get(slot).await;
    assert_eq!(settle(&*place.second, slot, Guard::of(&won), &won.confirmed()).await, Swapped::Done);
    assert_eq!(place.raw.get(slot).await, before);
}

/// A settle that finds another check's value, or nothing, writes nothing and says what is there.
pub async fn settling_what_moved_or_is_absent_writes_nothing(place: &Place) {
    let now = place.now().await;
    let absent = slot("settle-moved", 0);
    let won = pending(now, 1);
    assert_eq!(settle(&*place.first, absent, Guard::of(&won), &won.confirmed()).await, Swapped::Moved(Found::Absent));
    assert_eq!(place.raw.get(absent).await, None);

    let others = [
        Record { registration_id: pending(now, 2).registration_id, ..won.clone() },
        Record { attempt: 2, ..won.clone() },
        Record { nonce: Nonce::from_bytes([0; 8]), ..won.clone() },
        Record { attempt: 258, ..won.confirmed() },
        // The same check's, ended since by its holder: a second call of it must not be told NEW.
        Record { state: State::Failed, ..won.clone() },
        Record { state: State::Resolved, ..won.clone() },
    ];
    for (n, other) in (1..).zip(others) {
        let slot = slot("settle-moved", n);
        place.raw.put(slot, &value::encode(&other), other.window_ends_at).await;
        let before = place.raw.get(slot).await;
        let swapped = settle(&*place.first, slot, Guard::of(&won), &won.confirmed()).await;
        assert_eq!(swapped, Swapped::Moved(Found::record(other)));
        assert_eq!(place.raw.get(slot).await, before);
    }
}

/// Values of an unknown version, and damaged ones, are never NEW, never overwritten and never removed.
pub async fn unreadable_values_stand_whatever_is_asked(place: &Place) {
    let now = place.now().await;
    let whole = Record { drift: Some(Drift { count: 1, last_hash: hash(5), last_at: now }), ..pending(now, 1) };
    let bytes = value::encode(&whole);
    let with = |at: usize, byte: u8| {
        let mut damaged = bytes.clone();
        damaged[at] = byte;
        damaged
    };
    let damaged = [
        with(0, 2),
        with(0, 0),
        with(1, 6),
        with(value::FLAGS_OFFSET, 0x80 | 1),
        with(value::FLAGS_OFFSET, 0),
        with(30, 0xFF),
        bytes[..bytes.len() - 1].to_vec(),
        bytes[..value::IDENTITY_LEN].to_vec(),
        [&bytes[..], &[0]].concat(),
        Vec::new(),
    ];
    let guard = Guard::of(&whole);
    for (n, value) in (0..).zip(damaged) {
        let (slot, tier) = (slot("unreadable", n), &*place.first);
        place.raw.put(slot, &value, whole.window_ends_at).await;
        let before = place.raw.get(slot).await;
        assert_eq!(read(tier, slot).await, Found::Unreadable, "{n}");
        assert_eq!(begin(tier, slot, &whole).await, Begun::Present(Found::Unreadable), "{n}");
        assert_eq!(settle(tier, slot, guard, &whole.confirmed()).await, Swapped::Moved(Found::Unreadable), "{n}");
        let counted = count(tier, slot, &whole, now, hash(9)).await;
        assert_eq!(counted, Counted::Moved(Found::Unreadable), "{n}");
        assert_eq!(replace(tier, slot, guard, &whole).await, Swapped::Moved(Found::Unreadable), "{n}");
        let (read, to) = (whole.clone(), whole.confirmed());
        let amended = only(tier.amend(&[Amend { slot, read, to, sighting: None }]).await);
        assert_eq!(amended, Amended::Moved(Found::Unreadable), "{n}");
        let () = only(tier.release(&[Release { slot, guard }]).await);
        assert!(!only(tier.heal(&[Heal { slot, row: whole.confirmed() }]).await), "{n}");
        assert_eq!(place.raw.get(slot).await, before, "{n}");
    }
}

/// Whatever a byte of a value becomes, the value is readable to the tier exactly where it is to the decoder.
pub async fn each_byte_is_judged_as_the_decoder_does(place: &Place) {
    let (now, slot) = (place.now().await, slot("bytes", 0));
    let text = "a\u{a0}\u{e4}\u{7ff}\u{800}\u{20ac}\u{d7ff}\u{e000}\u{10000}\u{1f4e8}\u{10ffff}";
    let whole = Record {
        drift: Some(Drift { count: 1, last_hash: hash(5), last_at: now }),
        won_at: now.plus_millis(1),
        lease_ends_at: Some(now),
        take_over: Some(TakeOver {
            deadline: now,
            attempt: 2,
            nonce: Nonce::from_bytes([3; 8]),
            won_at: now,
            lease_ends_at: Some(now),
        }),
        source_service: Some(SourceService::parse(text).expect("valid")),
        response: Some(response(3)),
        attempt_source: Some(SourceService::parse("s\u{e4}").expect("valid")),
        ended: Some(Ended { at: now, reason: Some(FailReason::parse("r\u{20ac}").expect("valid")) }),
        ..pending(now, 1).confirmed()
    };
    let bytes = value::encode(&whole);
    let (mut readable, mut unreadable) = (0, 0);
    for at in value::IDENTITY_LEN..bytes.len() {
        for byte in [0x00, 0x0A, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xC1, 0xE0, 0xE6, 0xED, 0xF0, 0xF4, 0xF5] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            place.raw.put(slot, &changed, now.plus_seconds(60)).await;
            let expected = if value::decode(&changed).is_ok() {
                readable += 1;
                Swapped::Done
            } else {
                unreadable += 1;
                Swapped::Moved(Found::Unreadable)
            };
            // It stands settled by the same check, so that nothing is written either way.
            let swapped = settle(&*place.first, slot, Guard::of(&pending(now, 1)), &whole).await;
            assert_eq!(swapped, expected, "byte {at} is {byte:#04x}");
        }
    }
    assert!(readable > 100 && unreadable > 100, "{readable} readable, {unreadable} unreadable");
}

/// A replacement needs the state, registration, attempt and nonce that were read.
pub async fn a_record_is_replaced_only_if_unchanged(place: &Place) {
    let (now, slot) = (place.now().await, slot("replace", 0));
    let (old, new) = (pending(now, 1).confirmed(), pending(now, 2));
    assert_eq!(replace(&*place.first, slot, Guard::of(&old), &new).await, Swapped::Moved(Found::Absent));
    place.settled(slot, &old).await;
    let read_guard = Guard::of(&old);
    let stale = [
        Guard { state: State::Pending, ..read_guard },
        Guard { attempt: 2, ..read_guard },
        Guard { nonce: new.nonce, ..read_guard },
        Guard { registration_id: new.registration_id, ..read_guard },
    ];
    for guard in stale {
        let moved = Swapped::Moved(Found::record(old.clone()));
        assert_eq!(replace(&*place.first, slot, guard, &new).await, moved);
    }
    assert_eq!(replace(&*place.first, slot, read_guard, &new).await, Swapped::Done);
    assert_eq!(place.value(slot).await, Some(value::encode(&new)));
    assert_eq!(replace(&*place.second, slot, read_guard, &old).await, Swapped::Moved(Found::record(new)));
}

/// A release removes the PENDING of its own check, and nothing else.
pub async fn release_removes_only_its_own_pending(place: &Place) {
    let (now, slot) = (place.now().await, slot("release", 0));
    let (mine, other) = (pending(now, 1), pending(now, 2));
    let release = async |record: &Record| {
        let () = only(place.first.release(&[Release { slot, guard: Guard::of(record) }]).await);
        place.value(slot).await
    };
    assert_eq!(release(&mine).await, None);
    assert_eq!(begin(&*place.first, slot, &mine).await, Begun::Won);
    assert_eq!(release(&other).await, Some(value::encode(&mine)));
    assert_eq!(release(&mine).await, None);
    place.settled(slot, &mine.confirmed()).await;
    assert_eq!(release(&mine).await, Some(value::encode(&mine.confirmed())));
    assert_eq!(release(&mine.confirmed()).await, Some(value::encode(&mine.confirmed())));
}

/// Absent: the row. PENDING of the same registration, attempt and nonce: the row. Else nothing.
pub async fn heal_writes_over_nothing_and_its_own_pending_only(place: &Place) {
    let now = place.now().await;
    let row = Record { retry_count: 4, ..pending(now, 1).confirmed() };
    let heal = async |slot: Slot| only(place.first.heal(&[Heal { slot, row: row.clone() }]).await);

    let absent = slot("heal", 0);
    assert!(heal(absent).await);
    assert_eq!(place.value(absent).await, Some(value::encode(&row)));
    assert!(!heal(absent).await, "it stands already");

    let own = slot("heal", 1);
    assert_eq!(begin(&*place.first, own, &pending(now, 1)).await, Begun::Won);
    assert!(heal(own).await);
    assert_eq!(place.value(own).await, Some(value::encode(&row)));

    let others = [pending(now, 2), Record { attempt: 2, ..pending(now, 1) }, pending(now, 1).confirmed()];
    for (n, other) in (2..).zip(others) {
        let slot = slot("heal", n);
        place.raw.put(slot, &value::encode(&other), other.window_ends_at).await;
        assert!(!heal(slot).await);
        assert_eq!(place.value(slot).await, Some(value::encode(&other)));
    }
}

/// A PENDING stands for its time and 2 ε, a settled record to its window's end and 2 ε; counting changes neither.
pub async fn each_value_has_the_right_expiry(place: &Place) {
    let slot = slot("expiry", 0);
    let expires_at = async || place.raw.get(slot).await.expect("it stands").expires_at.expect("it has an expiry");
    let pending_ms = i64::try_from(TTL_MS).expect("small") + 2 * EPSILON_MS;

    let before = place.now().await;
    let won = pending(before, 1);
    assert_eq!(begin(&*place.first, slot, &won).await, Begun::Won);
    let after = place.now().await;
    let within = before.plus_millis(pending_ms)..=after.plus_millis(pending_ms);
    assert!(within.contains(&expires_at().await));

    let settled_until = won.window_ends_at.plus_millis(2 * EPSILON_MS);
    assert_eq!(settle(&*place.first, slot, Guard::of(&won), &won.confirmed()).await, Swapped::Done);
    assert_eq!(expires_at().await, settled_until);
    for payload in [1, 2, 2, 3] {
        let counted = count(&*place.first, slot, &won.confirmed(), after, hash(payload)).await;
        assert!(matches!(counted, Counted::Counted(_)));
        assert_eq!(expires_at().await, settled_until, "counting keeps it");
    }

    let before = place.now().await;
    assert_eq!(replace(&*place.first, slot, Guard::of(&won.confirmed()), &pending(before, 2)).await, Swapped::Done);
    let after = place.now().await;
    let within = before.plus_millis(pending_ms)..=after.plus_millis(pending_ms);
    assert!(within.contains(&expires_at().await));

    let row = Record { window_ends_at: before.plus_seconds(7), ..pending(before, 2).confirmed() };
    assert!(only(place.first.heal(&[Heal { slot, row: row.clone() }]).await));
    assert_eq!(expires_at().await, row.window_ends_at.plus_millis(2 * EPSILON_MS));
}

/// Once its time is over a value is gone, and the key can be won again.
pub async fn what_is_past_its_end_is_absent(place: &Place) {
    let (now, slot) = (place.now().await, slot("past", 0));
    let over = Record { window_ends_at: now.plus_millis(-1_000), ..pending(now, 1) };
    assert_eq!(begin(&*place.first, slot, &over).await, Begun::Won);
    assert_eq!(settle(&*place.first, slot, Guard::of(&over), &over.confirmed()).await, Swapped::Done);
    assert_eq!(read(&*place.second, slot).await, Found::Absent);
    assert_eq!(begin(&*place.second, slot, &pending(now, 2)).await, Begun::Won);
}

/// R36: a peek is never a registration.
pub async fn a_read_never_registers(place: &Place) {
    let (now, slot) = (place.now().await, slot("peek", 0));
    for _ in 0..3 {
        assert_eq!(read(&*place.first, slot).await, Found::Absent);
    }
    assert_eq!(place.raw.get(slot).await, None);
    assert_eq!(begin(&*place.first, slot, &pending(now, 1)).await, Begun::Won);
    let before = place.raw.get(slot).await;
    assert_eq!(read(&*place.second, slot).await, Found::record(pending(now, 1)));
    assert_eq!(place.raw.get(slot).await, before);
}

/// A response of the largest size stands, and counting over it leaves it as it is.
pub async fn a_stored_response_is_kept_and_counted_over(place: &Place) {
    let (now, slot) = (place.now().await, slot("response", 0));
    let response = Some(response(ledger_domain::StoredResponse::MAX_BYTES));
    let ended_at = |at: Timestamp| Some(Ended { at, reason: None });
    let mut record = Record { state: State::Resolved, response, ended: ended_at(now), ..pending(now, 1) };
    place.settled(slot, &record).await;
    // What differs at first is in what follows the response alone, and is of the same length.
    let stale = Record { ended: ended_at(now.plus_millis(1)), ..record.clone() };
    for (seen_fresh, payload) in [(false, 1), (true, 1), (true, 2), (false, 1), (false, 3), (true, 4)] {
        let seen = if seen_fresh { record.clone() } else { stale.clone() };
        record.sight(now, &hash(payload));
        let counted = count(&*place.first, slot, &seen, now, hash(payload)).await;
        assert!(counted == Counted::Counted(Box::new(record.clone())), "payload {payload}");
    }
    assert!(place.value(slot).await == Some(value::encode(&record)));
}

/// Its time passes on both handles alike.
pub async fn it_tells_the_time(place: &Place) {
    let (earlier, later) = (place.first.time().await, place.second.time().await);
    assert!(earlier.expect("the tier answers") <= later.expect("the tier answers"));
}

/// Nothing asked, nothing answered.
pub async fn an_empty_batch_answers_nothing(place: &Place) {
    assert_eq!(place.first.begin(&Vec::<Begin>::new()).await.len(), 0);
    assert_eq!(place.first.read(&[]).await.len(), 0);
}
