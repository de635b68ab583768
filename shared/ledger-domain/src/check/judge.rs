//! What a found record means for a check: rules that need no tier.

use super::Prepared;
use crate::ids::Nonce;
use crate::record::{Record, State, TakeOver};
use crate::time::Timestamp;
use crate::verdict::{DecidedBy, Disposition, SeenVerdict, Undecided, Verdict};

/// What to do with a found record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// Somebody else is making it durable: wait for the outcome.
    Wait,
    /// This check's own PENDING: make it durable and confirm it.
    Adopt,
    /// This check's own take-over's PENDING: make it durable and confirm it.
    AdoptTakeOver(TakeOver),
    /// This check's own, confirmed: its answer again.
    Replay,
    /// Its window is over: replace it.
    Over,
    /// It failed, or its lease is over: take it over.
    TakeOver,
    /// Its last act's fact is not known to be durable: make it so before anybody is told to discard.
    Mark,
    /// A repeat: count it.
    Repeat,
}

/// Judges a record for the check that has `nonce`, at `now`.
pub(super) fn judge(record: &Record, nonce: Nonce, now: Timestamp, replay_seconds: u64) -> Judged {
    if record.is_over(now) {
        return Judged::Over;
    }
    if let Some(take_over) = record.live_take_over(now) {
        return if take_over.nonce == nonce { Judged::AdoptTakeOver(take_over) } else { Judged::Wait };
    }
    let own = record.nonce == nonce;
    let replayable = own && now < record.won_at.plus_seconds(replay_seconds);
    match record.state {
        // Past its deadline nobody may send its fact any more, not even its own check: it lapses.
        State::Pending if own && now < record.pending_deadline() => Judged::Adopt,
        State::Pending => Judged::Wait,
        State::InProgress if !record.is_leased(now) => Judged::TakeOver,
        State::Failed => Judged::TakeOver,
        State::Registered | State::InProgress if replayable => Judged::Replay,
        // RETRY is no discard, so a claim's mark needs no more of this check.
        State::InProgress => Judged::Repeat,
        State::Registered | State::Resolved if record.undurable => Judged::Mark,
        State::Registered | State::Resolved => Judged::Repeat,
    }
}

/// Whole seconds from `now` to `at`, rounded up, at least 1.
fn seconds_until(at: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(at.millis_since(now)).unwrap_or(0).div_ceil(1_000).max(1)
}

/// SEEN for a record on which this check's sighting has been counted at `now`.
///
/// # Errors
/// [`Undecided::Unsupported`] for a record that is nobody's to discard: PENDING, failed, or with its lease over.
pub(super) fn seen_verdict(
    record: &Record,
    prepared: &Prepared<'_>,
    now: Timestamp,
    decided_by: DecidedBy,
) -> Result<Verdict, Undecided> {
    let replay_ends_at = record.won_at.plus_seconds(prepared.policy.replay_seconds);
    let claimed = match record.state {
        State::Registered => false,
        State::InProgress | State::Resolved => true,
        State::Pending | State::Failed => return Err(Undecided::Unsupported),
    };
    let retry_after_seconds = match (record.state, record.lease_ends_at) {
        (State::InProgress, Some(lease)) if now < lease => Some(seconds_until(lease, now)),
        (State::InProgress, _) => return Err(Undecided::Unsupported),
        (State::Pending | State::Registered | State::Failed | State::Resolved, _) => None,
    };
    Ok(Verdict::Seen(SeenVerdict {
        disposition: if retry_after_seconds.is_some() { Disposition::Retry } else { Disposition::Discard },
        first_seen_at: record.first_seen_at,
        last_seen_at: record.last_seen_at,
        window_ends_at: record.window_ends_at,
        retry_count: record.retry_count,
        payload_hash_drift: prepared.check.payload != record.payload_hash,
        state: record.state,
        attempt: claimed.then_some(record.attempt),
        first_source_service: record.source_service.clone(),
        response: record.response.clone(),
        retry_after_seconds,
        decided_by,
        constant_request_id: record.nonce == prepared.nonce && now >= replay_ends_at,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::PayloadHash;
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
            attempt_source: None,
            ended: None,
            undurable: false,
            take_over: None,
        }
    }

    fn own() -> Nonce {
        Nonce::from_bytes([2; 8])
    }

    fn other() -> Nonce {
        Nonce::from_bytes([4; 8])
    }

    #[test]
    fn a_take_over_under_way_is_waited_for_or_continued_by_its_own_check_and_says_nothing_once_lapsed() {
        let now = Timestamp::from_millis(NOW + 1_000);
        let take_over = |deadline| TakeOver {
            deadline,
            attempt: 2,
            nonce: other(),
            won_at: Timestamp::from_millis(NOW),
            lease_ends_at: None,
        };
        for state in [State::InProgress, State::Failed] {
            let live = take_over(now.plus_millis(1));
            let record = Record { state, take_over: Some(live), ..registered() };
            assert_eq!(judge(&record, own(), now, 900), Judged::Wait, "{state:?}");
            assert_eq!(judge(&record, other(), now, 900), Judged::AdoptTakeOver(live), "{state:?}");
            let lapsed = Record { state, take_over: Some(take_over(now)), ..registered() };
            assert_eq!(judge(&lapsed, other(), now, 900), Judged::TakeOver, "{state:?}");
            assert_eq!(lapsed.next_attempt(), 3, "the lapsed attempt's number is spent");
        }
    }

    #[test]
    fn a_claim_is_replayed_to_its_own_check_while_its_lease_runs_and_taken_over_after() {
        let now = Timestamp::from_millis(NOW + 1_000);
        let leased = |lease_ends_at| Record { state: State::InProgress, lease_ends_at, ..registered() };
        let running = leased(Some(now.plus_millis(1)));
        assert_eq!(judge(&running, own(), now, 900), Judged::Replay);
        assert_eq!(judge(&running, own(), now, 1), Judged::Repeat, "the time for replays is over");
        assert_eq!(judge(&running, other(), now, 900), Judged::Repeat);
        for over in [leased(Some(now)), Record { state: State::Failed, ..registered() }] {
            assert_eq!(judge(&over, own(), now, 900), Judged::TakeOver);
            assert_eq!(judge(&over, other(), now, 900), Judged::TakeOver);
        }
    }

    #[test]
    fn nobody_is_told_to_discard_what_is_marked_undurable() {
        let now = Timestamp::from_millis(NOW + 1_000);
        let marked = Record { state: State::Resolved, undurable: true, ..registered() };
        assert_eq!(judge(&marked, other(), now, 900), Judged::Mark);
        assert_eq!(judge(&Record { undurable: false, ..marked }, other(), now, 900), Judged::Repeat);
    }
}
