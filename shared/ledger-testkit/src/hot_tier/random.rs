//! Random operations, beside the pure model: `ledger_domain::transition` over a map.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use std::collections::HashMap;
use std::sync::Arc;

use ledger_domain::ports::{
    Amend, Begin, Begun, Count, Entropy as _, Fill, Heal, HotTier, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{self, Counted, Found, Guard, Sighting};
use ledger_domain::{
    ContentType, Drift, Ended, FailReason, Nonce, Record, RegistrationId, Slot, SourceService, State, StoredResponse,
    TakeOver, Timestamp, value,
};

use super::{Place, hash, only, slot};
use crate::clock::SeededEntropy;
use crate::faulty::{self, FaultRates, Faulty};

/// How many seeds, where the run does not say.
const RUNS: u64 = 4;
const STEPS: u32 = 400;
const SLOTS: u64 = 3;
/// Longer than a seed's steps take.
const TTL_MS: u64 = 3_600_000;

/// What stands under each slot, as bytes.
type Model = HashMap<Slot, Vec<u8>>;

/// How far the callers' clock jumps, in milliseconds, forth and back; less than [`TTL_MS`], which ends keys by the tier's.
const JUMP_MS: u64 = 1_200_000;

/// What was reported of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    Done,
    DidNotHappen,
    MayHaveHappened,
}

/// After every step the outcome and the value are those of the model; where the operation failed, by a fault on its way, the value is
/// what stood before or what the model has after, as was reported. The clock jumps. A failure names seed and step. The first
/// seeds are fixed, one is new each time; [`faulty::SEED_VARIABLE`] is that one instead, [`faulty::RUNS_VARIABLE`] is how many
/// there are.
pub async fn random_operations_do_what_the_model_does(place: &Place) {
    for seed in (1..faulty::runs(RUNS)).chain([faulty::seed()]) {
        let start = place.now().await;
        let mut draw = Draw { entropy: SeededEntropy::new(seed), now: start };
        let tiers = [&place.first, &place.second]
            .map(|tier| Faulty::new(Arc::clone(tier), draw.entropy.next(), FaultRates::FLAKY));
        let mut model = Model::new();
        for step in 0..STEPS {
            if draw.entropy.one_in(40) {
                let jump_ms = i64::try_from(draw.entropy.below(2 * JUMP_MS)).unwrap_or(0);
                draw.now = start.plus_millis(jump_ms - i64::try_from(JUMP_MS).unwrap_or(0));
            }
            let slot = slot(&format!("random-{seed}"), draw.entropy.below(SLOTS));
            let context = format!("seed {seed}, step {step}");
            let tier = &tiers[usize::from(draw.entropy.one_in(2))];
            let before = model.get(&slot).cloned();
            let reported = take_step(place, tier, &draw, &mut model, slot, &context).await;
            let (after, stands) = (model.get(&slot).cloned(), place.value(slot).await);
            let possible = match reported {
                Reported::Done => stands == after,
                Reported::DidNotHappen => stands == before,
                Reported::MayHaveHappened => stands == before || stands == after,
            };
            assert!(possible, "{context}, {reported:?}: {stands:?} stands; before {before:?}, as the model {after:?}");
            match stands {
                Some(stands) => drop(model.insert(slot, stands)),
                None => drop(model.remove(&slot)),
            }
        }
    }
}

/// What was reported; an outcome is as `expected`.
fn told<T: PartialEq + std::fmt::Debug>(outcome: Vec<Result<T, StoreError>>, expected: &T, what: &str) -> Reported {
    let [outcome] = <[_; 1]>::try_from(outcome).unwrap_or_else(|all| panic!("{what}: {} outcomes", all.len()));
    match outcome {
        Ok(outcome) => {
            assert_eq!(outcome, *expected, "{what}");
            Reported::Done
        }
        Err(StoreError::DidNotHappen { .. }) => Reported::DidNotHappen,
        Err(StoreError::MayHaveHappened { .. }) => Reported::MayHaveHappened,
        Err(error @ StoreError::Rejected { .. }) => panic!("{what}: {error:?}"),
    }
}

