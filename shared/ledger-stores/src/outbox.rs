//! Facts that nobody waits for, on their way to the event queue.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ledger_domain::ports::{EventQueue, FactSink, StoreError};
use ledger_domain::{Fact, RegistrationId, Slot};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

/// Bounds of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxSettings {
    /// Facts that may wait; one per registration. What does not fit is dropped.
    pub capacity: usize,
    /// Facts of one send.
    pub batch_max: usize,
    /// Sends on their way at a time.
    pub sends_max: usize,
    /// How long a first fact waits for others, in milliseconds: a hot key's repeats within it are one fact.
    pub linger_ms: u64,
}

impl Default for OutboxSettings {
    /// 10,000 facts (a few MB), sends of 100, four at a time, after 50 ms.
    fn default() -> Self {
        Self { capacity: 10_000, batch_max: 100, sends_max: 4, linger_ms: 50 }
    }
}

/// What went through an outbox since it was made. `offered` is the sum of the others and of what waits or is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxStats {
    /// Facts handed over.
    pub offered: u64,
    /// Of these, merged into another fact of their registration.
    pub merged: u64,
    /// Facts that the queue made durable.
    pub sent: u64,
    /// Facts given up: no room for them, refused by the queue, or failed twice.
    pub dropped: u64,
}

/// A bounded buffer before an [`EventQueue`], emptied by a task in the background.
///
/// Facts of one registration that wait are merged into one. A send that failed is put back once; then its facts are counted as
/// dropped, and a later fact of the record repairs the loss. What waits when the outbox is dropped is lost: [`Outbox::flush`]
/// first.
pub struct Outbox {
    shared: Arc<Shared>,
    worker: JoinHandle<()>,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("settings", &self.shared.settings).field("stats", &self.stats()).finish()
    }
}

struct Shared {
    queue: Arc<dyn EventQueue>,
    settings: OutboxSettings,
    buffer: Mutex<Buffer>,
    /// Something waits.
    filled: Notify,
    /// How many wait in `flush`: no lingering then.
    flushing: AtomicUsize,
    /// The first of them came: an end to the linger under way.
    hurry: Notify,
    /// Nothing waits and nothing is on its way.
    idle: Notify,
}

type Key = (Slot, RegistrationId);

#[derive(Default)]
struct Buffer {
    facts: HashMap<Key, Waiting>,
    /// The keys of `facts`, each once, oldest first.
    order: VecDeque<Key>,
    on_their_way: usize,
    stats: OutboxStats,
}

struct Waiting {
    fact: Fact,
    failed_before: bool,
}

impl Buffer {
    fn put(&mut self, key: Key, fact: Fact, failed_before: bool, capacity: usize) {
        if let Some(waiting) = self.facts.get_mut(&key) {
            waiting.fact.record.merge(&fact.record);
            self.stats.merged += 1;
        } else if self.order.len() >= capacity {
            self.stats.dropped += 1;
        } else {
            self.facts.insert(key, Waiting { fact, failed_before });
            self.order.push_back(key);
        }
    }

    fn take(&mut self, max: usize) -> Vec<(Key, Waiting)> {
        let count = max.min(self.order.len());
        let keys: Vec<Key> = self.order.drain(..count).collect();
        let batch: Vec<_> = keys.into_iter().filter_map(|key| Some((key, self.facts.remove(&key)?))).collect();
        self.on_their_way += batch.len();
        batch
    }

    fn is_idle(&self) -> bool {
        self.order.is_empty() && self.on_their_way == 0
    }
}

impl Outbox {
    /// An outbox before `queue`. Must be called inside a Tokio runtime, where its task then runs.
    #[must_use]
    pub fn start(queue: Arc<dyn EventQueue>, settings: OutboxSettings) -> Self {
        let settings =
            OutboxSettings { batch_max: settings.batch_max.max(1), sends_max: settings.sends_max.max(1), ..settings };
        let shared = Arc::new(Shared {
            queue,
            settings,
            buffer: Mutex::default(),
            filled: Notify::new(),
            flushing: AtomicUsize::new(0),
            hurry: Notify::new(),
            idle: Notify::new(),
        });
        let worker = tokio::spawn(work(Arc::clone(&shared)));
        Self { shared, worker }
    }

