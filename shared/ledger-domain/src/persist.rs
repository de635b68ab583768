//! What the cold writer does with facts: parse, persist, heal.
//!
//! A message that is no fact is parked and done with: nothing can be lost with it, and in the dead-letter queue it would keep
//! the hot tier from being called complete. A fact of another release, a damaged one, or one whose content the ledger refuses, fails alone and
//! goes to the dead-letter queue by its own batch item failure: it is a registration, and the tier waits for it. Where the ledger
//! does not answer, the whole batch fails and comes again. Nothing is half written.

use std::sync::Arc;

use futures::future::join_all;

use crate::digest::Slot;
use crate::fact::{Fact, FactError};
use crate::ports::{
    ClaimRow, Clock, ColdLedger, ColdSessions, Heal, HotTier, HotTrust, Persisted, PoisonSink, StoreError,
};

/// Persists facts.
pub struct Writer {
    /// Where facts go.
    pub cold: Arc<dyn ColdLedger>,
    /// Healed from the rows after each commit; without it nothing is healed.
    pub hot: Option<Arc<dyn HotTier>>,
    /// Whether that is the tier that everybody asks; without it, it is taken to be.
    pub trust: Option<Arc<dyn HotTrust>>,
    /// Says to everybody that the hot tier lacks what could not be healed; without it nobody is told.
    pub sessions: Option<Arc<dyn ColdSessions>>,
    /// Where messages go that are no facts; without it they fail and end in the dead-letter queue.
    pub poison: Option<Arc<dyn PoisonSink>>,
    /// Ledger time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Why a message of a batch failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// It is no fact this release can read; only the dead-letter queue can keep it.
    #[error(transparent)]
    NotAFact(#[from] FactError),
    /// It is no fact ([`FactError`] says why), and it could not be parked.
    #[error("{reason}; and it could not be parked")]
    NotParked {
        /// Why it is no fact.
        reason: FactError,
        /// Why it could not be parked.
        #[source]
        source: StoreError,
    },
    /// It is written, but the hot tier was not healed, and nobody could be told so.
    #[error("it is written, but the hot tier lacks it and no cold session could be held")]
    Untold(#[source] StoreError),
    /// The cold ledger did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This process does not know the ledger's time.
    #[error("the ledger's time is not known")]
    Clock,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Written {
    /// Which messages failed, by their place in the batch, and why.
    pub failures: Vec<(usize, Failure)>,
    /// Which messages were no facts and were parked, by their place in the batch, and why.
    pub parked: Vec<(usize, FactError)>,
    /// How many facts are in the tables now.
    pub persisted: usize,
    /// Registrations newly found to be false NEWs.
    pub false_new: u64,
    /// Months that were missing and had to be created: an alarm.
    pub months_created: Vec<String>,
    /// Hot records written from durable rows.
    pub healed: usize,
    /// Why healing failed, where it did. It fails no fact where everybody can be told ([`Writer::sessions`]).
    pub heal_error: Option<StoreError>,
}

/// Logs that the cold ledger newly found `count` false NEWs, if it did. Whoever persists facts does so; an operator's alarm
/// filters on the text (`docs/FAILURES.md`).
pub fn alarm_of_false_new(count: u64) {
    if count > 0 {
        tracing::error!(count, "ALARM: false NEW: a key was registered again inside its window");
    }
}

/// How many keys are healed by one call to the hot tier.
const HEAL_BATCH: usize = 1_000;
/// How many messages are parked at once.
const PARK_BATCH: usize = 10;
const HEAL: &str = "heal the hot tier";

impl Writer {
    /// One that persists and does nothing else.
    #[must_use]
    pub fn of(cold: Arc<dyn ColdLedger>, clock: Arc<dyn Clock>) -> Self {
        Self { cold, hot: None, trust: None, sessions: None, poison: None, clock }
    }

    /// Persists message bodies, in any number; memory grows with their size and no more.
    pub async fn write<S: AsRef<str> + Sync>(&self, bodies: &[S]) -> Written {
        let mut written = Written::default();
        let mut messages = Vec::with_capacity(bodies.len());
        let mut poison = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            match Fact::all_from_json(body.as_ref()) {
                Ok(facts) => messages.push((at, facts)),
                Err(error @ FactError::Malformed(_)) => poison.push((at, body.as_ref(), error)),
                Err(error @ (FactError::UnknownVersion(_) | FactError::Damaged(_))) => {
                    written.failures.push((at, error.into()))
                }
            }
        }
        let facts_of: Vec<usize> = messages.iter().map(|(at, _)| *at).collect();
        self.write_messages(messages, &mut written).await;
        self.tell_what_is_not_healed(&facts_of, &mut written).await;
        // Last, for facts are what matters.
        self.park(poison, &mut written).await;
        written.failures.sort_by_key(|(at, _)| *at);
        written
    }

    /// Parks messages that are no facts.
    async fn park(&self, poison: Vec<(usize, &str, FactError)>, written: &mut Written) {
        let Some(sink) = &self.poison else {
            written.failures.extend(poison.into_iter().map(|(at, _, error)| (at, error.into())));
            return;
        };
        let mut poison = poison.into_iter().peekable();
        while poison.peek().is_some() {
            let batch = poison.by_ref().take(PARK_BATCH).map(async |(at, body, reason)| {
                let parked = sink.park(body, &reason.to_string()).await;
                (at, reason, parked)
            });
            for (at, reason, parked) in join_all(batch).await {
                match parked {
                    Ok(()) => written.parked.push((at, reason)),
                    Err(source) => written.failures.push((at, Failure::NotParked { reason, source })),
                }
            }
        }
    }

    /// Where the hot tier was not healed, it lacks rows that were confirmed or will be believed absent: a cold session says so to
    /// everybody. Without it the messages come again, and are healed then.
    async fn tell_what_is_not_healed(&self, facts_of: &[usize], written: &mut Written) {
        let (Some(_), Some(sessions)) = (&written.heal_error, &self.sessions) else { return };
        if let Err(error) = sessions.ensure().await {
            let failed: std::collections::HashSet<usize> = written.failures.iter().map(|(at, _)| *at).collect();
            let untold = facts_of.iter().filter(|at| !failed.contains(at));
            written.failures.extend(untold.map(|at| (*at, Failure::Untold(error.clone()))));
        }
    }

    /// The facts of one message are persisted together: they became durable together.
    async fn write_messages(&self, messages: Vec<(usize, Vec<Fact>)>, written: &mut Written) {
        if messages.is_empty() {
            return;
        }
        let Ok(now) = self.clock.now() else {
            written.failures.extend(messages.into_iter().map(|(at, _)| (at, Failure::Clock)));
            return;
        };
        let mut places = Vec::with_capacity(messages.len());
        // Where the facts of each message begin, and at last where they end.
        let mut starts = vec![0];
        let mut facts = Vec::with_capacity(messages.len());
        for (at, of_message) in messages {
            places.push(at);
            facts.extend(of_message);
            starts.push(facts.len());
        }
        // Depth first over halves, so that a refused message is found in log2(n) steps and fails alone.
        let mut open: Vec<_> = std::iter::once(0..places.len()).collect();
        while let Some(range) = open.pop() {
            let facts = &facts[starts[range.start]..starts[range.end]];
            match self.cold.persist(facts, now).await {
                Ok(persisted) => {
                    written.persisted += facts.len();
                    self.note(persisted, facts, written).await;
                }
                Err(StoreError::Rejected { .. }) if range.len() > 1 => {
                    let middle = range.start + range.len() / 2;
                    open.push(middle..range.end);
                    open.push(range.start..middle);
                }
                Err(error) => {
                    let failed = range.map(|at| (places[at], Failure::Store(error.clone())));
                    written.failures.extend(failed);
                }
            }
        }
    }

    async fn note(&self, persisted: Persisted, facts: &[Fact], written: &mut Written) {
        written.false_new += persisted.false_new;
        written.months_created.extend(persisted.months_created);
        // Only a registration or a take-over can have left a hot record PENDING or missing; a repeat found one there.
        let began: std::collections::HashSet<Slot> = facts
            .iter()
            .filter(|fact| fact.record.retry_count == 0 || fact.record.attempt > 1)
            .map(|fact| Slot::of(&fact.subject.scope, &fact.subject.key))
            .collect();
        let rows = persisted.claims.into_iter().filter_map(|row| {
            let slot = Slot::of(&row.subject.scope, &row.subject.key);
            began.contains(&slot).then_some((slot, row))
        });
        match self.heal(rows.collect()).await {
            Ok(healed) => written.healed += healed,
            Err(error) => written.heal_error = Some(error),
        }
    }

    async fn heal(&self, rows: Vec<(Slot, ClaimRow)>) -> Result<usize, StoreError> {
        let Some(hot) = &self.hot else { return Ok(0) };
        let has_rows = !rows.is_empty();
        let healed = heal_rows(&**hot, &*self.clock, rows).await?;
        if has_rows && self.trust.as_ref().is_some_and(|trust| !trust.is_in_place()) {
            return Err(StoreError::did_not_happen(HEAL, "it is not the one that the keeper fills"));
        }
        Ok(healed)
    }
}

/// Heals hot records from durable rows whose window is not over; how many were written.
///
/// # Errors
/// The first [`StoreError`] of the hot tier; rows before it may be healed. [`StoreError::DidNotHappen`] where the time is not
/// known.
pub async fn heal_rows(hot: &dyn HotTier, clock: &dyn Clock, rows: Vec<(Slot, ClaimRow)>) -> Result<usize, StoreError> {
    let now = clock.now().map_err(|unknown| StoreError::did_not_happen(HEAL, unknown))?;
    let heals: Vec<_> = rows
        .into_iter()
        .filter(|(_, row)| !row.record.is_over(now))
        .map(|(slot, row)| Heal { slot, row: row.record })
        .collect();
    let mut healed = 0;
    for chunk in heals.chunks(HEAL_BATCH) {
        for result in hot.heal(chunk).await {
            healed += usize::from(result?);
        }
    }
    Ok(healed)
}
