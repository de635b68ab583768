//! Facts: what the check function says to the cold writer, through a queue that repeats and reorders.
//!
//! A fact carries the whole record as known, never an increment, and a version. Merging facts of one registration is
//! [`Record::merge`].

use serde::{Deserialize, Serialize};

use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::key::MessageKey;
use crate::record::{Drift, Record, State, StoredResponse, Subject};
use crate::scope::Scope;
use crate::text::{ContentType, SourceService};
use crate::time::Timestamp;

/// A record as known at one moment, with what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The (scope, key).
    pub subject: Subject,
    /// The record; never PENDING, and without the hot tier's own marks.
    pub record: Record,
}

/// Why a message is no fact. It belongs into the dead-letter queue, not on the floor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactError {
    /// Not JSON, or not an object with a version.
    #[error("not a fact: {0}")]
    Malformed(String),
    /// Written by another release; a consumer that knows this version must take it.
    #[error("fact of unknown version {0}")]
    UnknownVersion(u64),
}

const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Versioned {
    v: u64,
}

/// Version 1 on the wire. Times are milliseconds since the epoch; hashes, ids and nonces hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    v: u64,
    scope: String,
    key: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    key_is_parts: bool,
    registration_id: String,
    state: String,
    attempt: u16,
    nonce: String,
    won_at_ms: i64,
    first_seen_at_ms: i64,
    last_seen_at_ms: i64,
    window_ends_at_ms: i64,
    payload_sha256: String,
    retry_count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source_service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<WireDrift>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ends_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<WireResponse>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireDrift {
    count: u32,
    last_sha256: String,
    last_at_ms: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireResponse {
    content_type: String,
    body_base64: String,
}

impl Fact {
    /// The fact that a record, once durable, is confirmed: what is sent for a PENDING, and for a repeat.
    #[must_use]
    pub fn of(subject: Subject, record: &Record) -> Self {
        let confirmed = if record.state == State::Pending { record.confirmed() } else { record.clone() };
        Self { subject, record: Record { undurable: false, take_over: None, ..confirmed } }
    }

    /// The message body: one JSON object of version 1.
    #[must_use]
    pub fn to_json(&self) -> String {
        let record = &self.record;
        let wire = Wire {
            v: VERSION,
            scope: self.subject.scope.as_str().to_owned(),
            key: self.subject.key.as_str().to_owned(),
            key_is_parts: self.subject.key.is_parts(),
            registration_id: record.registration_id.to_string(),
            state: record.state.as_str().to_owned(),
            attempt: record.attempt,
            nonce: record.nonce.to_string(),
            won_at_ms: record.won_at.as_millis(),
            first_seen_at_ms: record.first_seen_at.as_millis(),
            last_seen_at_ms: record.last_seen_at.as_millis(),
            window_ends_at_ms: record.window_ends_at.as_millis(),
            payload_sha256: record.payload_hash.to_string(),
            retry_count: record.retry_count,
            source_service: record.source_service.as_ref().map(ToString::to_string),
            drift: record.drift.map(|drift| WireDrift {
                count: drift.count,
                last_sha256: drift.last_hash.to_string(),
                last_at_ms: drift.last_at.as_millis(),
            }),
            lease_ends_at_ms: record.lease_ends_at.map(Timestamp::as_millis),
            response: record.response.as_ref().map(|response| WireResponse {
                content_type: response.content_type.to_string(),
                body_base64: base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &response.body),
            }),
        };
        // Strings, numbers and options only: serialising cannot fail.
        serde_json::to_string(&wire).unwrap_or_default()
    }

    /// Reads a message body.
    ///
    /// # Errors
    /// [`FactError::UnknownVersion`] where another release wrote it, [`FactError::Malformed`] where nobody did.
    pub fn from_json(body: &str) -> Result<Self, FactError> {
        let malformed = |e: &dyn std::fmt::Display| FactError::Malformed(e.to_string());
        let Versioned { v } = serde_json::from_str(body).map_err(|e| malformed(&e))?;
        if v != VERSION {
            return Err(FactError::UnknownVersion(v));
        }
        let wire: Wire = serde_json::from_str(body).map_err(|e| malformed(&e))?;
        wire.into_fact().map_err(FactError::Malformed)
    }
}

impl Wire {
    fn into_fact(self) -> Result<Fact, String> {
        let invalid = |e: crate::text::Invalid| e.to_string();
        let subject = Subject {
            scope: Scope::parse(&self.scope, None).map_err(invalid)?,
            key: MessageKey::from_stored(&self.key, self.key_is_parts).map_err(invalid)?,
        };
        let state = State::parse(&self.state)
            .filter(|state| *state != State::Pending)
            .ok_or_else(|| format!("state: expected a confirmed state, got {:?}", self.state))?;
        if self.attempt == 0 {
            return Err("attempt: expected 1 or more".to_owned());
        }
        let record = Record {
            registration_id: RegistrationId::parse(&self.registration_id)
                .ok_or("registrationId: expected 16 hexadecimal digits")?,
            state,
            attempt: self.attempt,
            nonce: Nonce::parse(&self.nonce).ok_or("nonce: expected 16 hexadecimal digits")?,
            won_at: time("wonAtMs", self.won_at_ms)?,
            first_seen_at: time("firstSeenAtMs", self.first_seen_at_ms)?,
            last_seen_at: time("lastSeenAtMs", self.last_seen_at_ms)?,
            window_ends_at: time("windowEndsAtMs", self.window_ends_at_ms)?,
            payload_hash: PayloadHash::parse(&self.payload_sha256).map_err(invalid)?,
            retry_count: self.retry_count,
            source_service: self.source_service.as_deref().map(SourceService::parse).transpose().map_err(invalid)?,
            drift: self.drift.map(WireDrift::into_drift).transpose()?,
            lease_ends_at: self.lease_ends_at_ms.map(|ms| time("leaseEndsAtMs", ms)).transpose()?,
            response: self.response.map(WireResponse::into_response).transpose()?,
            undurable: false,
            take_over: None,
        };
        if record.window_ends_at <= record.first_seen_at {
            return Err("windowEndsAtMs: expected a time after firstSeenAtMs".to_owned());
        }
        Ok(Fact { subject, record })
    }
}

impl WireDrift {
    fn into_drift(self) -> Result<Drift, String> {
        let last_hash = PayloadHash::parse(&self.last_sha256).map_err(|e| format!("drift.{e}"))?;
        Ok(Drift { count: self.count, last_hash, last_at: time("drift.lastAtMs", self.last_at_ms)? })
    }
}

impl WireResponse {
    fn into_response(self) -> Result<StoredResponse, String> {
        let body = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &self.body_base64)
            .map_err(|e| format!("response.bodyBase64: {e}"))?;
        if body.len() > StoredResponse::MAX_BYTES {
            return Err(format!("response.bodyBase64: expected at most {} bytes", StoredResponse::MAX_BYTES));
        }
        let content_type = ContentType::parse(&self.content_type).map_err(|e| format!("response.{e}"))?;
        Ok(StoredResponse { content_type, body })
    }
}

fn time(field: &str, millis: i64) -> Result<Timestamp, String> {
    let at = Timestamp::from_millis(millis);
    if at.as_millis() == millis { Ok(at) } else { Err(format!("{field}: expected milliseconds of 1970 to 9999")) }
}
