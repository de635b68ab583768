//! The ledger's ports on real technology: one file or folder per technology.

#[cfg(any(feature = "embedded", feature = "postgres"))]
mod cold;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "embedded")]
pub mod sqlite;
