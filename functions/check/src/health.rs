//! `GET /v1/health`: each tier's state, as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use ledger_domain::DecidedBy;
use ledger_domain::ports::StoreError;
use ledger_lambda::http::problem::json_response;
use serde::Serialize;

use crate::App;

/// How long a tier has to answer, in milliseconds.
const TIER_TIMEOUT_MS: u64 = 1_000;

/// What a hot tier is told that the keeper does not fill, nobody else hears.
const NOT_IN_PLACE: &str = "its marker is not of the keeper's last pass: it may have lost its place";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    /// `ok` where checks can be decided, else `failing`.
    status: &'static str,
    /// The tiers that can decide a check now.
    decided_by: Vec<&'static str>,
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
    /// This process's breakers around the hot tier: `closed`, `open`, or `partly open` where some parts of a cluster are down.
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<&'static str>,
    /// Whether some process decides in the cold ledger, or did since the hot tier was filled: nobody believes its misses.
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_sessions: Option<bool>,
    /// Messages waiting in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

impl Tier {
    fn up() -> Self {
        Self { state: "up", ..Self::default() }
    }

    fn down() -> Self {
        Self { state: "down", ..Self::default() }
    }

    fn unused() -> Self {
        Self { state: "unused", ..Self::default() }
    }

    fn is_up(&self) -> bool {
        self.state == "up"
    }
}

/// 200 where checks can be decided, else 503; each tier's state in both.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let (mut hot, queue, cold, control_plane) = tokio::join!(hot(&app), queue(&app), cold(&app), control_plane(&app));
    let clock = match app.ledger.clock.now() {
        Ok(_) => Tier::up(),
        Err(unknown) => Tier { problems: vec![unknown.to_string()], ..Tier::down() },
    };
    let is_in_place = app.ledger.trust.is_in_place();
    let is_complete = hot.complete == Some(true) && is_in_place && control_plane.cold_sessions == Some(false);
    hot.complete = hot.complete.map(|_| is_complete);
    if hot.is_up() && !is_in_place {
        hot.problems.push(NOT_IN_PLACE.to_owned());
    }

    let is_hot_asked = hot.is_up() && hot.breaker != Some("open");
    let mut decided_by = Vec::new();
    if clock.is_up() {
        if is_hot_asked && is_complete && queue.is_up() {
            decided_by.push(DecidedBy::Hot.as_str());
        }
        // What the cold ledger decides goes to the hot tier; where it cannot, a cold session says so.
        if cold.is_up() && ((is_hot_asked && is_in_place) || control_plane.is_up()) {
            decided_by.push(DecidedBy::Cold.as_str());
        }
    }
    let (status, code) = match decided_by.is_empty() {
        false => ("ok", StatusCode::OK),
        true => ("failing", StatusCode::SERVICE_UNAVAILABLE),
    };
    let tiers = [("hot", hot), ("queue", queue), ("cold", cold), ("controlPlane", control_plane), ("clock", clock)];
    let answers = app.ledger.counters.snapshot().into_iter().collect();
    json_response(code, &Health { status, decided_by, tiers: tiers.into(), answers })
}

async fn hot(app: &App) -> Tier {
    let answer = within(app.ledger.hot.health()).await;
    // After the answer: one that did not come opens the breaker.
    let breaker = app.asked.guard.as_ref().map(|guard| match guard.open_of() {
        (0, _) => "closed",
        (open, all) if open == all => "open",
        (_, _) => "partly open",
    });
    match answer {
        Some(health) => Tier { complete: Some(health.is_complete()), problems: health.problems, breaker, ..Tier::up() },
        None => Tier { breaker, ..Tier::down() },
    }
}

async fn queue(app: &App) -> Tier {
    match within(app.ledger.queue.depth()).await {
        Some(depth) => Tier { waiting: Some(depth.waiting), ..Tier::up() },
        None => Tier::down(),
    }
}

async fn cold(app: &App) -> Tier {
    let Some(cold) = &app.ledger.cold else { return Tier::unused() };
    if within(cold.time()).await.is_some() { Tier::up() } else { Tier::down() }
}

async fn control_plane(app: &App) -> Tier {
    let Some(control_plane) = &app.asked.control_plane else { return Tier::unused() };
    match within(control_plane.cold_sessions(1)).await {
        Some(sessions) => Tier { cold_sessions: Some(!sessions.is_empty()), ..Tier::up() },
        None => Tier::down(),
    }
}

/// `None` where the tier does not answer in time, or with an error.
async fn within<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(TIER_TIMEOUT_MS), answer).await.ok()?.ok()
}
