//! What PostgreSQL's errors say about the statement that got them.

use ledger_domain::ports::StoreError;

use crate::cold::{Outcome, outcome_without_answer};

/// Classifies by SQLSTATE (PostgreSQL manual, appendix A). An error answered by the server means that the statement, and
/// with it the transaction, was rolled back; the exceptions are named.
fn outcome_of_sqlstate(code: &str) -> Outcome {
    match code {
        // The server went down, or a commit's outcome is not known to it (08007, 40003): it may have happened.
        "08007" | "40003" | "57P01" | "57P02" => Outcome::MayHaveHappened,
        // Of the rest, by class.
        _ => match code.get(..2).unwrap_or_default() {
            // One key twice in a statement (21), data exception, integrity constraint violation: this content will be refused
            // again.
            "21" | "22" | "23" => Outcome::Rejected,
            // Connection not made (08), authorization (28), serialization and deadlock (40), read-only after a failover
            // (25), schema not as expected (42), resources (53, 54), lock not available (55), cancelled or starting up
            // (57), raised by a function (P0), not supported (0A), no transaction (3B, 3D): rolled back, try later.
            "08" | "0A" | "25" | "28" | "3B" | "3D" | "40" | "42" | "53" | "54" | "55" | "57" | "P0" => {
                Outcome::DidNotHappen
            }
            // System error outside PostgreSQL (58), internal error (XX), and whatever is not known.
            _ => Outcome::MayHaveHappened,
        },
    }
}

pub(super) fn map(operation: &'static str, error: sqlx::Error) -> StoreError {
    let outcome = match error.as_database_error().and_then(|e| e.code()) {
        // The month that is missing could not be made: that is no fault of the content.
        Some(_) if is_missing_month(&error) => Outcome::DidNotHappen,
        Some(code) => outcome_of_sqlstate(&code),
        None => outcome_without_answer(&error),
    };
    outcome.into_error(operation, error)
}

/// Whether the statement lost a race that it may well win now: serialization failure or deadlock.
pub(super) fn is_lost_race(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|e| e.code());
    code.is_some_and(|code| code == "40001" || code == "40P01")
}

/// Whether a row was to be inserted where one of its key stands.
pub(super) fn is_present(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| e.is_unique_violation())
}

/// Whether no month takes the row. PostgreSQL says so by a check violation that names the table and no constraint.
pub(super) fn is_missing_month(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| {
        e.code().is_some_and(|code| code == "23514") && e.constraint().is_none() && e.table() == Some("dedup_ledger")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_that_is_told_apart_has_its_outcome() {
        for code in ["57P03", "53300", "40001", "40P01", "55P03", "25006", "08001", "57014", "42P01"] {
            assert_eq!(outcome_of_sqlstate(code), Outcome::DidNotHappen, "{code}");
        }
        for code in ["21000", "22003", "22008", "23505", "23514"] {
            assert_eq!(outcome_of_sqlstate(code), Outcome::Rejected, "{code}");
        }
        for code in ["08007", "40003", "57P01", "57P02", "58030", "XX000", "99999", ""] {
            assert_eq!(outcome_of_sqlstate(code), Outcome::MayHaveHappened, "{code}");
        }
    }

    #[test]
    fn without_an_answer_only_what_was_never_sent_did_not_happen() {
        let op = "test";
        assert!(matches!(map(op, sqlx::Error::PoolTimedOut), StoreError::DidNotHappen { .. }));
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(map(op, sqlx::Error::Io(lost)), StoreError::MayHaveHappened { .. }));
        assert!(matches!(map(op, sqlx::Error::WorkerCrashed), StoreError::MayHaveHappened { .. }));
    }
}
