//! Claims' transitions: `amend`, and healing over a take-over.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use ledger_domain::ports::{Amend, Begin, Heal, HotTier};
use ledger_domain::transition::{self, Amended, Counted, Found, Sighting};
use ledger_domain::{
    ContentType, Drift, EPSILON_MS, Ended, FailReason, Nonce, PayloadHash, Record, Slot, SourceService, State,
    StoredResponse, TakeOver, Timestamp, value,
};

use super::cases::{MANY, at_once, count};
use super::{Place, TTL_MS, hash, only, pending, response, slot};

async fn amend(tier: &dyn HotTier, slot: Slot, read: &Record, to: &Record, sighting: Option<Sighting>) -> Amended {
    only(tier.amend(&[Amend { slot, read: read.clone(), to: to.clone(), sighting }]).await)
}

fn source(name: &str) -> Option<SourceService> {
    Some(SourceService::parse(name).expect("valid"))
}

/// A claim in progress, leased for a minute; `n` as in [`pending`].
fn claim(now: Timestamp, n: u8) -> Record {
    let lease_ends_at = Some(now.plus_seconds(60));
    Record { state: State::InProgress, lease_ends_at, source_service: source("as4-ingest"), ..pending(now, n) }
}

fn failed(read: &Record, at: Timestamp) -> Record {
    let reason = Some(FailReason::parse("partner\u{2019}s system is down").expect("valid"));
    Record { state: State::Failed, ended: Some(Ended { at, reason }), undurable: true, ..read.clone() }
}

fn resolved(read: &Record, at: Timestamp, response: Option<StoredResponse>) -> Record {
    let ended = Some(Ended { at, reason: None });
    Record { state: State::Resolved, ended, response, undurable: true, ..read.clone() }
}

fn renewed(read: &Record, seconds: u64) -> Record {
    Record { lease_ends_at: Some(read.won_at.plus_seconds(seconds)), ..read.clone() }
}

fn take_over(read: &Record, at: Timestamp, nonce: u8) -> TakeOver {
    TakeOver {
        deadline: at.plus_millis(Record::PENDING_MS),
        attempt: read.next_attempt(),
        nonce: Nonce::from_bytes([nonce; 8]),
        won_at: at,
        lease_ends_at: Some(at.plus_seconds(60)),
    }
}

fn taken(read: &Record, take_over: TakeOver) -> Record {
    Record { take_over: Some(take_over), ..read.clone() }
}

/// As a reply of `amend` gives it.
fn done(record: &Record) -> Amended {
    Amended::Done(Box::new(Record { response: None, ..record.clone() }))
}

