//! Errors as `application/problem+json` (RFC 9457): every kind in one place, with its status.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use ledger_domain::{Invalid, Refusal, Undecided};
use serde::Serialize;

/// The kinds of problem. `type` is `urn:dedup-ledger:problem:NAME` and never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is not acceptable; nothing was done. 400.
    InvalidInput,
    /// Nobody vouches for the caller. 401.
    UnknownCaller,
    /// The caller is not granted this tenant; says nothing about whether the message exists. 403.
    TenantNotGranted,
    /// There is no such route. 404.
    UnknownRoute,
    /// The route does not take this method. 405.
    MethodNotAllowed,
    /// The request did not arrive in time. 408, from `local` only; on AWS the gateway answers so.
    RequestTimeout,
    /// The body, or something in it, is too large; nothing was done. 413.
    TooLarge,
    /// No tier could decide. The check may have registered: retry with the same `requestId`. 503 with `Retry-After`.
    Undecided,
    /// A search could not be made. 503 with `Retry-After`.
    Unavailable,
}

impl Kind {
    fn parts(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::InvalidInput => ("invalid-input", StatusCode::BAD_REQUEST, "The request is not acceptable"),
            Self::UnknownCaller => ("unknown-caller", StatusCode::UNAUTHORIZED, "The caller is not known"),
            Self::TenantNotGranted => ("tenant-not-granted", StatusCode::FORBIDDEN, "The tenant is not granted"),
            Self::UnknownRoute => ("unknown-route", StatusCode::NOT_FOUND, "There is no such route"),
            Self::MethodNotAllowed => {
                ("method-not-allowed", StatusCode::METHOD_NOT_ALLOWED, "The route does not take this method")
            }
            Self::RequestTimeout => {
                ("request-timeout", StatusCode::REQUEST_TIMEOUT, "The request did not arrive in time")
            }
            Self::TooLarge => ("too-large", StatusCode::PAYLOAD_TOO_LARGE, "The request is too large"),
            Self::Undecided => ("undecided", StatusCode::SERVICE_UNAVAILABLE, "No tier could decide"),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "A tier did not answer"),
        }
    }
}

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
            | Kind::UnknownCaller
            | Kind::TenantNotGranted
            | Kind::UnknownRoute
            | Kind::MethodNotAllowed
            | Kind::RequestTimeout
            | Kind::TooLarge => None,
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
        Self::new(Kind::InvalidInput, invalid.to_string()).with_field(invalid.field)
    }
}

impl From<Undecided> for Problem {
    fn from(undecided: Undecided) -> Self {
        let reason = match undecided {
            Undecided::Pending => "pending",
            Undecided::HotTier => "hot-tier",
            Undecided::ColdLedger => "cold-ledger",
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
            Refusal::Invalid(invalid) => invalid.into(),
            Refusal::Undecided(undecided) => undecided.into(),
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
