//! Each operation of the port as a command, and its reply read back.

use ::redis::{Cmd, RedisError, Value};
use ledger_domain::ports::{Amend, Begin, Begun, Count, Heal, Release, Replace, Settle};
use ledger_domain::transition::{self, Amended, Counted, Found, Guard, Sighting, Swapped};
use ledger_domain::value::{self, IDENTITY_LEN};
use ledger_domain::{EPSILON_MS, PayloadHash, Record, Slot, State, StoredResponse, Timestamp};

use super::error::unexpected_reply;
use super::scripts::{AMEND, COUNT, Call, HEAL, RELEASE, REPLACE, SETTLE, Script};

/// The 20 digits of the widest number sent.
pub(super) const NUMBER_BYTES: usize = 20;
/// A store drops a value this much later than the clock says.
const GRACE_MS: u64 = EPSILON_MS.unsigned_abs() * 2;

/// One request, one command, one key.
pub(super) trait Command: Sync {
    /// What it is, as [`ledger_domain::ports::StoreError`] names it.
    const OPERATION: &'static str;
    /// What comes of it.
    type Output: Send;

    /// The script it calls, so that [`Call`] matters; `None` where it is a plain command.
    fn script() -> Option<&'static Script>;

    /// The key it touches.
    fn slot(&self) -> &Slot;

    /// The command.
    fn command(&self, call: Call) -> Cmd;

    /// What a reply that is no error says.
    fn read_reply(&self, reply: Value) -> Result<Self::Output, RedisError>;
}

/// A request picked out of a batch.
impl<C: Command> Command for &C {
    const OPERATION: &'static str = C::OPERATION;
    type Output = C::Output;

    fn script() -> Option<&'static Script> {
        C::script()
    }

    fn slot(&self) -> &Slot {
        (**self).slot()
    }

    fn command(&self, call: Call) -> Cmd {
        (**self).command(call)
    }

    fn read_reply(&self, reply: Value) -> Result<C::Output, RedisError> {
        (**self).read_reply(reply)
    }
}

impl Command for Slot {
    const OPERATION: &'static str = "read a slot";
    type Output = Found;

    fn script() -> Option<&'static Script> {
        None
    }

    fn slot(&self) -> &Slot {
        self
    }

    fn command(&self, _call: Call) -> Cmd {
        let mut cmd = Cmd::with_capacity(2, 3 + self.as_bytes().len());
        cmd.arg("GET").arg(self.as_bytes().as_slice());
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Found, RedisError> {
        found(reply)
    }
}

impl Command for Begin {
    const OPERATION: &'static str = "begin a registration";
    type Output = Begun;

    fn script() -> Option<&'static Script> {
        None
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, _call: Call) -> Cmd {
        let value = value::encode(&self.pending);
        let mut cmd = Cmd::with_capacity(7, 10 + self.slot.as_bytes().len() + value.len() + NUMBER_BYTES);
        cmd.arg("SET").arg(self.slot.as_bytes().as_slice()).arg(value);
        cmd.arg("NX").arg("GET").arg("PX").arg(px_ms(self.ttl_ms));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Begun, RedisError> {
        Ok(match found(reply)? {
            Found::Absent => Begun::Won,
            present @ (Found::Record(_) | Found::Unreadable) => Begun::Present(present),
        })
    }
}

impl Command for Settle {
    const OPERATION: &'static str = "settle a registration";
    type Output = Swapped;

    fn script() -> Option<&'static Script> {
        Some(&SETTLE)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let settled = value::encode(&self.settled);
        let identity = identity(&self.guard, State::Pending);
        // What settling left as it was: mostly the very value that was begun, which the script need then not look into.
        let mut pending = if self.settled.response.is_none() { settled.clone() } else { identity.to_vec() };
        pending[..IDENTITY_LEN].copy_from_slice(&identity);
        let bytes = pending.len() + settled.len() + NUMBER_BYTES;
        let mut cmd = SETTLE.call(call, self.slot.as_bytes(), 3, bytes);
        cmd.arg(pending).arg(settled).arg(pxat_ms(&self.settled));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Swapped, RedisError> {
        swapped(reply)
    }
}

