//! From a page of messages to JSON.

use ledger_domain::search::{self, Message};
use ledger_domain::{State, Timestamp, Trail};
use serde::Serialize;

use crate::request::token;

/// A page on the wire.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page {
    messages: Vec<WireMessage>,
    next: Option<String>,
    /// By hash only: the time up to which facts are in the cold ledger; `null` where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<Option<String>>,
    /// Tiers that did not answer, so that what only they know is missing here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireMessage {
    scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_parts: Option<Vec<String>>,
    payload_sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_service: Option<String>,
    first_seen_at: String,
    last_seen_at: String,
    window_ends_at: String,
    retry_count: u32,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    registration_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<WireDrift>,
    /// Of a message that was claimed, or taken over: each attempt known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<WireAttempt>,
    /// The registration that this one repeats: it was answered NEW although that one's window was running.
    #[serde(skip_serializing_if = "Option::is_none")]
    false_new_of: Option<String>,
    location: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireDrift {
    count: u32,
    last_payload_sha256: String,
    last_at: String,
}

/// One attempt: who started it when, and how it ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WireAttempt {
    attempt: u16,
    /// `LAPSED`: its lease ran out, and a later attempt took over.
    outcome: &'static str,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ends_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_service: Option<String>,
}

impl Page {
    /// Of a page of messages.
    pub(crate) fn of(page: search::Page) -> Self {
        Self {
            messages: page.messages.into_iter().map(wire).collect(),
            next: page.next.map(token),
            as_of: None,
            missing: if page.hot_missing { vec!["hot"] } else { Vec::new() },
        }
    }

    /// The same, with the time up to which the cold ledger knows.
    pub(crate) fn with_as_of(self, as_of: Option<Timestamp>) -> Self {
        Self { as_of: Some(as_of.map(|at| at.to_string())), ..self }
    }
}

fn wire(message: Message) -> WireMessage {
    let Message { subject, record, trail, location, false_new_of } = message;
    let key_parts = subject.key.to_parts();
    let attempt = match record.state {
        State::Pending | State::Registered => None,
        State::InProgress | State::Failed | State::Resolved => Some(record.attempt),
    };
    WireMessage {
        scope: subject.scope.to_string(),
        key: key_parts.is_none().then(|| subject.key.to_string()),
        key_parts,
        payload_sha256: record.payload_hash.to_string(),
        source_service: record.source_service.map(|source| source.to_string()),
        first_seen_at: record.first_seen_at.to_string(),
        last_seen_at: record.last_seen_at.to_string(),
        window_ends_at: record.window_ends_at.to_string(),
        retry_count: record.retry_count,
        state: record.state.as_str(),
        attempt,
        registration_id: record.registration_id.to_string(),
        drift: record.drift.map(|drift| WireDrift {
            count: drift.count,
            last_payload_sha256: drift.last_hash.to_string(),
            last_at: drift.last_at.to_string(),
        }),
        attempts: attempts(&trail),
        false_new_of: false_new_of.map(|id| id.to_string()),
        location: location.as_str(),
    }
}

fn attempts(trail: &Trail) -> Vec<WireAttempt> {
    let last = trail.attempts().last().map(|attempt| attempt.attempt);
    let wire = |attempt: &ledger_domain::Attempt| WireAttempt {
        attempt: attempt.attempt,
        outcome: match attempt.state {
            // Its holder never said how it ended, and somebody else has started since.
            State::InProgress if Some(attempt.attempt) < last => "LAPSED",
            State::Pending | State::Registered | State::InProgress | State::Failed | State::Resolved => {
                attempt.state.as_str()
            }
        },
        started_at: attempt.started_at.to_string(),
        lease_ends_at: attempt.lease_ends_at.map(|at| at.to_string()),
        ended_at: attempt.ended.as_ref().map(|ended| ended.at.to_string()),
        reason: attempt.ended.as_ref().and_then(|ended| ended.reason.as_ref()).map(ToString::to_string),
        source_service: attempt.source_service.as_ref().map(ToString::to_string),
    };
    trail.attempts().iter().map(wire).collect()
}

#[cfg(test)]
mod tests {
    use ledger_domain::{Attempt, Nonce};

    use super::*;

    #[test]
    fn an_attempt_that_was_followed_before_its_holder_said_how_it_ended_has_lapsed() {
        let attempt = |attempt, state| Attempt {
            attempt,
            nonce: Nonce::from_bytes([1; 8]),
            state,
            started_at: Timestamp::from_millis(1_790_000_000_000),
            lease_ends_at: None,
            source_service: None,
            ended: None,
        };
        let of = |states: &[State]| {
            let trail = Trail::of((1..).zip(states).map(|(number, state)| attempt(number, *state)));
            attempts(&trail).into_iter().map(|attempt| attempt.outcome).collect::<Vec<_>>()
        };
        assert_eq!(of(&[State::InProgress]), ["IN_PROGRESS"]);
        assert_eq!(of(&[State::Failed, State::InProgress, State::InProgress]), ["FAILED", "LAPSED", "IN_PROGRESS"]);
        assert_eq!(of(&[State::InProgress, State::Registered]), ["LAPSED", "REGISTERED"]);
    }
}