/// One operation, on the tier and on the model as if it happened.
async fn take_step(
    place: &Place,
    tier: &Faulty<dyn HotTier>,
    draw: &Draw,
    model: &mut Model,
    slot: Slot,
    context: &str,
) -> Reported {
    let standing = found(model, slot);
    let record = draw.record();
    let guard = draw.guard(&standing);
    match draw.entropy.below(15) {
        0 | 1 => {
            let begun = tier.begin(&[Begin { slot, pending: record.clone(), ttl_ms: TTL_MS }]).await;
            let expected = match transition::begin(standing, &record) {
                Ok(written) => {
                    write(model, slot, &written);
                    Begun::Won
                }
                Err(present) => Begun::Present(present),
            };
            told(begun, &expected, &format!("{context}: begin"))
        }
        2 => {
            let swapped = tier.settle(&[Settle { slot, guard, settled: record.clone() }]).await;
            let (written, expected) = transition::settle(standing, &guard, &record);
            written.iter().for_each(|written| write(model, slot, written));
            told(swapped, &expected, &format!("{context}: settle"))
        }
        3..=5 => {
            let read = draw.reading(&standing);
            let (payload, now) = (hash(draw.small()), draw.time());
            let guard = if draw.entropy.one_in(4) { guard } else { Guard::of(&read) };
            let counted = tier.count(&[Count { slot, guard, now, payload, read }]).await;
            let expected = transition::count(standing, &guard, now, &payload);
            if let Counted::Counted(written) = &expected {
                write(model, slot, written);
            }
            told(counted, &expected, &format!("{context}: count"))
        }
        6 => {
            let request = Replace { slot, guard, pending: record.clone(), ttl_ms: TTL_MS };
            let swapped = tier.replace(&[request]).await;
            let (written, expected) = transition::replace(standing, &guard, &record);
            written.iter().for_each(|written| write(model, slot, written));
            told(swapped, &expected, &format!("{context}: replace"))
        }
        7 | 8 => {
            if draw.entropy.one_in(3) {
                let row = draw.fillable(record, &standing);
                let filled = tier.fill(&[Fill { slot, row: row.clone() }]).await;
                let expected = transition::fill(&standing, &row);
                expected.iter().for_each(|written| write(model, slot, written));
                told(filled, &expected.is_some(), &format!("{context}: fill"))
            } else if draw.entropy.one_in(2) {
                let released = tier.release(&[Release { slot, guard }]).await;
                if transition::release(&standing, &guard) {
                    model.remove(&slot);
                }
                told(released, &(), &format!("{context}: release"))
            } else {
                let row = draw.row(record, &guard, &standing);
                let healed = tier.heal(&[Heal { slot, row: row.clone() }]).await;
                let expected = transition::heal(&standing, &row);
                expected.iter().for_each(|written| write(model, slot, written));
                told(healed, &expected.is_some(), &format!("{context}: heal"))
            }
        }
        9..=13 => {
            let (read, to, sighting) = (draw.amendable(&standing), draw.amendable(&standing), draw.sighting());
            let request = Amend { slot, read, to, sighting };
            let amended = tier.amend(std::slice::from_ref(&request)).await;
            let Amend { read, to, .. } = &request;
            let (written, expected) = transition::amend(standing, read, to, request.sighting.as_ref());
            written.iter().for_each(|written| write(model, slot, written));
            told(amended, &expected, &format!("{context}: amend"))
        }
        _ => {
            // Something this release would not write, or would: either way not through the port.
            let planted = draw.planted();
            place.raw.put(slot, &planted, draw.now.plus_seconds(86_400)).await;
            model.insert(slot, planted);
            assert_eq!(only(place.first.read(&[slot]).await), found(model, slot), "{context}: read");
            Reported::Done
        }
    }
}

fn found(model: &Model, slot: Slot) -> Found {
    model.get(&slot).map_or(Found::Absent, |bytes| value::decode(bytes).map_or(Found::Unreadable, Found::record))
}

fn write(model: &mut Model, slot: Slot, record: &Record) {
    model.insert(slot, value::encode(record));
}

/// Draws from few values, so that they often meet.
struct Draw {
    entropy: SeededEntropy,
    now: Timestamp,
}

impl Draw {
    fn small(&self) -> u8 {
        u8::try_from(self.entropy.below(2)).unwrap_or(0)
    }

    fn time(&self) -> Timestamp {
        self.now.plus_millis(i64::try_from(self.entropy.below(1_000)).unwrap_or(0) - 500)
    }

    fn sometimes<T>(&self, draw: impl FnOnce() -> T) -> Option<T> {
        self.entropy.one_in(3).then(draw)
    }

    fn count(&self) -> u32 {
        if self.entropy.one_in(4) { u32::MAX - 1 } else { u32::try_from(self.entropy.below(300)).unwrap_or(0) }
    }

    fn record(&self) -> Record {
        let states = [State::Pending, State::Pending, State::Registered, State::InProgress, State::Resolved];
        let first_seen_at = self.time();
        Record {
            registration_id: RegistrationId::from_bytes([self.small(); 8]),
            state: states[usize::from(self.entropy.eight_bytes()[0]) % states.len()],
            attempt: u16::from(self.small()) + 1,
            nonce: Nonce::from_bytes([self.small(); 8]),
            won_at: if self.entropy.one_in(2) { first_seen_at } else { self.time() },
            first_seen_at,
            last_seen_at: self.time(),
            window_ends_at: self.now.plus_seconds(3_600),
            payload_hash: hash(self.small()),
            retry_count: self.count(),
            source_service: self.sometimes(|| self.source()),
            drift: self.sometimes(|| Drift { count: self.count(), last_hash: hash(9), last_at: self.time() }),
            lease_ends_at: self.sometimes(|| self.time()),
            response: self.sometimes(|| StoredResponse {
                content_type: ContentType::parse("text/plain; charset=\"\u{fc}\"").expect("valid"),
                body: vec![0xFF; usize::try_from(self.entropy.below(300)).unwrap_or(0)],
            }),
            attempt_source: self.sometimes(|| self.source()),
            ended: self.sometimes(|| Ended {
                at: self.time(),
                reason: self.sometimes(|| FailReason::parse("partner\u{2019}s system is down").expect("valid")),
            }),
            undurable: self.entropy.one_in(3),
            take_over: self.sometimes(|| TakeOver {
                deadline: self.time(),
                attempt: 2,
                nonce: Nonce::from_bytes([self.small(); 8]),
                won_at: self.time(),
                lease_ends_at: self.sometimes(|| self.time()),
            }),
        }
    }

