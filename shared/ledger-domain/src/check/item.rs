//! Where each check of a batch stands while it is decided.

use super::{Check, ClaimRequest, Prepared};
use crate::claim::lease_end;
use crate::ids::RegistrationId;
use crate::ports::{Release, StoreError, chain};
use crate::record::{Record, State, TakeOver};
use crate::time::Timestamp;
use crate::transition::{Found, Guard};
use crate::verdict::{Undecided, Verdict};

/// How often one check may find its record changed under it before it gives up. Each change is another's progress.
const MOVES_MAX: u8 = 8;
/// How often a request to the hot tier, or a fact, is sent in all where the outcome is not known.
pub(super) const TRIES: u8 = 2;

pub(super) type Answer = Result<Verdict, Undecided>;

/// A PENDING of this check, on its way to be confirmed.
pub(super) struct Won {
    /// As it is to stand once confirmed.
    pub(super) confirmed: Record,
    /// When the PENDING lapses.
    pub(super) deadline: Timestamp,
    /// For a take-over: the record as it stands, the PENDING over it.
    pub(super) over: Option<Box<Record>>,
    /// Whether an earlier call won it.
    pub(super) replayed: bool,
}

impl Won {
    /// Of a first PENDING.
    pub(super) fn first(mut pending: Record, replayed: bool) -> Box<Self> {
        let deadline = pending.pending_deadline();
        pending.confirm();
        Box::new(Self { confirmed: pending, deadline, over: None, replayed })
    }

    /// Of a take-over's PENDING, which lies over `record`.
    pub(super) fn over(record: Box<Record>, take_over: &TakeOver, check: &Check, replayed: bool) -> Box<Self> {
        let confirmed = record.taken_over(take_over, &check.payload, check.source_service.as_ref());
        Box::new(Self { confirmed, deadline: take_over.deadline, over: Some(record), replayed })
    }

    /// The PENDING that a first one is settled from.
    pub(super) fn guard(confirmed: &Record) -> Guard {
        Guard { state: State::Pending, ..Guard::of(confirmed) }
    }
}

/// Where an item of a batch stands.
pub(super) enum Step {
    /// Nothing is known: win the key.
    Begin,
    /// This was found.
    Judge(Found),
    /// A PENDING of this check stands: make it durable and confirm it.
    Register(Box<Won>),
    /// A repeat of this record.
    Count(Box<Record>),
    /// This record's window is over.
    Replace(Box<Record>),
    /// This record failed, or its lease is over.
    TakeOver(Box<Record>),
    /// This record's last act is not known to be durable.
    Mark(Box<Record>),
    /// The hot tier does not do what it is asked: can it at least be read?
    Peek,
    /// The cold ledger decides, whatever the hot tier says.
    Settle(Box<Settling>),
    /// A value nobody here can read.
    Unreadable,
    /// Somebody else is making the key durable.
    Wait,
    /// Decided.
    Done(Answer),
}

/// What the cold ledger is to decide.
#[derive(Default)]
pub(super) struct Settling {
    /// The confirmed record that the hot tier showed: the cold ledger is told of it first, for it may not know it yet.
    pub(super) read: Option<Box<Record>>,
    /// What this check has won already, as it is to stand; `None` where it is to be won now.
    pub(super) won: Option<Box<Record>>,
    /// Whether the hot tier is cut off, and is not told of the outcome.
    pub(super) cut_off: bool,
}

impl Settling {
    /// A hit that the hot tier cannot vouch for.
    pub(super) fn hit(read: Box<Record>) -> Step {
        Step::Settle(Box::new(Self { read: Some(read), ..Self::default() }))
    }

    /// What is decided without the hot tier.
    pub(super) fn cut_off(read: Option<Box<Record>>) -> Step {
        Step::Settle(Box::new(Self { read, won: None, cut_off: true }))
    }
}

