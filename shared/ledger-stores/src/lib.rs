//! The domain's ports on real technology: one file per technology, each adapter behind its feature.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod outbox;
#[cfg(any(feature = "dynamodb", feature = "embedded"))]
mod policy_entry;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(feature = "embedded")]
pub mod toml_file;
