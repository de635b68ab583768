//! From a verdict to JSON.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, StatusCode, header};
use ledger_domain::check::Looked;
use ledger_domain::{Disposition, NewVerdict, Refusal, Scope, SeenVerdict, StoredResponse, Verdict};
use ledger_lambda::http::Problem;
use ledger_lambda::http::problem::json_response;
use serde::Serialize;

/// A verdict on the wire.
#[derive(Serialize)]
#[serde(tag = "status", rename_all = "UPPERCASE")]
enum WireVerdict {
    New(WireNew),
    Seen(Box<WireSeen>),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireNew {
    disposition: &'static str,
    first_seen_at: String,
    window_ends_at: String,
    retry_count: u32,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<WireClaim>,
    replayed: bool,
    decided_by: &'static str,
    /// Only where it is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<bool>,
    /// Only where it is false: no tier could say that the message was not seen before.
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<bool>,
    /// Only where it is false: looked at in an atomic batch that was not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
}

/// Never logged: whoever has the token holds the claim.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireClaim {
    token: String,
    lease_ends_at: String,
}

#[derive(Serialize)]
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
    /// Only where it is true: there is one, but not in this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_omitted: Option<bool>,
    decided_by: &'static str,
    /// As for NEW.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireResponse {
    content_type: String,
    body: String,
}

impl WireVerdict {
    fn of(verdict: &Verdict, applied: Option<bool>, room: &mut Room) -> Self {
        match verdict {
            Verdict::New(new) => Self::New(WireNew {
                disposition: Disposition::Process.as_str(),
                first_seen_at: new.first_seen_at.to_string(),
                window_ends_at: new.window_ends_at.to_string(),
                retry_count: new.retry_count,
                state: new.state.as_str(),
                attempt: new.attempt,
                claim: new.claim.as_ref().map(|claim| WireClaim {
                    token: claim.token.clone(),
                    lease_ends_at: claim.lease_ends_at.to_string(),
                }),
                replayed: new.replayed,
                decided_by: new.decided_by.as_str(),
                durable: (!new.durable).then_some(false),
                confirmed: new.unconfirmed.then_some(false),
                applied,
            }),
            Verdict::Seen(seen) => {
                let response = seen.response.as_ref().and_then(|response| room.take(response));
                Self::Seen(Box::new(WireSeen {
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
                    response_omitted: (seen.response.is_some() && response.is_none()).then_some(true),
                    response,
                    decided_by: seen.decided_by.as_str(),
                    applied,
                }))
            }
        }
    }
}

/// How many bytes of stored responses one answer still takes.
struct Room(usize);

impl Room {
    /// In the answer to a batch, in base64: a hundred of the largest would be more than Lambda passes on.
    const OF_A_BATCH: usize = 4 * 1024 * 1024;
    /// In the answer to one check: its own.
    const OF_ONE: usize = usize::MAX;

    fn take(&mut self, response: &StoredResponse) -> Option<WireResponse> {
        let body = STANDARD.encode(&response.body);
        self.0 = self.0.checked_sub(body.len())?;
        Some(WireResponse { content_type: response.content_type.to_string(), body })
    }
}

/// A verdict as a response: always 200.
pub(crate) fn verdict(verdict: &Verdict) -> Response {
    let mut response = json_response(StatusCode::OK, &WireVerdict::of(verdict, None, &mut Room(Room::OF_ONE)));
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
#[derive(Serialize)]
pub(crate) struct Results {
    /// Of an atomic batch only.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
    results: Vec<Item>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Item {
    Verdict(WireVerdict),
    Free(WireFree),
    Problem(Problem),
}

/// Not seen, and because of other items nothing was registered: ask again.
#[derive(Serialize)]
struct WireFree {
    status: &'static str,
    disposition: &'static str,
    applied: bool,
}

impl Results {
    /// Of verdicts and problems.
    pub(crate) fn of(results: impl Iterator<Item = Result<Verdict, Problem>>) -> Self {
        let mut room = Room(Room::OF_A_BATCH);
        let results = results.map(|result| match result {
            Ok(verdict) => Item::Verdict(WireVerdict::of(&verdict, None, &mut room)),
            Err(problem) => Item::Problem(problem),
        });
        Self { applied: None, results: results.collect() }
    }

    /// Of an atomic batch. Where it was not applied each item says so: its verdict was looked at, not registered.
    pub(crate) fn together(applied: bool, results: impl Iterator<Item = Result<Looked, Problem>>) -> Self {
        let mut room = Room(Room::OF_A_BATCH);
        let marked = (!applied).then_some(false);
        let results = results.map(|result| match result {
            Ok(Looked::Verdict(verdict)) => Item::Verdict(WireVerdict::of(&verdict, marked, &mut room)),
            Ok(Looked::Free) => {
                Item::Free(WireFree { status: "NEW", disposition: Disposition::Retry.as_str(), applied: false })
            }
            Err(problem) => Item::Problem(problem),
        });
        Self { applied: Some(applied), results: results.collect() }
    }
}

/// One line per check that somebody may have to look at: no verdict, not durable, not confirmed, a constant `requestId`.
pub(crate) fn log(scope: &Scope, answer: Result<&Verdict, &Refusal>) {
    let (tenant, family) = (scope.tenant(), scope.flow_family());
    match answer {
        Ok(Verdict::New(NewVerdict { durable: false, .. })) => {
            tracing::warn!(tenant, family, "answered NEW, not known to be durable");
        }
        Ok(Verdict::New(NewVerdict { unconfirmed: true, .. })) => {
            tracing::warn!(tenant, family, "answered NEW, though no tier could say that it was not seen before");
        }
        Ok(Verdict::New(NewVerdict { confirmed: false, .. })) => {
            tracing::warn!(
                tenant,
                family,
                "answered NEW, its confirmation lost: a repeat may be NEW until it is healed"
            );
        }
        Ok(Verdict::Seen(SeenVerdict { constant_request_id: true, .. })) => {
            tracing::warn!(tenant, family, "a client repeats a requestId after its replay time");
        }
        Err(Refusal::Undecided(undecided)) => {
            tracing::warn!(tenant, family, error = %undecided, "no tier could decide");
        }
        Ok(verdict) => tracing::debug!(tenant, family, status = name(verdict), "decided"),
        Err(Refusal::Invalid(_)) => {}
    }
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::New(_) => "NEW",
        Verdict::Seen(_) => "SEEN",
    }
}