/// A claim's whole life: each step replaces the claim's part, notes and response, and leaves source service, drift, counts and a
/// stored response as they are.
pub async fn a_claims_steps_leave_all_else_as_it_is(place: &Place) {
    let (now, slot) = (place.now().await, slot("claim-steps", 0));
    let mut standing = claim(now, 1);
    place.settled(slot, &standing).await;
    for payload in [1, 5, 6] {
        let counted = count(&*place.first, slot, &standing, now.plus_millis(1), hash(payload)).await;
        standing.sight(now.plus_millis(1), &hash(payload));
        assert_eq!(counted, Counted::Counted(Box::new(standing.clone())));
    }
    let kept = (standing.source_service.clone(), standing.drift, standing.retry_count, standing.last_seen_at);
    let later = now.plus_millis(50);
    let body: Vec<u8> = (0..StoredResponse::MAX_BYTES).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    let answer = StoredResponse { content_type: ContentType::parse("application/xml").expect("valid"), body };
    let steps: [&(dyn Fn(&Record) -> Record + Sync); 8] = [
        &|read| failed(read, later),
        &|read| Record { undurable: false, ..read.clone() },
        &|read| taken(read, take_over(read, later, 9)),
        &|read| {
            let over = read.take_over.expect("laid before");
            let (attempt, nonce, won_at) = (over.attempt, over.nonce, over.won_at);
            let state = State::InProgress;
            let (attempt_source, ended, take_over) = (source("batch-b"), None, None);
            let lease_ends_at = over.lease_ends_at;
            Record { state, attempt, nonce, won_at, lease_ends_at, attempt_source, ended, take_over, ..read.clone() }
        },
        &|read| renewed(read, 90),
        &|read| resolved(read, later, Some(answer.clone())),
        // Of a caller that had no response sent to it.
        &|read| Record { undurable: false, response: None, ..read.clone() },
        &|read| Record {
            state: State::Registered,
            lease_ends_at: None,
            attempt_source: None,
            ended: None,
            ..read.clone()
        },
    ];
    for (n, step) in steps.iter().enumerate() {
        let to = step(&standing);
        let amended = amend(&*place.first, slot, &standing, &to, None).await;
        let response = to.response.clone().or(standing.response);
        standing = Record { response, ..to };
        assert!(amended == done(&standing), "step {n}: {amended:?}");
        assert!(place.value(slot).await == Some(value::encode(&standing)), "step {n}: the value");
        assert_eq!(
            kept,
            (standing.source_service.clone(), standing.drift, standing.retry_count, standing.last_seen_at)
        );
    }
    assert_eq!(standing.response, Some(answer));
}

/// What was counted since the caller read the record stays, and the transition's own sighting comes to it.
pub async fn an_amend_loses_no_sighting_counted_in_between(place: &Place) {
    let (now, slot) = (place.now().await, slot("amend-sightings", 0));
    let read = claim(now, 1);
    place.settled(slot, &read).await;
    let mut standing = read.clone();
    for (millis, payload) in [(9, 7), (3, 8)] {
        let counted = count(&*place.second, slot, &read, now.plus_millis(millis), hash(payload)).await;
        standing.sight(now.plus_millis(millis), &hash(payload));
        assert_eq!(counted, Counted::Counted(Box::new(standing.clone())));
    }
    // Of a clock behind; with the first payload, then with another.
    let mut read = read;
    for (seconds, payload) in [(70, 1), (80, 9)] {
        let to = renewed(&read, seconds);
        let sighting = Sighting { at: now.plus_millis(4), payload: hash(payload) };
        standing.lease_ends_at = to.lease_ends_at;
        standing.sight(sighting.at, &sighting.payload);
        assert_eq!(amend(&*place.first, slot, &read, &to, Some(sighting)).await, done(&standing));
        assert_eq!(place.value(slot).await, Some(value::encode(&standing)));
        read = to;
    }
    let last_hash = standing.drift.map(|drift| (drift.count, drift.last_hash));
    assert_eq!((standing.retry_count, standing.last_seen_at, last_hash), (4, now.plus_millis(9), Some((3, hash(7)))));
}

/// Of many concurrent take-overs of one reading exactly one is laid; counts beside them are all counted.
pub async fn one_of_100_concurrent_take_overs_is_laid_and_counts_beside_them_stay(place: &Place) {
    let (now, slot) = (place.now().await, slot("take-overs", 0));
    let read = failed(&claim(now, 1), now);
    place.settled(slot, &read).await;
    let laid = at_once(place, |tier, n| {
        let read = read.clone();
        async move {
            if n % 4 < 2 {
                let counted = count(&*tier, slot, &read, now, read.payload_hash).await;
                assert!(matches!(counted, Counted::Counted(_)), "{n}: {counted:?}");
                return None;
            }
            let to = taken(&read, take_over(&read, now, n));
            let sighting = Some(Sighting { at: now, payload: read.payload_hash });
            match amend(&*tier, slot, &read, &to, sighting).await {
                Amended::Done(_) => to.take_over,
                Amended::Moved(Found::Record(other)) => {
                    assert!(other.take_over.is_some() && other.take_over != to.take_over, "{n}: {other:?}");
                    None
                }
                Amended::Moved(other @ (Found::Absent | Found::Unreadable)) => panic!("{n}: {other:?}"),
            }
        }
    });
    let laid: Vec<TakeOver> = laid.await.into_iter().flatten().collect();
    let [winner] = laid.as_slice() else { panic!("laid: {laid:?}") };
    let expected = Record { retry_count: u32::from(MANY) / 2 + 1, ..taken(&read, *winner) };
    assert_eq!(place.value(slot).await, Some(value::encode(&expected)));
}

