//! The SQS edge: a batch in, its partial failures out.
//!
//! The event is taken with its bodies as they are, so that one body that is no JSON fails alone. An answer that names an
//! unknown or empty id would fail the whole batch, so only ids that came are ever named.

use aws_lambda_events::event::sqs::SqsEvent;
use serde::Serialize;

/// One message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The id that a failure is reported by.
    pub id: String,
    /// Its body; empty where it had none.
    pub body: String,
}

/// An SQS event in which a message has no id: nothing could be reported about it, so the whole batch must come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an SQS record without a messageId: no partial failure can be reported")]
pub struct MissingId;

/// The messages of an event.
///
/// # Errors
/// [`MissingId`]; failing the invocation makes the whole batch come again.
pub fn messages(event: SqsEvent) -> Result<Vec<Message>, MissingId> {
    event
        .records
        .into_iter()
        .map(|record| {
            let id = record.message_id.filter(|id| !id.is_empty()).ok_or(MissingId)?;
            Ok(Message { id, body: record.body.unwrap_or_default() })
        })
        .collect()
}

/// What the function answers: the messages to deliver again. Empty means that all are done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResponse {
    batch_item_failures: Vec<ItemFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemFailure {
    item_identifier: String,
}

impl BatchResponse {
    /// An answer that names the failed messages.
    pub fn of(failed: impl IntoIterator<Item = String>) -> Self {
        let batch_item_failures = failed.into_iter().map(|item_identifier| ItemFailure { item_identifier }).collect();
        Self { batch_item_failures }
    }

    /// The ids named.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.batch_item_failures.iter().map(|failure| failure.item_identifier.as_str())
    }
}

impl From<MissingId> for lambda_runtime::Diagnostic {
    /// CloudWatch shows the kind of error, not a Rust type's name.
    fn from(error: MissingId) -> Self {
        Self { error_type: "Retryable".to_owned(), error_message: error.to_string() }
    }
}
