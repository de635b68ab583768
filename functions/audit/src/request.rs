//! From a query string to a search.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ledger_domain::ports::{HistoryQuery, Position};
use ledger_domain::{Invalid, MessageKey, PayloadHash, RegistrationId, Scope, Subject, Tenant, Timestamp};
use ledger_lambda::http::{Kind, Problem};
use percent_encoding::percent_decode_str;

use crate::App;

/// The largest page.
const LIMIT_MAX: usize = 1_000;
/// The page where `limit` is left out.
const LIMIT_DEFAULT: usize = 100;
const KNOWN: [&str; 9] = ["scope", "key", "keyPart", "tenant", "payloadSha256", "from", "to", "limit", "next"];

/// A search.
#[derive(Debug)]
pub(crate) enum Search {
    /// Every registration of one key.
    ByKey { subject: Subject, query: HistoryQuery },
    /// Every registration of one tenant with one payload.
    ByHash { tenant: Tenant, payload: PayloadHash, query: HistoryQuery },
}

/// Reads a query string.
///
/// # Errors
/// [`Problem`] 400 naming the parameter; 403 where this deployment does not serve the tenant.
pub(crate) fn read(query: &str, app: &App) -> Result<Search, Problem> {
    let parameters = Parameters::read(query)?;
    let page = page(&parameters)?;
    match (parameters.one("scope")?, parameters.one("payloadSha256")?) {
        (Some(scope), None) => {
            parameters.refuse(&["tenant"], "it is given with payloadSha256")?;
            let scope = Scope::parse(scope, app.default_tenant.as_ref())?;
            let key = key(&parameters)?;
            granted(app, scope.tenant(), "scope")?;
            Ok(Search::ByKey { subject: Subject { scope, key }, query: page })
        }
        (None, Some(payload)) => {
            parameters.refuse(&["key", "keyPart"], "they are given with scope")?;
            let tenant = match (parameters.one("tenant")?, &app.default_tenant) {
                (Some(tenant), _) => Tenant::parse(tenant)?,
                (None, Some(tenant)) => tenant.clone(),
                (None, None) => return Err(Invalid::new("tenant", "a tenant, but it is missing").into()),
            };
            let payload = PayloadHash::parse(payload)?;
            granted(app, tenant.as_str(), "tenant")?;
            Ok(Search::ByHash { tenant, payload, query: page })
        }
        (None, None) => Err(Invalid::new("scope", "scope with key or keyPart, or tenant with payloadSha256").into()),
        (Some(_), Some(_)) => {
            Err(Invalid::new("payloadSha256", "scope with key or keyPart, or tenant with payloadSha256, not both")
                .into())
        }
    }
}

fn granted(app: &App, tenant: &str, field: &str) -> Result<(), Problem> {
    if app.tenants.serve_name(tenant) {
        return Ok(());
    }
    let detail = format!("{field}: the tenant {tenant} is not granted here");
    Err(Problem::new(Kind::TenantNotGranted, detail).with_field(field))
}

fn key(parameters: &Parameters) -> Result<MessageKey, Invalid> {
    let parts: Vec<_> = parameters.all("keyPart").collect();
    match (parameters.one("key")?, parts.is_empty()) {
        (Some(key), true) => MessageKey::text(key),
        (None, false) => MessageKey::parts(&parts).map_err(|invalid| {
            // The parameter is repeated under one name.
            let field = if invalid.field.starts_with("keyParts") { "keyPart".to_owned() } else { invalid.field };
            Invalid { field, ..invalid }
        }),
        (None, true) => Err(Invalid::new("key", "key or repeated keyPart, but both are missing")),
        (Some(_), false) => Err(Invalid::new("keyPart", "key or repeated keyPart, not both")),
    }
}

fn page(parameters: &Parameters) -> Result<HistoryQuery, Invalid> {
    let time = |name: &str| -> Result<Option<Timestamp>, Invalid> {
        let expected = || Invalid::new(name, "an RFC 3339 time with offset, such as 2026-11-30T12:00:00.000Z");
        parameters.one(name)?.map(|text| Timestamp::parse_rfc3339(text).ok_or_else(expected)).transpose()
    };
    let limit = match parameters.one("limit")? {
        None => LIMIT_DEFAULT,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=LIMIT_MAX).contains(limit))
            .ok_or_else(|| Invalid::new("limit", format!("a whole number, 1 to {LIMIT_MAX}")))?,
    };
    let after = parameters
        .one("next")?
        .map(|text| position(text).ok_or_else(|| Invalid::new("next", "the `next` of an earlier page, unchanged")))
        .transpose()?;
    let from = time("from")?.unwrap_or(Timestamp::MIN);
    let to = time("to")?.unwrap_or(Timestamp::MAX);
    if to <= from {
        return Err(Invalid::new("to", "a time after `from`"));
    }
    Ok(HistoryQuery { from, to, after, limit })
}

/// A position as callers pass it on: opaque to them.
pub(crate) fn token(position: Position) -> String {
    let mut bytes = position.first_seen_at.as_millis().to_be_bytes().to_vec();
    bytes.extend_from_slice(position.registration_id.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn position(token: &str) -> Option<Position> {
    let bytes: [u8; 16] = URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok()?;
    let (millis, id) = bytes.split_at(8);
    Some(Position {
        first_seen_at: Timestamp::from_millis(i64::from_be_bytes(millis.try_into().ok()?)),
        registration_id: RegistrationId::from_bytes(id.try_into().ok()?),
    })
}

/// The parameters of a query string, decoded.
struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    fn read(query: &str) -> Result<Self, Invalid> {
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = KNOWN.into_iter().find(|known| *known == name) else {
                let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
                return Err(Invalid::new(name, format!("one of {}", KNOWN.join(", "))));
            };
            // Strictly: what is no UTF-8 was never stored, and must not be mended into another key.
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8();
            let value = value.map_err(|_| Invalid::new(name, "percent-encoded UTF-8"))?;
            pairs.push((name, value.into_owned()));
        }
        Ok(Self(pairs))
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| *field == name).map(|(_, value)| value.as_str())
    }

    fn one<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, Invalid> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(Invalid::new(name, "the parameter once")),
        }
    }

    fn refuse(&self, names: &[&str], why: &str) -> Result<(), Invalid> {
        match names.iter().find(|name| self.all(name).next().is_some()) {
            None => Ok(()),
            Some(name) => Err(Invalid::new(*name, format!("no such parameter here: {why}"))),
        }
    }
}
