//! What the domain asks of the outside. Each port's doc comment is its contract, in terms a test can check; one
//! conformance suite per port runs over every implementation.
//!
//! There is no common `Store`: the tiers make different promises. A trait stands here because a production and an
//! embedded implementation pass one written contract.

mod clock;
mod cold_ledger;
mod cold_session;
mod control_plane;
mod error;
mod event_queue;
mod hot_tier;

pub use clock::{Clock, ClockUnknown, Entropy};
pub use cold_ledger::{
    ActedCold, ClaimRow, ColdLedger, HistoryPage, HistoryQuery, HistoryRow, Persisted, Position, Registered, Together,
};
pub use cold_session::ColdSessions;
pub use control_plane::{ColdSession, ControlPlane, KeeperState, PolicySource};
pub use error::{StoreError, chain};
pub use event_queue::{Delivery, EventQueue, FactSink, PoisonSink, QueueConsumer, QueueDepth};
pub use hot_tier::{
    Amend, Begin, Begun, Count, Fill, Heal, HotHealth, HotTier, HotTrust, Release, Replace, Settle, WarmMarker,
};
