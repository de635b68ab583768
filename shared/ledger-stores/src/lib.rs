//! The ledger's stores: one file or folder per technology, behind the ports of `ledger_domain`.

#[cfg(feature = "embedded")]
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
