//! The ledger's stores: one file or folder per technology, behind the ports of `ledger_domain`, each behind its feature;
//! and what a process remembers between requests: the clock's offset, policies, the hot tier's health and whether it answers,
//! its cold session, facts not yet sent.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
pub mod clock;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod cold;
pub mod cold_session;
#[cfg(any(feature = "dynamodb", feature = "embedded"))]
mod control_state;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod guarded;
mod hash_slot;
pub mod hot_watch;
#[cfg(feature = "embedded")]
pub mod memory;
mod os_time;
pub mod outbox;
pub mod policy_cache;
#[cfg(any(feature = "dynamodb", feature = "embedded"))]
mod policy_entry;
#[cfg(feature = "postgres")]
pub mod postgres;
mod recent_failure;
#[cfg(feature = "redis")]
pub mod redis;
pub mod repeats;
mod single_flight;
#[cfg(feature = "embedded")]
pub mod sqlite;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "embedded")]
mod state_file;
#[cfg(feature = "embedded")]
pub mod toml_file;
