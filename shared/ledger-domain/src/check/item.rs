//! Where each check of a batch stands while it is decided.

use super::Prepared;
use crate::ids::RegistrationId;
use crate::ports::{Release, StoreError, chain};
use crate::record::{Record, State};
use crate::time::Timestamp;
use crate::transition::{Found, Guard};
use crate::verdict::{Undecided, Verdict};

/// How often one check may find its record changed under it before it gives up. Each change is another's progress.
const MOVES_MAX: u8 = 8;
/// How often a request to the hot tier, or a fact, is sent in all where the outcome is not known.
pub(super) const TRIES: u8 = 2;

pub(super) type Answer = Result<Verdict, Undecided>;

/// Where an item of a batch stands.
pub(super) enum Step {
    /// Nothing is known: win the key.
    Begin,
    /// This was found.
    Judge(Found),
    /// A PENDING of this check stands: make it durable and settle it. `replayed` where an earlier call won it.
    Register { pending: Record, replayed: bool },
    /// A repeat of this record.
    Count(Record),
    /// This record's window is over.
    Replace(Record),
    /// A value nobody here can read.
    Unreadable,
    /// Somebody else is making the key durable.
    Wait,
    /// Decided.
    Done(Answer),
}

/// A check, and where it stands.
pub(super) struct Item<'p, 'c> {
    pub(super) prepared: &'p Prepared<'c>,
    pub(super) registration_id: RegistrationId,
    pub(super) step: Step,
    failures: u8,
    moves: u8,
}

impl<'p, 'c> Item<'p, 'c> {
    /// A check that nothing is known of yet.
    pub(super) fn new(prepared: &'p Prepared<'c>) -> Self {
        Self { prepared, registration_id: prepared.registration_id, step: Step::Begin, failures: 0, moves: 0 }
    }

    /// The hot tier did not answer: try once more, then say so.
    pub(super) fn hot_tier_failed(&mut self, error: &StoreError, again: Step) {
        self.failures += 1;
        tracing::warn!(error = chain(error), failures = self.failures, "the hot tier did not answer");
        self.step = if self.failures < TRIES { again } else { Step::Done(Err(Undecided::HotTier)) };
    }

    /// What was read is no longer there.
    pub(super) fn moved(&mut self, found: Found) {
        self.moves += 1;
        self.step = match found {
            _ if self.moves > MOVES_MAX => Step::Done(Err(Undecided::Contended)),
            Found::Absent => Step::Begin,
            Found::Record(_) | Found::Unreadable => Step::Judge(found),
        };
    }

    /// A PENDING of this check as of `now`.
    pub(super) fn pending(&self, now: Timestamp) -> Record {
        let check = self.prepared.check;
        Record {
            registration_id: self.registration_id,
            state: State::Pending,
            attempt: 1,
            nonce: self.prepared.nonce,
            won_at: now,
            first_seen_at: now,
            last_seen_at: now,
            window_ends_at: now.plus_seconds(self.prepared.window_seconds),
            payload_hash: check.payload,
            retry_count: 0,
            source_service: check.source_service.clone(),
            drift: None,
            lease_ends_at: None,
            response: None,
            undurable: false,
            take_over: None,
        }
    }

    /// Lets go of a PENDING that this call could not make durable, where nobody else can have done so. A check with a
    /// `requestId` shares its PENDING with its own retries: one of them may have sent the fact, and another check that then
    /// won the key would be a second NEW. So that one lapses at its deadline; its retry adopts it before.
    pub(super) fn release(&self, pending: &Record) -> Option<Release> {
        let shared = self.prepared.check.request_id.is_some();
        (!shared).then(|| Release { slot: self.prepared.slot, guard: Guard::of(pending) })
    }
}

/// How long a PENDING holds from `now`, in milliseconds.
pub(super) fn pending_ttl_ms(pending: &Record, now: Timestamp) -> u64 {
    u64::try_from(pending.pending_deadline().millis_since(now)).unwrap_or(0).max(1)
}

/// The items at a step, by place, each with what the step holds taken out; each gets its next step before the loop comes
/// round.
macro_rules! take_steps {
    ($items:expr, $pattern:pat => $value:expr) => {{
        let mut taken = Vec::new();
        let count = $items.len();
        for (at, item) in $items.iter_mut().enumerate() {
            // Steps are large: looked at where they are, and moved only if they are wanted.
            #[allow(unused_variables, reason = "what the pattern binds is used below")]
            let is_wanted = matches!(&item.step, $pattern);
            if is_wanted && let $pattern = std::mem::replace(&mut item.step, Step::Wait) {
                if taken.is_empty() {
                    // Growing by itself, a vector of one would make room for four: more than an allocator keeps at hand.
                    taken.reserve_exact(count - at);
                }
                taken.push((at, $value));
            }
        }
        taken
    }};
}
pub(super) use take_steps;

/// The answers; what is not decided yet is given up for `why`.
pub(super) fn give_up(items: Vec<Item<'_, '_>>, why: Undecided) -> Vec<Answer> {
    items
        .into_iter()
        .map(|item| match item.step {
            Step::Done(answer) => answer,
            Step::Begin
            | Step::Judge(_)
            | Step::Register { .. }
            | Step::Count(_)
            | Step::Replace(_)
            | Step::Unreadable
            | Step::Wait => Err(why),
        })
        .collect()
}
