//! Whole lives of registrations: facts in any order, and operations one after the other, give what the domain says.
#![allow(clippy::expect_used, reason = "a case fails where its ledger does")]

use std::sync::Arc;

use ledger_domain::claim::{Act, ClaimId, lease_end};
use ledger_domain::ports::{ActedCold, ColdLedger, Registered, StoreError};
use ledger_domain::transition::{Acted, act};
use ledger_domain::{
    Attempt, Ended, Fact, FailReason, Nonce, PayloadHash, Record, State, Subject, TakeOver, Timestamp, Trail,
};
use proptest::prelude::*;

use super::model::{batches, seeded_cases};
use super::{
    Place, REPLAY_SECONDS, assert_stands, claimed, fact, history, now, registration, response, service, subject,
};
use crate::faulty::{self, FaultRates, Faulty};

/// How many random lives are led, and how many rows of operations.
const RUNS: u64 = 25;

/// What facts of one registration merge to.
fn merged(facts: &[Fact]) -> (Record, Trail) {
    let mut record = facts[0].record.clone();
    let mut trail = Trail::default();
    for fact in facts {
        record.merge(&fact.record);
        trail.merge(&fact.trail());
    }
    (record, trail)
}

fn act_of(record: &Record, asked: &Act, at: Timestamp) -> Option<Record> {
    match act(record, &ClaimId::of(record), asked, at) {
        Acted::Changed(to) => Some(Record { undurable: false, ..*to }),
        Acted::Stands | Acted::Pending | Acted::Refused(_) => None,
    }
}

/// The record as another check leaves it that takes it over: number `n` gives its nonce.
fn taken_over(record: &Record, n: u64, at: Timestamp, lease_seconds: Option<u64>) -> Record {
    let take_over = TakeOver {
        deadline: at,
        attempt: record.next_attempt(),
        nonce: registration(n, at, 1).nonce,
        won_at: at,
        lease_ends_at: lease_seconds.map(|seconds| lease_end(at, seconds, record.window_ends_at)),
    };
    record.taken_over(&take_over, &PayloadHash::from_bytes([9; 32]), Some(&service(&format!("service-{n}"))))
}

/// Claimed, renewed, failed (its fact is lost, so the next one tells of it), taken over, resolved, and seen again.
fn claims_life(key: &Subject) -> Vec<Fact> {
    let at = |seconds| now().plus_seconds(seconds);
    let won = claimed(1, now(), 600, 10);
    let renewed = act_of(&won, &Act::Renew { lease_seconds: 30 }, at(5)).expect("renewed");
    let why = Some(FailReason::parse("disk \u{201c}full\u{201d}").expect("a reason"));
    let failed = act_of(&renewed, &Act::Fail(why), at(6)).expect("failed");
    let taken = taken_over(&failed, 2, at(7), Some(10));
    let resolved = act_of(&taken, &Act::Resolve(Some(response(b"<ok/>"))), at(8)).expect("resolved");
    let mut seen = Record { response: None, ..resolved.clone() };
    seen.sight(at(9), &PayloadHash::from_bytes([8; 32]));
    let mut facts: Vec<_> = [&won, &renewed, &taken, &resolved, &seen].map(|record| fact(key, record)).to_vec();
    facts[2].before = Attempt::of(&failed);
    facts
}

fn permutations(facts: &[Fact]) -> Vec<Vec<Fact>> {
    if facts.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..facts.len() {
        let mut rest = facts.to_vec();
        let first = rest.remove(at);
        for mut tail in permutations(&rest) {
            tail.insert(0, first.clone());
            all.push(tail);
        }
    }
    all
}

