//! The event queue on Amazon SQS (a standard queue).

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, DeleteMessageBatchRequestEntry, MessageAttributeValue, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use futures::future::{join_all, try_join_all};
use ledger_domain::Fact;
use ledger_domain::ports::{Delivery, EventQueue, PoisonSink, QueueConsumer, QueueDepth, StoreError};

use crate::aws;

/// Entries of one batch request; more is `TooManyEntriesInBatchRequest`.
const BATCH_ENTRIES_MAX: usize = 10;
/// Message bodies of one batch request together, in bytes: 1 MiB for one message as for a whole batch (API reference of
/// `SendMessageBatch`). A queue set up with a lower `MaximumMessageSize` (256 KiB was the limit before 2025) takes any fact
/// all the same: with its stored response a fact is under 100 KiB.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// AWS: `ApproximateNumberOf...` "reach consistency at least 1 minute after the producers stop sending messages".
pub const DEPTH_LAG_MS: u64 = 60_000;
/// The attribute of a parked message that says why it is no fact.
pub const REASON_ATTRIBUTE: &str = "reason";
/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 256;
/// What a parked message's attribute may take of its size, in bytes.
const REASON_BYTES_MAX: usize = 4 * 1024;
/// Attempts to send one fact, the first included: 4 s at the most with the default attempt timeout, well inside a PENDING's
/// 10 s. Sending again only duplicates, and merging makes it one.
const SEND_ATTEMPTS: usize = 2;
const SEND_RETRY_PAUSE_MS: u64 = 50;
/// What a long poll may take beyond its waiting time, in milliseconds.
const POLL_MARGIN_MS: u64 = 5_000;
/// The longest long poll SQS offers, in seconds.
const RECEIVE_WAIT_MAX_SECONDS: u16 = 20;

const SEND: &str = "send facts";
const DEPTH: &str = "read the queue's depth";
const RECEIVE: &str = "receive messages";
const ACK: &str = "delete messages";
const PARK: &str = "park a message";

/// Which queue, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct SqsSettings {
    /// The queue's URL.
    pub queue_url: String,
    /// The dead-letter queue's URL, where this process may read its depth.
    pub dead_letter_url: Option<String>,
    /// The URL of the queue for messages that are no facts, where this process parks them.
    pub parked_url: Option<String>,
    /// How far the counts may lag, in milliseconds: [`DEPTH_LAG_MS`], less only where an emulator's are exact.
    pub depth_lag_ms: u64,
    /// How long [`QueueConsumer::receive`] waits for a message, in seconds, at most 20; 0 answers at once.
    pub receive_wait_seconds: u16,
    /// How long one attempt to send may take, in milliseconds.
    pub send_attempt_timeout_ms: u64,
}

impl SqsSettings {
    /// The settings of a queue with the default times and no dead-letter queue known.
    #[must_use]
    pub fn new(queue_url: impl Into<String>) -> Self {
        Self {
            queue_url: queue_url.into(),
            dead_letter_url: None,
            parked_url: None,
            depth_lag_ms: DEPTH_LAG_MS,
            receive_wait_seconds: RECEIVE_WAIT_MAX_SECONDS,
            send_attempt_timeout_ms: aws::ATTEMPT_TIMEOUT_MS,
        }
    }
}

/// An SQS queue. Redelivery, the dead-letter queue and the 14 days are settings of the queue itself.
#[derive(Debug, Clone)]
pub struct SqsQueue {
    /// Without the SDK's retries: they hide what became of the earlier attempts, so this file retries and remembers.
    send_client: Client,
    poll_client: Client,
    settings: SqsSettings,
}