/// The holder renewed its lease after the take-over's caller had read it as over: the holder goes on.
pub async fn a_lease_renewed_in_between_makes_a_take_over_moved(place: &Place) {
    let (now, slot) = (place.now().await, slot("renewed", 0));
    let read = claim(now, 1);
    place.settled(slot, &read).await;
    let longer = renewed(&read, 120);
    assert_eq!(amend(&*place.first, slot, &read, &longer, None).await, done(&longer));
    let to = taken(&read, take_over(&read, now, 9));
    let sighting = Some(Sighting { at: now, payload: hash(1) });
    let moved = Amended::Moved(Found::record(longer.clone()));
    assert_eq!(amend(&*place.second, slot, &read, &to, sighting).await, moved);
    assert_eq!(place.value(slot).await, Some(value::encode(&longer)));
}

/// A transition whose reply was lost is done when it is asked for again, and counts and writes nothing more; what differs in
/// notes or response alone is another transition.
pub async fn amending_twice_is_done_twice_and_counts_once(place: &Place) {
    let now = place.now().await;
    let answers = [None, Some(response(3)), Some(response(StoredResponse::MAX_BYTES))];
    for (n, answer) in (0..).zip(answers) {
        let slot = slot("amend-twice", n);
        let read = claim(now, 1);
        place.settled(slot, &read).await;
        let to = resolved(&read, now, answer.clone());
        let sighting = Some(Sighting { at: now.plus_millis(1), payload: hash(4) });
        let mut standing = to.clone();
        standing.sight(now.plus_millis(1), &hash(4));
        for tier in [&place.first, &place.second, &place.first] {
            assert!(amend(&**tier, slot, &read, &to, sighting).await == done(&standing), "{n}");
            assert!(place.value(slot).await == Some(value::encode(&standing)), "{n}: the value");
        }
        let others = [
            Record { ended: Some(Ended { at: now.plus_millis(1), reason: None }), ..to.clone() },
            Record { attempt_source: source("batch-b"), ..to.clone() },
            Record { ended: None, ..to.clone() },
            Record { response: Some(response(4)), ..to.clone() },
        ];
        for other in others {
            let moved = amend(&*place.first, slot, &read, &other, sighting).await;
            assert!(moved == Amended::Moved(Found::record(standing.clone())), "{n}: {moved:?}");
        }
        // Asked for without a response it stands, whatever response does.
        let unasked = Record { response: None, ..to };
        assert!(amend(&*place.first, slot, &read, &unasked, sighting).await == done(&standing), "{n}");
        assert!(place.value(slot).await == Some(value::encode(&standing)), "{n}: the value");
    }
}