/// All 120 orders of the five facts of one claim, one by one and in two batches.
pub async fn every_order_of_a_claims_facts_gives_the_same_rows(place: Place) {
    let facts_of = |number: usize| claims_life(&subject("t1:as4", &format!("{number:03}")));
    let (record, trail) = merged(&facts_of(0));
    assert_eq!((record.state, record.attempt, record.retry_count), (State::Resolved, 2, 2));
    let [failed, resolved] = trail.attempts() else { panic!("expected two attempts, got {trail:?}") };
    assert_eq!((failed.state, resolved.state), (State::Failed, State::Resolved));
    let count = permutations(&facts_of(0)).len();
    assert_eq!(count, 120);
    for number in 0..count {
        let order = permutations(&facts_of(number)).swap_remove(number);
        let size = if number % 2 == 0 { 1 } else { 3 };
        for batch in order.chunks(size) {
            place.a.persist(batch, now()).await.expect("persisted");
        }
        assert_stands(&*place.b, &order[0].subject, &record, trail.attempts()).await;
    }
}

/// A step of a life: what happens, how long after the step before, and a number for what varies.
type Step = (u8, u8, u8);

/// The facts that a life leaves, some of them lost; a take-over tells what it found.
fn facts_of_life(key: &Subject, is_claim: bool, steps: &[Step]) -> Vec<Fact> {
    let mut at = now();
    let mut record = if is_claim { claimed(1, at, 600, 10) } else { registration(1, at, 600) };
    let mut facts = vec![fact(key, &record)];
    for (n, (kind, after_seconds, varied)) in (2..).zip(steps) {
        at = at.plus_seconds(u64::from(*after_seconds));
        let why = (varied % 2 == 0).then(|| FailReason::parse(&format!("why {varied}")).expect("a reason"));
        let is_over = record.state == State::Failed || (record.state == State::InProgress && !record.is_leased(at));
        let next = match kind {
            0 => act_of(&record, &Act::Renew { lease_seconds: u64::from(*varied) + 1 }, at),
            1 => act_of(&record, &Act::Fail(why), at),
            2 if *varied == 0 => act_of(&record, &Act::Resolve(None), at),
            // One registration has one answer.
            2 => act_of(&record, &Act::Resolve(Some(response(b"done"))), at),
            3 | 4 if is_over => {
                // Two tiers may each have let another check win this attempt.
                if varied % 5 == 4 {
                    let rival = taken_over(&record, n + 100, at, Some(u64::from(*varied)));
                    facts.push(Fact { before: Attempt::of(&record), ..fact(key, &rival) });
                }
                let taken = taken_over(&record, n, at, (varied % 3 != 0).then_some(u64::from(*varied)));
                facts.push(Fact { before: Attempt::of(&record), ..fact(key, &taken) });
                record = taken;
                None
            }
            _ => {
                let mut seen = record.clone();
                seen.sight(at, &PayloadHash::from_bytes([7 + varied % 3; 32]));
                Some(seen)
            }
        };
        if let Some(next) = next {
            // What only counts leaves the body out; now and then a fact is lost.
            let told =
                if next.state == record.state { Record { response: None, ..next.clone() } } else { next.clone() };
            if varied % 7 != 6 {
                facts.push(fact(key, &told));
            }
            record = next;
        }
    }
    facts
}

/// Random lives, each told by its facts in a random order, some twice, in random batches: claim, history and trail are what
/// the domain merges them to.
pub async fn random_lives_give_what_the_domain_merges(place: Place) {
    let seed = faulty::seed();
    println!("{}={seed}", faulty::SEED_VARIABLE);
    let steps = proptest::collection::vec((0..7_u8, 0..8_u8, 0..12_u8), 0..14);
    let lives = (any::<bool>(), steps).prop_flat_map(|(is_claim, steps)| {
        let facts = facts_of_life(&subject("t1:as4", "k"), is_claim, &steps);
        (Just(facts.clone()), batches(facts))
    });
    for (number, (facts, batches)) in seeded_cases(&lives, seed, faulty::runs(RUNS)).into_iter().enumerate() {
        let key = subject("t1:as4", &format!("{number}"));
        let (record, trail) = merged(&facts);
        for batch in &batches {
            let of_key = |fact: &Fact| Fact { subject: key.clone(), ..fact.clone() };
            place.a.persist(&batch.iter().map(of_key).collect::<Vec<_>>(), now()).await.expect("persisted");
        }
        println!("life {number}: {} facts in {} batches", facts.len(), batches.len());
        assert_stands(&*place.b, &key, &record, trail.attempts()).await;
    }
}

