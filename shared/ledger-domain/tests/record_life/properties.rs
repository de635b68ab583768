//! What must hold whatever happens, and what must be reached for that to mean anything.

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::transition::{ActRefused, Acted, act};
use ledger_domain::{Attempt, Fact, Record, State, Timestamp};
use stateright::Property;

use crate::calls::{Doing, Next, Told, response};
use crate::keep::Kept;
use crate::ports::{Ask, Reply};
use crate::world::{How, Life, World};

/// What did not hold in the step that led to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    DiscardWithoutFact,
    DiscardWithoutProcess,
    DeadTokenChanges,
    TokenOfNothing,
    ResolvedUndone,
    ConfirmedUndone,
    HistoryLost,
    RunningClaimTakenOver,
    LateFact,
    NewWithoutFact,
    AcknowledgedWithoutFact,
    SecondNew,
    OrderOfFacts,
    RowUndone,
}

/// What happened in some step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    TakenOver,
    TakenOverAfterLapse,
    Replayed,
    VisitorClearsMark,
    HealsMiss,
    HealsPending,
    HealsTakeOver,
    StaleRefused,
    ActsAfterItsLease,
    ActsAfterLapsedTakeOver,
    DiscardBeforeProcess,
    NotDurable,
    FalseNew,
    WindowOver,
}

impl Reached {
    pub(crate) const ALL: [Self; 14] = [
        Self::TakenOver,
        Self::TakenOverAfterLapse,
        Self::Replayed,
        Self::VisitorClearsMark,
        Self::HealsMiss,
        Self::HealsPending,
        Self::HealsTakeOver,
        Self::StaleRefused,
        Self::ActsAfterItsLease,
        Self::ActsAfterLapsedTakeOver,
        Self::DiscardBeforeProcess,
        Self::NotDurable,
        Self::FalseNew,
        Self::WindowOver,
    ];
}

/// What always holds.
pub(crate) fn all() -> Vec<Property<Life>> {
    macro_rules! never {
        ($($name:literal: $broken:ident),* $(,)?) => {
            vec![$(Property::always($name, |_, world: &World| world.broken != Some(Broken::$broken))),*]
        };
    }
    let mut all = never![
        "a discard is told only of what is durable": DiscardWithoutFact,
        "a discard is told only where its winner was told to process, or will be on its retry": DiscardWithoutProcess,
        "a dead token changes nothing": DeadTokenChanges,
        "a token is handed out only while its claim stands": TokenOfNothing,
        "RESOLVED is never undone in the hot tier inside its window": ResolvedUndone,
        "what is confirmed stands in the hot tier until its window is over": ConfirmedUndone,
        "first sighting, first hash, window and count survive": HistoryLost,
        "a claim is taken over only once it failed or its lease is over": RunningClaimTakenOver,
        "no fact of a PENDING is sent past its deadline": LateFact,
        "NEW says that it is durable only where it is": NewWithoutFact,
        "an act is acknowledged only once it is durable, and on the trail": AcknowledgedWithoutFact,
        "without faults and lapses exactly one is told NEW, but for what failed": SecondNew,
        "facts come to the same row in any order and number": OrderOfFacts,
        "RESOLVED is never undone in the cold row, nor what is first or counted": RowUndone,
    ];
    all.push(Property::always("at most one token is live", |life, world| live_tokens(life, world) <= 1));
    all.push(Property::always("what stands confirmed and unmarked in the hot tier is durable", |_, world: &World| {
        world.hot.is_none_or(|slot| {
            let record = &*slot.record;
            record.state == State::Pending || record.undurable || is_durable(&world.facts, record)
        })
    }));
    all
}

fn live_tokens(life: &Life, world: &World) -> usize {
    let Some(slot) = world.hot else { return 0 };
    let now = life.now(world);
    let mut live: Vec<ClaimId> = world.callers.iter().filter_map(|caller| caller.token).collect();
    live.retain(|claim| matches!(act(&slot.record, claim, &Act::Fail(None), now), Acted::Changed(_)));
    live.sort_unstable();
    live.dedup();
    live.len()
}

/// Whether some fact tells all that `record` says of its standing attempt.
fn is_durable(facts: &[Kept<Fact>], record: &Record) -> bool {
    let tells = |fact: &Record| {
        fact.identity() == record.identity()
            && fact.state == record.state
            && fact.lease_ends_at == record.lease_ends_at
            && fact.ended == record.ended
            && fact.response == record.response
    };
    let tells_before = |fact: &Fact| {
        fact.record.registration_id == record.registration_id
            && record.response.is_none()
            && fact.before.is_some()
            && fact.before == Attempt::of(record)
    };
    facts.iter().any(|fact| tells(&fact.record) || tells_before(fact))
}