/// Any part of the claim other than as read, and nothing is written; what stands is given whole, with its response.
pub async fn an_amend_of_what_moved_or_is_absent_writes_nothing(place: &Place) {
    let now = place.now().await;
    let read = taken(&Record { won_at: now.plus_millis(3), ..claim(now, 1) }, take_over(&claim(now, 1), now, 9));
    let to = renewed(&read, 90);
    let absent = slot("amend-moved", 0);
    assert_eq!(amend(&*place.first, absent, &read, &to, None).await, Amended::Moved(Found::Absent));
    assert_eq!(place.raw.get(absent).await, None);

    let over = read.take_over.expect("laid");
    let with = |take_over: TakeOver| Record { take_over: Some(take_over), ..read.clone() };
    let others = [
        Record { state: State::Failed, ..read.clone() },
        Record { registration_id: pending(now, 2).registration_id, ..read.clone() },
        Record { attempt: 257, ..read.clone() },
        Record { nonce: pending(now, 2).nonce, ..read.clone() },
        Record { won_at: now, ..read.clone() },
        Record { won_at: now.plus_millis(4), ..read.clone() },
        Record { lease_ends_at: None, ..read.clone() },
        Record { lease_ends_at: Some(now), ..read.clone() },
        Record { undurable: true, ..read.clone() },
        Record { take_over: None, ..read.clone() },
        with(TakeOver { deadline: now, ..over }),
        with(TakeOver { attempt: 9, ..over }),
        with(TakeOver { nonce: Nonce::from_bytes([1; 8]), ..over }),
        with(TakeOver { won_at: now.plus_millis(1), ..over }),
        with(TakeOver { lease_ends_at: None, ..over }),
    ];
    for (n, other) in (1..).zip(others) {
        let (slot, standing) = (slot("amend-moved", n), Record { response: Some(response(9)), ..other });
        place.raw.put(slot, &value::encode(&standing), standing.window_ends_at).await;
        let before = place.raw.get(slot).await;
        let sighting = Some(Sighting { at: now, payload: hash(7) });
        let amended = amend(&*place.first, slot, &read, &to, sighting).await;
        assert_eq!(amended, Amended::Moved(Found::record(standing)), "{n}");
        assert_eq!(place.raw.get(slot).await, before, "{n}");
    }
}

/// The key keeps its expiry, whatever it is and whatever the transition: the window's end does not move.
pub async fn an_amend_keeps_the_expiry(place: &Place) {
    let (now, slot) = (place.now().await, slot("amend-expiry", 0));
    let read = claim(now, 1);
    let until = now.plus_seconds(4_321);
    place.raw.put(slot, &value::encode(&read), until).await;
    let over = taken(&read, take_over(&read, now, 9));
    let answered = resolved(&over, now, Some(response(100)));
    let sighting = Some(Sighting { at: now, payload: hash(7) });
    for (from, to, sighting) in [(&read, &over, None), (&over, &answered, sighting), (&over, &answered, sighting)] {
        assert!(matches!(amend(&*place.first, slot, from, to, sighting).await, Amended::Done(_)));
        assert_eq!(place.raw.get(slot).await.expect("it stands").expires_at, Some(until));
    }
}

/// A damaged value is not amended; among them notes that nobody writes.
pub async fn an_amend_leaves_damaged_values(place: &Place) {
    let now = place.now().await;
    let read = resolved(&Record { attempt_source: source("b"), ..claim(now, 1) }, now, Some(response(20)));
    let (to, bytes) = (Record { undurable: false, ..read.clone() }, value::encode(&read));
    let notes = value::encode_notes(&read);
    let without_notes = &bytes[..bytes.len() - notes.len()];
    let nothing_said: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0];
    let a_reason_without_an_end: &[u8] = &[1, b'b', 0, 0, 0, 0, 0, 0, 1, b'r'];
    let damaged = [
        bytes[..bytes.len() - 1].to_vec(),
        [&bytes[..], &[0]].concat(),
        without_notes.to_vec(),
        [without_notes, nothing_said].concat(),
        [without_notes, a_reason_without_an_end].concat(),
        [&[9], &bytes[1..]].concat(),
    ];
    for (n, damaged) in (0..).zip(damaged) {
        let slot = slot("amend-damaged", n);
        place.raw.put(slot, &damaged, read.window_ends_at).await;
        let before = place.raw.get(slot).await;
        for (from, to) in [(&read, &to), (&to, &read)] {
            let amended = amend(&*place.first, slot, from, to, None).await;
            assert_eq!(amended, Amended::Moved(Found::Unreadable), "{n}");
        }
        assert_eq!(place.raw.get(slot).await, before, "{n}");
    }
}

