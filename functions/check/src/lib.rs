//! The check function: `POST /v1/check`, `POST /v1/check/batch`, `GET /v1/health`.
//!
//! Thin: it reads the request, calls [`ledger_domain::check::Ledger`] and renders the verdict. `local` serves the same
//! [`router`].

mod health;
mod request;
mod response;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use ledger_domain::Tenant;
use ledger_domain::check::Ledger;
use ledger_lambda::env::Tenants;
use ledger_lambda::http::problem::json_response;
use ledger_lambda::http::routes::with_problems;
use ledger_lambda::http::{Caller, Problem, body};

/// What the routes need.
#[derive(Debug)]
pub struct App {
    /// Decides.
    pub ledger: Ledger,
    /// The tenants this deployment serves.
    pub tenants: Tenants,
    /// The tenant of scopes that name none.
    pub default_tenant: Option<Tenant>,
}

/// The routes, as problems list them.
pub const ROUTES: &str = "POST /v1/check, POST /v1/check/batch or GET /v1/health";

/// The function's router.
pub fn router(app: Arc<App>) -> Router {
    with_problems(routes(app), ROUTES)
}

/// Its routes alone, for a router that has more of them.
pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(check_batch))
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
    response::log(&scope, answer.as_ref());
    match answer {
        Some(Ok(verdict)) => Ok(response::verdict(&verdict)),
        Some(Err(refusal)) => Err(refusal.into()),
        None => Err(ledger_domain::Undecided::Contended.into()),
    }
}

async fn check_batch(State(app): State<Arc<App>>, caller: Caller, body: Body) -> Response {
    match check_all(&app, &caller, body).await {
        Ok(results) => json_response(StatusCode::OK, &results),
        Err(problem) => problem.into_response(),
    }
}

async fn check_all(app: &App, caller: &Caller, body: Body) -> Result<response::Results, Problem> {
    let bytes = body::collect(body).await?;
    let items = request::batch(&bytes)?;
    let read: Vec<_> = items.into_iter().map(|item| request::check(item.get().as_bytes(), app, caller)).collect();
    let checks: Vec<_> = read.iter().filter_map(|check| check.as_ref().ok().cloned()).collect();
    let mut answers = app.ledger.check(&checks).await.into_iter();
    let results = read.into_iter().map(|check| {
        let check = check?;
        let answer = answers.next();
        response::log(&check.subject.scope, answer.as_ref());
        match answer {
            Some(Ok(verdict)) => Ok(verdict),
            Some(Err(refusal)) => Err(refusal.into()),
            None => Err(ledger_domain::Undecided::Contended.into()),
        }
    });
    Ok(response::Results::of(results))
}
