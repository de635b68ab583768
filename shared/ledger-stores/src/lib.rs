//! The ledger's stores: one file or folder per technology, behind the ports of `ledger_domain`, each behind its feature.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
#[cfg(feature = "embedded")]
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