impl SqsQueue {
    /// A queue reached with `config` ([`aws::load`]). No I/O.
    #[must_use]
    pub fn new(config: &SdkConfig, settings: SqsSettings) -> Self {
        let settings = SqsSettings {
            receive_wait_seconds: settings.receive_wait_seconds.min(RECEIVE_WAIT_MAX_SECONDS),
            ..settings
        };
        let send = aws_sdk_sqs::config::Builder::from(config)
            .retry_config(RetryConfig::disabled())
            .timeout_config(aws::timeouts(settings.send_attempt_timeout_ms, settings.send_attempt_timeout_ms));
        let poll_ms = u64::from(settings.receive_wait_seconds) * 1_000 + POLL_MARGIN_MS;
        let poll =
            aws_sdk_sqs::config::Builder::from(config).timeout_config(aws::timeouts(poll_ms, poll_ms + POLL_MARGIN_MS));
        Self { send_client: Client::from_conf(send.build()), poll_client: Client::from_conf(poll.build()), settings }
    }

    /// Sends one batch, again where that can help, and says of each body what is known of all attempts together.
    async fn send_batch(&self, bodies: &[String]) -> Vec<Result<(), StoreError>> {
        let mut outcomes: Vec<Result<(), StoreError>> = Vec::new();
        let mut lost_sight = vec![false; bodies.len()];
        let mut open: Vec<usize> = (0..bodies.len()).collect();
        for attempt in 0..SEND_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(Duration::from_millis(SEND_RETRY_PAUSE_MS)).await;
            }
            let wanted: Vec<&str> = open.iter().map(|&index| bodies[index].as_str()).collect();
            let answers = self.send_once(&wanted).await;
            if attempt == 0 {
                outcomes = answers;
            } else {
                for (&index, answer) in open.iter().zip(answers) {
                    outcomes[index] = answer;
                }
            }
            open.retain(|&index| match outcomes[index] {
                Ok(()) | Err(StoreError::Rejected { .. }) => false,
                Err(StoreError::DidNotHappen { .. }) => true,
                Err(StoreError::MayHaveHappened { .. }) => {
                    lost_sight[index] = true;
                    true
                }
            });
            if open.is_empty() {
                break;
            }
        }
        outcomes
            .into_iter()
            .zip(lost_sight)
            .map(|(outcome, lost)| if lost { unsure(outcome) } else { outcome })
            .collect()
    }

    /// One attempt. SQS refuses some batches whole for one message's content; then each goes alone.
    async fn send_once(&self, bodies: &[&str]) -> Vec<Result<(), StoreError>> {
        match self.request(bodies).await {
            Ok(outcomes) => outcomes,
            Err(StoreError::Rejected { .. }) if bodies.len() > 1 => {
                let alone = join_all(bodies.chunks(1).map(|body| self.request(body))).await;
                alone.into_iter().map(|answer| answer.and_then(|one| one.into_iter().collect())).collect()
            }
            Err(error) => bodies.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// One request; the error is of all its entries.
    async fn request(&self, bodies: &[&str]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let mut request = self.send_client.send_message_batch().queue_url(&self.settings.queue_url);
        for (index, body) in bodies.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder().id(index.to_string()).message_body(*body).build();
            request = request.entries(entry.map_err(|e| StoreError::did_not_happen(SEND, e))?);
        }
        let answer = request.send().await.map_err(|e| classified(SEND, e))?;
        let mut outcomes: Vec<_> =
            bodies.iter().map(|_| Err(StoreError::may_have_happened(SEND, "the answer names no outcome"))).collect();
        let slot = |id: &str| id.parse::<usize>().ok().filter(|&index| index < bodies.len());
        for sent in answer.successful() {
            if let Some(index) = slot(sent.id()) {
                outcomes[index] = Ok(());
            }
        }
        for failed in answer.failed() {
            if let Some(index) = slot(failed.id()) {
                outcomes[index] = Err(entry_error(SEND, failed));
            }
        }
        Ok(outcomes)
    }

    async fn count(&self, queue_url: &str) -> Result<u64, StoreError> {
        const COUNTS: [QueueAttributeName; 3] = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        let answer = self
            .poll_client
            .get_queue_attributes()
            .queue_url(queue_url)
            .set_attribute_names(Some(COUNTS.to_vec()))
            .send()
            .await
            .map_err(|e| StoreError::did_not_happen(DEPTH, e))?;
        let mut total = 0_u64;
        for name in &COUNTS {
            let count = answer.attributes().and_then(|all| all.get(name)).and_then(|text| text.parse::<u64>().ok());
            let missing = || StoreError::did_not_happen(DEPTH, format!("the answer has no number for {name}"));
            total = total.saturating_add(count.ok_or_else(missing)?);
        }
        Ok(total)
    }

    async fn delete(&self, receipts: &[String]) -> Result<(), StoreError> {
        let mut request = self.poll_client.delete_message_batch().queue_url(&self.settings.queue_url);
        for (index, receipt) in receipts.iter().enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder().id(index.to_string()).receipt_handle(receipt).build();
            request = request.entries(entry.map_err(|e| StoreError::did_not_happen(ACK, e))?);
        }
        // With the SDK's own retries behind it, only the last attempt is known: not even a clear "no" is about all of them.
        let answer = request.send().await.map_err(|e| unsure_error(classified(ACK, e)))?;
        answer.failed().first().map_or(Ok(()), |failed| Err(entry_error(ACK, failed)))
    }
}

