//! `GET /v1/health`: each tier's state, as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use ledger_domain::ports::StoreError;
use ledger_lambda::http::problem::json_response;
use serde::Serialize;

use crate::App;

/// How long a tier has to answer, in milliseconds.
const TIER_TIMEOUT_MS: u64 = 1_000;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    /// `ok` where checks can be decided, else `failing`.
    status: &'static str,
    tiers: BTreeMap<&'static str, Tier>,
    /// What this process has answered since it started.
    answers: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tier {
    /// `up`, `down`, or `unused` where the deployment names none.
    state: &'static str,
    /// Whether a miss of the hot tier can be believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    /// Messages waiting in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// 200 where checks can be decided, else 503; each tier's state in both.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let ledger = &app.ledger;
    let hot = match within(ledger.hot.health()).await {
        Some(Ok(health)) => {
            Tier { state: "up", complete: Some(health.complete), problems: health.problems, ..Tier::default() }
        }
        Some(Err(_)) | None => Tier { state: "down", ..Tier::default() },
    };
    let queue = match within(ledger.queue.depth()).await {
        Some(Ok(depth)) => Tier { state: "up", waiting: Some(depth.waiting), ..Tier::default() },
        Some(Err(_)) | None => Tier { state: "down", ..Tier::default() },
    };
    let cold = match &ledger.cold {
        None => Tier { state: "unused", ..Tier::default() },
        Some(cold) => match within(cold.time()).await {
            Some(Ok(_)) => Tier { state: "up", ..Tier::default() },
            Some(Err(_)) | None => Tier { state: "down", ..Tier::default() },
        },
    };
    let clock = match ledger.clock.now() {
        Ok(_) => Tier { state: "up", ..Tier::default() },
        Err(unknown) => Tier { state: "down", problems: vec![unknown.to_string()], ..Tier::default() },
    };
    // What the hot tier cannot vouch for, the cold ledger decides.
    let vouched = hot.complete == Some(true) || cold.state == "up";
    let deciding = hot.state == "up" && queue.state == "up" && clock.state == "up" && vouched;
    let tiers = BTreeMap::from([("hot", hot), ("queue", queue), ("cold", cold), ("clock", clock)]);
    let status = if deciding { "ok" } else { "failing" };
    let answers = ledger.counters.snapshot().into_iter().collect();
    let code = if deciding { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json_response(code, &Health { status, tiers, answers })
}

async fn within<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Option<Result<T, StoreError>> {
    tokio::time::timeout(Duration::from_millis(TIER_TIMEOUT_MS), answer).await.ok()
}
