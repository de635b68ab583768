//! A queue as SQS is one: what it took stays, and comes in any order, at times twice; what fails too often is set aside.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::ports::{EventQueue, FactSink, QueueDepth, StoreError};
use ledger_domain::{Fact, State, Subject, Timestamp};
use ledger_testkit::clock::SeededEntropy;
use tokio::time::Instant;

use crate::lock;

/// A message that failed so often goes to the dead-letter queue.
const DELIVERIES_MAX: u32 = 10;

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) body: String,
    sent_at: Instant,
    failures: u32,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: Vec<Message>,
    /// Taken, and not yet acknowledged or put back.
    in_flight: usize,
    dead: Vec<Message>,
    /// The greatest age at which one was worked off.
    oldest: Duration,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    messages: Mutex<Messages>,
    /// What it was ever sent.
    took: Mutex<HashSet<(Subject, Timestamp, State)>>,
    /// Facts about repeats may get lost on their way.
    loses_repeats: AtomicBool,
    /// Every second message comes again, in place of every eighth.
    duplicates: AtomicBool,
    random: SeededEntropy,
}

impl Queue {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            messages: Mutex::default(),
            took: Mutex::default(),
            loses_repeats: AtomicBool::new(false),
            duplicates: AtomicBool::new(false),
            random: SeededEntropy::new(seed),
        }
    }

    pub(crate) fn set_loses_repeats(&self, loses: bool) {
        self.loses_repeats.store(loses, Ordering::Relaxed);
    }

    pub(crate) fn set_duplicates(&self, duplicates: bool) {
        self.duplicates.store(duplicates, Ordering::Relaxed);
    }

    /// Whether nothing waits, is worked on or was given up on.
    pub(crate) fn is_empty(&self) -> bool {
        let messages = lock(&self.messages);
        messages.waiting.is_empty() && messages.in_flight == 0 && messages.dead.is_empty()
    }

    /// Some messages, in any order; a copy of some of them stays.
    pub(crate) fn take(&self, at_most: usize) -> Vec<Message> {
        let mut messages = lock(&self.messages);
        let one_in = if self.duplicates.load(Ordering::Relaxed) { 2 } else { 8 };
        let mut taken = Vec::new();
        while taken.len() < at_most && !messages.waiting.is_empty() {
            let at = usize::try_from(self.random.below(messages.waiting.len() as u64)).expect("it fits");
            taken.push(if self.random.one_in(one_in) {
                messages.waiting[at].clone()
            } else {
                messages.waiting.swap_remove(at)
            });
        }
        messages.in_flight += taken.len();
        taken
    }

    /// What came of messages that were taken: those that failed come again, or are given up on.
    pub(crate) fn settle(&self, taken: &[Message], failed: Vec<Message>) {
        let mut messages = lock(&self.messages);
        messages.in_flight -= taken.len();
        let oldest = taken.iter().map(|message| message.sent_at.elapsed()).max().unwrap_or_default();
        messages.oldest = messages.oldest.max(oldest);
        for mut message in failed {
            message.failures += 1;
            let given_up = message.failures >= DELIVERIES_MAX;
            if given_up { &mut messages.dead } else { &mut messages.waiting }.push(message);
        }
    }

    /// An operator's act: what was given up on waits again. Returns how much.
    pub(crate) fn redrive(&self) -> usize {
        let mut messages = lock(&self.messages);
        let dead: Vec<_> = messages.dead.drain(..).map(|message| Message { failures: 0, ..message }).collect();
        let redriven = dead.len();
        messages.waiting.extend(dead);
        redriven
    }

    /// Whether it was ever sent a registration in this state.
    pub(crate) fn ever_took(&self, subject: &Subject, first_seen_at: Timestamp, state: State) -> bool {
        lock(&self.took).contains(&(subject.clone(), first_seen_at, state))
    }

    fn note(&self, facts: &[Fact]) {
        let of = |fact: &Fact| (fact.subject.clone(), fact.record.first_seen_at, fact.record.state);
        lock(&self.took).extend(facts.iter().map(of));
    }

    /// How long a message has waited at most.
    pub(crate) fn oldest(&self) -> Duration {
        lock(&self.messages).oldest
    }

    fn push(&self, body: String) {
        lock(&self.messages).waiting.push(Message { body, sent_at: Instant::now(), failures: 0 });
    }
}

#[async_trait]
impl EventQueue for Queue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        self.note(facts);
        facts.iter().map(Fact::to_json).for_each(|body| self.push(body));
        vec![Ok(()); facts.len()]
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        self.note(facts);
        self.push(Fact::to_json_together(facts));
        Ok(())
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        let messages = lock(&self.messages);
        let waiting = messages.waiting.len() + messages.in_flight;
        Ok(QueueDepth { waiting: waiting as u64, dead: Some(messages.dead.len() as u64), lag_ms: 0 })
    }
}

impl FactSink for Queue {
    fn offer(&self, fact: Fact) {
        if !(self.loses_repeats.load(Ordering::Relaxed) && self.random.one_in(5)) {
            self.push(fact.to_json());
        }
    }
}