#[async_trait]
impl EventQueue for SqsQueue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        let bodies: Vec<String> = facts.iter().map(|fact| sendable(fact.to_json())).collect();
        let lengths: Vec<usize> = bodies.iter().map(String::len).collect();
        let batches = cut(&lengths).into_iter().map(|batch| self.send_batch(&bodies[batch]));
        join_all(batches).await.into_iter().flatten().collect()
    }

    /// One message: a hundred facts without responses are under 600 KiB, their keys of 1,024 bytes all escaped.
    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        if facts.is_empty() {
            return Ok(());
        }
        let body = sendable(Fact::to_json_together(facts));
        self.send_batch(&[body]).await.into_iter().collect()
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        let dead = async {
            match &self.settings.dead_letter_url {
                Some(url) => self.count(url).await.map(Some),
                None => Ok(None),
            }
        };
        let (waiting, dead) = futures::future::try_join(self.count(&self.settings.queue_url), dead).await?;
        Ok(QueueDepth { waiting, dead, lag_ms: self.settings.depth_lag_ms })
    }
}

#[async_trait]
impl QueueConsumer for SqsQueue {
    /// At most 10 messages, SQS's own limit.
    async fn receive(&self, max: usize) -> Result<Vec<Delivery>, StoreError> {
        let max = max.min(BATCH_ENTRIES_MAX);
        if max == 0 {
            return Ok(Vec::new());
        }
        let answer = self
            .poll_client
            .receive_message()
            .queue_url(&self.settings.queue_url)
            .max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .wait_time_seconds(i32::from(self.settings.receive_wait_seconds))
            .send()
            .await
            .map_err(|e| unsure_error(classified(RECEIVE, e)))?;
        let whole = |message: aws_sdk_sqs::types::Message| {
            Some(Delivery { receipt: message.receipt_handle?, body: message.body.unwrap_or_default() })
        };
        Ok(answer.messages.unwrap_or_default().into_iter().filter_map(whole).collect())
    }

    async fn ack(&self, receipts: &[String]) -> Result<(), StoreError> {
        try_join_all(receipts.chunks(BATCH_ENTRIES_MAX).map(|chunk| self.delete(chunk))).await.map(|_| ())
    }
}

#[async_trait]
impl PoisonSink for SqsQueue {
    async fn park(&self, body: &str, reason: &str) -> Result<(), StoreError> {
        let Some(url) = &self.settings.parked_url else {
            return Err(StoreError::did_not_happen(PARK, "no queue for parked messages is known"));
        };
        let (body, reason) = parkable(body, reason);
        let reason = MessageAttributeValue::builder().data_type("String").string_value(reason).build();
        let reason = reason.map_err(|e| StoreError::did_not_happen(PARK, e))?;
        let send = self.send_client.send_message().queue_url(url).message_body(body);
        let sent = send.message_attributes(REASON_ATTRIBUTE, reason).send().await;
        sent.map(|_| ()).map_err(|e| classified(PARK, e))
    }
}

