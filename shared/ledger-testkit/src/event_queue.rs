//! The conformance suite of the event queue: the contracts of `EventQueue` and `QueueConsumer` as named cases.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use ledger_domain::check::BATCH_MAX;
use ledger_domain::ports::{Delivery, EventQueue, PoisonSink, QueueConsumer, QueueDepth, StoreError};
use ledger_domain::{
    ContentType, Fact, KEY_MAX_BYTES, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, State,
    StoredResponse, Subject, Timestamp,
};

/// An empty queue of a test's own, with a dead-letter queue, and a way to let visibility time pass without waiting.
#[async_trait]
pub trait QueueFixture: Send + Sync {
    /// A handle to send with.
    fn queue(&self) -> Arc<dyn EventQueue>;

    /// A handle to receive with; another one than the sender's where the technology allows it. It does not wait.
    fn consumer(&self) -> Arc<dyn QueueConsumer>;

    /// Where messages are parked that are no facts.
    fn poison(&self) -> Arc<dyn PoisonSink>;

    /// The parked messages, each with its reason, in any order.
    async fn parked(&self) -> Vec<(String, String)>;

    /// Ends the visibility time of these deliveries.
    async fn let_visibility_pass(&self, deliveries: &[Delivery]);

    /// After how many deliveries a message is given up.
    fn deliveries_max(&self) -> usize;
}

/// One `#[tokio::test]` per case of the suite. `$fixture` is an async expression that makes a new fixture.
#[macro_export]
macro_rules! event_queue_conformance {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::event_queue_conformance!(@cases $fixture;
                what_was_sent_is_delivered_unchanged,
                sending_nothing_is_nothing,
                concurrent_senders_lose_nothing,
                facts_with_large_responses_fit,
                any_key_survives,
                what_is_sent_together_comes_in_one_message,
                what_is_not_acknowledged_is_delivered_again,
                what_is_acknowledged_is_not_delivered_again,
                a_delivery_is_hidden_from_other_receivers,
                what_is_delivered_too_often_is_kept_apart,
                depth_counts_what_waits_and_what_is_worked_on,
                what_is_parked_is_kept_with_its_reason_and_delivered_to_nobody,
            );
        }
    };
    (@cases $fixture:expr; $($case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = $fixture.await;
                $crate::event_queue::$case(&fixture).await;
            }
        )*
    };
}

/// A REGISTERED record of its own, first seen at `number` ms after a fixed instant.
#[must_use]
pub fn sample_record(number: u64) -> Record {
    let first_seen_at = Timestamp::from_millis(1_790_000_000_000).plus_millis(i64::try_from(number).unwrap_or(0));
    Record {
        registration_id: RegistrationId::from_bytes(number.to_be_bytes()),
        state: State::Registered,
        attempt: 1,
        nonce: Nonce::from_bytes((!number).to_be_bytes()),
        won_at: first_seen_at,
        first_seen_at,
        last_seen_at: first_seen_at,
        window_ends_at: first_seen_at.plus_seconds(86_400),
        payload_hash: PayloadHash::from_bytes([7; 32]),
        retry_count: 0,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    }
}

/// A fact of `key` in `t1:as4`.
///
/// # Panics
/// Where `key` is no key.
#[must_use]
pub fn sample_fact(key: &str, number: u64) -> Fact {
    let scope = Scope::parse("t1:as4", None).unwrap_or_else(|e| panic!("{e}"));
    let key = MessageKey::text(key).unwrap_or_else(|e| panic!("{key:?}: {e}"));
    Fact::of(Subject { scope, key }, &sample_record(number))
}

fn sample_facts(count: u64) -> Vec<Fact> {
    (0..count).map(|number| sample_fact(&format!("message-{number}"), number)).collect()
}

async fn send_all(queue: &dyn EventQueue, facts: &[Fact]) {
    let outcomes = queue.send(facts).await;
    assert_eq!(outcomes.len(), facts.len(), "one outcome per fact");
    for (fact, outcome) in facts.iter().zip(outcomes) {
        assert!(outcome.is_ok(), "{:?}: {outcome:?}", fact.subject.key);
    }
}

async fn received(consumer: &dyn QueueConsumer, max: usize) -> Vec<Delivery> {
    match consumer.receive(max).await {
        Ok(deliveries) => deliveries,
        Err(e) => panic!("receive: {e}: {e:?}"),
    }
}

/// Receives and acknowledges until nothing is there.
async fn drained(consumer: &dyn QueueConsumer) -> Vec<Fact> {
    let mut facts = Vec::new();
    loop {
        let deliveries = received(consumer, 10).await;
        if deliveries.is_empty() {
            return facts;
        }
        acked(consumer, &deliveries).await;
        facts.extend(deliveries.iter().flat_map(|delivery| match Fact::all_from_json(&delivery.body) {
            Ok(facts) => facts,
            Err(e) => panic!("{e}: {}", delivery.body),
        }));
    }
}

