//! The hot tier: fast and atomic; may forget.

use async_trait::async_trait;

use super::StoreError;
use crate::digest::Slot;
use crate::hash::PayloadHash;
use crate::ids::FillPass;
use crate::record::Record;
use crate::time::Timestamp;
use crate::transition::{Amended, Counted, Found, Guard, Sighting, Swapped};

/// Win a key: write a PENDING where nothing stands.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The key.
    pub slot: Slot,
    /// The PENDING to write; it holds all of its fact.
    pub pending: Record,
    /// How long it holds, in milliseconds from now; the store drops it [`crate::EPSILON_MS`] × 2 later.
    pub ttl_ms: u64,
}

/// What came of [`Begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Written: nothing stood there.
    Won,
    /// Not written: this stands there. Never [`Found::Absent`].
    Present(Found),
}

/// Write a settled record where the first PENDING of `guard` stands.
#[derive(Debug, Clone)]
pub struct Settle {
    /// The key.
    pub slot: Slot,
    /// The PENDING that was won.
    pub guard: Guard,
    /// What is to stand there; its expiry becomes its window's end and 2 ε.
    pub settled: Record,
}

/// Count one more sighting.
#[derive(Debug, Clone)]
pub struct Count {
    /// The key.
    pub slot: Slot,
    /// The record that was read.
    pub guard: Guard,
    /// When it was sighted.
    pub now: Timestamp,
    /// With which payload.
    pub payload: PayloadHash,
    /// The record as read, so that a tier need not send it back whole.
    pub read: Record,
}

/// Replace a record whose window is over by a new PENDING.
#[derive(Debug, Clone)]
pub struct Replace {
    /// The key.
    pub slot: Slot,
    /// The record that was read.
    pub guard: Guard,
    /// The PENDING to write in its place.
    pub pending: Record,
    /// As in [`Begin`].
    pub ttl_ms: u64,
}

/// A claim's transition on the record that was read: a take-over's PENDING laid over it, its confirmation, an act of the
/// holder, a mark cleared. The key keeps its expiry.
#[derive(Debug, Clone)]
pub struct Amend {
    /// The key.
    pub slot: Slot,
    /// The record as read.
    pub read: Record,
    /// As it is to stand, where [`crate::transition::amend`] says so; its response is left as it is where `None`.
    pub to: Record,
    /// Counted with it.
    pub sighting: Option<Sighting>,
}

/// Let go of a first PENDING whose fact was refused.
#[derive(Debug, Clone)]
pub struct Release {
    /// The key.
    pub slot: Slot,
    /// The PENDING that was won.
    pub guard: Guard,
}

/// Heal a key from its durable row.
#[derive(Debug, Clone)]
pub struct Heal {
    /// The key.
    pub slot: Slot,
    /// The row as `dedup_claim` holds it; its window is not over.
    pub row: Record,
}

/// Put a durable row under its key, where nothing newer stands.
#[derive(Debug, Clone)]
pub struct Fill {
    /// The key.
    pub slot: Slot,
    /// The row as `dedup_claim` holds it; its window is not over.
    pub row: Record,
}

/// What the warm markers of all shards say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmMarker {
    /// Some shard has none, or one of another server, of another replication history or of before an eviction: it may have
    /// lost anything.
    Missing,
    /// Each shard has stood as it is since this pass began to fill it.
    Filling(FillPass),
    /// Each shard has stood as it is since before this pass filled it. That counts only where it is the last pass that began
    /// ([`super::KeeperState::pass`]): whoever is still connected to a primary that another one took the place of sees its
    /// marker stand.
    Warm(FillPass),
}

/// What the tier says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotHealth {
    /// What the warm markers say.
    pub marker: WarmMarker,
    /// What else speaks against believing a miss, in words for an operator: a policy that evicts, a server that loads or is no
    /// primary.
    pub problems: Vec<String>,
}

