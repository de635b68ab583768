//! The custom resource that brings the schema up to a release. Whatever happens, there is an answer: CloudFormation waits for
//! one, an hour where it is told nothing else.

use std::time::Duration;

use ledger_domain::ports::chain;
use serde_json::{Value, json};

use crate::App;

/// The one schema of a stack; it never changes, or CloudFormation would delete the old one after an update.
pub const PHYSICAL_ID: &str = "dedup-ledger-schema";
/// The longest reason; CloudFormation takes an answer of 4,096 bytes in all.
pub const REASON_CHARS_MAX: usize = 400;
/// What the migration leaves of Lambda's time, in milliseconds: for the answer and its repetitions.
const ANSWER_MARGIN_MS: u64 = 10_000;
/// The least time a migration is given, in milliseconds.
const MIGRATE_MIN_MS: u64 = 1_000;
/// The longest version that a template may name.
const VERSION_CHARS_MAX: usize = 64;

/// A request of CloudFormation: what the answer needs, as far as it is there, and what is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Where the answer goes. Whoever knows it can answer: it is not logged.
    pub(crate) response_url: String,
    request_type: String,
    stack_id: String,
    request_id: String,
    logical_id: String,
    physical_id: Option<String>,
    properties: Value,
}

impl Request {
    /// The request in an event; `None` where it names no place for an answer.
    #[must_use]
    pub fn of(event: &Value) -> Option<Self> {
        let text = |name: &str| event.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            response_url: text("ResponseURL")?,
            request_type: text("RequestType").unwrap_or_default(),
            stack_id: text("StackId").unwrap_or_default(),
            request_id: text("RequestId").unwrap_or_default(),
            logical_id: text("LogicalResourceId").unwrap_or_default(),
            physical_id: text("PhysicalResourceId").filter(|id| !id.is_empty()),
            properties: event.get("ResourceProperties").cloned().unwrap_or_default(),
        })
    }

    /// The answer's body.
    pub(crate) fn answer(&self, outcome: &Outcome) -> String {
        let reason = match outcome {
            Outcome::Success => "done",
            Outcome::Failed(reason) => reason,
        };
        json!({
            "Status": outcome.status(),
            "Reason": reason,
            "PhysicalResourceId": self.physical_id.as_deref().unwrap_or(PHYSICAL_ID),
            "StackId": self.stack_id,
            "RequestId": self.request_id,
            "LogicalResourceId": self.logical_id,
        })
        .to_string()
    }

    /// Whether there is a schema to bring up, or nothing to do.
    fn wants_migration(&self) -> Result<bool, String> {
        match self.request_type.as_str() {
            // Nothing is taken down with the stack, whatever its properties were.
            "Delete" => Ok(false),
            "Create" | "Update" => {
                let version = self.properties.get("SchemaVersion").and_then(Value::as_str);
                let is_version = |version: &str| (1..=VERSION_CHARS_MAX).contains(&version.chars().count());
                if version.is_some_and(is_version) {
                    Ok(true)
                } else {
                    Err(format!("SchemaVersion: expected a text of 1 to {VERSION_CHARS_MAX} characters"))
                }
            }
            _ => Err("RequestType: expected Create, Update or Delete".to_owned()),
        }
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failed(String),
}

impl Outcome {
    /// The name on the wire.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Failed(_) => "FAILED",
        }
    }

    fn failed(reason: &str) -> Self {
        tracing::error!(reason, "ALARM: the schema was not brought up to this release");
        Self::Failed(told(reason))
    }
}

/// What a stack's events may show: short, and no part of a connection URL.
fn told(reason: &str) -> String {
    let words = reason.split_whitespace().map(|word| if word.contains("://") { "(a URL)" } else { word });
    let text = words.collect::<Vec<_>>().join(" ");
    text.chars().take(REASON_CHARS_MAX).collect()
}

/// Does what is asked, in the time that is left.
pub(crate) async fn work(app: &App, request: &Request, remaining_ms: u64) -> Outcome {
    match request.wants_migration() {
        Ok(true) => {}
        Ok(false) => return Outcome::Success,
        Err(why) => return Outcome::failed(&why),
    }
    let migrate = match &app.migrate {
        Ok(migrate) => std::sync::Arc::clone(migrate),
        Err(why) => return Outcome::failed(why),
    };
    // A task of its own: a panic in it ends it alone, and it can be ended where it hangs.
    let mut migrating = tokio::spawn(async move { migrate().await });
    let time_ms = remaining_ms.saturating_sub(ANSWER_MARGIN_MS).max(MIGRATE_MIN_MS);
    match tokio::time::timeout(Duration::from_millis(time_ms), &mut migrating).await {
        Ok(Ok(Ok(()))) => Outcome::Success,
        Ok(Ok(Err(error))) => Outcome::failed(&chain(&error)),
        Ok(Err(_)) => Outcome::failed("the migration panicked; the function's log says where"),
        Err(_) => {
            migrating.abort();
            Outcome::failed(
                "the migration took too long and was ended; each step is a transaction, so it can go on later",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_short_and_shows_no_url() {
        let reason = format!("connect to postgres://owner:secret@host/db failed: {}", "x".repeat(1_000));
        let told = told(&reason);
        assert!(!told.contains("secret") && told.starts_with("connect to (a URL) failed: xxx"), "{told}");
        assert_eq!(told.chars().count(), REASON_CHARS_MAX);
    }

    #[test]
    fn a_physical_id_that_there_is_stays() {
        let id_of = |event: Value| {
            let answer = Request::of(&event).expect("a request").answer(&Outcome::Success);
            serde_json::from_str::<Value>(&answer).expect("JSON")["PhysicalResourceId"].clone()
        };
        assert_eq!(id_of(json!({"ResponseURL": "https://h/"})), PHYSICAL_ID);
        assert_eq!(id_of(json!({"ResponseURL": "https://h/", "PhysicalResourceId": "older"})), "older");
    }
}
