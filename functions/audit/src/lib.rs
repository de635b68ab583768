//! The audit function: `GET /v1/messages`, by scope and key (hot and cold) or by tenant and payload hash (cold).
//!
//! `local` serves the same [`router`].

mod request;
mod response;

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use ledger_domain::Tenant;
use ledger_domain::ports::{StoreError, chain};
use ledger_domain::search::Auditor;
use ledger_lambda::env::Tenants;
use ledger_lambda::http::problem::json_response;
use ledger_lambda::http::routes::with_problems;
use ledger_lambda::http::{Caller, Kind, Problem};

use request::Search;

/// What the routes need.
#[derive(Debug)]
pub struct App {
    /// Searches.
    pub auditor: Auditor,
    /// The tenants this deployment serves.
    pub tenants: Tenants,
    /// The tenant of scopes that name none.
    pub default_tenant: Option<Tenant>,
}

/// The routes, as problems list them.
pub const ROUTES: &str = "GET /v1/messages";

/// The function's router.
pub fn router(app: Arc<App>) -> Router {
    with_problems(routes(app), ROUTES)
}

/// Its routes alone, for a router that has more of them.
pub fn routes(app: Arc<App>) -> Router {
    Router::new().route("/v1/messages", get(messages)).with_state(app)
}

async fn messages(State(app): State<Arc<App>>, _: Caller, RawQuery(query): RawQuery) -> Response {
    match search(&app, query.as_deref().unwrap_or_default()).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn search(app: &App, query: &str) -> Result<Response, Problem> {
    let page = match request::read(query, app)? {
        Search::ByKey { subject, query } => {
            let page = app.auditor.by_key(&subject, &query).await.map_err(|error| unavailable(&error))?;
            response::Page::of(page)
        }
        Search::ByHash { tenant, payload, query } => {
            // Before the search: what is drained by then is certainly searched.
            let as_of = app.auditor.as_of().await.map_err(|error| unavailable(&error))?;
            let page = app.auditor.by_hash(&tenant, &payload, &query).await.map_err(|error| unavailable(&error))?;
            response::Page::of(page).with_as_of(as_of)
        }
    };
    Ok(json_response(StatusCode::OK, &page))
}

fn unavailable(error: &StoreError) -> Problem {
    tracing::warn!(error = chain(error), "a search could not be made");
    Problem::new(Kind::Unavailable, "the cold ledger did not answer")
}