impl HotHealth {
    /// Whether, as far as the tier itself knows, a miss proves that nothing stands there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.marker, WarmMarker::Warm(_)) && self.problems.is_empty()
    }
}

impl HotHealth {
    /// As [`HotHealth::is_complete`], and by the last pass that began.
    #[must_use]
    pub fn is_complete_since(&self, pass: Option<FillPass>) -> bool {
        self.is_complete() && pass.is_some_and(|pass| self.marker == WarmMarker::Warm(pass))
    }
}

/// What this process last heard of the hot tier's completeness, for the hot path: no I/O.
pub trait HotTrust: Send + Sync {
    /// Whether the hot tier is complete: a miss proves that nothing stands there, and a claim stands as it says. `false` where
    /// the last [`HotHealth`] says otherwise, a cold session is live or not filled from yet, or either is too old or not known;
    /// misses and hits on claims are then settled in the cold ledger.
    fn vouches(&self) -> bool;

    /// Whether this hot tier is the one that the keeper fills and marks, so that what is told it is told to everybody. `false`
    /// for a primary that lost its place and does not know, for another server by mistake, and for one that was emptied and is
    /// not marked yet; what the cold ledger decides then stands under a cold session. As last heard, however long ago.
    fn is_in_place(&self) -> bool;
}

/// The hot tier.
///
/// # Contract
/// - One value per slot, always with an expiry. Every operation on a slot is atomic and does what the function of
///   [`crate::transition`] of the same name does; concurrent operations on one slot have an order.
/// - A write is seen by every handle on the same place once its result is returned.
/// - The tier may forget any value at any time (fail-over, flush), but says so in [`HotTier::health`] where it can know it.
///   It never returns a value that nobody wrote.
/// - A value of an unknown version, or a damaged one, is [`Found::Unreadable`] and is never overwritten.
/// - A batch is sent at once, not one round trip after another. Its results stand in the order of its requests, and requests
///   on one slot take effect in that order. An item's failure is its own.
/// - A record expires at its window's end and 2 ε, a PENDING at its deadline and 2 ε: never before the clock says so.
/// - With no room left, writes are refused ([`StoreError::DidNotHappen`]); nothing that stands is dropped for them.
#[async_trait]
pub trait HotTier: Send + Sync {
    /// Wins keys. One command each.
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>>;

    /// Settles first PENDINGs. Repeating one that was done is [`Swapped::Done`] again.
    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>>;

    /// Counts sightings, each exactly once per call; a call whose reply was lost may have counted.
    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>>;

    /// Replaces records whose window is over.
    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>>;

    /// Makes claims' transitions. Repeating one that was done is [`Amended::Done`] again, and counts nothing again.
    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>>;

    /// Removes first PENDINGs; anything else stays as it is.
    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>>;

    /// Reads, changing nothing: a peek is never a registration.
    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>>;

    /// Fills keys with durable rows, as [`crate::transition::fill`] says. `true` where it was written; `Ok` either way means that
    /// nothing older than the row stands there.
    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>>;

    /// Puts a marker that a pass begins on every shard, whatever marker stands there. It names the server and the replication
    /// history that are there now, and how much was evicted, and is lost with anything else that a shard loses.
    ///
    /// # Errors
    /// [`StoreError`]; some shards may have it then.
    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError>;

    /// Makes each shard's marker a warm one, where it is this pass's and the shard stands as it did when the pass began. `false`
    /// where some shard does not: it lost something since.
    ///
    /// # Errors
    /// [`StoreError`]; some shards may be marked then, which counts for nothing before all are.
    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError>;

    /// Heals from durable rows. `true` where the row was written.
    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>>;

    /// The tier's own time, the reference of the ledger clock.
    ///
    /// # Errors
    /// [`StoreError`] where it does not answer.
    async fn time(&self) -> Result<Timestamp, StoreError>;

    /// What the tier says of itself now.
    ///
    /// # Errors
    /// [`StoreError`] where it does not answer.
    async fn health(&self) -> Result<HotHealth, StoreError>;
}
