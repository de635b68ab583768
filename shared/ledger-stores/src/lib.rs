//! The domain's ports on real technology: one file per technology, each adapter behind its feature.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
pub mod clock;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod os_time;
pub mod outbox;
pub mod policy_cache;
#[cfg(any(feature = "dynamodb", feature = "embedded"))]
mod policy_entry;
mod single_flight;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "embedded")]
pub mod toml_file;
