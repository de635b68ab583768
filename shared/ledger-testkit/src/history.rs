//! What must be true of a key's history, whatever happened.

use ledger_domain::ports::{HistoryQuery, HistoryRow};
use ledger_domain::{Nonce, State, Timestamp};

/// Every registration of a key.
#[must_use]
pub fn all() -> HistoryQuery {
    HistoryQuery { from: Timestamp::MIN, to: Timestamp::MAX, after: None, limit: 1_000 }
}

/// Of two registrations of one key that overlap, the later one is linked, unless both are the same check's; and nothing is
/// linked or kept that should not be. `rows` are the key's, newest first; what is wrong with them is returned.
#[must_use]
pub fn false_news_are_linked(rows: &[HistoryRow]) -> Vec<String> {
    let mut violations = Vec::new();
    for later in rows {
        let overlaps = |earlier: &&HistoryRow| {
            earlier.record.standing() < later.record.standing()
                && earlier.record.overlaps(&later.record)
                && earlier.record.nonce != later.record.nonce
        };
        // Newest first, so the last one is the least.
        let least = rows.iter().rfind(overlaps).map(|row| row.record.registration_id);
        // A take-over changes whose a registration is: a link made before it stays, and two of one check are not linked for it.
        let taken_over = rows.iter().any(|row| row.record.attempt > 1);
        let earliest = rows.iter().find(|row| Some(row.record.registration_id) == least);
        let excused = later.false_new_of.is_some() || earliest.is_some_and(|earliest| were_one_check(earliest, later));
        if later.false_new_of != least && !(taken_over && excused) {
            violations
                .push(format!("linked to {:?} instead of {least:?}: {later:?} among {rows:?}", later.false_new_of));
        }
        if later.record.state == State::Pending {
            violations.push(format!("history holds what is not confirmed: {later:?}"));
        }
    }
    violations
}

/// Whether the check that began the later registration had begun or taken over the earlier one, whoever took them over since.
fn were_one_check(earlier: &HistoryRow, later: &HistoryRow) -> bool {
    let nonces = |row: &HistoryRow, attempts_max: u16| -> Vec<Nonce> {
        let attempts = row.trail.attempts().iter().map(|attempt| (attempt.attempt, attempt.nonce));
        // A plain registration leaves no trail.
        let all = attempts.chain([(row.record.attempt, row.record.nonce)]);
        all.filter(|(attempt, _)| *attempt <= attempts_max).map(|(_, nonce)| nonce).collect()
    };
    let held = nonces(earlier, u16::MAX);
    nonces(later, 1).iter().any(|nonce| held.contains(nonce))
}