/// Of 80 attempts, of which some were won twice, the latest 64 are kept, whatever the order.
pub async fn a_trail_keeps_the_latest_attempts(place: Place) {
    let facts_of = |key: &Subject| -> Vec<_> {
        let won_twice = (1..=80_u16).flat_map(|number| {
            let nonces = if number % 10 == 0 { 1..=2_u8 } else { 1..=1 };
            nonces.map(move |nonce| (number, nonce))
        });
        let records = won_twice.map(|(number, nonce)| Record {
            attempt: number,
            nonce: Nonce::from_bytes([nonce; 8]),
            won_at: now().plus_seconds(u64::from(number)),
            state: State::Failed,
            ended: Some(Ended { at: now().plus_seconds(u64::from(number)), reason: None }),
            ..claimed(1, now(), 600, 10)
        });
        records.map(|record| fact(key, &record)).collect()
    };
    for (name, size) in [("forward", 10), ("backward", 10), ("at once", 88)] {
        let key = subject("t1:as4", name);
        let mut facts = facts_of(&key);
        if name == "backward" {
            facts.reverse();
        }
        for batch in facts.chunks(size) {
            place.a.persist(batch, now()).await.expect("persisted");
        }
        let (record, trail) = merged(&facts);
        let first = trail.attempts()[0].place();
        assert_eq!((trail.attempts().len(), first), (Trail::MAX_ATTEMPTS, (23, Nonce::from_bytes([1; 8]))), "{name}");
        assert_stands(&*place.b, &key, &record, trail.attempts()).await;
    }
}

/// What one key's ledger holds, kept by the domain's rules.
#[derive(Default, Clone)]
struct Model {
    live: Option<Record>,
    history: Vec<(Record, Trail)>,
}

impl Model {
    fn stands(&mut self, record: &Record) {
        let trail = Trail::of(Attempt::of(record));
        match self.history.iter_mut().find(|(known, _)| known.registration_id == record.registration_id) {
            Some((known, attempts)) => {
                known.merge(record);
                attempts.merge(&trail);
            }
            None => self.history.push((record.clone(), trail)),
        }
        self.live = Some(record.clone());
    }

    fn register(&mut self, wanted: &Record) -> Registered {
        let at = wanted.first_seen_at;
        let Some(live) = self.live.clone().filter(|live| !live.is_over(at)) else {
            self.stands(wanted);
            return Registered::Ours(Box::new(wanted.clone()));
        };
        let own = live.nonce == wanted.nonce && at < live.won_at.plus_seconds(REPLAY_SECONDS);
        if own && (live.state == State::Registered || live.is_leased(at)) {
            return Registered::Ours(Box::new(live));
        }
        if live.state == State::Failed || (live.state == State::InProgress && !live.is_leased(at)) {
            let take_over = TakeOver {
                deadline: at,
                attempt: live.next_attempt(),
                nonce: wanted.nonce,
                won_at: at,
                lease_ends_at: wanted.lease_ends_at.map(|lease| lease.min(live.window_ends_at)),
            };
            let taken = live.taken_over(&take_over, &wanted.payload_hash, wanted.source_service.as_ref());
            self.stands(&taken);
            return Registered::Ours(Box::new(taken));
        }
        let mut counted = live;
        counted.sight(at, &wanted.payload_hash);
        self.stands(&counted);
        Registered::Theirs(Box::new(counted))
    }

    fn act(&mut self, claim: &ClaimId, asked: &Act, at: Timestamp) -> ActedCold {
        let Some(live) = self.live.clone() else { return ActedCold::Unchanged(None) };
        match act(&live, claim, asked, at) {
            Acted::Changed(to) => {
                let done = Record { undurable: false, ..*to };
                self.stands(&done);
                ActedCold::Done(Box::new(done))
            }
            Acted::Stands | Acted::Pending | Acted::Refused(_) => ActedCold::Unchanged(Some(Box::new(live))),
        }
    }