impl Command for Count {
    const OPERATION: &'static str = "count a sighting";
    type Output = Counted;

    fn script() -> Option<&'static Script> {
        Some(&COUNT)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let sighting = sighting(self.now, &self.payload);
        // The script compares the whole value with what was read, and need then send nothing back.
        let (read, around) = if Guard::of(&self.read) == self.guard {
            let mut read = value::encode(&self.read);
            let around = self.read.response.as_ref().map(|response| {
                let (whole_len, notes) = (read.len(), value::encode_notes(&self.read));
                read.truncate(whole_len - notes.len() - response_section_len(response));
                (whole_len, notes)
            });
            (read, around)
        } else {
            (identity(&self.guard, self.guard.state).to_vec(), None)
        };
        let notes_len = around.as_ref().map_or(0, |(_, notes)| notes.len());
        let bytes = read.len() + sighting.len() + NUMBER_BYTES + notes_len;
        let mut cmd = COUNT.call(call, self.slot.as_bytes(), 4, bytes);
        cmd.arg(read).arg(sighting.as_slice());
        if let Some((whole_len, notes)) = around {
            cmd.arg(whole_len).arg(notes);
        }
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Counted, RedisError> {
        if reply == Value::Int(1) {
            let mut record = Box::new(self.read.clone());
            record.sight(self.now, &self.payload);
            return Ok(Counted::Counted(record));
        }
        let Value::Array(values) = reply else { return found(reply).map(Counted::Moved) };
        only_record(values).map(Counted::Counted)
    }
}

impl Command for Replace {
    const OPERATION: &'static str = "replace a registration whose window is over";
    type Output = Swapped;

    fn script() -> Option<&'static Script> {
        Some(&REPLACE)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let pending = value::encode(&self.pending);
        let bytes = IDENTITY_LEN + pending.len() + NUMBER_BYTES;
        let mut cmd = REPLACE.call(call, self.slot.as_bytes(), 3, bytes);
        cmd.arg(identity(&self.guard, self.guard.state).as_slice()).arg(pending).arg(px_ms(self.ttl_ms));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Swapped, RedisError> {
        swapped(reply)
    }
}

impl Command for Amend {
    const OPERATION: &'static str = "make a claim's transition";
    type Output = Amended;

    fn script() -> Option<&'static Script> {
        Some(&AMEND)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let (read, to) = (claim_part(&self.read), claim_part(&self.to));
        let notes = value::encode_notes(&self.to);
        let response = self.to.response.as_ref().map(value::encode_response).unwrap_or_default();
        let sighting = self.sighting.as_ref().map(|Sighting { at, payload }| sighting(*at, payload));
        let sighting = sighting.as_ref().map_or(&[][..], |sighting| sighting);
        let bytes = read.len() + to.len() + notes.len() + response.len() + sighting.len();
        // Mostly the whole value is the one that was read: the script need then neither look into it nor send it back.
        let whole = self.amended().map(|amended| (value::encode(&self.read), value::encode(&amended)));
        let whole_bytes = whole.as_ref().map_or(0, |(read, amended)| read.len() + amended.len());
        let mut cmd = AMEND.call(call, self.slot.as_bytes(), 7, bytes + whole_bytes);
        cmd.arg(read).arg(to).arg(notes).arg(response).arg(sighting);
        if let Some((read, amended)) = whole {
            cmd.arg(read).arg(amended);
        }
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Amended, RedisError> {
        if reply == Value::Int(1) {
            let amended = self.amended().ok_or_else(unexpected_reply)?;
            return Ok(Amended::Done(Box::new(Record { response: None, ..amended })));
        }
        let Value::Array(values) = reply else { return found(reply).map(Amended::Moved) };
        only_record(values).map(Amended::Done)
    }
}

/// The longest stored response that is sent a second time so that values can be compared whole, in bytes.
const WHOLE_RESPONSE_MAX_BYTES: usize = 1_024;

trait Whole {
    /// What stands after it where `read` stood; `None` where it is too long to be sent again.
    fn amended(&self) -> Option<Record>;
}

