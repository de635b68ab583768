//! Cases of filling from durable rows, and of the warm markers.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use ledger_domain::ports::{Amend, Fill, HotTier, StoreError, WarmMarker};
use ledger_domain::transition::{Amended, Counted, Found, Guard, Swapped};
use ledger_domain::{EPSILON_MS, Ended, FillPass, Nonce, Record, Slot, State, StoredResponse, TakeOver, value};

use super::cases::{MANY, at_once, count};
use super::{Place, only, pending, read, response, settle, slot};

async fn fill(tier: &dyn HotTier, slot: Slot, row: &Record) -> bool {
    only(tier.fill(&[Fill { slot, row: row.clone() }]).await)
}

/// A fill writes the row over nothing, over anybody's first PENDING and over an older registration; over an older state of the
/// same registration what the two know together; over anything newer, as new or unreadable nothing. What it writes expires at
/// its window's end and 2 ε.
pub async fn fill_writes_over_nothing_and_what_is_older_only(place: &Place) {
    let now = place.now().await;
    let at = |seconds: i64| now.plus_millis(seconds * 1_000);
    let registered = pending(now, 1).confirmed();
    let claimed = Record { lease_ends_at: Some(at(60)), ..pending(now, 1) }.confirmed();
    let ended = Some(Ended { at: at(5), reason: None });
    let resolved =
        Record { state: State::Resolved, response: Some(response(3)), ended: ended.clone(), ..claimed.clone() };
    let failed = Record { state: State::Failed, ended, ..claimed.clone() };
    let second = Record { attempt: 2, nonce: Nonce::from_bytes([9; 8]), won_at: at(6), ..claimed.clone() };
    let counted = Record { retry_count: 7, last_seen_at: at(9), ..claimed.clone() };
    let over = TakeOver {
        deadline: at(10),
        attempt: 2,
        nonce: Nonce::from_bytes([9; 8]),
        won_at: now,
        lease_ends_at: Some(at(50)),
    };
    let taken_over = Record { take_over: Some(over), ..failed.clone() };
    let lapsed = Record { take_over: Some(TakeOver { deadline: at(-5), ..over }), ..claimed.clone() };
    let older = Record { first_seen_at: at(-9), last_seen_at: at(-9), won_at: at(-9), ..pending(now, 2) }.confirmed();
    let newer = Record { first_seen_at: at(9), last_seen_at: at(9), won_at: at(9), ..pending(now, 2) }.confirmed();
    let as_bytes = |record: &Record| Some(value::encode(record));
    let cases = [
        ("absent", None, &registered, Some(&registered)),
        ("its own PENDING", as_bytes(&pending(now, 1)), &registered, Some(&registered)),
        (
            "another's PENDING, newer",
            as_bytes(&Record { first_seen_at: at(9), ..pending(now, 2) }),
            &registered,
            Some(&registered),
        ),
        (
            "another's PENDING, older",
            as_bytes(&Record { first_seen_at: at(-9), ..pending(now, 2) }),
            &resolved,
            Some(&resolved),
        ),
        ("an older attempt", as_bytes(&claimed), &second, Some(&second)),
        (
            "an older attempt that counted",
            as_bytes(&counted),
            &second,
            Some(&Record { retry_count: 7, last_seen_at: at(9), ..second.clone() }),
        ),
        ("IN_PROGRESS, and the row is RESOLVED", as_bytes(&claimed), &resolved, Some(&resolved)),
        ("a newer attempt", as_bytes(&second), &claimed, None),
        ("RESOLVED, and the row is IN_PROGRESS", as_bytes(&resolved), &claimed, None),
        (
            "RESOLVED, and the row counted more",
            as_bytes(&resolved),
            &counted,
            Some(&Record { retry_count: 7, last_seen_at: at(9), ..resolved.clone() }),
        ),
        ("the row itself", as_bytes(&resolved), &resolved, None),
        ("more sightings", as_bytes(&counted), &claimed, None),
        ("an older registration", as_bytes(&older), &registered, Some(&registered)),
        ("a newer registration", as_bytes(&newer), &registered, None),
        ("a take-over under way over what the row says", as_bytes(&taken_over), &failed, None),
        ("a take-over under way over less than the row says", as_bytes(&taken_over), &resolved, Some(&resolved)),
        ("a take-over of the row's own check", as_bytes(&taken_over), &second, Some(&second)),
        ("a take-over that lapsed", as_bytes(&lapsed), &second, Some(&second)),
        (
            "an act not known to be durable, which the row has",
            as_bytes(&Record { undurable: true, ..resolved.clone() }),
            &resolved,
            None,
        ),
        (
            "an act not known to be durable, newer than the row",
            as_bytes(&Record { undurable: true, ..resolved.clone() }),
            &claimed,
            None,
        ),
        (
            "an act not known to be durable, older than the row",
            as_bytes(&Record { undurable: true, ..failed.clone() }),
            &second,
            Some(&second),
        ),
        ("an unknown version", Some(b"\x09 of another version".to_vec()), &resolved, None),
        ("nothing that can be read", Some(Vec::new()), &resolved, None),
    ];
    for (n, (name, stands, row, expected)) in (0..).zip(cases) {
        let slot = slot("fills", n);
        if let Some(stands) = &stands {
            place.raw.put(slot, stands, at(3_600)).await;
        }
        let before = place.raw.get(slot).await;
        assert_eq!(fill(&*place.first, slot, row).await, expected.is_some(), "{name}");
        let after = place.raw.get(slot).await;
        match expected {
            None => assert_eq!(after, before, "{name}"),
            Some(expected) => {
                let after = after.expect(name);
                let expires_at = Some(expected.window_ends_at.plus_millis(EPSILON_MS * 2));
                assert_eq!(value::decode(&after.value).as_ref(), Ok(expected), "{name}");
                assert_eq!(after.expires_at, expires_at, "{name}");
            }
        }
        assert!(!fill(&*place.second, slot, row).await, "{name}: filled twice is filled once");
    }
}