/// Each text is as long as its type allows, and no longer.
pub async fn texts_are_bounded_as_the_decoder_has_it(place: &Place) {
    let now = place.now().await;
    let text = |byte: char, len: usize| byte.to_string().repeat(len);
    let whole = Record {
        source_service: source(&text('s', SourceService::MAX_BYTES)),
        response: Some(StoredResponse {
            content_type: ContentType::parse(&text('t', ContentType::MAX_BYTES)).expect("valid"),
            body: Vec::new(),
        }),
        attempt_source: source(&text('a', SourceService::MAX_BYTES)),
        ended: Some(Ended {
            at: now,
            reason: Some(FailReason::parse(&text('r', FailReason::MAX_BYTES)).expect("valid")),
        }),
        payload_hash: hash(0),
        ..claim(now, 1)
    };
    let bytes = value::encode(&whole);
    let slot = slot("text-bounds", 0);
    place.raw.put(slot, &bytes, whole.window_ends_at).await;
    let to = renewed(&whole, 90);
    assert_eq!(amend(&*place.first, slot, &whole, &to, None).await, done(&to));
    for run in [[b's'; 30], [b't'; 30], [b'a'; 30], [b'r'; 30]] {
        let at = bytes.windows(run.len()).position(|window| window == run).expect("it is written");
        let mut longer = bytes.clone();
        longer[at - 1] += 1;
        longer.insert(at, run[0]);
        place.raw.put(slot, &longer, whole.window_ends_at).await;
        let amended = amend(&*place.first, slot, &whole, &to, None).await;
        assert_eq!(amended, Amended::Moved(Found::Unreadable), "{}", char::from(run[0]));
        assert_eq!(place.value(slot).await, Some(longer));
    }
}

/// Each of a batch's transitions on one slot finds what the one before it left, and its outcome stands in its place.
pub async fn amends_in_a_batch_take_effect_in_order(place: &Place) {
    let now = place.now().await;
    let slot = |n: u64| slot("amend-batch", n % 10);
    let begins: Vec<Begin> = (0..10).map(|n| Begin { slot: slot(n), pending: claim(now, 1), ttl_ms: TTL_MS }).collect();
    assert!(place.first.begin(&begins).await.iter().all(Result::is_ok));
    let leased = |seconds: u64| renewed(&claim(now, 1), 60 + seconds);
    // Each slot's transitions renew what the one before it left, but for the fourth, which has read something else.
    let amends: Vec<Amend> = (0..100)
        .map(|n| {
            let turn = n / 10;
            let read = if turn == 3 { leased(99) } else { leased(if turn == 4 { 3 } else { turn }) };
            Amend { slot: slot(n), read, to: leased(if turn == 3 { 98 } else { turn + 1 }), sighting: None }
        })
        .collect();
    let outcomes = place.first.amend(&amends).await;
    assert_eq!(outcomes.len(), amends.len());
    for (n, (request, outcome)) in amends.iter().zip(outcomes).enumerate() {
        let expected = if n / 10 == 3 { Amended::Moved(Found::record(leased(3))) } else { done(&request.to) };
        assert_eq!(outcome.expect("the tier answers"), expected, "{n}");
    }
}