impl Whole for Amend {
    fn amended(&self) -> Option<Record> {
        let is_long = |response: &Option<StoredResponse>| {
            response.as_ref().is_some_and(|response| response.body.len() > WHOLE_RESPONSE_MAX_BYTES)
        };
        if is_long(&self.read.response) || is_long(&self.to.response) {
            return None;
        }
        let mut amended = self.read.clone();
        transition::apply(&mut amended, &self.to, self.sighting.as_ref());
        Some(amended)
    }
}

impl Command for Release {
    const OPERATION: &'static str = "release a registration";
    type Output = ();

    fn script() -> Option<&'static Script> {
        Some(&RELEASE)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let mut cmd = RELEASE.call(call, self.slot.as_bytes(), 1, IDENTITY_LEN);
        cmd.arg(identity(&self.guard, State::Pending).as_slice());
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<(), RedisError> {
        if reply == Value::Int(1) { Ok(()) } else { Err(unexpected_reply()) }
    }
}

impl Command for Heal {
    const OPERATION: &'static str = "heal a registration";
    type Output = bool;

    fn script() -> Option<&'static Script> {
        Some(&HEAL)
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let row = value::encode(&self.row);
        let mut cmd = HEAL.call(call, self.slot.as_bytes(), 3, IDENTITY_LEN + row.len() + NUMBER_BYTES);
        cmd.arg(identity(&Guard::of(&self.row), State::Pending).as_slice()).arg(row).arg(pxat_ms(&self.row));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<bool, RedisError> {
        if let Value::Int(written @ (0 | 1)) = reply { Ok(written == 1) } else { Err(unexpected_reply()) }
    }
}

fn found(reply: Value) -> Result<Found, RedisError> {
    if reply == Value::Nil {
        Ok(Found::Absent)
    } else if let Value::BulkString(bytes) = reply {
        Ok(value::decode(&bytes).map_or(Found::Unreadable, Found::record))
    } else {
        Err(unexpected_reply())
    }
}

/// The record that a script replies in a list, to tell it from what stands there and was not changed.
fn only_record(mut values: Vec<Value>) -> Result<Box<Record>, RedisError> {
    match (values.pop().map(found), values.is_empty()) {
        (Some(Ok(Found::Record(record))), true) => Ok(record),
        (Some(_) | None, _) => Err(unexpected_reply()),
    }
}

fn swapped(reply: Value) -> Result<Swapped, RedisError> {
    if reply == Value::Int(1) { Ok(Swapped::Done) } else { found(reply).map(Swapped::Moved) }
}

/// The first bytes of a value that `guard` holds for, in `state`.
fn identity(guard: &Guard, state: State) -> [u8; IDENTITY_LEN] {
    value::identity(state, guard.registration_id, guard.attempt, guard.nonce)
}

/// A sighting as scripts take it: its time, then its payload hash.
fn sighting(at: Timestamp, payload: &PayloadHash) -> [u8; 38] {
    let mut sighting = [0; 38];
    sighting[..6].copy_from_slice(&value::encode_time(at));
    sighting[6..].copy_from_slice(payload.as_bytes());
    sighting
}

/// A claim part as the script takes it: as in a value, but that it always says when the record was won.
fn claim_part(record: &Record) -> Vec<u8> {
    let claim = value::encode_claim(record);
    let (flags, sections) = claim.split_at(1);
    let won_at = value::encode_time(record.won_at);
    let lease_and_take_over = if record.won_at == record.first_seen_at { sections } else { &sections[won_at.len()..] };
    [&identity(&Guard::of(record), record.state), flags, &won_at, lease_and_take_over].concat()
}

/// The response section's length: type with its length, body with its length.
fn response_section_len(response: &StoredResponse) -> usize {
    1 + response.content_type.as_str().len() + 4 + response.body.len()
}

fn px_ms(ttl_ms: u64) -> u64 {
    ttl_ms.saturating_add(GRACE_MS)
}

pub(super) fn pxat_ms(record: &Record) -> i64 {
    let end: Timestamp = record.window_ends_at;
    end.as_millis() + EPSILON_MS * 2
}