/// A check whose PENDING a fill replaced, and one whose take-over it replaced, is refused its confirmation.
pub async fn what_a_fill_replaced_is_not_confirmed(place: &Place) {
    let now = place.now().await;
    let (first, row) = (slot("fills-refuse", 0), pending(now, 1).confirmed());
    let won = pending(now, 2);
    place.raw.put(first, &value::encode(&won), won.window_ends_at).await;
    assert!(fill(&*place.second, first, &row).await);
    let settled = settle(&*place.first, first, Guard::of(&won), &won.confirmed()).await;
    assert_eq!(settled, Swapped::Moved(Found::record(row)));

    let taken = slot("fills-refuse", 1);
    let failed = Record { state: State::Failed, lease_ends_at: Some(now.plus_seconds(1)), ..pending(now, 1) };
    let (nonce, lease_ends_at) = (Nonce::from_bytes([7; 8]), Some(now.plus_seconds(60)));
    let take_over = TakeOver { deadline: now.plus_seconds(10), attempt: 2, nonce, won_at: now, lease_ends_at };
    let over = Record { take_over: Some(take_over), ..failed.clone() };
    place.raw.put(taken, &value::encode(&over), over.window_ends_at).await;
    let row = Record { attempt: 2, nonce: Nonce::from_bytes([8; 8]), won_at: now, state: State::InProgress, ..failed };
    assert!(fill(&*place.second, taken, &row).await);
    let to = over.taken_over(&take_over, &over.payload_hash, None);
    let amended = only(place.first.amend(&[Amend { slot: taken, read: over, to, sighting: None }]).await);
    assert_eq!(amended, Amended::Moved(Found::record(row)));
}

/// Sightings that are counted while rows are filled are all counted: what changes between being read and being swapped is
/// looked at again.
pub async fn fills_lose_no_sighting_counted_in_between(place: &Place) {
    let (now, slot) = (place.now().await, slot("fills-counts", 0));
    let record = pending(now, 1).confirmed();
    place.settled(slot, &record).await;
    let outcomes = at_once(place, |tier, n| {
        let record = record.clone();
        async move {
            if n % 4 != 0 {
                let counted = count(&*tier, slot, &record, now, record.payload_hash).await;
                let Counted::Counted(counted) = counted else { panic!("{n}: {counted:?}") };
                return Some(counted.retry_count);
            }
            // Each row knows of a later sighting than the others, so that there is something to write.
            let row = Record { last_seen_at: now.plus_seconds(u64::from(n)), ..record };
            let filled = tier.fill(&[Fill { slot, row }]).await.remove(0);
            // Among 150 who count, one may find another value each time: then it says that nothing happened.
            assert!(matches!(filled, Ok(_) | Err(StoreError::DidNotHappen { .. })), "{n}: {filled:?}");
            None
        }
    });
    let counts: BTreeSet<u32> = outcomes.await.into_iter().flatten().collect();
    let counted = u32::from(MANY) * 3 / 4;
    assert_eq!(counts, (1..=counted).collect());
    let Found::Record(stands) = read(&*place.first, slot).await else { panic!("it stands") };
    assert_eq!(stands.retry_count, counted);
}

/// Of a lease that is renewed while older rows are filled, the longest stands, and of what the rows know nothing is lost.
pub async fn fills_and_amends_at_once_lose_neither(place: &Place) {
    let now = place.now().await;
    let claimed = |n: u8| Record { lease_ends_at: Some(now.plus_seconds(60)), ..pending(now, n) }.confirmed();
    let each = at_once(place, |tier, n| {
        let (slot, claimed) = (slot("fills-amends", u64::from(n)), claimed(n));
        async move {
            let stands = claimed.clone();
            assert!(fill(&*tier, slot, &stands).await);
            let to = Record { lease_ends_at: Some(now.plus_seconds(600)), ..claimed.clone() };
            let row = Record { retry_count: 5, ..claimed.clone() };
            let amend = [Amend { slot, read: claimed, to, sighting: None }];
            let (fills, amends) = ([Fill { slot, row }], amend);
            let (filled, amended) = futures::future::join(tier.fill(&fills), tier.amend(&amends)).await;
            assert!(only(filled), "{n}");
            assert!(matches!(only(amended), Amended::Done(_)), "{n}");
        }
    });
    each.await;
    let slots: Vec<Slot> = (0..MANY).map(|n| slot("fills-amends", u64::from(n))).collect();
    for (n, found) in (0..).zip(place.first.read(&slots).await) {
        let expected = Record { lease_ends_at: Some(now.plus_seconds(600)), retry_count: 5, ..claimed(n) };
        assert_eq!(found.expect("the tier answers"), Found::record(expected), "{n}");
    }
}

