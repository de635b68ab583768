//! The check function: `POST /v1/check`, `POST /v1/check/batch`, `POST /v1/claims/resolve`, `/fail` and `/renew`,
//! `GET /v1/health`.
//!
//! Thin: it reads the request, calls [`ledger_domain::check::Ledger`] and renders the answer. `local` serves the same
//! [`router`].

mod batch;
mod claims;
mod health;
mod request;
mod response;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use ledger_domain::check::Ledger;
use ledger_domain::ports::ControlPlane;
use ledger_domain::{Tenant, Undecided};
use ledger_lambda::env::Tenants;
use ledger_lambda::http::routes::with_problems;
use ledger_lambda::http::{Caller, Problem, body};
use ledger_stores::guarded::GuardedHotTier;

/// What the routes need.
#[derive(Debug)]
pub struct App {
    /// Decides.
    pub ledger: Ledger,
    /// The tenants this deployment serves.
    pub tenants: Tenants,
    /// The tenant of scopes that name none.
    pub default_tenant: Option<Tenant>,
    /// What the health route asks beside the ledger's tiers.
    pub asked: Asked,
}

/// What stands beside the ledger's tiers and is part of their health.
#[derive(Default)]
pub struct Asked {
    /// The breakers around the hot tier, where it has some.
    pub guard: Option<Arc<GuardedHotTier>>,
    /// Where cold sessions stand; `None` where this process can hold none.
    pub control_plane: Option<Arc<dyn ControlPlane>>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// The routes, as problems list them.
pub const ROUTES: &str = "POST /v1/check, POST /v1/check/batch, POST /v1/claims/resolve, POST /v1/claims/fail, \
                          POST /v1/claims/renew or GET /v1/health";

/// The function's router.
pub fn router(app: Arc<App>) -> Router {
    with_problems(routes(app), ROUTES)
}

/// Its routes alone, for a router that has more of them.
pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(batch::check_batch))
        .route("/v1/claims/resolve", post(claims::resolve))
        .route("/v1/claims/fail", post(claims::fail))
        .route("/v1/claims/renew", post(claims::renew))
        .route("/v1/health", get(health::health))
        .with_state(app)
}

async fn check(State(app): State<Arc<App>>, caller: Caller, body: Body) -> Response {
    match check_one(&app, &caller, body).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn check_one(app: &App, caller: &Caller, body: Body) -> Result<Response, Problem> {
    let bytes = body::collect(body).await?;
    let check = request::check(&bytes, app, caller)?;
    let scope = check.subject.scope.clone();
    let answer = app.ledger.check(std::slice::from_ref(&check)).await.pop();
    let answer = answer.unwrap_or(Err(Undecided::Contended.into()));
    response::log(&scope, answer.as_ref());
    Ok(response::verdict(&answer?))
}
