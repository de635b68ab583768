//! What SQLite's errors say about the statement that got them.

use ledger_domain::ports::StoreError;

use crate::cold::{Outcome, outcome_without_answer};

/// Classifies by primary result code (sqlite.org/rescode.html), the low byte of the extended one.
fn outcome_of_code(code: i64) -> Outcome {
    match code & 0xff {
        // TOOBIG, CONSTRAINT, MISMATCH, RANGE: this content will be refused again.
        18 | 19 | 20 | 25 => Outcome::Rejected,
        // ERROR (in the statement), PERM, ABORT, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, FULL, CANTOPEN, PROTOCOL (of
        // locks), SCHEMA, AUTH, NOTADB: rolled back.
        1 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 13 | 14 | 15 | 17 | 23 | 26 => Outcome::DidNotHappen,
        // IOERR, CORRUPT, and whatever is not known.
        _ => Outcome::MayHaveHappened,
    }
}

pub(super) fn map(operation: &'static str, error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse().ok());
    code.map_or_else(|| outcome_without_answer(&error), outcome_of_code).into_error(operation, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_are_classified_by_their_primary_one() {
        // SQLITE_CONSTRAINT_CHECK, SQLITE_BUSY_SNAPSHOT, SQLITE_IOERR_FSYNC.
        assert_eq!(outcome_of_code(275), Outcome::Rejected);
        assert_eq!(outcome_of_code(517), Outcome::DidNotHappen);
        assert_eq!(outcome_of_code(1034), Outcome::MayHaveHappened);
        assert_eq!(outcome_of_code(255), Outcome::MayHaveHappened);
    }
}
