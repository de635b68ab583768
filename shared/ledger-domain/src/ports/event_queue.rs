//! The event queue: at least once, in any order, for 14 days.

use async_trait::async_trait;

use super::StoreError;
use crate::fact::Fact;

/// Where facts wait for the cold writer.
///
/// # Contract
/// - `Ok` for a fact means that it is durable: it will be delivered at least once, also if every process dies now.
/// - Facts may be delivered again and in any order, for 14 days.
/// - Durability is per fact: results stand in the order of the facts, and some may fail while others do not.
/// - A fact that is [`StoreError::DidNotHappen`] or [`StoreError::Rejected`] is not delivered, ever;
///   [`StoreError::MayHaveHappened`] leaves it open.
#[async_trait]
pub trait EventQueue: Send + Sync {
    /// Sends facts and waits until they are durable.
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>>;

    /// Sends facts that become durable together or not at all, at most [`crate::check::BATCH_MAX`] of them.
    ///
    /// # Errors
    /// [`StoreError`], of all of them.
    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError>;

    /// How much waits.
    ///
    /// # Errors
    /// [`StoreError`] where the queue does not answer.
    async fn depth(&self) -> Result<QueueDepth, StoreError>;
}

/// How much waits in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDepth {
    /// Messages waiting or being worked on.
    pub waiting: u64,
    /// Messages given up on, in the dead-letter queue; `None` where this process does not know that queue.
    pub dead: Option<u64>,
    /// How far the count may lag behind what was sent, in milliseconds.
    pub lag_ms: u64,
}

/// Takes facts that nobody waits for: a repeat's count. Bounded; what does not fit is dropped and counted, and a later
/// fact of the same record repairs it.
pub trait FactSink: Send + Sync {
    /// Hands over a fact without waiting.
    fn offer(&self, fact: Fact);
}

/// Where messages go that are no facts: nothing can be lost with them, and they must not hold up the rest.
///
/// # Contract
/// `Ok` is durable: the message is kept with the reason for at least 14 days, and is delivered to nobody.
#[async_trait]
pub trait PoisonSink: Send + Sync {
    /// Parks a message.
    ///
    /// # Errors
    /// [`StoreError`]; it may be parked twice then.
    async fn park(&self, body: &str, reason: &str) -> Result<(), StoreError>;
}

/// One delivery of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What [`QueueConsumer::ack`] takes back; of this delivery only.
    pub receipt: String,
    /// The message body, as it was sent.
    pub body: String,
}

/// The consuming end, for a process that drains the queue itself (on Lambda the service does).
///
/// # Contract
/// - A delivery that is not acknowledged is delivered again after the queue's visibility time; one delivered too often moves
///   to the dead-letter queue and is kept there.
/// - An acknowledged message is not delivered again, except where the acknowledgement came after its visibility time.
#[async_trait]
pub trait QueueConsumer: Send + Sync {
    /// Up to `max` messages; empty where none waits.
    ///
    /// # Errors
    /// [`StoreError`] where the queue does not answer.
    async fn receive(&self, max: usize) -> Result<Vec<Delivery>, StoreError>;

    /// Removes deliveries that were worked off.
    ///
    /// # Errors
    /// [`StoreError`]; what was not removed is delivered again.
    async fn ack(&self, receipts: &[String]) -> Result<(), StoreError>;
}
