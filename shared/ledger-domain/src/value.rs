//! The hot tier's value: a compact, versioned layout of a [`Record`], 75 bytes for a plain one.
//!
//! ```text
//! offset  bytes  field                       offset  bytes  field
//!      0      1  version, 1                      24      6  last seen, ms
//!      1      1  state, 1 to 5                   30      6  first seen, ms
//!      2      8  registration id                 36      6  window end, ms
//!     10      2  attempt                         42     32  payload hash
//!     12      8  nonce                           74      1  flags: which sections follow
//!     20      4  retry count                     75      .  the sections, in the order of their flags
//! ```
//! Sections: drift (count 4, time 6, hash 32), won at (6), lease end (6), take-over (deadline 6, attempt 2, nonce 8, won at
//! 6, lease end 6 or zeros), source service (length 1, text), response (type length 1, type, body length 4, body), notes on
//! the attempt (source service: length 1, text; end 6 or zeros; reason: length 1, text; lengths may be 0). Numbers are
//! big-endian. Drift comes first, so a script can change it in place.
//!
//! The first [`IDENTITY_LEN`] bytes are what a script compares; [`COUNTED_OFFSET`] is what it rewrites for a sighting.
//! A reader that meets another version, or damage, gets [`Unreadable`]: such a value is never NEW.

use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::record::{Drift, Ended, Record, State, StoredResponse, TakeOver};
use crate::text::{ContentType, FailReason, SourceService};
use crate::time::Timestamp;

/// The layout's version, the value's first byte.
pub const VERSION: u8 = 1;
/// Version, state, registration id, attempt and nonce: what a compare-and-set compares.
pub const IDENTITY_LEN: usize = 20;
/// Where the retry count (4 bytes) and the last sighting (6 bytes) stand.
pub const COUNTED_OFFSET: usize = 20;
/// Where the flags stand.
pub const FLAGS_OFFSET: usize = 74;
/// The length of a plain record, and where the first section stands.
pub const FIXED_LEN: usize = 75;
/// The length of the drift section.
pub const DRIFT_LEN: usize = 42;
/// The flag of the drift section.
pub const FLAG_DRIFT: u8 = 1;
const FLAG_WON_AT: u8 = 1 << 1;
const FLAG_LEASE: u8 = 1 << 2;
const FLAG_UNDURABLE: u8 = 1 << 3;
const FLAG_TAKE_OVER: u8 = 1 << 4;
const FLAG_SOURCE: u8 = 1 << 5;
/// The flag of the response section.
pub const FLAG_RESPONSE: u8 = 1 << 6;
const FLAG_NOTES: u8 = 1 << 7;
/// The flags of what a claim's transition compares and replaces beside the identity: won at, lease, undurable, take-over. Their
/// sections stand side by side.
pub const CLAIM_FLAGS: u8 = FLAG_WON_AT | FLAG_LEASE | FLAG_UNDURABLE | FLAG_TAKE_OVER;

/// A value of an unknown version, or a damaged one. It stands for *some* registration, so it is never NEW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

/// Writes a record.
#[must_use]
pub fn encode(record: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED_LEN);
    out.extend_from_slice(&identity(record.state, record.registration_id, record.attempt, record.nonce));
    out.extend_from_slice(&record.retry_count.to_be_bytes());
    push_time(&mut out, record.last_seen_at);
    push_time(&mut out, record.first_seen_at);
    push_time(&mut out, record.window_ends_at);
    out.extend_from_slice(record.payload_hash.as_bytes());
    let mut flags = 0;
    out.push(0);
    if let Some(drift) = &record.drift {
        flags |= FLAG_DRIFT;
        push_drift(&mut out, drift);
    }
    flags |= push_claim(&mut out, record);
    if let Some(source) = &record.source_service {
        flags |= FLAG_SOURCE;
        push_short(&mut out, source.as_str());
    }
    if let Some(response) = &record.response {
        flags |= FLAG_RESPONSE;
        push_response(&mut out, response);
    }
    if record.attempt_source.is_some() || record.ended.is_some() {
        flags |= FLAG_NOTES;
        push_notes(&mut out, record);
    }
    out[FLAGS_OFFSET] = flags;
    out
}

