//! Facts: what the check function says to the cold writer, through a queue that repeats and reorders.
//!
//! A fact carries the whole record as known, never an increment, and a version. Merging facts of one registration is
//! [`Record::merge`].

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, Trail};
use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::key::MessageKey;
use crate::record::{Drift, Ended, Record, State, StoredResponse, Subject};
use crate::scope::Scope;
use crate::text::{ContentType, FailReason, SourceService};
use crate::time::Timestamp;

/// A record as known at one moment, with what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The (scope, key).
    pub subject: Subject,
    /// The record; never PENDING, and without the hot tier's own marks.
    pub record: Record,
    /// The attempt before the record's own, as a take-over found it: the fact that told its end may have been refused.
    pub before: Option<Attempt>,
}

/// Why a message is no fact that this release can read. It is kept, never dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FactError {
    /// Not JSON, or not an object with a version: nobody's fact.
    #[error("not a fact: {0}")]
    Malformed(String),
    /// Of a version that this release knows, and yet not as it is written: a fact all the same, of some registration.
    #[error("a damaged fact: {0}")]
    Damaged(String),
    /// Written by another release; a consumer that knows this version must take it.
    #[error("fact of unknown version {0}")]
    UnknownVersion(u64),
}

/// One fact.
const VERSION: u64 = 1;
/// Several facts that become durable together.
const TOGETHER_VERSION: u64 = 2;

#[derive(Deserialize)]
struct Versioned {
    v: u64,
}

/// Version 2 on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Together {
    v: u64,
    facts: Vec<Wire>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<WireEnded>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<WireAttempt>,
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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireEnded {
    at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// An attempt in a fact, and in the trail that a cold ledger keeps.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireAttempt {
    attempt: u16,
    nonce: String,
    state: String,
    started_at_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_ends_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source_service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<WireEnded>,
}

impl Fact {
    /// The fact that a record, once durable, is confirmed: what is sent for a PENDING, and for a repeat.
    #[must_use]
    pub fn of(subject: Subject, record: &Record) -> Self {
        let confirmed = if record.state == State::Pending { record.confirmed() } else { record.clone() };
        Self { subject, record: Record { undurable: false, take_over: None, ..confirmed }, before: None }
    }

    /// The attempts that this fact tells of.
    #[must_use]
    pub fn trail(&self) -> Trail {
        Trail::of(self.before.iter().cloned().chain(Attempt::of(&self.record)))
    }

    /// The message body: one JSON object of version 1.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and options only: serialising cannot fail.
        serde_json::to_string(&Wire::of(self)).unwrap_or_default()
    }

    /// The message body of facts that become durable together or not at all: one JSON object of version 2.
    #[must_use]
    pub fn to_json_together(facts: &[Self]) -> String {
        let together = Together { v: TOGETHER_VERSION, facts: facts.iter().map(Wire::of).collect() };
        serde_json::to_string(&together).unwrap_or_default()
    }

    /// Reads a message body: its facts, one or more.
    ///
    /// # Errors
    /// [`FactError::UnknownVersion`] where another release wrote it, [`FactError::Malformed`] where nobody did,
    /// [`FactError::Damaged`] where it says what this release does not write.
    pub fn all_from_json(body: &str) -> Result<Vec<Self>, FactError> {
        let Versioned { v } = serde_json::from_str(body).map_err(|e| FactError::Malformed(e.to_string()))?;
        let damaged = |e: serde_json::Error| FactError::Damaged(e.to_string());
        match v {
            VERSION => {
                let wire: Wire = serde_json::from_str(body).map_err(damaged)?;
                Ok(vec![wire.into_fact().map_err(FactError::Damaged)?])
            }
            TOGETHER_VERSION => {
                let together: Together = serde_json::from_str(body).map_err(damaged)?;
                if together.facts.is_empty() {
                    return Err(FactError::Damaged("facts: expected at least one".to_owned()));
                }
                together.facts.into_iter().map(|wire| wire.into_fact().map_err(FactError::Damaged)).collect()
            }
            other => Err(FactError::UnknownVersion(other)),
        }
    }
}

impl Wire {
    fn of(fact: &Fact) -> Self {
        let record = &fact.record;
        Self {
            v: VERSION,
            scope: fact.subject.scope.as_str().to_owned(),
            key: fact.subject.key.as_str().to_owned(),
            key_is_parts: fact.subject.key.is_parts(),
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
            attempt_source: record.attempt_source.as_ref().map(ToString::to_string),
            ended: record.ended.as_ref().map(WireEnded::of),
            before: fact.before.as_ref().map(WireAttempt::of),
        }
    }

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
            attempt_source: self.attempt_source.as_deref().map(SourceService::parse).transpose().map_err(invalid)?,
            ended: self.ended.map(WireEnded::into_ended).transpose()?,
            undurable: false,
            take_over: None,
        };
        if record.window_ends_at <= record.first_seen_at {
            return Err("windowEndsAtMs: expected a time after firstSeenAtMs".to_owned());
        }
        let before = self.before.map(WireAttempt::into_attempt).transpose()?;
        Ok(Fact { subject, record, before })
    }
}

impl WireEnded {
    fn of(ended: &Ended) -> Self {
        Self { at_ms: ended.at.as_millis(), reason: ended.reason.as_ref().map(ToString::to_string) }
    }

    fn into_ended(self) -> Result<Ended, String> {
        let reason = self.reason.as_deref().map(FailReason::parse).transpose().map_err(|e| format!("ended.{e}"))?;
        Ok(Ended { at: time("ended.atMs", self.at_ms)?, reason })
    }
}

impl WireAttempt {
    fn of(attempt: &Attempt) -> Self {
        Self {
            attempt: attempt.attempt,
            nonce: attempt.nonce.to_string(),
            state: attempt.state.as_str().to_owned(),
            started_at_ms: attempt.started_at.as_millis(),
            lease_ends_at_ms: attempt.lease_ends_at.map(Timestamp::as_millis),
            source_service: attempt.source_service.as_ref().map(ToString::to_string),
            ended: attempt.ended.as_ref().map(WireEnded::of),
        }
    }

    fn into_attempt(self) -> Result<Attempt, String> {
        let source = self.source_service.as_deref().map(SourceService::parse).transpose();
        Ok(Attempt {
            attempt: self.attempt,
            nonce: Nonce::parse(&self.nonce).ok_or("nonce of an attempt: expected 16 hexadecimal digits")?,
            state: State::parse(&self.state)
                .filter(|state| *state != State::Pending)
                .ok_or_else(|| format!("state of an attempt: expected a confirmed state, got {:?}", self.state))?,
            started_at: time("startedAtMs", self.started_at_ms)?,
            lease_ends_at: self.lease_ends_at_ms.map(|ms| time("leaseEndsAtMs", ms)).transpose()?,
            source_service: source.map_err(|e| format!("an attempt's {e}"))?,
            ended: self.ended.map(WireEnded::into_ended).transpose()?,
        })
    }
}

impl Trail {
    /// The trail as a cold ledger keeps it: a JSON array of its attempts, in the order of their places.
    #[must_use]
    pub fn to_json(&self) -> String {
        let attempts: Vec<_> = self.attempts().iter().map(WireAttempt::of).collect();
        serde_json::to_string(&attempts).unwrap_or_default()
    }

    /// Reads [`Trail::to_json`]'s array.
    ///
    /// # Errors
    /// In words, where it is none.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let attempts: Vec<WireAttempt> = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let attempts = attempts.into_iter().map(WireAttempt::into_attempt).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(attempts))
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
