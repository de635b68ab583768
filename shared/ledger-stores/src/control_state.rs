//! The hot tier's state as every control plane names it: cold sessions and how far the keeper is, their fields as JSON.

use ledger_domain::ports::{ColdSession, KeeperState, Position, StoreError};
use ledger_domain::{FillPass, RegistrationId, SessionId, Timestamp};
use serde_json::{Map, Value};

/// What is asked, in a failure's text.
pub(crate) const READ_SESSIONS: &str = "read cold sessions";
pub(crate) const OPEN_SESSION: &str = "open a cold session";
pub(crate) const RENEW_SESSION: &str = "renew a cold session";
pub(crate) const REMOVE_SESSION: &str = "remove a cold session";
pub(crate) const READ_KEEPER: &str = "read how far the keeper is";
pub(crate) const SAVE_KEEPER: &str = "save how far the keeper is";

/// A session's one field beside its id.
pub(crate) const EXPIRES_AT: &str = "expiresAtMs";
/// The keeper's field that each write compares.
pub(crate) const VERSION: &str = "version";

/// An entry's fields by their names.
pub(crate) type Fields = Map<String, Value>;

/// Reads a session from its name and fields.
///
/// # Errors
/// [`StoreError::Rejected`] naming the session and what is wrong with it.
pub(crate) fn read_session(name: &str, fields: Fields) -> Result<ColdSession, StoreError> {
    let refused = |problem: String| StoreError::rejected(READ_SESSIONS, format!("cold session {name:?}: {problem}"));
    // Written in one way only, so that a write finds what was read.
    let id = SessionId::parse(name).filter(|id| id.to_string() == name);
    let id = id.ok_or_else(|| refused("expected a name of 16 lower-case hexadecimal digits".to_owned()))?;
    let mut fields = Reader(fields);
    let expires_at = fields.time(EXPIRES_AT).map_err(refused)?;
    fields.end().map_err(refused)?;
    Ok(ColdSession { id, expires_at })
}

/// Whether opening `wanted` again changed nothing: a session of that id stands until then, at least.
///
/// # Errors
/// [`StoreError::Rejected`] where it stands until some earlier time: the caller would rely on it for too long.
pub(crate) fn reopened(wanted: &ColdSession, standing: &ColdSession) -> Result<(), StoreError> {
    if standing.expires_at >= wanted.expires_at {
        return Ok(());
    }
    let problem = format!("cold session {} stands until {}, not {}", wanted.id, standing.expires_at, wanted.expires_at);
    Err(StoreError::rejected(OPEN_SESSION, problem))
}

/// The version that must stand before a state is written; `None`: no state at all.
///
/// # Errors
/// [`StoreError::Rejected`] for a version that no state has.
pub(crate) fn version_before(state: &KeeperState) -> Result<Option<u64>, StoreError> {
    match state.version {
        0 => Err(StoreError::rejected(SAVE_KEEPER, "version 0: expected one from 1")),
        version => Ok(Some(version - 1).filter(|before| *before > 0)),
    }
}

/// The keeper's fields.
pub(crate) fn keeper_fields(state: &KeeperState) -> Fields {
    let KeeperState {
        version,
        busy_until,
        lost_at,
        zero_runs,
        zero_at,
        pass,
        pass_began_at,
        cursor,
        pass_done,
        pass_rows,
    } = state;
    let mut fields = Fields::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    set(VERSION, (*version).into());
    set("busyUntilMs", busy_until.as_millis().into());
    set("lostAtMs", lost_at.as_millis().into());
    set("zeroRuns", (*zero_runs).into());
    if let Some(zero_at) = zero_at {
        set("zeroAtMs", zero_at.as_millis().into());
    }
    if let Some(pass) = pass {
        set("pass", pass.to_string().into());
    }
    set("passBeganAtMs", pass_began_at.as_millis().into());
    if let Some(Position { first_seen_at, registration_id }) = cursor {
        set("cursorFirstSeenAtMs", first_seen_at.as_millis().into());
        set("cursorRegistrationId", registration_id.to_string().into());
    }
    set("passDone", (*pass_done).into());
    set("passRows", (*pass_rows).into());
    fields
}

/// Reads what [`keeper_fields`] wrote.
///
/// # Errors
/// [`StoreError::Rejected`] naming the field that is wrong.
pub(crate) fn read_keeper(fields: Fields) -> Result<KeeperState, StoreError> {
    let mut fields = Reader(fields);
    let mut read = || {
        let cursor =
            (fields.optional_time("cursorFirstSeenAtMs")?, fields.id("cursorRegistrationId", RegistrationId::parse)?);
        let cursor = match cursor {
            (Some(first_seen_at), Some(registration_id)) => Some(Position { first_seen_at, registration_id }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err("half of a cursor".to_owned()),
        };
        let state = KeeperState {
            version: fields.number(VERSION)?,
            busy_until: fields.time("busyUntilMs")?,
            lost_at: fields.time("lostAtMs")?,
            zero_runs: fields.number("zeroRuns")?.try_into().map_err(|_| "zeroRuns: too large".to_owned())?,
            zero_at: fields.optional_time("zeroAtMs")?,
            pass: fields.id("pass", FillPass::parse)?,
            pass_began_at: fields.time("passBeganAtMs")?,
            cursor,
            pass_done: fields.truth("passDone")?,
            pass_rows: fields.number("passRows")?,
        };
        fields.end()?;
        Ok(state)
    };
    read().map_err(|problem| StoreError::rejected(READ_KEEPER, format!("keeper state: {problem}")))
}

/// Takes an entry's fields one by one.
struct Reader(Fields);

impl Reader {
    fn optional_number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| format!("{name}: expected a whole number from 0, got {value}"))
    }

    fn number(&mut self, name: &str) -> Result<u64, String> {
        self.optional_number(name)?.ok_or_else(|| format!("{name}: missing"))
    }

    fn optional_time(&mut self, name: &str) -> Result<Option<Timestamp>, String> {
        let Some(number) = self.optional_number(name)? else { return Ok(None) };
        let millis = i64::try_from(number).unwrap_or(i64::MAX);
        let time = Timestamp::from_millis(millis);
        if time.as_millis() == millis { Ok(Some(time)) } else { Err(format!("{name}: {number} is no time")) }
    }

    fn time(&mut self, name: &str) -> Result<Timestamp, String> {
        self.optional_time(name)?.ok_or_else(|| format!("{name}: missing"))
    }

    fn truth(&mut self, name: &str) -> Result<bool, String> {
        match self.0.remove(name) {
            Some(Value::Bool(value)) => Ok(value),
            other => Err(format!("{name}: expected true or false, got {other:?}")),
        }
    }

    fn id<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        let id = value.as_str().and_then(parse);
        id.map(Some).ok_or_else(|| format!("{name}: expected 16 hexadecimal digits, got {value}"))
    }

    /// Nothing may be left: what this release cannot read it must not write over.
    fn end(&self) -> Result<(), String> {
        self.0.keys().next().map_or(Ok(()), |name| Err(format!("{name}: no such field")))
    }
}