/// The take-over's fact was durable and its confirmation lost: its row is written over the record beneath, and what was counted
/// there meanwhile is kept. Another check's row is not.
pub async fn heal_writes_over_its_own_take_over_and_keeps_what_was_counted(place: &Place) {
    let now = place.now().await;
    let read = failed(&claim(now, 1), now);
    let over = take_over(&read, now, 9);
    let window_ends_at = now.plus_seconds(70);
    let row = Record { window_ends_at, ..read.taken_over(&over, &hash(1), source("batch-b").as_ref()) };
    let row = Record { retry_count: 400, last_seen_at: now.plus_millis(400), ..row };
    let heal = async |slot: Slot, row: &Record| only(place.first.heal(&[Heal { slot, row: row.clone() }]).await);
    for (n, (retry_count, millis)) in (0..).zip([(399, 399), (401, 399), (399, 401), (70_000, 70_000), (400, 400)]) {
        let slot = slot("heal-over", n);
        let beneath = Record { retry_count, last_seen_at: now.plus_millis(millis), ..taken(&read, over) };
        place.raw.put(slot, &value::encode(&beneath), beneath.window_ends_at).await;
        assert!(heal(slot, &row).await, "{n}");
        let last_seen_at = row.last_seen_at.max(beneath.last_seen_at);
        let expected = Record { retry_count: retry_count.max(400), last_seen_at, ..row.clone() };
        let raw = place.raw.get(slot).await.expect("it stands");
        assert_eq!(raw.value, value::encode(&expected), "{n}");
        assert_eq!(raw.expires_at, Some(window_ends_at.plus_millis(2 * EPSILON_MS)), "{n}");
        assert!(!heal(slot, &row).await, "{n}: it stands already");
    }

    // A lease that was over when it was taken over, and drifts counted on either side.
    let lapsed = Record { lease_ends_at: Some(now), ..claim(now, 1) };
    let drift = |count, n, millis| Some(Drift { count, last_hash: hash(n), last_at: now.plus_millis(millis) });
    let drifts = [
        (None, drift(2, 5, 0)),
        (drift(1, 5, 9), None),
        (drift(3, 5, 1), drift(2, 6, 2)),
        (drift(1, 7, 2), drift(1, 6, 2)),
    ];
    for (n, (beneath, of_row)) in (50..).zip(drifts) {
        let slot = slot("heal-over", n);
        let beneath = Record { drift: beneath, ..taken(&lapsed, over) };
        let row = Record { drift: of_row, source_service: source("as4-ingest"), ..row.clone() };
        place.raw.put(slot, &value::encode(&beneath), beneath.window_ends_at).await;
        let expected = transition::heal(&Found::record(beneath), &row).expect("healed");
        assert!(heal(slot, &row).await, "{n}");
        assert_eq!(place.raw.get(slot).await.expect("it stands").value, value::encode(&expected), "{n}");
    }

    // The row's attempt and nonce where a take-over would have them, in the payload hash of a record without one.
    let mut payload = [0; 32];
    payload[11..13].copy_from_slice(&row.attempt.to_be_bytes());
    payload[13..21].copy_from_slice(row.nonce.as_bytes());
    let alike = Record { payload_hash: PayloadHash::from_bytes(payload), ..pending(now, 1).confirmed() };
    let standing = taken(&read, over);
    let refused = [
        (&alike, row.clone()),
        (&standing, Record { registration_id: pending(now, 2).registration_id, ..row.clone() }),
        (&standing, Record { attempt: row.attempt + 1, ..row.clone() }),
        (&standing, Record { nonce: Nonce::from_bytes([8; 8]), ..row.clone() }),
        // Its holder acted after the take-over had lapsed: the answer it stored stands, and so does its longer lease.
        (&taken(&resolved(&claim(now, 1), now, None), over), row.clone()),
        (&taken(&renewed(&claim(now, 1), 60), over), row.clone()),
        (&taken(&claim(now, 1).confirmed(), TakeOver { won_at: now.plus_millis(-1), ..over }), row.clone()),
        // The attempt beneath, as its own row has it.
        (&standing, Record { undurable: false, ..read.clone() }),
    ];
    for (n, (standing, row)) in (100..).zip(refused) {
        let slot = slot("heal-over", n);
        place.raw.put(slot, &value::encode(standing), standing.window_ends_at).await;
        let before = place.raw.get(slot).await;
        assert_eq!(transition::heal(&Found::record(standing.clone()), &row), None);
        assert!(!heal(slot, &row).await, "{n}");
        assert_eq!(place.raw.get(slot).await, before, "{n}");
    }
}