/// A check, and where it stands.
pub(super) struct Item<'p, 'c> {
    pub(super) prepared: &'p Prepared<'c>,
    pub(super) registration_id: RegistrationId,
    /// When this call laid a take-over's PENDING over the record, if it did.
    pub(super) took_over_at: Option<Timestamp>,
    pub(super) step: Step,
    /// Whether no tier could say that it was not seen before, and its policy prefers NEW to no answer.
    pub(super) unconfirmed: bool,
    /// Whether there is a cold ledger to fall back on.
    has_cold: bool,
    failures: u8,
    moves: u8,
}

impl<'p, 'c> Item<'p, 'c> {
    /// A check that nothing is known of yet.
    pub(super) fn new(prepared: &'p Prepared<'c>, has_cold: bool) -> Self {
        let registration_id = prepared.registration_id;
        let (took_over_at, step, unconfirmed) = (None, Step::Begin, false);
        Self { prepared, registration_id, took_over_at, step, unconfirmed, has_cold, failures: 0, moves: 0 }
    }

    /// What it has won and not confirmed yet.
    pub(super) fn won(&self) -> Option<&Won> {
        match &self.step {
            Step::Register(won) => Some(won),
            Step::Begin
            | Step::Judge(_)
            | Step::Count(_)
            | Step::Replace(_)
            | Step::TakeOver(_)
            | Step::Mark(_)
            | Step::Peek
            | Step::Settle(_)
            | Step::Unreadable
            | Step::Wait
            | Step::Done(_) => None,
        }
    }

    /// The hot tier did not answer: try once more, then decide without it, or say so.
    pub(super) fn hot_tier_failed(&mut self, error: &StoreError, again: Step) {
        self.failures += 1;
        tracing::warn!(error = chain(error), failures = self.failures, "the hot tier did not answer");
        self.step = match self.failures < TRIES {
            true => again,
            false if self.has_cold => Step::Peek,
            false => Step::Done(Err(Undecided::HotTier)),
        };
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
        let window_ends_at = now.plus_seconds(self.prepared.window_seconds);
        Record {
            registration_id: self.registration_id,
            state: State::Pending,
            attempt: 1,
            nonce: self.prepared.nonce,
            won_at: now,
            first_seen_at: now,
            last_seen_at: now,
            window_ends_at,
            payload_hash: check.payload,
            retry_count: 0,
            source_service: check.source_service.clone(),
            drift: None,
            lease_ends_at: check.claim.map(|claim| lease_end(now, claim.lease_seconds, window_ends_at)),
            response: None,
            attempt_source: None,
            ended: None,
            undurable: false,
            take_over: None,
        }
    }

    /// Lets go of a PENDING that this call could not make durable, where nobody else can have done so. A check with a
    /// `requestId` shares its PENDING with its own retries: one of them may have sent the fact, and another check that then
    /// won the key would be a second NEW. So that one lapses at its deadline; its retry adopts it before.
    pub(super) fn release(&self, confirmed: &Record) -> Option<Release> {
        let shared = self.prepared.check.request_id.is_some();
        (!shared).then(|| Release { slot: self.prepared.slot, guard: Won::guard(confirmed) })
    }

    /// The take-over that this check wants to lay over `record` at `now`.
    pub(super) fn take_over(&self, record: &Record, now: Timestamp) -> TakeOver {
        let lease_end = |claim: ClaimRequest| lease_end(now, claim.lease_seconds, record.window_ends_at);
        TakeOver {
            deadline: now.plus_millis(Record::PENDING_MS).min(record.window_ends_at),
            attempt: record.next_attempt(),
            nonce: self.prepared.nonce,
            won_at: now,
            lease_ends_at: self.prepared.check.claim.map(lease_end),
        }
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
            | Step::Register(_)
            | Step::Count(_)
            | Step::Replace(_)
            | Step::TakeOver(_)
            | Step::Mark(_)
            | Step::Peek
            | Step::Settle(_)
            | Step::Unreadable
            | Step::Wait => Err(why),
        })
        .collect()
}
