//! A check whose fact a real SQS queue refuses, beside others that it takes.

use std::sync::Arc;

use aws_sdk_sqs::types::QueueAttributeName;
use ledger_domain::Undecided;
use ledger_domain::check::Check;
use ledger_domain::ports::{EventQueue as _, HotTier};
use ledger_stores::clock::{OsEntropy, SystemClock};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::sqs::{SqsQueue, SqsSettings};
use ledger_testkit::aws_server::AwsServer;
use ledger_testkit::house::{House, check};

use crate::{is_new, repeats};

#[tokio::test]
async fn what_sqs_refuses_is_undecided_and_nobody_is_told_seen() {
    let config = AwsServer::shared().config().await;
    let client = aws_sdk_sqs::Client::new(&config);
    // A fact with a key of 1,000 bytes does not fit.
    let created = client
        .create_queue()
        .queue_name("refuses-long-messages")
        .attributes(QueueAttributeName::MaximumMessageSize, "1024")
        .send()
        .await
        .expect("created");
    let url = created.queue_url.expect("a URL");
    // No case is about a slow machine.
    let settings = SqsSettings { send_attempt_timeout_ms: 60_000, ..SqsSettings::new(url) };
    let queue = Arc::new(SqsQueue::new(&config, settings));
    let hot: Arc<dyn HotTier> = Arc::new(MemoryHotTier::new(1_000, Arc::new(SystemClock)));
    let mut house = House::new(Arc::clone(&hot), None, Arc::new(SystemClock));
    house.ledger.queue = Arc::clone(&queue) as _;
    // Another process, whose queue takes everything.
    let mut other = House::new(hot, None, Arc::new(SystemClock));
    other.ledger.entropy = Arc::new(OsEntropy);

    let long = |n: usize| n.is_multiple_of(5);
    let key = |n: usize| if long(n) { format!("{n}-{}", "k".repeat(1_000)) } else { n.to_string() };
    let checks: Vec<Check> = (0..25).map(|n| check("t:as4", &key(n), 1)).collect();
    for (n, answer) in house.ledger.check(&checks).await.iter().enumerate() {
        if long(n) {
            assert_eq!(*answer, Err(Undecided::Queue.into()), "{n}");
        } else {
            assert!(is_new(answer), "{n}: {answer:?}");
        }
    }
    assert_eq!(queue.depth().await.expect("a depth").waiting, 20);
    for (n, answer) in other.ledger.check(&checks).await.iter().enumerate() {
        if long(n) {
            assert!(is_new(answer), "{n}: {answer:?}");
        } else {
            assert_eq!(repeats(answer), Some(1), "{n}: {answer:?}");
        }
    }
}
