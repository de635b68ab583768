//! The rules of the message deduplication ledger, and nothing else.
//!
//! Every hub service asks one question for each message, *has this been seen before?*, and this crate holds what the
//! answer may be, when a record changes and in which order the tiers are asked. It does no I/O: the tiers are ports
//! ([`ports`]), and time, ids and randomness are arguments, so each rule is testable with a manual clock.
//!
//! Where to look:
//! - the words: [`Scope`], [`MessageKey`], [`PayloadHash`], [`Record`], [`Verdict`], [`Fact`]
//! - the record's life: [`transition`]; its compact form in the hot tier: [`value`]
//! - the one use case that orders hot tier, queue and cold ledger: [`check`]
//! - what the cold writer does with facts: [`persist`]; how the hot tier is refilled: [`keep`]; what an auditor is shown:
//!   [`search`]
//! - what keeps a check from waiting for a tier that is down: [`breaker`]

mod attempt;
pub mod breaker;
pub mod check;
pub mod claim;
pub mod claims;
mod digest;
mod fact;
mod hash;
mod ids;
pub mod keep;
mod key;
pub mod persist;
mod policy;
pub mod ports;
mod record;
mod scope;
pub mod search;
mod text;
mod time;
pub mod transition;
pub mod value;
mod verdict;

pub use attempt::{Attempt, Trail};
pub use digest::{Slot, nonce_of};
pub use fact::{Fact, FactError};
pub use hash::PayloadHash;
pub use ids::{FillPass, Nonce, RegistrationId, SessionId};
pub use key::{KEY_MAX_BYTES, KEY_PARTS_MAX, KEY_PARTS_MIN, MessageKey};
pub use policy::{
    ConfirmMiss, LEASE_MAX_SECONDS, LEASE_MIN_SECONDS, Policy, PolicyError, PolicyFields, PolicySet, REPLAY_SECONDS,
    Unconfirmed, WINDOW_MAX_SECONDS, WINDOW_MIN_SECONDS,
};
pub use record::{Drift, Ended, Record, State, StoredResponse, Subject, TakeOver};
pub use scope::{Scope, Tenant};
pub use text::{ContentType, FailReason, Invalid, Principal, RequestId, SourceService};
pub use time::{EPSILON_MS, Timestamp};
pub use verdict::{DecidedBy, Disposition, NewVerdict, Refusal, SeenVerdict, Undecided, Verdict};
