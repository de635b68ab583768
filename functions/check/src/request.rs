//! From JSON to a check. Nothing is trimmed, folded or guessed; each refusal names its field.

use ledger_domain::check::{BATCH_MAX, Check, ClaimRequest};
use ledger_domain::{Invalid, MessageKey, PayloadHash, RequestId, Scope, SourceService, Subject};
use ledger_lambda::http::fields::Fields;
use ledger_lambda::http::{Caller, Kind, Problem};
use serde_json::value::RawValue;

use crate::App;

const CHECK_FIELDS: [&str; 8] =
    ["scope", "key", "keyParts", "payloadSha256", "ttlSeconds", "sourceService", "requestId", "claim"];

/// Reads one check.
///
/// # Errors
/// [`Problem`] 400 naming the field; 403 where this deployment does not serve the scope's tenant.
pub(crate) fn check(json: &[u8], app: &App, caller: &Caller) -> Result<Check, Problem> {
    let fields = Fields::read(json, &CHECK_FIELDS)?;
    let subject = subject(&fields, app)?;
    let payload = PayloadHash::parse(&fields.required_string("payloadSha256")?)?;
    let ttl_seconds = fields.whole_number("ttlSeconds")?;
    let source_service = fields.string("sourceService")?.as_deref().map(SourceService::parse).transpose()?;
    let request_id = fields.string("requestId")?.as_deref().map(RequestId::parse).transpose()?;
    let claim = claim(&fields)?;
    check_tenant(&subject.scope, app)?;
    Ok(Check { subject, payload, ttl_seconds, source_service, request_id, principal: caller.0.clone(), claim })
}

/// The message that a request is about.
///
/// # Errors
/// [`Invalid`] naming the field.
pub(crate) fn subject(fields: &Fields<'_>, app: &App) -> Result<Subject, Invalid> {
    let scope = Scope::parse(&fields.required_string("scope")?, app.default_tenant.as_ref())?;
    Ok(Subject { scope, key: key(fields)? })
}

/// Whether this deployment serves the scope's tenant.
///
/// # Errors
/// [`Problem`] 403 where it does not.
pub(crate) fn check_tenant(scope: &Scope, app: &App) -> Result<(), Problem> {
    if app.tenants.serve(scope) {
        return Ok(());
    }
    let detail = format!("scope: the tenant {} is not granted here", scope.tenant());
    Err(Problem::new(Kind::TenantNotGranted, detail).with_field("scope"))
}

fn claim(fields: &Fields<'_>) -> Result<Option<ClaimRequest>, Problem> {
    let Some(claim) = fields.object("claim", &["leaseSeconds"])? else { return Ok(None) };
    let lease_seconds = lease_seconds(&claim)?;
    Ok(Some(ClaimRequest { lease_seconds }))
}

/// A lease that must be there; its bounds are the policy's.
///
/// # Errors
/// [`Problem`] 400 naming the field.
pub(crate) fn lease_seconds(fields: &Fields<'_>) -> Result<u64, Problem> {
    fields.required_whole_number("leaseSeconds").map_err(|invalid| Problem::invalid(Kind::InvalidLease, invalid))
}

fn key(fields: &Fields<'_>) -> Result<MessageKey, Invalid> {
    match (fields.string("key")?, fields.strings("keyParts")?) {
        (Some(key), None) => MessageKey::text(&key),
        (None, Some(parts)) => MessageKey::parts(&parts),
        (None, None) => Err(Invalid::new("key", "key or keyParts, but both are missing")),
        (Some(_), Some(_)) => Err(Invalid::new("keyParts", "key or keyParts, not both")),
    }
}

/// A batch of checks, its items unread.
pub(crate) struct Batch<'a> {
    pub(crate) items: Vec<&'a RawValue>,
    /// All claimed, or none.
    pub(crate) atomic: bool,
}

/// Reads a batch, but not its items.
///
/// # Errors
/// [`Problem`] 400 where there are none, or more than [`BATCH_MAX`].
pub(crate) fn batch(json: &[u8]) -> Result<Batch<'_>, Problem> {
    let fields = Fields::read(json, &["items", "atomic"])?;
    let items = fields.required_list("items")?;
    if items.is_empty() || items.len() > BATCH_MAX {
        return Err(Invalid::new("items", format!("1 to {BATCH_MAX} checks, got {}", items.len())).into());
    }
    Ok(Batch { items, atomic: fields.boolean("atomic")?.unwrap_or(false) })
}
