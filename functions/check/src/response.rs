//! From a verdict to JSON.

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use ledger_domain::{Disposition, NewVerdict, Refusal, Scope, SeenVerdict, StoredResponse, Verdict};
use ledger_lambda::http::Problem;
use ledger_lambda::http::problem::json_response;
use serde::Serialize;

/// A verdict on the wire.
#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "UPPERCASE")]
enum WireVerdict {
    New(WireNew),
    Seen(Box<WireSeen>),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireNew {
    disposition: &'static str,
    first_seen_at: String,
    window_ends_at: String,
    retry_count: u32,
    state: &'static str,
    replayed: bool,
    decided_by: &'static str,
    /// Only where it is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<bool>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireSeen {
    disposition: &'static str,
    first_seen_at: String,
    last_seen_at: String,
    window_ends_at: String,
    retry_count: u32,
    payload_hash_drift: bool,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_source_service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<WireResponse>,
    decided_by: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireResponse {
    content_type: String,
    body: String,
}

impl From<&Verdict> for WireVerdict {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::New(new) => Self::New(WireNew {
                disposition: Disposition::Process.as_str(),
                first_seen_at: new.first_seen_at.to_string(),
                window_ends_at: new.window_ends_at.to_string(),
                retry_count: new.retry_count,
                state: new.state.as_str(),
                replayed: new.replayed,
                decided_by: new.decided_by.as_str(),
                durable: (!new.durable).then_some(false),
            }),
            Verdict::Seen(seen) => Self::Seen(Box::new(WireSeen {
                disposition: seen.disposition.as_str(),
                first_seen_at: seen.first_seen_at.to_string(),
                last_seen_at: seen.last_seen_at.to_string(),
                window_ends_at: seen.window_ends_at.to_string(),
                retry_count: seen.retry_count,
                payload_hash_drift: seen.payload_hash_drift,
                state: seen.state.as_str(),
                attempt: seen.attempt,
                first_source_service: seen.first_source_service.as_ref().map(ToString::to_string),
                retry_after_seconds: seen.retry_after_seconds,
                response: seen.response.as_ref().map(|StoredResponse { content_type, body }| WireResponse {
                    content_type: content_type.to_string(),
                    body: base64::Engine::encode(&base64::engine::general_purpose::STANDARD, body),
                }),
                decided_by: seen.decided_by.as_str(),
            })),
        }
    }
}

/// A verdict as a response: always 200.
pub(crate) fn verdict(verdict: &Verdict) -> Response {
    let mut response = json_response(StatusCode::OK, &WireVerdict::from(verdict));
    if let Verdict::Seen(seen) = verdict {
        let headers = response.headers_mut();
        if let Some(seconds) = seen.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if seen.response.is_some() {
            headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
        }
    }
    response
}

/// The answer to a batch, in the order of its items.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    results: Vec<Item>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Item {
    Verdict(WireVerdict),
    Problem(Problem),
}

impl Results {
    /// Of verdicts and problems.
    pub(crate) fn of(results: impl Iterator<Item = Result<Verdict, Problem>>) -> Self {
        let results = results.map(|result| match result {
            Ok(verdict) => Item::Verdict(WireVerdict::from(&verdict)),
            Err(problem) => Item::Problem(problem),
        });
        Self { results: results.collect() }
    }
}

/// One line per check that somebody may have to look at: no verdict, not durable, not confirmed, a constant `requestId`.
pub(crate) fn log(scope: &Scope, answer: Option<&Result<Verdict, Refusal>>) {
    let (tenant, family) = (scope.tenant(), scope.flow_family());
    match answer {
        Some(Ok(Verdict::New(NewVerdict { durable: false, .. }))) => {
            tracing::warn!(tenant, family, "answered NEW, not known to be durable");
        }
        Some(Ok(Verdict::New(NewVerdict { confirmed: false, .. }))) => {
            tracing::warn!(
                tenant,
                family,
                "answered NEW, its confirmation lost: a repeat may be NEW until it is healed"
            );
        }
        Some(Ok(Verdict::Seen(SeenVerdict { constant_request_id: true, .. }))) => {
            tracing::warn!(tenant, family, "a client repeats a requestId after its replay time");
        }
        Some(Err(Refusal::Undecided(undecided))) => {
            tracing::warn!(tenant, family, error = %undecided, "no tier could decide");
        }
        Some(Ok(verdict)) => tracing::debug!(tenant, family, status = name(verdict), "decided"),
        Some(Err(Refusal::Invalid(_))) | None => {}
    }
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::New(_) => "NEW",
        Verdict::Seen(_) => "SEEN",
    }
}
