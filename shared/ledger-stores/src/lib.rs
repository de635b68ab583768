//! The ledger's stores: one file or folder per technology, behind the ports of `ledger_domain`, each behind its feature.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod cold;
#[cfg(feature = "embedded")]
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "embedded")]
pub mod sqlite;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