async fn acked(consumer: &dyn QueueConsumer, deliveries: &[Delivery]) {
    let receipts: Vec<String> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    let outcome = consumer.ack(&receipts).await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

async fn depth(queue: &dyn EventQueue) -> QueueDepth {
    match queue.depth().await {
        Ok(depth) => depth,
        Err(e) => panic!("depth: {e}: {e:?}"),
    }
}

fn by_key(facts: &[Fact]) -> BTreeMap<String, Vec<&Fact>> {
    let mut map: BTreeMap<String, Vec<&Fact>> = BTreeMap::new();
    for fact in facts {
        map.entry(fact.subject.key.as_str().to_owned()).or_default().push(fact);
    }
    map
}

/// What was sent arrives, whole and once as long as nobody is slow: more facts than one batch holds.
pub async fn what_was_sent_is_delivered_unchanged(fixture: &dyn QueueFixture) {
    let sent = sample_facts(25);
    send_all(&*fixture.queue(), &sent).await;
    let got = drained(&*fixture.consumer()).await;
    assert_eq!(by_key(&got), by_key(&sent));
}

/// An empty call has no outcomes and sends nothing.
pub async fn sending_nothing_is_nothing(fixture: &dyn QueueFixture) {
    assert!(fixture.queue().send(&[]).await.is_empty());
    assert!(received(&*fixture.consumer(), 10).await.is_empty());
    assert!(fixture.consumer().ack(&[]).await.is_ok());
}

/// Fifty callers at once.
pub async fn concurrent_senders_lose_nothing(fixture: &dyn QueueFixture) {
    let queue = fixture.queue();
    let sent = sample_facts(50);
    join_all(sent.iter().map(|fact| send_all(&*queue, std::slice::from_ref(fact)))).await;
    let got = drained(&*fixture.consumer()).await;
    assert_eq!(by_key(&got), by_key(&sent));
}

/// Twelve facts with the largest response: together more than any one request may hold.
pub async fn facts_with_large_responses_fit(fixture: &dyn QueueFixture) {
    let mut sent = sample_facts(12);
    for fact in &mut sent {
        let content_type = ContentType::parse("application/xml").unwrap_or_else(|e| panic!("{e}"));
        fact.record.state = State::Resolved;
        fact.record.lease_ends_at = Some(fact.record.window_ends_at);
        fact.record.response = Some(StoredResponse { content_type, body: vec![0xff; StoredResponse::MAX_BYTES] });
    }
    send_all(&*fixture.queue(), &sent).await;
    let got = drained(&*fixture.consumer()).await;
    assert_eq!(by_key(&got), by_key(&sent));
}

/// Keys are opaque UTF-8.
pub async fn any_key_survives(fixture: &dyn QueueFixture) {
    let keys = ["\u{fffe}\u{ffff}", "\u{1F4E6}", "a\"b\\c", "<&>'", " lead and trail ", "\u{e000}\u{d7ff}", "ä\u{308}"];
    let sent: Vec<Fact> = keys.iter().zip(0..).map(|(key, number)| sample_fact(key, number)).collect();
    send_all(&*fixture.queue(), &sent).await;
    let got = drained(&*fixture.consumer()).await;
    assert_eq!(by_key(&got), by_key(&sent));
}

/// A hundred facts, their keys as long as they may be and each byte of them escaped: durable together, so delivered together.
pub async fn what_is_sent_together_comes_in_one_message(fixture: &dyn QueueFixture) {
    let key = |number| format!("{number:04}{}", "\"".repeat(KEY_MAX_BYTES - 4));
    let sent: Vec<Fact> = (0..BATCH_MAX as u64).map(|number| sample_fact(&key(number), number)).collect();
    let outcome = fixture.queue().send_together(&sent).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert!(fixture.queue().send_together(&[]).await.is_ok());
    let deliveries = received(&*fixture.consumer(), 10).await;
    let [delivery] = deliveries.as_slice() else { panic!("one message, got {}", deliveries.len()) };
    assert_eq!(Fact::all_from_json(&delivery.body), Ok(sent));
}

/// At least once: a consumer that dies loses nothing.
pub async fn what_is_not_acknowledged_is_delivered_again(fixture: &dyn QueueFixture) {
    send_all(&*fixture.queue(), &sample_facts(1)).await;
    let first = received(&*fixture.consumer(), 10).await;
    assert_eq!(first.len(), 1);
    fixture.let_visibility_pass(&first).await;
    let again = received(&*fixture.consumer(), 10).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].body, first[0].body);
    assert_ne!(again[0].receipt, first[0].receipt, "a receipt is of one delivery");
}