/// Of a call whose request `ask` was worked on.
pub(crate) fn judge_call(
    life: &Life,
    before: &World,
    after: &World,
    caller: u8,
    ask: &Ask,
    told: Option<(Told, Reply)>,
) -> Option<Broken> {
    let of = usize::from(caller);
    let call = before.callers[of].call.expect("its request was worked on").get().call;
    let claim = match call.doing {
        Doing::Check => None,
        Doing::Resolve(claim) | Doing::Fail(claim) | Doing::Renew(claim) => Some(claim),
    };
    if before.hot != after.hot
        && let (Some(old), Some(new)) = (before.hot, after.hot)
    {
        match claim {
            Some(claim) => {
                // Its mark is cleared in whatever state it left.
                let may = old.record.state == State::InProgress || old.record.state == new.record.state;
                if ClaimId::of(&old.record) != claim || !may {
                    return Some(Broken::DeadTokenChanges);
                }
                if old.record.lease_ends_at <= Some(life.now(after)) {
                    life.note(Reached::ActsAfterItsLease);
                }
                if old.record.take_over.is_some() {
                    life.note(Reached::ActsAfterLapsedTakeOver);
                }
            }
            None if old.record.undurable && !new.record.undurable && new.record.state == State::Resolved => {
                life.note(Reached::VisitorClearsMark);
            }
            None => {}
        }
        if matches!(ask, Ask::Replace(_)) {
            life.note(Reached::WindowOver);
        }
    }
    if let Some(next) = after.callers[of].call
        && let Next::Ask(Ask::Send(fact)) = &next.get().next
        && claim.is_none()
        && life.caller_of(fact.record.nonce) == of
        && matches!(fact.record.state, State::Registered | State::InProgress)
        && life.now(after) >= deadline(&fact.record)
    {
        return Some(Broken::LateFact);
    }
    let (told, reply) = told?;
    match told {
        Told::Discard => judge_discard(life, before, after, reply),
        Told::New { first_seen_at, claim, replayed, taken_over, durable } => {
            let stands = |claim: ClaimId| after.hot.is_some_and(|slot| ClaimId::of(&slot.record) == claim);
            if claim.is_some_and(|claim| !stands(claim) || life.caller_of(claim.nonce) != of) {
                return Some(Broken::TokenOfNothing);
            }
            let is_told = |fact: &Kept<Fact>| {
                fact.record.first_seen_at == first_seen_at && life.caller_of(fact.record.nonce) == of
            };
            if durable && !after.facts.iter().any(is_told) {
                return Some(Broken::NewWithoutFact);
            }
            if !durable {
                life.note(Reached::NotDurable);
            }
            if replayed {
                life.note(Reached::Replayed);
            } else if taken_over {
                life.note(Reached::TakenOver);
            } else if before.callers.iter().enumerate().any(|(at, it)| at != of && it.processes.is_some()) {
                life.note(Reached::FalseNew);
                if after.faults == 0 && after.instant == 0 {
                    return Some(Broken::SecondNew);
                }
            }
            None
        }
        Told::Acknowledged => judge_acknowledged(life, after, of, call.doing),
        Told::Refused(ActRefused::Stale) => {
            life.note(Reached::StaleRefused);
            None
        }
        Told::Refused(ActRefused::Resolved | ActRefused::Failed | ActRefused::WindowOver)
        | Told::Retry
        | Told::Undecided(_)
        | Told::UnknownClaim => None,
    }
}

/// When the PENDING from which a fact was made lapses.
fn deadline(fact: &Record) -> Timestamp {
    fact.won_at.plus_millis(Record::PENDING_MS).min(fact.window_ends_at)
}

fn judge_discard(life: &Life, before: &World, after: &World, reply: Reply) -> Option<Broken> {
    let Reply::DoneOn(record) = reply else { panic!("a discard is counted") };
    // Without what the last request made durable: it was the counting.
    if !is_durable(&before.facts, &record) {
        return Some(Broken::DiscardWithoutFact);
    }
    let winner = life.caller_of(record.nonce);
    if after.callers[winner].processes == Some(record.first_seen_at) {
        return None;
    }
    life.note(Reached::DiscardBeforeProcess);
    // All goes well from now on: its call goes on, or it retries. Where the window is over by then, it is told NEW of another.
    let mut world = after.clone();
    world.callers[winner].processes = None;
    let of = u8::try_from(winner).expect("few callers");
    for _ in 0..3 {
        if world.callers[winner].call.is_none() {
            life.begin(&mut world, of, Doing::Check);
        }
        while world.callers[winner].call.is_some() {
            life.go(&mut world, of, How::Well);
        }
        if world.callers[winner].processes.is_some() {
            return None;
        }
    }
    Some(Broken::DiscardWithoutProcess)
}