/// What SQS takes of a message and the reason beside it: no empty text, no character that XML 1.0 has not, not too long.
/// Nobody reads a parked message as anything but text, so what it lacks of its end is no loss.
fn parkable(body: &str, reason: &str) -> (String, String) {
    let allowed = |text: &str| -> String {
        let allowed = |c: &char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
        text.chars().map(|c| if allowed(&c) { c } else { '\u{fffd}' }).collect()
    };
    let mut reason: String = allowed(reason).chars().take(REASON_CHARS_MAX).collect();
    let mut body = allowed(body);
    if body.is_empty() {
        body.push_str("(empty)");
    }
    let body_max = body.floor_char_boundary(BATCH_BYTES_MAX - REASON_BYTES_MAX);
    if body_max < body.len() {
        body.truncate(body_max);
        reason.push_str(" (cut off)");
    }
    if reason.is_empty() {
        reason.push_str("(none)");
    }
    (body, reason)
}

/// Cuts messages of these lengths, in order, into batches within SQS's limits. One that is too long by itself goes alone and
/// is refused alone.
fn cut(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0_usize);
    for (index, &length) in lengths.iter().enumerate() {
        let full = index - start == BATCH_ENTRIES_MAX || bytes.saturating_add(length) > BATCH_BYTES_MAX;
        if full && index > start {
            batches.push(start..index);
            (start, bytes) = (index, 0);
        }
        bytes = bytes.saturating_add(length);
    }
    if start < lengths.len() {
        batches.push(start..lengths.len());
    }
    batches
}

/// SQS refuses U+FFFE and U+FFFF, which a key may hold. In JSON they can only stand inside a string, where an escape says
/// the same; the other characters that SQS refuses are controls, which JSON has escaped already.
fn sendable(json: String) -> String {
    if json.contains(['\u{fffe}', '\u{ffff}']) {
        json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
    } else {
        json
    }
}

/// What is known once some attempt is out of sight: a later failure says nothing of it.
fn unsure(outcome: Result<(), StoreError>) -> Result<(), StoreError> {
    outcome.map_err(unsure_error)
}

fn unsure_error(error: StoreError) -> StoreError {
    match error {
        StoreError::DidNotHappen { operation, source }
        | StoreError::MayHaveHappened { operation, source }
        | StoreError::Rejected { operation, source } => StoreError::MayHaveHappened { operation, source },
    }
}

/// An entry of a batch that SQS reports as failed did not happen. The sender's fault is final, unless it is about keys,
/// rights or rates, which change without the message.
fn entry_error(operation: &'static str, failed: &BatchResultErrorEntry) -> StoreError {
    let reason = format!("{}: {}", failed.code(), failed.message().unwrap_or_default());
    if failed.sender_fault() && !is_circumstance(failed.code()) {
        StoreError::rejected(operation, reason)
    } else {
        StoreError::did_not_happen(operation, reason)
    }
}

fn is_circumstance(code: &str) -> bool {
    ["Kms", "AccessDenied", "Throttl", "RequestThrottled", "OverLimit", "QueueDoesNotExist", "NonExistentQueue"]
        .iter()
        .any(|part| code.contains(part))
}

/// Codes by which SQS refuses what a message holds or how long it is (error lists of `SendMessageBatch` and `SendMessage`).
const CONTENT_CODES: [&str; 4] =
    ["BatchRequestTooLong", "InvalidMessageContents", "InvalidParameterValue", "MessageTooLong"];

