//! The keeper function: keeps the hot tier filled and the cold ledger small each minute, and brings the schema up to a release
//! when it is deployed.
//!
//! Peeled like an onion: event → [`Event`] → [`Keeper::run`], or the migration and its answer. `local` keeps its tiers by the
//! same [`keep()`].

mod custom_resource;
mod respond;

use std::sync::Arc;

use futures::future::BoxFuture;
use lambda_runtime::Diagnostic;
use ledger_domain::Timestamp;
use ledger_domain::keep::{Keeper, KeptReport};
use ledger_domain::ports::{StoreError, chain};
use serde_json::{Value, json};

pub use custom_resource::{PHYSICAL_ID, REASON_CHARS_MAX, Request};
pub use respond::{Responder, ResponderSettings};

/// What a scheduled run leaves of Lambda's time, in milliseconds: for the purge and the log, and a store's time-outs.
const RUN_MARGIN_MS: i64 = 30_000;
/// What a run is given at least, in milliseconds: one that is ended in the middle is gone on with, and an emulator names
/// deadlines that are over.
const RUN_MIN_MS: i64 = 5_000;

/// Brings the schema up to this release.
pub type Migrate = Arc<dyn Fn() -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

/// What the function needs. What could not be set up is the reason why, in words: the function starts all the same, for
/// CloudFormation waits for an answer.
pub struct App {
    /// For scheduled runs.
    pub keeper: Result<Keeper, String>,
    /// For deployments.
    pub migrate: Result<Migrate, String>,
    /// Answers CloudFormation.
    pub responder: Responder,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").finish_non_exhaustive()
    }
}

/// What the function is invoked with.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A custom resource is created, updated or deleted.
    CustomResource(Request),
    /// Anything else: the schedule.
    Schedule,
}

impl Event {
    /// Told by its fields: only CloudFormation names where it wants its answer.
    #[must_use]
    pub fn of(event: &Value) -> Self {
        Request::of(event).map_or(Self::Schedule, Self::CustomResource)
    }
}

/// Why an invocation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failed {
    /// A variable is missing or wrong.
    #[error("{0}")]
    Setup(String),
    /// The run could not begin.
    #[error(transparent)]
    Run(#[from] StoreError),
    /// CloudFormation did not take the answer: Lambda invokes again.
    #[error("CloudFormation was not answered: {0}")]
    Unanswered(String),
}

impl From<Failed> for Diagnostic {
    /// CloudWatch shows the kind of error, not a Rust type's name.
    fn from(failed: Failed) -> Self {
        let error_type = match &failed {
            Failed::Setup(_) => "Setup",
            Failed::Run(_) => "Run",
            Failed::Unanswered(_) => "Unanswered",
        };
        Self { error_type: error_type.to_owned(), error_message: failed.to_string() }
    }
}

/// Works off one event. `remaining_ms` is what is left of Lambda's time.
///
/// # Errors
/// [`Failed`].
pub async fn handle(app: &App, event: &Value, remaining_ms: u64) -> Result<Value, Failed> {
    match Event::of(event) {
        Event::CustomResource(request) => {
            let outcome = custom_resource::work(app, &request, remaining_ms).await;
            let status = outcome.status();
            app.responder.answer(&request, &outcome).await.map_err(Failed::Unanswered)?;
            Ok(json!({ "answered": status }))
        }
        Event::Schedule => {
            let keeper = app.keeper.as_ref().map_err(|why| Failed::Setup(why.clone()))?;
            let remaining_ms = i64::try_from(remaining_ms).unwrap_or(i64::MAX);
            let kept = keep(keeper, (remaining_ms - RUN_MARGIN_MS).max(RUN_MIN_MS)).await?;
            let waits_for = kept.waits_for.map(|waits_for| waits_for.to_string());
            let (filled, purged) = (kept.rows_filled, kept.purged);
            Ok(json!({ "isComplete": kept.is_complete, "waitsFor": waits_for, "rowsFilled": filled, "purged": purged }))
        }
    }
}

/// One run of at most `time_ms`, and its report in the log.
///
/// # Errors
/// [`StoreError`] where the ledger's time is not known.
pub async fn keep(keeper: &Keeper, time_ms: i64) -> Result<KeptReport, StoreError> {
    let now = keeper.clock.now().map_err(|unknown| StoreError::did_not_happen("keep the tiers", unknown))?;
    let deadline: Timestamp = now.plus_millis(time_ms);
    let kept = keeper.run(deadline).await?;
    report(&kept);
    Ok(kept)
}

fn report(kept: &KeptReport) {
    for error in &kept.errors {
        tracing::error!(error = chain(error), "ALARM: the keeper could not do all of its work");
    }
    if !kept.is_complete {
        let waits_for = kept.waits_for.map(|waits_for| waits_for.to_string());
        let marker = kept.health.as_ref().map(|health| format!("{:?}", health.marker));
        let problems = kept.health.as_ref().map(|health| health.problems.join("; "));
        tracing::error!(
            waits_for,
            marker,
            problems,
            "ALARM: the hot tier is incomplete: misses are settled in PostgreSQL"
        );
    }
    if kept.depth.is_some_and(|depth| depth.dead.is_none()) {
        tracing::error!("ALARM: the dead-letter queue is not known, so nobody can say that nothing is missing");
    }
    tracing::info!(
        is_complete = kept.is_complete,
        sessions_live = kept.sessions_live,
        sessions_ended = kept.sessions_ended,
        zero_runs = kept.zero_runs,
        rows_read = kept.rows_read,
        rows_filled = kept.rows_filled,
        purged = kept.purged,
        waiting = kept.depth.map(|depth| depth.waiting),
        dead_letters = kept.depth.and_then(|depth| depth.dead),
        drained_until = kept.drained_until.map(|at| at.to_string()),
        drained_age_ms = kept.drained_age_ms,
        "kept"
    );
}