fn judge_acknowledged(life: &Life, after: &World, of: usize, doing: Doing) -> Option<Broken> {
    let (claim, state) = match doing {
        Doing::Resolve(claim) => (claim, Some(State::Resolved)),
        Doing::Fail(claim) => (claim, Some(State::Failed)),
        Doing::Renew(claim) => (claim, None),
        Doing::Check => panic!("a check is not acknowledged"),
    };
    let facts: Vec<_> =
        after.facts.iter().copied().filter(|fact| fact.record.registration_id == claim.registration_id).collect();
    if facts.is_empty() {
        return Some(Broken::AcknowledgedWithoutFact);
    }
    let row = life.rows.of(&life.values, facts);
    let place = (claim.attempt, claim.nonce);
    let on_trail = row.trail.attempts().iter().find(|attempt| attempt.place() == place);
    let is_there = on_trail.is_some_and(|attempt| state.is_none_or(|state| attempt.state == state));
    let response_stands = state != Some(State::Resolved)
        || (row.record.state == State::Resolved
            && row.record.response == Some(response(u8::try_from(of).expect("few callers"))));
    (!is_there || !response_stands).then_some(Broken::AcknowledgedWithoutFact)
}

/// Of what became of the hot tier's value.
pub(crate) fn judge_hot(life: &Life, before: &World, after: &World) -> Option<Broken> {
    let (old, now) = (before.hot?.record, life.now(after));
    let in_window = !old.is_over(now);
    let Some(new) = after.hot.map(|slot| slot.record) else {
        return (in_window && old.state != State::Pending).then_some(Broken::ConfirmedUndone);
    };
    if old == new {
        return None;
    }
    if new.registration_id != old.registration_id {
        return in_window.then_some(Broken::ConfirmedUndone);
    }
    if old.state == State::Resolved
        && in_window
        && (new.state, new.identity(), &new.response) != (old.state, old.identity(), &old.response)
    {
        return Some(Broken::ResolvedUndone);
    }
    if old.state != State::Pending && new.state == State::Pending {
        return Some(Broken::ConfirmedUndone);
    }
    // A PENDING that was written too late is no history yet: its own check may write it again, as of now.
    let began_again = old.state == State::Pending && new.state == State::Pending;
    if !began_again && lost(&old, &new) {
        return Some(Broken::HistoryLost);
    }
    let takeable = |at: Timestamp| {
        old.state == State::Failed || (old.state == State::InProgress && old.lease_ends_at.is_some_and(|end| end <= at))
    };
    if let Some(over) = new.take_over.filter(|_| new.take_over != old.take_over) {
        // A number that lapsed unconfirmed is spent.
        let spent = old.take_over.map_or(old.attempt, |lapsed| lapsed.attempt.max(old.attempt));
        if old.take_over.is_some() {
            life.note(Reached::TakenOverAfterLapse);
        }
        if !takeable(over.won_at) || over.attempt <= spent {
            return Some(Broken::RunningClaimTakenOver);
        }
    }
    let moved_on = new.identity() != old.identity();
    (moved_on && (new.attempt <= old.attempt || !takeable(new.won_at))).then_some(Broken::RunningClaimTakenOver)
}

/// Whether a later state of a registration lost what is to survive.
fn lost(old: &Record, new: &Record) -> bool {
    new.first_seen_at != old.first_seen_at
        || new.payload_hash != old.payload_hash
        || new.window_ends_at != old.window_ends_at
        || new.retry_count < old.retry_count
        || new.last_seen_at < old.last_seen_at
        || new.attempt < old.attempt
}

/// Of what the facts come to.
pub(crate) fn judge_facts(life: &Life, before: &World, after: &World) -> Option<Broken> {
    if before.facts == after.facts {
        return None;
    }
    let added = after.facts.iter().find(|fact| !before.facts.contains(fact))?;
    let row_of = |world: &World| {
        let of_registration = |fact: &Kept<Fact>| fact.record.registration_id == added.record.registration_id;
        let facts: Vec<_> = world.facts.iter().copied().filter(of_registration).collect();
        (!facts.is_empty()).then(|| life.rows.of(&life.values, facts).get())
    };
    let new = row_of(after)?;
    if new.depends_on_order {
        return Some(Broken::OrderOfFacts);
    }
    let old = row_of(before)?;
    let resolved_undone = old.record.state == State::Resolved
        && (new.record.state, new.record.identity(), &new.record.response)
            != (old.record.state, old.record.identity(), &old.record.response);
    let lost = lost(&old.record, &new.record) && new.record.state != State::Resolved;
    (resolved_undone || lost).then_some(Broken::RowUndone)
}

/// Of a heal that is about to change the hot tier.
pub(crate) fn judge_heal(life: &Life, before: &World) {
    life.note(match before.hot {
        None => Reached::HealsMiss,
        Some(slot) if slot.record.take_over.is_some() => Reached::HealsTakeOver,
        Some(_) => Reached::HealsPending,
    });
}