/// The first [`IDENTITY_LEN`] bytes of a record that is `state`, of this registration, attempt and winning check.
#[must_use]
pub fn identity(state: State, registration_id: RegistrationId, attempt: u16, nonce: Nonce) -> [u8; IDENTITY_LEN] {
    let mut out = [0; IDENTITY_LEN];
    out[0] = VERSION;
    out[1] = state_code(state);
    out[2..10].copy_from_slice(registration_id.as_bytes());
    out[10..12].copy_from_slice(&attempt.to_be_bytes());
    out[12..].copy_from_slice(nonce.as_bytes());
    out
}

/// The drift section's bytes.
#[must_use]
pub fn encode_drift(drift: &Drift) -> Vec<u8> {
    let mut out = Vec::with_capacity(DRIFT_LEN);
    push_drift(&mut out, drift);
    out
}

/// What a claim's transition compares and replaces beside the identity: its flags, then their sections.
#[must_use]
pub fn encode_claim(record: &Record) -> Vec<u8> {
    let mut out = vec![0];
    out[0] = push_claim(&mut out, record);
    out
}

/// The response section's bytes.
#[must_use]
pub fn encode_response(response: &StoredResponse) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + response.content_type.as_str().len() + response.body.len());
    push_response(&mut out, response);
    out
}

/// The bytes of the notes on the attempt; empty where there are none.
#[must_use]
pub fn encode_notes(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    if record.attempt_source.is_some() || record.ended.is_some() {
        push_notes(&mut out, record);
    }
    out
}

/// The six bytes of a time.
#[must_use]
pub fn encode_time(at: Timestamp) -> [u8; 6] {
    let mut out = [0; 6];
    out.copy_from_slice(&at.as_millis().to_be_bytes()[2..]);
    out
}

/// Reads a record.
///
/// # Errors
/// [`Unreadable`] for any version but [`VERSION`], a value cut short, one with bytes left over, or one no writer could
/// have written.
pub fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
    let mut rest = Reader(bytes);
    if rest.byte()? != VERSION {
        return Err(Unreadable);
    }
    let state = match rest.byte()? {
        1 => State::Pending,
        2 => State::Registered,
        3 => State::InProgress,
        4 => State::Failed,
        5 => State::Resolved,
        _ => return Err(Unreadable),
    };
    let registration_id = RegistrationId::from_bytes(rest.array()?);
    let attempt = u16::from_be_bytes(rest.array()?);
    let nonce = Nonce::from_bytes(rest.array()?);
    let retry_count = u32::from_be_bytes(rest.array()?);
    let last_seen_at = rest.time()?;
    let first_seen_at = rest.time()?;
    let window_ends_at = rest.time()?;
    let payload_hash = PayloadHash::from_bytes(rest.array()?);
    let flags = rest.byte()?;
    let has = |flag: u8| flags & flag != 0;
    let drift = if has(FLAG_DRIFT) {
        let count = u32::from_be_bytes(rest.array()?);
        let last_at = rest.time()?;
        Some(Drift { count, last_at, last_hash: PayloadHash::from_bytes(rest.array()?) })
    } else {
        None
    };
    let won_at = if has(FLAG_WON_AT) { rest.time()? } else { first_seen_at };
    let lease_ends_at = if has(FLAG_LEASE) { Some(rest.time()?) } else { None };
    let take_over = if has(FLAG_TAKE_OVER) {
        let deadline = rest.time()?;
        let attempt = u16::from_be_bytes(rest.array()?);
        let nonce = Nonce::from_bytes(rest.array()?);
        let won_at = rest.time()?;
        let lease = rest.time()?;
        let lease_ends_at = (lease != Timestamp::MIN).then_some(lease);
        Some(TakeOver { deadline, attempt, nonce, won_at, lease_ends_at })
    } else {
        None
    };
    let source_service =
        if has(FLAG_SOURCE) { Some(SourceService::parse(rest.short()?).map_err(|_| Unreadable)?) } else { None };
    let response = if has(FLAG_RESPONSE) {
        let content_type = ContentType::parse(rest.short()?).map_err(|_| Unreadable)?;
        let len = u32::from_be_bytes(rest.array()?);
        let body = rest.take(usize::try_from(len).map_err(|_| Unreadable)?)?.to_vec();
        Some(StoredResponse { content_type, body })
    } else {
        None
    };
    let (attempt_source, ended) = if has(FLAG_NOTES) { rest.notes()? } else { (None, None) };
    if !rest.0.is_empty() {
        return Err(Unreadable);
    }
    Ok(Record {
        registration_id,
        state,
        attempt,
        nonce,
        won_at,
        first_seen_at,
        last_seen_at,
        window_ends_at,
        payload_hash,
        retry_count,
        source_service,
        drift,
        lease_ends_at,
        response,
        attempt_source,
        ended,
        undurable: has(FLAG_UNDURABLE),
        take_over,
    })
}

