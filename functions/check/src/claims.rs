//! `POST /v1/claims/resolve`, `/fail` and `/renew`: what a claim's holder says of it.
//!
//! Tokens and stored responses are never logged, and a refused token is not said back.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use ledger_domain::claim::{Act, TokenError};
use ledger_domain::claims::{Acknowledged, ActProblem, ClaimAct};
use ledger_domain::{ContentType, FailReason, Invalid, Scope, StoredResponse};
use ledger_lambda::http::fields::Fields;
use ledger_lambda::http::problem::json_response;
use ledger_lambda::http::{Caller, Kind, Problem, body};
use serde::Serialize;

use crate::App;
use crate::request::{check_tenant, lease_seconds, subject};

const RESOLVE_FIELDS: [&str; 5] = ["scope", "key", "keyParts", "token", "response"];
const FAIL_FIELDS: [&str; 5] = ["scope", "key", "keyParts", "token", "reason"];
const RENEW_FIELDS: [&str; 5] = ["scope", "key", "keyParts", "token", "leaseSeconds"];

/// It is done: repeats get the response, where there is one.
pub(crate) async fn resolve(State(app): State<Arc<App>>, _: Caller, body: Body) -> Response {
    let read = |fields: &Fields<'_>| stored_response(fields).map(Act::Resolve);
    answer(&app, body, &RESOLVE_FIELDS, read).await.unwrap_or_else(IntoResponse::into_response)
}

/// It failed: the next check may take it over.
pub(crate) async fn fail(State(app): State<Arc<App>>, _: Caller, body: Body) -> Response {
    let read = |fields: &Fields<'_>| {
        let reason = fields.string("reason")?.as_deref().map(FailReason::parse).transpose()?;
        Ok(Act::Fail(reason))
    };
    answer(&app, body, &FAIL_FIELDS, read).await.unwrap_or_else(IntoResponse::into_response)
}

/// It needs longer.
pub(crate) async fn renew(State(app): State<Arc<App>>, _: Caller, body: Body) -> Response {
    let read = |fields: &Fields<'_>| Ok(Act::Renew { lease_seconds: lease_seconds(fields)? });
    answer(&app, body, &RENEW_FIELDS, read).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    app: &App,
    body: Body,
    known: &[&str],
    read: impl FnOnce(&Fields<'_>) -> Result<Act, Problem>,
) -> Result<Response, Problem> {
    let bytes = body::collect(body).await?;
    let request = {
        let fields = Fields::read(&bytes, known)?;
        let subject = subject(&fields, app)?;
        let token = fields.required_string("token")?;
        ClaimAct { subject, token, act: read(&fields)? }
    };
    let scope = &request.subject.scope;
    check_tenant(scope, app)?;
    let outcome = app.ledger.act(&request).await;
    log(scope, request.act.as_str(), outcome.as_ref());
    Ok(json_response(StatusCode::OK, &WireAcknowledged::from(outcome?)))
}

fn stored_response(fields: &Fields<'_>) -> Result<Option<StoredResponse>, Problem> {
    let invalid = |invalid| Problem::invalid(Kind::InvalidResponse, invalid);
    let Some(response) = fields.object("response", &["contentType", "body"]).map_err(invalid)? else {
        return Ok(None);
    };
    let content_type = response.required_string("contentType").map_err(invalid)?;
    let content_type = ContentType::parse(&content_type)
        .map_err(|refused| invalid(Invalid { field: "response.contentType".to_owned(), ..refused }))?;
    let body = response.required_string("body").map_err(invalid)?;
    let expected = "base64 with padding (RFC 4648, section 4)";
    let body = STANDARD.decode(body).map_err(|_| invalid(Invalid::new("response.body", expected)))?;
    if body.len() > StoredResponse::MAX_BYTES {
        let (max, got) = (StoredResponse::MAX_BYTES, body.len());
        let invalid = Invalid::new("response.body", format!("at most {max} bytes once decoded, got {got}"));
        return Err(Problem::invalid(Kind::ResponseTooLarge, invalid));
    }
    Ok(Some(StoredResponse { content_type, body }))
}

/// The record after an act, on the wire.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireAcknowledged {
    state: &'static str,
    attempt: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ends_at: Option<String>,
    window_ends_at: String,
    decided_by: &'static str,
}

impl From<Acknowledged> for WireAcknowledged {
    fn from(acknowledged: Acknowledged) -> Self {
        let Acknowledged { state, attempt, lease_ends_at, window_ends_at, decided_by } = acknowledged;
        Self {
            state: state.as_str(),
            attempt,
            lease_ends_at: lease_ends_at.map(|at| at.to_string()),
            window_ends_at: window_ends_at.to_string(),
            decided_by: decided_by.as_str(),
        }
    }
}

/// One line per act that somebody may have to look at: undecided, too late, or with a token that is not ours.
fn log(scope: &Scope, act: &'static str, outcome: Result<&Acknowledged, &ActProblem>) {
    let (tenant, family) = (scope.tenant(), scope.flow_family());
    match outcome {
        Err(ActProblem::Undecided(undecided)) => {
            tracing::warn!(tenant, family, act, error = %undecided, "an act on a claim could not be decided");
        }
        Err(ActProblem::Token(TokenError::Foreign)) => {
            tracing::warn!(tenant, family, act, "a token was sent that is not of this message");
        }
        Err(ActProblem::Refused(refused)) => {
            tracing::info!(tenant, family, act, error = %refused, "an act on a claim was refused");
        }
        Ok(acknowledged) => tracing::debug!(tenant, family, act, state = acknowledged.state.as_str(), "acknowledged"),
        Err(ActProblem::Token(TokenError::Malformed) | ActProblem::Invalid(_) | ActProblem::UnknownClaim) => {}
    }
}