/// A keeper's chunk, a third of it standing already, answers in the order of its requests; two rows of one slot too.
pub async fn a_batch_of_1000_fills_and_repeats_takes_effect_in_order(place: &Place) {
    let now = place.now().await;
    let slot = |n: u64| slot("fills-batch", n);
    let row = |n: u64| {
        let retry_count = u32::try_from(n).unwrap_or(0);
        Record { retry_count, ..pending(now, 1) }.confirmed()
    };
    let stands = |n: u64| n.is_multiple_of(3);
    let standing: Vec<Fill> = (0..1_000).filter(|n| stands(*n)).map(|n| Fill { slot: slot(n), row: row(n) }).collect();
    assert!(place.second.fill(&standing).await.into_iter().all(|filled| filled.expect("the tier answers")));
    let mut requests: Vec<Fill> = (0..1_000).map(|n| Fill { slot: slot(n), row: row(n) }).collect();
    // Of the second slot once more, with less, and then with more.
    requests.push(Fill { slot: slot(1), row: row(0) });
    requests.push(Fill { slot: slot(1), row: row(2_000) });
    let filled: Vec<bool> =
        place.first.fill(&requests).await.into_iter().map(|filled| filled.expect("the tier answers")).collect();
    let expected: Vec<bool> = (0..1_000).map(|n| !stands(n)).chain([false, true]).collect();
    assert_eq!(filled, expected);
    let slots: Vec<Slot> = (0..1_000).map(slot).collect();
    for (n, found) in (0..).zip(place.second.read(&slots).await) {
        let expected = if n == 1 { row(2_000) } else { row(n) };
        assert_eq!(found.expect("the tier answers"), Found::record(expected), "{n}");
    }
}

/// Stored answers are filled whole, however many there are.
pub async fn fills_with_large_answers_are_all_written(place: &Place) {
    let now = place.now().await;
    let slot = |n: u64| slot("fills-large", n);
    let row = |n: u8| Record {
        state: State::Resolved,
        response: Some(response(StoredResponse::MAX_BYTES - usize::from(n))),
        ended: Some(Ended { at: now, reason: None }),
        ..pending(now, n)
    };
    let requests: Vec<Fill> = (0..40).map(|n| Fill { slot: slot(u64::from(n)), row: row(n) }).collect();
    assert!(place.first.fill(&requests).await.into_iter().all(|filled| filled.expect("the tier answers")));
    assert!(!place.first.fill(&requests).await.into_iter().any(|filled| filled.expect("the tier answers")));
    for request in &requests {
        assert!(read(&*place.second, request.slot).await == Found::record(request.row.clone()));
    }
}

/// Without a marker the tier is not complete; a pass's marker is of the last pass that began, and only that pass ends it, as
/// often as it asks. The one case of a place that marks.
pub async fn the_markers_say_missing_then_filling_then_warm(place: &Place) {
    let (first, second) = (FillPass::from_bytes([1; 8]), FillPass::from_bytes([2; 8]));
    let handles = [&place.first, &place.second];
    let says = async |marker: WarmMarker| {
        for health in join_all(handles.map(|tier| tier.health())).await {
            let health = health.expect("the tier answers");
            assert_eq!((health.marker, &health.problems), (marker, &Vec::new()));
            assert_eq!(health.is_complete(), matches!(marker, WarmMarker::Warm(_)));
        }
    };
    let begin = async |tier: &Arc<dyn HotTier>, pass| tier.begin_fill(pass).await.expect("the tier answers");
    let end = async |tier: &Arc<dyn HotTier>, pass| tier.end_fill(pass).await.expect("the tier answers");
    says(WarmMarker::Missing).await;
    assert!(!end(handles[0], first).await, "it did not begin");
    says(WarmMarker::Missing).await;
    begin(handles[0], first).await;
    says(WarmMarker::Filling(first)).await;
    begin(handles[1], second).await;
    says(WarmMarker::Filling(second)).await;
    assert!(!end(handles[0], first).await, "another began after it");
    says(WarmMarker::Filling(second)).await;
    assert!(end(handles[0], second).await);
    says(WarmMarker::Warm(second)).await;
    assert!(end(handles[1], second).await, "the reply to the first may have been lost");
    assert!(!end(handles[1], first).await);
    says(WarmMarker::Warm(second)).await;
    begin(handles[1], first).await;
    says(WarmMarker::Filling(first)).await;
}