fn state_code(state: State) -> u8 {
    match state {
        State::Pending => 1,
        State::Registered => 2,
        State::InProgress => 3,
        State::Failed => 4,
        State::Resolved => 5,
    }
}

fn push_time(out: &mut Vec<u8>, at: Timestamp) {
    out.extend_from_slice(&encode_time(at));
}

fn push_drift(out: &mut Vec<u8>, drift: &Drift) {
    out.extend_from_slice(&drift.count.to_be_bytes());
    push_time(out, drift.last_at);
    out.extend_from_slice(drift.last_hash.as_bytes());
}

/// Appends the sections of [`CLAIM_FLAGS`], and gives their flags.
fn push_claim(out: &mut Vec<u8>, record: &Record) -> u8 {
    let mut flags = if record.undurable { FLAG_UNDURABLE } else { 0 };
    if record.won_at != record.first_seen_at {
        flags |= FLAG_WON_AT;
        push_time(out, record.won_at);
    }
    if let Some(lease_ends_at) = record.lease_ends_at {
        flags |= FLAG_LEASE;
        push_time(out, lease_ends_at);
    }
    if let Some(take_over) = &record.take_over {
        flags |= FLAG_TAKE_OVER;
        push_time(out, take_over.deadline);
        out.extend_from_slice(&take_over.attempt.to_be_bytes());
        out.extend_from_slice(take_over.nonce.as_bytes());
        push_time(out, take_over.won_at);
        push_time(out, take_over.lease_ends_at.unwrap_or(Timestamp::MIN));
    }
    flags
}

fn push_response(out: &mut Vec<u8>, response: &StoredResponse) {
    push_short(out, response.content_type.as_str());
    let len = u32::try_from(response.body.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&response.body);
}

fn push_notes(out: &mut Vec<u8>, record: &Record) {
    push_short(out, record.attempt_source.as_ref().map_or("", SourceService::as_str));
    push_time(out, record.ended.as_ref().map_or(Timestamp::MIN, |ended| ended.at));
    push_short(out, record.ended.as_ref().and_then(|ended| ended.reason.as_ref()).map_or("", FailReason::as_str));
}