    /// After an operation that failed: whether this is what stands.
    async fn is(&self, ledger: &dyn ColdLedger, key: &Subject) -> bool {
        ledger.standing(key).await.expect("an answer") == self.live
    }

    async fn assert_is(&self, ledger: &dyn ColdLedger, key: &Subject) {
        assert_eq!(ledger.standing(key).await.expect("an answer"), self.live);
        let rows = history(ledger, key).await;
        let rows: Vec<_> = rows.into_iter().rev().map(|row| (row.record, row.trail)).collect();
        let known = self.history.iter().cloned();
        assert_eq!(rows, known.map(|(record, trail)| (Record { response: None, ..record }, trail)).collect::<Vec<_>>());
    }
}

/// Random checks of four callers, plain and claimed, and acts under every claim ever won, with jumps of time past leases and
/// windows and faults on the way: after each step answer, live row, history and trail are what the domain says, or after a
/// failure what they were before, as was reported.
pub async fn random_operations_give_what_the_domain_says(place: Place) {
    let seed = faulty::seed();
    println!("{}={seed}", faulty::SEED_VARIABLE);
    let operations = proptest::collection::vec((0..8_u8, 0..40_u64, 0..4_u8, 0..30_u64), 1..25);
    let faulty = [&place.a, &place.b].map(|ledger| Faulty::new(Arc::clone(ledger), seed, FaultRates::FLAKY));
    for (number, operations) in seeded_cases(&operations, seed, faulty::runs(RUNS)).into_iter().enumerate() {
        let key = subject("t1:as4", &format!("{number}"));
        let mut model = Model::default();
        let mut claims = vec![ClaimId::of(&claimed(999, now(), 60, 10))];
        let mut at = now();
        for (step, (kind, after_seconds, caller, varied)) in (1..).zip(operations) {
            // Most often a little, now and then far: windows are 120 s long.
            at = at.plus_seconds(if after_seconds < 38 { after_seconds / 4 } else { after_seconds * 2 }).plus_millis(1);
            let ledger = if varied % 2 == 0 { &place.a } else { &place.b };
            let faulty = &faulty[usize::from(varied % 2 != 0)];
            let before = model.clone();
            let what = format!("row {number} step {step}: {kind} by {caller} at {at}");
            let told = if kind < 4 {
                let wanted = if kind < 3 { claimed(step, at, 120, varied + 1) } else { registration(step, at, 120) };
                let payload_hash = PayloadHash::from_bytes([caller; 32]);
                let wanted = Record { nonce: Nonce::from_bytes([caller; 8]), payload_hash, ..wanted };
                let expected = model.register(&wanted);
                if let Registered::Ours(record) = &expected {
                    claims.push(ClaimId::of(record));
                }
                faulty.register(&key, &wanted, REPLAY_SECONDS).await.map(|told| assert_eq!(told, expected, "{what}"))
            } else {
                let asked = match kind {
                    4 => Act::Resolve((varied % 3 != 0).then(|| response(&varied.to_be_bytes()))),
                    5 | 6 => Act::Fail((varied % 3 != 0).then(|| FailReason::parse("why").expect("a reason"))),
                    _ => Act::Renew { lease_seconds: varied * 5 + 1 },
                };
                let back = usize::from(caller) % claims.len();
                let claim = claims[claims.len() - 1 - back];
                let expected = model.act(&claim, &asked, at);
                faulty.act(&key, &claim, &asked, at).await.map(|told| assert_eq!(told, expected, "{what}"))
            };
            match told {
                Ok(()) => {}
                Err(StoreError::DidNotHappen { .. }) => model = before,
                Err(StoreError::MayHaveHappened { .. }) => {
                    if before.is(&**ledger, &key).await {
                        model = before;
                    }
                }
                Err(error @ StoreError::Rejected { .. }) => panic!("{what}: {error:?}"),
            }
            model.assert_is(&**ledger, &key).await;
        }
    }
}