/// What one attempt's failure says. Only what is certain is "did not happen".
fn classified<E>(operation: &'static str, error: SdkError<E, HttpResponse>) -> StoreError
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the SDK's enum is non-exhaustive; unknown means may have happened"
    )]
    match &error {
        SdkError::ConstructionFailure(_) => StoreError::did_not_happen(operation, error),
        SdkError::DispatchFailure(failure)
            if failure.is_user() || failure.as_connector_error().is_some_and(|e| never_connected(e)) =>
        {
            StoreError::did_not_happen(operation, error)
        }
        SdkError::ServiceError(answer) => {
            let status = answer.raw().status().as_u16();
            // The code may carry a namespace (`AWS.SimpleQueueService.BatchRequestTooLong`).
            let code = answer.err().code().unwrap_or_default().rsplit('.').next().unwrap_or_default();
            match status {
                400..=499 if CONTENT_CODES.contains(&code) => StoreError::rejected(operation, error),
                // 408: the service gave up reading; nothing says how far it came.
                400..=407 | 409..=499 => StoreError::did_not_happen(operation, error),
                _ => StoreError::may_have_happened(operation, error),
            }
        }
        _ => StoreError::may_have_happened(operation, error),
    }
}

/// Whether the HTTP client failed while it connected. The SDK's own mark for it is private, so its cause is asked.
fn never_connected(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|e| e.is_connect()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_both_limits_and_the_order() {
        assert_eq!(cut(&[]), Vec::<Range<usize>>::new());
        assert_eq!(cut(&[1; 25]), vec![0..10, 10..20, 20..25]);
        assert_eq!(cut(&[BATCH_BYTES_MAX]), vec![0..1]);
        assert_eq!(cut(&[BATCH_BYTES_MAX - 1, 1, 1]), vec![0..2, 2..3]);
        assert_eq!(cut(&[1, BATCH_BYTES_MAX + 1, 1]), vec![0..1, 1..2, 2..3]);
    }

    #[test]
    fn characters_that_sqs_refuses_are_escaped_and_mean_the_same() {
        let json = serde_json::to_string("a\u{fffe}b\u{ffff}\"\u{1F4E6}").expect("a string");
        let safe = sendable(json.clone());
        assert!(!safe.contains(['\u{fffe}', '\u{ffff}']));
        assert_eq!(
            serde_json::from_str::<String>(&safe).expect("JSON"),
            serde_json::from_str::<String>(&json).expect("JSON")
        );
    }

    #[test]
    fn what_is_parked_is_what_sqs_takes() {
        assert_eq!(parkable("", ""), ("(empty)".to_owned(), "(none)".to_owned()));
        assert_eq!(parkable("a\0\u{fffe}b\n", "\u{7}x"), ("a\u{fffd}\u{fffd}b\n".to_owned(), "\u{fffd}x".to_owned()));
        let (body, reason) = parkable(&"ä".repeat(BATCH_BYTES_MAX), &"ä".repeat(1_000));
        assert!(body.len() + reason.len() + REASON_ATTRIBUTE.len() + "String".len() <= BATCH_BYTES_MAX);
        assert!(reason.ends_with(" (cut off)") && reason.chars().count() < 300, "{reason}");
    }

    #[test]
    fn a_failed_entry_did_not_happen_and_is_final_only_for_its_content() {
        let entry = |code: &str, fault: bool| {
            BatchResultErrorEntry::builder().id("0").code(code).sender_fault(fault).build().expect("complete")
        };
        let of = |code: &str, fault| entry_error(SEND, &entry(code, fault));
        assert!(matches!(of("InvalidMessageContents", true), StoreError::Rejected { .. }));
        assert!(matches!(of("InternalError", false), StoreError::DidNotHappen { .. }));
        assert!(matches!(of("KmsThrottled", true), StoreError::DidNotHappen { .. }));
    }

    #[test]
    fn a_lost_attempt_is_not_forgotten_when_a_later_one_is_refused() {
        let refused = Err(StoreError::rejected(SEND, "no"));
        assert!(matches!(unsure(refused), Err(StoreError::MayHaveHappened { .. })));
        assert!(unsure(Ok(())).is_ok());
    }
}
