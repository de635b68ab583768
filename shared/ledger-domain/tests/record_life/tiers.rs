//! The tiers around the calls: one hot slot that runs the transition functions as they are, and the facts that are durable.

use ledger_domain::ports::Amend;
use ledger_domain::transition::{self, Amended, Counted, Found};
use ledger_domain::{EPSILON_MS, Fact, Record, Timestamp, Trail};

use crate::keep::{Keeper, Kept, Values};
use crate::ports::{Ask, Reply};

/// What the hot tier holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) record: Kept<Record>,
    pub(crate) expires_at: Timestamp,
}

impl Slot {
    fn pending(record: Kept<Record>, ttl_ms: u64, now: Timestamp) -> Self {
        let ttl_ms = i64::try_from(ttl_ms).expect("a small number");
        Self { record, expires_at: now.plus_millis(ttl_ms + 2 * EPSILON_MS) }
    }

    pub(crate) fn until_window_end(record: Kept<Record>) -> Self {
        Self { record, expires_at: record.window_ends_at.plus_millis(2 * EPSILON_MS) }
    }
}

pub(crate) fn found(slot: Option<Slot>) -> Found {
    slot.map_or(Found::Absent, |slot| Found::record((*slot.record).clone()))
}

/// What `ask` makes of the slot at `now`, and its reply. A [`Ask::Send`] is the queue's.
pub(crate) fn ask_hot(values: &Values, slot: Option<Slot>, ask: &Ask, now: Timestamp) -> (Option<Slot>, Reply) {
    let moved = (slot, Reply::Found(slot.map(|slot| slot.record)));
    let found = found(slot);
    match ask {
        Ask::Begin(begin) => match transition::begin(found, &begin.pending) {
            Ok(pending) => (Some(Slot::pending(values.record(pending), begin.ttl_ms, now)), Reply::Done),
            Err(_) => moved,
        },
        Ask::Settle(settle) => match transition::settle(found, &settle.guard, &settle.settled) {
            (Some(record), _) => (Some(Slot::until_window_end(values.record(record))), Reply::Done),
            (None, transition::Swapped::Done) => (slot, Reply::Done),
            (None, transition::Swapped::Moved(_)) => moved,
        },
        Ask::Replace(replace) => match transition::replace(found, &replace.guard, &replace.pending) {
            (Some(pending), _) => (Some(Slot::pending(values.record(pending), replace.ttl_ms, now)), Reply::Done),
            (None, transition::Swapped::Done) => (slot, Reply::Done),
            (None, transition::Swapped::Moved(_)) => moved,
        },
        Ask::Count(count) => match transition::count(found, &count.guard, count.now, &count.payload) {
            Counted::Counted(record) => {
                let record = values.record(*record);
                (slot.map(|slot| Slot { record, ..slot }), Reply::DoneOn(record))
            }
            Counted::Moved(_) => moved,
        },
        Ask::Amend(amend) => {
            let Amend { read, to, sighting, .. } = &**amend;
            match transition::amend(found, read, to, sighting.as_ref()) {
                (written, Amended::Done(stands)) => {
                    let written = written.map(|record| values.record(record));
                    let slot = slot.map(|slot| Slot { record: written.unwrap_or(slot.record), ..slot });
                    (slot, Reply::DoneOn(values.record(*stands)))
                }
                (_, Amended::Moved(_)) => moved,
            }
        }
        Ask::Release(release) => (slot.filter(|_| !transition::release(&found, &release.guard)), Reply::Done),
        Ask::Read | Ask::Pause | Ask::Send(_) => moved,
    }
}

/// What the cold ledger holds of a set of facts: of the registrations the one that stands, its trail, and whether the order
/// in which they came mattered, which it must not.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) record: Kept<Record>,
    pub(crate) trail: Trail,
    pub(crate) depends_on_order: bool,
}

/// The rows of sets of facts.
pub(crate) struct Rows {
    rows: Keeper<Vec<Kept<Fact>>, Row>,
    every: Keeper<Vec<Kept<Fact>>, Vec<Kept<Record>>>,
}

impl Rows {
    pub(crate) fn new() -> Self {
        Self { rows: Keeper::new(), every: Keeper::new() }
    }

    /// Of facts of one registration or more, in the order of their numbers.
    pub(crate) fn of(&self, values: &Values, facts: Vec<Kept<Fact>>) -> Kept<Row> {
        self.rows.keep(facts.clone(), || {
            let (record, trail) = merged(facts.iter());
            // Backwards, and each a second time.
            let again = merged(facts.iter().rev().chain(&facts));
            let depends_on_order = (&record, &trail) != (&again.0, &again.1);
            Row { record: values.record(record), trail, depends_on_order }
        })
    }

    /// The records that stand when some of `facts` have arrived, whichever.
    pub(crate) fn of_some(&self, values: &Values, facts: &[Kept<Fact>]) -> &'static [Kept<Record>] {
        let every = self.every.keep(facts.to_vec(), || {
            let mut rows = Vec::new();
            for chosen in 1_u32..1 << facts.len() {
                let some = facts.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, fact)| *fact);
                let row = self.of(values, some.collect()).record;
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
            rows
        });
        every.get()
    }
}

fn merged<'a>(facts: impl Iterator<Item = &'a Kept<Fact>>) -> (Record, Trail) {
    let mut rows: Vec<(Record, Trail)> = Vec::new();
    for fact in facts {
        match rows.iter_mut().find(|(record, _)| record.registration_id == fact.record.registration_id) {
            Some((record, trail)) => {
                record.merge(&fact.record);
                trail.merge(&fact.trail());
            }
            None => rows.push((fact.record.clone(), fact.trail())),
        }
    }
    rows.into_iter().max_by_key(|(record, _)| record.standing()).expect("one fact or more")
}
