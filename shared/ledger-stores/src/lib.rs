//! The domain's ports on real technology: one file per technology, each adapter behind its feature.

#[cfg(any(feature = "dynamodb", feature = "sqs"))]
pub mod aws;
#[cfg(feature = "embedded")]
pub mod sqlite_queue;
#[cfg(feature = "sqs")]
pub mod sqs;
