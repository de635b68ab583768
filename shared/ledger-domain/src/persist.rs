//! What the cold writer does with facts: parse, persist, heal.
//!
//! A message that is no fact, or whose content the ledger refuses, fails alone and goes to the dead-letter queue by its own
//! batch item failure. Where the ledger does not answer, the whole batch fails and comes again. Nothing is half written.

use std::sync::Arc;

use crate::digest::Slot;
use crate::fact::{Fact, FactError};
use crate::ports::{ClaimRow, Clock, ColdLedger, Heal, HotTier, Persisted, StoreError};

/// Persists facts.
pub struct Writer {
    /// Where facts go.
    pub cold: Arc<dyn ColdLedger>,
    /// Healed from the rows after each commit; without it nothing is healed.
    pub hot: Option<Arc<dyn HotTier>>,
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
    /// How many facts are in the tables now.
    pub persisted: usize,
    /// Registrations newly found to be false NEWs.
    pub false_new: u64,
    /// Months that were missing and had to be created: an alarm.
    pub months_created: Vec<String>,
    /// Hot records written from durable rows.
    pub healed: usize,
    /// Why healing failed, where it did. It fails no fact.
    pub heal_error: Option<StoreError>,
}

/// How many keys are healed by one call to the hot tier.
const HEAL_BATCH: usize = 1_000;

impl Writer {
    /// Persists message bodies, in any number; memory grows with their size and no more.
    pub async fn write<S: AsRef<str> + Sync>(&self, bodies: &[S]) -> Written {
        let mut written = Written::default();
        let mut messages = Vec::with_capacity(bodies.len());
        for (at, body) in bodies.iter().enumerate() {
            match Fact::all_from_json(body.as_ref()) {
                Ok(facts) => messages.push((at, facts)),
                Err(error) => written.failures.push((at, error.into())),
            }
        }
        self.write_messages(messages, &mut written).await;
        written.failures.sort_by_key(|(at, _)| *at);
        written
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
        heal_rows(&**hot, &*self.clock, rows).await
    }
}

/// Heals hot records from durable rows whose window is not over; how many were written.
///
/// # Errors
/// The first [`StoreError`] of the hot tier; rows before it may be healed. Nothing is healed where the time is not known.
pub async fn heal_rows(hot: &dyn HotTier, clock: &dyn Clock, rows: Vec<(Slot, ClaimRow)>) -> Result<usize, StoreError> {
    let Ok(now) = clock.now() else { return Ok(0) };
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

/// Refills the hot tier from every live row, newest state never overwritten; how many records were written.
///
/// # Errors
/// The first [`StoreError`] of either tier; it is safe to run again.
pub async fn refill(cold: &dyn ColdLedger, hot: &dyn HotTier, clock: &dyn Clock) -> Result<usize, StoreError> {
    let mut refilled = 0;
    let mut cursor = None;
    loop {
        let now = clock.now().map_err(|unknown| StoreError::did_not_happen("refill the hot tier", unknown))?;
        let rows = cold.live(now, cursor.as_ref(), HEAL_BATCH).await?;
        let Some(last) = rows.last() else { return Ok(refilled) };
        cursor = Some(last.subject.clone());
        let rows = rows.into_iter().map(|row| (Slot::of(&row.subject.scope, &row.subject.key), row)).collect();
        refilled += heal_rows(hot, clock, rows).await?;
    }
}
