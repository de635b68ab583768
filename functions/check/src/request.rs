//! From JSON to a check. Nothing is trimmed, folded or guessed; each refusal names its field.

use ledger_domain::check::{BATCH_MAX, Check};
use ledger_domain::{Invalid, MessageKey, PayloadHash, RequestId, Scope, SourceService, Subject};
use ledger_lambda::http::fields::Fields;
use ledger_lambda::http::{Caller, Kind, Problem};
use serde_json::value::RawValue;

use crate::App;

const CHECK_FIELDS: [&str; 7] =
    ["scope", "key", "keyParts", "payloadSha256", "ttlSeconds", "sourceService", "requestId"];

/// Reads one check.
///
/// # Errors
/// [`Problem`] 400 naming the field; 403 where this deployment does not serve the scope's tenant.
pub(crate) fn check(json: &[u8], app: &App, caller: &Caller) -> Result<Check, Problem> {
    let fields = Fields::read(json, &CHECK_FIELDS)?;
    let scope = Scope::parse(&fields.required_string("scope")?, app.default_tenant.as_ref())?;
    let key = key(&fields)?;
    let payload = PayloadHash::parse(&fields.required_string("payloadSha256")?)?;
    let ttl_seconds = fields.whole_number("ttlSeconds")?;
    let source_service = fields.string("sourceService")?.as_deref().map(SourceService::parse).transpose()?;
    let request_id = fields.string("requestId")?.as_deref().map(RequestId::parse).transpose()?;
    if !app.tenants.serve(&scope) {
        let detail = format!("scope: the tenant {} is not granted here", scope.tenant());
        return Err(Problem::new(Kind::TenantNotGranted, detail).with_field("scope"));
    }
    let subject = Subject { scope, key };
    Ok(Check { subject, payload, ttl_seconds, source_service, request_id, principal: caller.0.clone(), claim: None })
}

fn key(fields: &Fields<'_>) -> Result<MessageKey, Invalid> {
    match (fields.string("key")?, fields.strings("keyParts")?) {
        (Some(key), None) => MessageKey::text(&key),
        (None, Some(parts)) => MessageKey::parts(&parts),
        (None, None) => Err(Invalid::new("key", "key or keyParts, but both are missing")),
        (Some(_), Some(_)) => Err(Invalid::new("keyParts", "key or keyParts, not both")),
    }
}

/// The items of a batch, each unread.
///
/// # Errors
/// [`Problem`] 400 where there are none, or more than [`BATCH_MAX`].
pub(crate) fn batch(json: &[u8]) -> Result<Vec<&RawValue>, Problem> {
    let items = Fields::read(json, &["items"])?.required_list("items")?;
    if items.is_empty() || items.len() > BATCH_MAX {
        return Err(Invalid::new("items", format!("1 to {BATCH_MAX} checks, got {}", items.len())).into());
    }
    Ok(items)
}
