//! Errors as `application/problem+json` (RFC 9457): every kind in one place, with its status.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use ledger_domain::claim::TokenError;
use ledger_domain::claims::ActProblem;
use ledger_domain::transition::ActRefused;
use ledger_domain::{Invalid, Refusal, Undecided};
use serde::Serialize;

/// The kinds of problem. `type` is `urn:dedup-ledger:problem:NAME` and never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is not acceptable; nothing was done. 400.
    InvalidInput,
    /// A lease is missing, no number, or out of bounds; nothing was done. 400.
    InvalidLease,
    /// The response to be stored cannot be read; nothing was done. 400.
    InvalidResponse,
    /// A token has not the form of one; nothing was done. 400.
    MalformedToken,
    /// Nobody vouches for the caller. 401.
    UnknownCaller,
    /// The caller is not granted this tenant; says nothing about whether the message exists. 403.
    TenantNotGranted,
    /// A token was not given out by this deployment for this message; nothing was done. 403.
    ForeignToken,
    /// There is no such route. 404.
    UnknownRoute,
    /// No tier knows the message whose claim is acted on. 404.
    UnknownClaim,
    /// The route does not take this method. 405.
    MethodNotAllowed,
    /// The request did not arrive in time. 408, from `local` only; on AWS the gateway answers so.
    RequestTimeout,
    /// The claim has moved on: another attempt or another registration stands; nothing was done. 409.
    StaleClaim,
    /// The claim is resolved already, with other content; that stands. 409.
    ClaimResolved,
    /// The claim has failed already; nothing was done. 409.
    ClaimFailed,
    /// The message's window is over; nothing was done. 409.
    ClaimWindowOver,
    /// The body is too large; nothing was done. 413.
    TooLarge,
    /// The response to be stored is too large; nothing was done. 413.
    ResponseTooLarge,
    /// The answer would be larger than Lambda passes on. 500; asking for less at once helps, asking again does not.
    AnswerTooLarge,
    /// No tier could decide. The check may have registered, the act may have happened: retry, a check with the same `requestId`,
    /// an act with the same content. 503 with `Retry-After`.
    Undecided,
    /// A search could not be made. 503 with `Retry-After`.
    Unavailable,
}

impl Kind {
    fn parts(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::InvalidInput => ("invalid-input", StatusCode::BAD_REQUEST, "The request is not acceptable"),
            Self::InvalidLease => ("invalid-lease", StatusCode::BAD_REQUEST, "The lease is not acceptable"),
            Self::InvalidResponse => ("invalid-response", StatusCode::BAD_REQUEST, "The response cannot be stored"),
            Self::MalformedToken => ("malformed-token", StatusCode::BAD_REQUEST, "The token is none"),
            Self::UnknownCaller => ("unknown-caller", StatusCode::UNAUTHORIZED, "The caller is not known"),
            Self::TenantNotGranted => ("tenant-not-granted", StatusCode::FORBIDDEN, "The tenant is not granted"),
            Self::ForeignToken => ("foreign-token", StatusCode::FORBIDDEN, "The token is not of this message"),
            Self::UnknownRoute => ("unknown-route", StatusCode::NOT_FOUND, "There is no such route"),
            Self::MethodNotAllowed => {
                ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "The route does not take this method")
            }
            Self::RequestTimeout => {
                ("request-timeout", StatusCode::REQUEST_TIMEOUT, "The request did not arrive in time")
            }
            Self::UnknownClaim => ("unknown-claim", StatusCode::NOT_FOUND, "The message is not known"),
            Self::StaleClaim => ("stale-claim", StatusCode::CONFLICT, "The claim has moved on"),
            Self::ClaimResolved => ("claim-resolved", StatusCode::CONFLICT, "The claim is resolved already"),
            Self::ClaimFailed => ("claim-failed", StatusCode::CONFLICT, "The claim has failed already"),
            Self::ClaimWindowOver => ("claim-window-over", StatusCode::CONFLICT, "The message's window is over"),
            Self::ResponseTooLarge => {
                ("response-too-large", StatusCode::PAYLOAD_TOO_LARGE, "The response to be stored is too large")
            }
            Self::TooLarge => ("too-large", StatusCode::PAYLOAD_TOO_LARGE, "The request is too large"),
            Self::AnswerTooLarge => {
                ("answer-too-large", StatusCode::INTERNAL_SERVER_ERROR, "The answer is too large to be sent")
            }
            Self::Undecided => ("undecided", StatusCode::SERVICE_UNAVAILABLE, "No tier could decide"),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "A tier did not answer"),
        }
    }
}

