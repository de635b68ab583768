//! What a check answers.

use crate::record::{State, StoredResponse};
use crate::text::{Invalid, SourceService};
use crate::time::Timestamp;

/// What the caller is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Process the message.
    Process,
    /// Discard it: an earlier check was told to process it, and that is durable.
    Discard,
    /// Ask again later: somebody is at work on it.
    Retry,
}

impl Disposition {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "PROCESS",
            Self::Discard => "DISCARD",
            Self::Retry => "RETRY",
        }
    }
}

/// Which tier decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedBy {
    /// The hot tier.
    Hot,
    /// The cold ledger's registering statement.
    Cold,
}

impl DecidedBy {
    /// The name used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

/// A claim handed to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// What every later act must carry.
    pub token: String,
    /// When its lease ends.
    pub lease_ends_at: Timestamp,
}

/// A verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Not seen before inside its window, or the caller's own answer again.
    New(NewVerdict),
    /// Seen before.
    Seen(SeenVerdict),
}

/// NEW, with the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVerdict {
    /// The first sighting.
    pub first_seen_at: Timestamp,
    /// When the window ends.
    pub window_ends_at: Timestamp,
    /// Sightings after the first.
    pub retry_count: u32,
    /// Where the record stands.
    pub state: State,
    /// The attempt that stands; `None` outside claim mode.
    pub attempt: Option<u16>,
    /// The caller's claim; `None` outside claim mode.
    pub claim: Option<Claim>,
    /// Whether this is an earlier answer to the same check, given again.
    pub replayed: bool,
    /// Whether it took over a claim that failed or lapsed (counted, not shown to callers).
    pub taken_over: bool,
    /// Which tier decided.
    pub decided_by: DecidedBy,
    /// Whether the registration is known to be durable.
    pub durable: bool,
    /// Whether no tier could say that the message was not seen before, and the scope's policy prefers this answer to none:
    /// shown as `confirmed: false`.
    pub unconfirmed: bool,
    /// Whether the hot tier holds the registration as confirmed; where not, a repeat may be answered NEW until the cold
    /// writer has healed it (counted, not shown to callers).
    pub confirmed: bool,
}

/// SEEN, with the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenVerdict {
    /// [`Disposition::Discard`] or [`Disposition::Retry`].
    pub disposition: Disposition,
    /// The first sighting.
    pub first_seen_at: Timestamp,
    /// The last sighting, this one included.
    pub last_seen_at: Timestamp,
    /// When the window ends.
    pub window_ends_at: Timestamp,
    /// Sightings after the first, this one included.
    pub retry_count: u32,
    /// Whether this check's payload hash differs from the first one's.
    pub payload_hash_drift: bool,
    /// Where the record stands.
    pub state: State,
    /// The attempt that stands; `None` outside claim mode.
    pub attempt: Option<u16>,
    /// Who asked first, if it said so.
    pub first_source_service: Option<SourceService>,
    /// The stored answer of a resolved claim.
    pub response: Option<StoredResponse>,
    /// With [`Disposition::Retry`]: when to ask again, in seconds, at least 1.
    pub retry_after_seconds: Option<u64>,
    /// Which tier decided.
    pub decided_by: DecidedBy,
    /// Whether the check came with the nonce of the one that won, but too late to be its retry: the mark of a client
    /// that sends a constant `requestId` (counted).
    pub constant_request_id: bool,
}

/// Why there is no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is not acceptable; nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// No tier could decide. The check may have registered: retry with the same `requestId`.
    #[error(transparent)]
    Undecided(#[from] Undecided),
}

/// Why no tier could decide. Always retryable; never a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// Another check has won this key and its fact is not durable yet.
    #[error("another check of this key is being made durable")]
    Pending,
    /// The hot tier did not answer.
    #[error("the hot tier did not answer")]
    HotTier,
    /// The cold ledger was to decide alone, and the cold session that this needs could not be had.
    #[error("the cold session that a decision in the cold ledger needs could not be opened")]
    ColdSession,
    /// The cold ledger was needed and did not answer.
    #[error("the cold ledger was needed and did not answer")]
    ColdLedger,
    /// The queue refused the fact, so the registration is not durable.
    #[error("the event queue refused the registration")]
    Queue,
    /// The check outlived its own PENDING.
    #[error("the check took longer than its own claim on the key")]
    TooSlow,
    /// The record kept changing while it was decided on.
    #[error("the record kept changing while it was decided on")]
    Contended,
    /// This process does not know its clock's offset.
    #[error("this process does not know the ledger's time")]
    Clock,
    /// The scope's policy is not known, or too old.
    #[error("the scope's policy is not known")]
    Policy,
    /// The claim is durable, but whether the hot tier holds it is not known; only a confirmed claim has a holder.
    #[error("the hot tier did not confirm the claim")]
    Unconfirmed,
    /// Neither tier holds the message, and the hot tier cannot vouch that it never did.
    #[error("whether the message is known cannot be confirmed now")]
    Absence,
    /// A value of an unknown version, or a damaged one, that the cold ledger cannot continue either.
    #[error("the record is in a state that this release does not continue")]
    Unsupported,
}
