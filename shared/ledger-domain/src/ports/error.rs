//! What a store says when it could not do what was asked.

use std::sync::Arc;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// A store's failure. It says whether the write happened; unknown means "may have".
///
/// `operation` is a short verb and object ("count sightings"); the cause is the source and is not repeated in the text.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It did not happen, and the same request may well succeed later.
    #[error("{operation}: did not happen")]
    DidNotHappen {
        /// What was asked.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: Source,
    },
    /// It may have happened: the reply was lost, or nothing says that it did not.
    #[error("{operation}: may have happened")]
    MayHaveHappened {
        /// What was asked.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: Source,
    },
    /// It did not happen and will not: the store refuses this content.
    #[error("{operation}: refused")]
    Rejected {
        /// What was asked.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: Source,
    },
}

impl StoreError {
    /// It did not happen.
    pub fn did_not_happen(
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::DidNotHappen { operation, source: Arc::from(source.into()) }
    }

    /// It may have happened.
    pub fn may_have_happened(
        operation: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::MayHaveHappened { operation, source: Arc::from(source.into()) }
    }

    /// The content was refused.
    pub fn rejected(operation: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Rejected { operation, source: Arc::from(source.into()) }
    }
}

/// An error with all its causes, for a log line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