    fn source(&self) -> SourceService {
        let sources = ["as4-ingest", "s", "\u{e4}\u{20ac}\u{1f4e8}", "\u{a0}\u{800}\u{d7ff}\u{e000}\u{10ffff}"];
        let source = sources[usize::from(self.entropy.eight_bytes()[0]) % sources.len()];
        SourceService::parse(source).expect("valid")
    }

    /// Mostly that of what stands, with one part changed now and then.
    fn guard(&self, standing: &Found) -> Guard {
        let mut guard = match standing {
            Found::Record(record) => Guard::of(record),
            Found::Absent | Found::Unreadable => Guard::of(&self.record()),
        };
        match self.entropy.below(12) {
            0 => guard.attempt += 1,
            1 => guard.nonce = Nonce::from_bytes([self.small(); 8]),
            2 => guard.registration_id = RegistrationId::from_bytes([self.small(); 8]),
            3 => guard.state = State::Failed,
            _ => {}
        }
        guard
    }

    /// A reading of what stands: fresh, or of some time ago.
    fn reading(&self, standing: &Found) -> Record {
        let mut read = match standing {
            Found::Record(record) => Record::clone(record),
            Found::Absent | Found::Unreadable => self.record(),
        };
        match self.entropy.below(9) {
            0 => read.retry_count = self.count(),
            1 => read.drift = None,
            2 => read.response = None,
            3 => read.lease_ends_at = None,
            // Of another length; a body of one length is one body, for a registration has one response.
            4 => read.response.iter_mut().for_each(|response| response.body.push(0)),
            5 => read.ended.iter_mut().for_each(|ended| ended.at = self.time()),
            _ => {}
        }
        read
    }

    /// What a claim's transition may have read, or may want: what stands, mostly, with a part or two changed now and then.
    fn amendable(&self, standing: &Found) -> Record {
        let (mut record, other) = (self.reading(standing), self.record());
        for _ in 0..self.entropy.below(3) {
            match self.entropy.below(12) {
                0 => record.state = other.state,
                1 => record.attempt = other.attempt,
                2 => record.nonce = other.nonce,
                3 => record.registration_id = other.registration_id,
                4 => record.won_at = other.won_at,
                5 => record.lease_ends_at = other.lease_ends_at,
                6 => record.undurable = other.undurable,
                7 => record.take_over = other.take_over,
                8 => record.attempt_source.clone_from(&other.attempt_source),
                9 => record.ended.clone_from(&other.ended),
                10 => record.response.clone_from(&other.response),
                // What a transition neither compares nor replaces; won at the first sighting is stored as nothing.
                _ => {
                    (record.first_seen_at, record.won_at) = (other.first_seen_at, other.first_seen_at);
                    record.source_service.clone_from(&other.source_service);
                }
            }
        }
        record
    }

    fn sighting(&self) -> Option<Sighting> {
        self.entropy.one_in(2).then(|| Sighting { at: self.time(), payload: hash(self.small()) })
    }

    /// The row of `guard`'s check; or of the take-over's that lies over what stands, mostly.
    fn row(&self, record: Record, guard: &Guard, standing: &Found) -> Record {
        let over = match standing {
            Found::Record(record) => record.take_over.filter(|_| self.entropy.one_in(2)),
            Found::Absent | Found::Unreadable => None,
        };
        let (attempt, nonce) = over.map_or((guard.attempt, guard.nonce), |over| (over.attempt, over.nonce));
        Record { registration_id: guard.registration_id, attempt, nonce, ..record }
    }

    /// A row as `dedup_claim` may hold it: any, or of the registration that stands and mostly as it stands.
    fn fillable(&self, record: Record, standing: &Found) -> Record {
        let drawn = if self.entropy.one_in(3) { record } else { self.amendable(standing) };
        let state = if drawn.state == State::Pending { State::Registered } else { drawn.state };
        Record { state, undurable: false, take_over: None, ..drawn }
    }

    /// A value with a byte changed, cut or added; one that reads back is as a writer would have written it.
    fn planted(&self) -> Vec<u8> {
        loop {
            let mut bytes = value::encode(&self.record());
            let at = usize::try_from(self.entropy.next() % bytes.len() as u64).unwrap_or(0);
            match self.entropy.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.push(0),
                _ => bytes[at] = self.entropy.eight_bytes()[0],
            }
            match value::decode(&bytes) {
                Ok(record) if value::encode(&record) != bytes => {}
                // Settled or filled over, it would be gone at once by the tier's own clock.
                Ok(record) if record.window_ends_at < self.now.plus_seconds(TTL_MS.div_ceil(1_000)) => {}
                Ok(_) | Err(_) => return bytes,
            }
        }
    }
}