/// Of two deliveries the acknowledged one stays away, while the other comes back: so time has passed.
pub async fn what_is_acknowledged_is_not_delivered_again(fixture: &dyn QueueFixture) {
    send_all(&*fixture.queue(), &sample_facts(2)).await;
    let both = received_all(fixture, 2).await;
    acked(&*fixture.consumer(), &both[..1]).await;
    fixture.let_visibility_pass(&both[1..]).await;
    let again = received_all(fixture, 1).await;
    assert_eq!(again[0].body, both[1].body);
    assert!(received(&*fixture.consumer(), 10).await.is_empty());
}

/// Two receivers never work on one delivery at the same time.
pub async fn a_delivery_is_hidden_from_other_receivers(fixture: &dyn QueueFixture) {
    send_all(&*fixture.queue(), &sample_facts(3)).await;
    let held = received_all(fixture, 3).await;
    assert!(received(&*fixture.consumer(), 10).await.is_empty());
    assert!(received(&*fixture.consumer(), 0).await.is_empty());
    acked(&*fixture.consumer(), &held).await;
}

/// Given up after so many deliveries, and kept.
pub async fn what_is_delivered_too_often_is_kept_apart(fixture: &dyn QueueFixture) {
    send_all(&*fixture.queue(), &sample_facts(1)).await;
    for delivery in 0..fixture.deliveries_max() {
        let got = received(&*fixture.consumer(), 10).await;
        assert_eq!(got.len(), 1, "delivery {delivery}");
        fixture.let_visibility_pass(&got).await;
    }
    assert!(received(&*fixture.consumer(), 10).await.is_empty());
    let depth = depth(&*fixture.queue()).await;
    assert_eq!((depth.waiting, depth.dead), (0, Some(1)));
}

/// What is being worked on still waits, for nobody knows whether it will be done.
pub async fn depth_counts_what_waits_and_what_is_worked_on(fixture: &dyn QueueFixture) {
    let queue = fixture.queue();
    assert_eq!(depth(&*queue).await.waiting, 0);
    send_all(&*queue, &sample_facts(5)).await;
    assert_eq!(depth(&*queue).await.waiting, 5);
    let held = received(&*fixture.consumer(), 2).await;
    assert_eq!(depth(&*queue).await.waiting, 5);
    acked(&*fixture.consumer(), &held).await;
    let after = depth(&*queue).await;
    assert_eq!((after.waiting, after.dead), (5 - held.len() as u64, Some(0)));
}

/// Parked messages hold nobody up: neither the queue's depth nor its dead letters know of them.
pub async fn what_is_parked_is_kept_with_its_reason_and_delivered_to_nobody(fixture: &dyn QueueFixture) {
    let long = "x".repeat(1_024 * 1_024);
    for (body, reason) in [("no fact", "expected value"), ("{\"v\":1}", "missing field `scope`"), (&long, "too long")] {
        let parked = fixture.poison().park(body, reason).await;
        assert!(parked.is_ok(), "{parked:?}");
    }
    let parked = fixture.parked().await;
    assert_eq!(parked.len(), 3, "{parked:?}");
    for expected in [("no fact", "expected value"), ("{\"v\":1}", "missing field `scope`")] {
        assert!(parked.iter().any(|(body, reason)| (body.as_str(), reason.as_str()) == expected), "{expected:?}");
    }
    let cut = parked.iter().find(|(body, _)| long.starts_with(body.as_str()));
    assert!(cut.is_some_and(|(body, reason)| body.len() > 1_000_000 && reason.starts_with("too long")));
    assert!(received(&*fixture.consumer(), 10).await.is_empty());
    let depth = depth(&*fixture.queue()).await;
    assert_eq!((depth.waiting, depth.dead), (0, Some(0)));
}

/// A receive may bring fewer than wait; nothing may bring more than asked.
async fn received_all(fixture: &dyn QueueFixture, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        let got = received(&*fixture.consumer(), count - all.len()).await;
        assert!(!got.is_empty(), "{} of {count} came", all.len());
        all.extend(got);
    }
    assert_eq!(all.len(), count);
    all
}

/// Whether an outcome says that the fact is not there and never will be.
#[must_use]
pub fn did_not_happen(outcome: &Result<(), StoreError>) -> bool {
    match outcome {
        Err(StoreError::DidNotHappen { .. }) => true,
        Ok(()) | Err(StoreError::MayHaveHappened { .. } | StoreError::Rejected { .. }) => false,
    }
}