    /// Waits until everything offered before is sent or given up. It ends also with the queue down, for each fact is tried
    /// twice at the most; how long it takes is then up to the queue's own timeouts.
    pub async fn flush(&self) {
        let _flushing = Flushing::begin(&self.shared);
        loop {
            let idle = self.shared.idle.notified();
            tokio::pin!(idle);
            // Registered before the look, so that an end in between is not missed.
            idle.as_mut().enable();
            if self.shared.lock().is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> OutboxStats {
        self.shared.lock().stats
    }
}

impl FactSink for Outbox {
    fn offer(&self, fact: Fact) {
        let key = (Slot::of(&fact.subject.scope, &fact.subject.key), fact.record.registration_id);
        {
            let mut buffer = self.shared.lock();
            buffer.stats.offered += 1;
            buffer.put(key, fact, false, self.shared.settings.capacity);
        }
        self.shared.filled.notify_one();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl Shared {
    /// Every change of the buffer is complete at each point where code could panic, so a poisoned lock is as good.
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn work(shared: Arc<Shared>) {
    let sends = Arc::new(Semaphore::new(shared.settings.sends_max));
    let linger = Duration::from_millis(shared.settings.linger_ms);
    loop {
        shared.filled.notified().await;
        let hurry = shared.hurry.notified();
        if shared.flushing.load(Ordering::SeqCst) == 0 {
            // Which of the two ends it makes no difference.
            let _ = tokio::time::timeout(linger, hurry).await;
        }
        loop {
            // The permit first: what waits for one keeps merging.
            let Ok(permit) = Arc::clone(&sends).acquire_owned().await else { return };
            let batch = shared.lock().take(shared.settings.batch_max);
            if batch.is_empty() {
                break;
            }
            let on_its_way = OnItsWay { shared: Arc::clone(&shared), count: batch.len() };
            tokio::spawn(async move {
                send(&on_its_way.shared, batch).await;
                drop(on_its_way);
                drop(permit);
            });
        }
    }
}

async fn send(shared: &Shared, batch: Vec<(Key, Waiting)>) {
    let facts: Vec<Fact> = batch.iter().map(|(_, waiting)| waiting.fact.clone()).collect();
    let outcomes = shared.queue.send(&facts).await;
    let mut dropped = 0_u64;
    let mut last_error = None;
    {
        let mut buffer = shared.lock();
        for ((key, waiting), outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => buffer.stats.sent += 1,
                Err(StoreError::DidNotHappen { .. } | StoreError::MayHaveHappened { .. }) if !waiting.failed_before => {
                    buffer.put(key, waiting.fact, true, shared.settings.capacity);
                }
                Err(
                    error @ (StoreError::DidNotHappen { .. }
                    | StoreError::MayHaveHappened { .. }
                    | StoreError::Rejected { .. }),
                ) => {
                    dropped += 1;
                    last_error = Some(error);
                }
            }
        }
        buffer.stats.dropped += dropped;
    }
    if let Some(error) = last_error {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(facts = dropped, %error, cause, "facts of repeats given up; a later one repairs the count");
    }
    shared.filled.notify_one();
}

/// Somebody in `flush`, until dropped.
struct Flushing<'a>(&'a Shared);

impl<'a> Flushing<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.flushing.fetch_add(1, Ordering::SeqCst);
        shared.hurry.notify_waiters();
        Self(shared)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Facts taken out of the buffer. Counted back however the send ends, also by a panic, so that `flush` ends too.
struct OnItsWay {
    shared: Arc<Shared>,
    count: usize,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let idle = {
            let mut buffer = self.shared.lock();
            buffer.on_their_way = buffer.on_their_way.saturating_sub(self.count);
            buffer.is_idle()
        };
        if idle {
            self.shared.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