/// Texts of this kind have at most 200 bytes.
fn push_short(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Unreadable> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Unreadable)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take(N)?.try_into().map_err(|_| Unreadable)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }

    fn time(&mut self) -> Result<Timestamp, Unreadable> {
        let mut wide = [0; 8];
        wide[2..].copy_from_slice(self.take(6)?);
        let millis = i64::from_be_bytes(wide);
        let at = Timestamp::from_millis(millis);
        if at.as_millis() == millis { Ok(at) } else { Err(Unreadable) }
    }

    fn short(&mut self) -> Result<&'a str, Unreadable> {
        let len = usize::from(self.byte()?);
        std::str::from_utf8(self.take(len)?).map_err(|_| Unreadable)
    }

    fn notes(&mut self) -> Result<(Option<SourceService>, Option<Ended>), Unreadable> {
        let source = match self.short()? {
            "" => None,
            source => Some(SourceService::parse(source).map_err(|_| Unreadable)?),
        };
        let at = self.time()?;
        let reason = match self.short()? {
            "" => None,
            reason => Some(FailReason::parse(reason).map_err(|_| Unreadable)?),
        };
        let ended = match (at == Timestamp::MIN, reason) {
            (true, None) => None,
            (true, Some(_)) => return Err(Unreadable),
            (false, reason) => Some(Ended { at, reason }),
        };
        // Nobody writes notes that say nothing.
        if source.is_none() && ended.is_none() { Err(Unreadable) } else { Ok((source, ended)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times() -> impl Strategy<Value = Timestamp> {
        (1..=Timestamp::MAX.as_millis()).prop_map(Timestamp::from_millis)
    }

    fn drifts() -> impl Strategy<Value = Drift> {
        (any::<u32>(), any::<[u8; 32]>(), times()).prop_map(|(count, hash, last_at)| Drift {
            count,
            last_hash: PayloadHash::from_bytes(hash),
            last_at,
        })
    }

    fn take_overs() -> impl Strategy<Value = TakeOver> {
        (times(), any::<u16>(), any::<[u8; 8]>(), times(), proptest::option::of(times())).prop_map(
            |(deadline, attempt, nonce, won_at, lease_ends_at)| TakeOver {
                deadline,
                attempt,
                nonce: Nonce::from_bytes(nonce),
                won_at,
                lease_ends_at,
            },
        )
    }

    fn states() -> impl Strategy<Value = State> {
        proptest::sample::select(vec![
            State::Pending,
            State::Registered,
            State::InProgress,
            State::Failed,
            State::Resolved,
        ])
    }

    prop_compose! {
        fn records()(
            (id, state, attempt, nonce) in (any::<[u8; 8]>(), states(), any::<u16>(), any::<[u8; 8]>()),
            (won_at, first_seen_at, last_seen_at, window_ends_at) in (times(), times(), times(), times()),
            hash in any::<[u8; 32]>(),
            retry_count in any::<u32>(),
            source in proptest::option::of("[a-z]{1,40}"),
            drift in proptest::option::of(drifts()),
            lease_ends_at in proptest::option::of(times()),
            response in proptest::option::of(("[a-z/]{1,128}", proptest::collection::vec(any::<u8>(), 0..300))),
            (attempt_source, ended_at, reason) in (
                proptest::option::of("[a-z]{1,40}"), proptest::option::of(times()), proptest::option::of("[a-z ]{1,200}")
            ),
            undurable in any::<bool>(),
            take_over in proptest::option::of(take_overs()),
        ) -> Record {
            Record {
                registration_id: RegistrationId::from_bytes(id), state, attempt, nonce: Nonce::from_bytes(nonce),
                won_at, first_seen_at, last_seen_at, window_ends_at,
                payload_hash: PayloadHash::from_bytes(hash), retry_count,
                source_service: source.map(|s| SourceService::parse(&s).expect("valid")),
                drift, lease_ends_at,
                response: response.map(|(t, body)| StoredResponse { content_type: ContentType::parse(&t).expect("valid"), body }),
                attempt_source: attempt_source.map(|s| SourceService::parse(&s).expect("valid")),
                ended: ended_at.map(|at| Ended {
                    at, reason: reason.map(|text| FailReason::parse(&text).expect("valid")),
                }),
                undurable, take_over,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(record in records()) {
            prop_assert_eq!(decode(&encode(&record)), Ok(record));
        }

        #[test]
        fn a_value_cut_short_or_with_bytes_left_over_is_unreadable(record in records(), cut in 0usize..400) {
            let bytes = encode(&record);
            prop_assert_eq!(decode(&bytes[..cut.min(bytes.len() - 1)]), Err(Unreadable));
            prop_assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(Unreadable));
        }

        #[test]
        fn any_other_version_is_unreadable(record in records(), version in 0u8..=255) {
            let mut bytes = encode(&record);
            bytes[0] = version;
            prop_assert_eq!(decode(&bytes).is_ok(), version == VERSION);
        }

        #[test]
        fn merging_is_commutative_associative_and_idempotent(a in records(), b in records(), c in records()) {
            let same = |r: &Record| Record {
                // One registration: these never differ within it.
                registration_id: a.registration_id, payload_hash: a.payload_hash, response: None,
                source_service: None, undurable: false, take_over: None, ..r.clone()
            };
            let (a, b, c) = (same(&a), same(&b), same(&c));
            let merged = |x: &Record, y: &Record| { let mut m = x.clone(); m.merge(y); m };
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a);
        }
    }
}