/// The lease's field in a check.
pub const CHECK_LEASE: &str = "claim.leaseSeconds";
/// The lease's field in a renewal.
pub const ACT_LEASE: &str = "leaseSeconds";

/// How long to wait before asking again after a 503, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A problem, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    #[serde(rename = "type")]
    urn: String,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

impl Problem {
    /// A problem of `kind`, with what happened this time.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let (name, status, title) = kind.parts();
        let retry_after_seconds = match kind {
            Kind::Undecided | Kind::Unavailable => Some(RETRY_AFTER_SECONDS),
            Kind::InvalidInput
            | Kind::InvalidLease
            | Kind::InvalidResponse
            | Kind::MalformedToken
            | Kind::UnknownCaller
            | Kind::TenantNotGranted
            | Kind::ForeignToken
            | Kind::UnknownRoute
            | Kind::UnknownClaim
            | Kind::MethodNotAllowed
            | Kind::RequestTimeout
            | Kind::StaleClaim
            | Kind::ClaimResolved
            | Kind::ClaimFailed
            | Kind::ClaimWindowOver
            | Kind::TooLarge
            | Kind::ResponseTooLarge
            | Kind::AnswerTooLarge => None,
        };
        Self {
            urn: format!("urn:dedup-ledger:problem:{name}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            reason: None,
            retry_after_seconds,
        }
    }

    /// A refused field as a problem of `kind`.
    #[must_use]
    pub fn invalid(kind: Kind, invalid: Invalid) -> Self {
        Self::new(kind, invalid.to_string()).with_field(invalid.field)
    }

    /// The same, naming a field of the request.
    #[must_use]
    pub fn with_field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The field it names, where it names one.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// The URN of its kind.
    #[must_use]
    pub fn urn(&self) -> &str {
        &self.urn
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(Kind::InvalidInput, invalid)
    }
}

impl From<Undecided> for Problem {
    fn from(undecided: Undecided) -> Self {
        let reason = match undecided {
            Undecided::Pending => "pending",
            Undecided::HotTier => "hot-tier",
            Undecided::ColdLedger => "cold-ledger",
            Undecided::ColdSession => "cold-session",
            Undecided::Queue => "queue",
            Undecided::TooSlow => "too-slow",
            Undecided::Contended => "contended",
            Undecided::Clock => "clock",
            Undecided::Policy => "policy",
            Undecided::Unconfirmed => "unconfirmed",
            Undecided::Absence => "absence",
            Undecided::Unsupported => "unsupported",
        };
        Self { reason: Some(reason), ..Self::new(Kind::Undecided, undecided.to_string()) }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(invalid) if invalid.field == CHECK_LEASE => Self::invalid(Kind::InvalidLease, invalid),
            Refusal::Invalid(invalid) => invalid.into(),
            Refusal::Undecided(undecided) => undecided.into(),
        }
    }
}

impl From<ActProblem> for Problem {
    fn from(problem: ActProblem) -> Self {
        let detail = problem.to_string();
        match problem {
            ActProblem::Invalid(invalid) if invalid.field == ACT_LEASE => Self::invalid(Kind::InvalidLease, invalid),
            ActProblem::Invalid(invalid) => invalid.into(),
            ActProblem::Token(error) => {
                let kind = match error {
                    TokenError::Malformed => Kind::MalformedToken,
                    TokenError::Foreign => Kind::ForeignToken,
                };
                // What was sent is not said back: it may be good for another message.
                Self::invalid(kind, Invalid::new("token", "the token that a check of this message was answered with"))
            }
            ActProblem::Refused(refused) => {
                let kind = match refused {
                    ActRefused::Stale => Kind::StaleClaim,
                    ActRefused::Resolved => Kind::ClaimResolved,
                    ActRefused::Failed => Kind::ClaimFailed,
                    ActRefused::WindowOver => Kind::ClaimWindowOver,
                };
                Self::new(kind, detail)
            }
            ActProblem::UnknownClaim => Self::new(Kind::UnknownClaim, detail),
            ActProblem::Undecided(undecided) => undecided.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_response(status, &self);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON response.
pub fn json_response<T: Serialize>(status: StatusCode, body: &T) -> Response {
    // Our own types hold strings, numbers and lists only: serialising cannot fail.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response()
}
