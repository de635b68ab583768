//! A policy entry as every control plane names it: which entry, and its fields by name.

use ledger_domain::ports::StoreError;
use ledger_domain::{ConfirmMiss, PolicyFields, PolicySet, Scope, Tenant, Unconfirmed};

/// What is asked, in a failure's text.
pub(crate) const READ: &str = "read policies";

/// The most entries that are read; a hub has tens.
pub(crate) const ENTRIES_MAX: usize = 10_000;

/// A field's value, whatever stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Bool(bool),
    Text(String),
    /// Something that no field may hold, in words.
    Other(String),
}

/// Sets one entry. `kind` is `scope`, `tenant` or `family`.
///
/// # Errors
/// [`StoreError::Rejected`] naming the entry and the field.
pub(crate) fn set(
    policies: &mut PolicySet,
    kind: &str,
    name: &str,
    fields: impl IntoIterator<Item = (String, Value)>,
) -> Result<(), StoreError> {
    let refused = |problem: String| StoreError::rejected(READ, format!("policy {kind} {name}: {problem}"));
    if policies.len() >= ENTRIES_MAX {
        return Err(refused(format!("expected at most {ENTRIES_MAX} entries")));
    }
    let mut entry = PolicyFields::default();
    for (field, value) in fields {
        set_field(&mut entry, &field, value).map_err(|problem| refused(format!("{field}: {problem}")))?;
    }
    let outcome = match kind {
        "scope" => policies.set_scope(&Scope::parse(name, None).map_err(|e| refused(e.to_string()))?, entry),
        "tenant" => policies.set_tenant(&Tenant::parse(name).map_err(|e| refused(e.to_string()))?, entry),
        "family" => policies.set_family(name, entry),
        _ => return Err(refused("expected a scope, tenant or family".to_owned())),
    };
    outcome.map_err(|e| StoreError::rejected(READ, e))
}

fn set_field(entry: &mut PolicyFields, field: &str, value: Value) -> Result<(), String> {
    match field {
        "windowDefaultSeconds" => entry.window_default_seconds = Some(number(value)?),
        "windowMinSeconds" => entry.window_min_seconds = Some(number(value)?),
        "windowMaxSeconds" => entry.window_max_seconds = Some(number(value)?),
        "leaseMinSeconds" => entry.lease_min_seconds = Some(number(value)?),
        "leaseMaxSeconds" => entry.lease_max_seconds = Some(number(value)?),
        "replaySeconds" => entry.replay_seconds = Some(number(value)?),
        "requireRequestId" => {
            entry.require_request_id = match value {
                Value::Bool(value) => Some(value),
                Value::Number(_) | Value::Text(_) | Value::Other(_) => {
                    return Err(format!("expected true or false, got {}", value.shown()));
                }
            };
        }
        "confirmMiss" => {
            let parsed = match &value {
                Value::Text(text) => ConfirmMiss::parse(text),
                Value::Number(_) | Value::Bool(_) | Value::Other(_) => None,
            };
            let expected = || format!("expected \"always\" or \"whenIncomplete\", got {}", value.shown());
            entry.confirm_miss = Some(parsed.ok_or_else(expected)?);
        }
        "unconfirmed" => {
            let parsed = match &value {
                Value::Text(text) => Unconfirmed::parse(text),
                Value::Number(_) | Value::Bool(_) | Value::Other(_) => None,
            };
            let expected = || format!("expected \"refuse\" or \"allow\", got {}", value.shown());
            entry.unconfirmed = Some(parsed.ok_or_else(expected)?);
        }
        _ => return Err("no such field".to_owned()),
    }
    Ok(())
}

fn number(value: Value) -> Result<u64, String> {
    match value {
        Value::Number(number) => Ok(number),
        Value::Bool(_) | Value::Text(_) | Value::Other(_) => {
            Err(format!("expected a whole number from 0, got {}", value.shown()))
        }
    }
}

impl Value {
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::Other(text) => text.clone(),
        }
    }
}
