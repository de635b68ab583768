//! What a found record means for a check: rules that need no tier.

use crate::hash::PayloadHash;
use crate::ids::Nonce;
use crate::record::{Record, State};
use crate::time::Timestamp;
use crate::verdict::{DecidedBy, Disposition, NewVerdict, SeenVerdict, Undecided, Verdict};

/// What to do with a found record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// Somebody else is making it durable: wait for the outcome.
    Wait,
    /// This check's own PENDING: make it durable and confirm it.
    Adopt,
    /// This check's own, confirmed: its answer again.
    Replay,
    /// Its window is over: replace it.
    Over,
    /// A repeat: count it.
    Repeat,
    /// Not for this release.
    Unsupported,
}

/// Judges a record for the check that has `nonce`, at `now`.
pub(super) fn judge(record: &Record, nonce: Nonce, now: Timestamp, replay_seconds: u64) -> Judged {
    if record.is_over(now) {
        return Judged::Over;
    }
    if record.undurable || record.take_over.is_some_and(|take_over| now < take_over.deadline) {
        return Judged::Unsupported;
    }
    let own = record.nonce == nonce;
    let replayable = own && now < record.won_at.plus_seconds(replay_seconds);
    match record.state {
        // Past its deadline nobody may send its fact any more, not even its own check: it lapses.
        State::Pending if own && now < record.pending_deadline() => Judged::Adopt,
        State::Pending => Judged::Wait,
        State::Registered if replayable => Judged::Replay,
        State::Registered | State::Resolved => Judged::Repeat,
        State::InProgress if record.lease_ends_at.is_some_and(|lease| now < lease) => Judged::Repeat,
        State::InProgress | State::Failed => Judged::Unsupported,
    }
}

/// NEW for a registration just won, or this check's own answer again.
pub(super) fn new_verdict(record: &Record, replayed: bool, decided_by: DecidedBy) -> NewVerdict {
    NewVerdict {
        first_seen_at: record.first_seen_at,
        window_ends_at: record.window_ends_at,
        // Its own answer: as it was when the check won.
        retry_count: 0,
        state: State::Registered,
        replayed,
        decided_by,
        durable: true,
        confirmed: true,
    }
}

/// SEEN for a record on which this sighting, of `payload` at `now`, has been counted.
///
/// # Errors
/// [`Undecided::Unsupported`] for a record that waits for a take-over.
pub(super) fn seen_verdict(
    record: &Record,
    payload: &PayloadHash,
    nonce: Nonce,
    now: Timestamp,
    decided_by: DecidedBy,
) -> Result<Verdict, Undecided> {
    let claimed = match record.state {
        State::Registered => false,
        State::InProgress | State::Resolved => true,
        State::Pending | State::Failed => return Err(Undecided::Unsupported),
    };
    let retry_after_seconds = match (record.state, record.lease_ends_at) {
        (State::InProgress, Some(lease)) if now < lease => {
            Some(u64::try_from(lease.millis_since(now)).unwrap_or(0).div_ceil(1_000).max(1))
        }
        (State::InProgress, _) => return Err(Undecided::Unsupported),
        (State::Pending | State::Registered | State::Failed | State::Resolved, _) => None,
    };
    Ok(Verdict::Seen(SeenVerdict {
        disposition: if retry_after_seconds.is_some() { Disposition::Retry } else { Disposition::Discard },
        first_seen_at: record.first_seen_at,
        last_seen_at: record.last_seen_at,
        window_ends_at: record.window_ends_at,
        retry_count: record.retry_count,
        payload_hash_drift: *payload != record.payload_hash,
        state: record.state,
        attempt: claimed.then_some(record.attempt),
        first_source_service: record.source_service.clone(),
        response: record.response.clone(),
        retry_after_seconds,
        decided_by,
        constant_request_id: record.nonce == nonce,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegistrationId;
    use crate::record::TakeOver;

    const NOW: i64 = 1_790_000_000_000;

    fn registered() -> Record {
        let now = Timestamp::from_millis(NOW);
        Record {
            registration_id: RegistrationId::from_bytes([1; 8]),
            state: State::Registered,
            attempt: 1,
            nonce: Nonce::from_bytes([2; 8]),
            won_at: now,
            first_seen_at: now,
            last_seen_at: now,
            window_ends_at: now.plus_seconds(3_600),
            payload_hash: PayloadHash::from_bytes([3; 32]),
            retry_count: 0,
            source_service: None,
            drift: None,
            lease_ends_at: None,
            response: None,
            undurable: false,
            take_over: None,
        }
    }

    #[test]
    fn nobody_is_told_anything_of_what_is_marked_undurable_or_is_being_taken_over() {
        let (own, other) = (Nonce::from_bytes([2; 8]), Nonce::from_bytes([4; 8]));
        let now = Timestamp::from_millis(NOW + 1_000);
        let take_over = |deadline| TakeOver {
            deadline,
            attempt: 2,
            nonce: other,
            won_at: Timestamp::from_millis(NOW),
            lease_ends_at: None,
        };
        for state in [State::Registered, State::InProgress, State::Failed, State::Resolved] {
            let base = Record { state, lease_ends_at: Some(now.plus_seconds(60)), ..registered() };
            let undurable = Record { undurable: true, ..base.clone() };
            let taken_over = Record { take_over: Some(take_over(now.plus_millis(1))), ..base };
            for nonce in [own, other] {
                assert_eq!(judge(&undurable, nonce, now, 900), Judged::Unsupported, "{state:?}");
                assert_eq!(judge(&taken_over, nonce, now, 900), Judged::Unsupported, "{state:?}");
            }
        }
        // Lapsed, it says nothing: the record beneath stands.
        let lapsed = Record { take_over: Some(take_over(now)), ..registered() };
        assert_eq!(judge(&lapsed, other, now, 900), Judged::Repeat);
    }
}
