//! Whether a failed command happened, by the kind of its error and never by its text.

use ::redis::{ErrorKind, RedisError, ServerErrorKind};
use ledger_domain::ports::StoreError;

/// Replies by which a server refuses a command before it changes anything, of kinds that the crate does not name: no room
/// left, too few replicas, cannot persist, another script runs, a value of another type under the key.
const REFUSALS: [&str; 5] = ["OOM", "NOREPLICAS", "MISCONF", "BUSY", "WRONGTYPE"];

/// The store error of a command that was, or may have been, sent.
pub(super) fn failed(operation: &'static str, error: RedisError) -> StoreError {
    if did_not_happen(&error) {
        StoreError::did_not_happen(operation, error)
    } else {
        StoreError::may_have_happened(operation, error)
    }
}

fn did_not_happen(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => refused(kind),
        ErrorKind::Extension => error.code().is_some_and(|code| REFUSALS.contains(&code)),
        // Connecting was refused: nothing was sent. Any other broken connection, a time-out included, lost the reply.
        ErrorKind::Io => error.is_connection_refusal(),
        // Not sent.
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::EmptySentinelList
        | ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::RESP3NotSupported => true,
        // A reply came, but not one we know; or the crate also uses the kind for failures of an open connection.
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::Client => false,
        // A kind of a later release: unknown means may have happened.
        _ => false,
    }
}

fn refused(kind: ServerErrorKind) -> bool {
    match kind {
        ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::CrossSlot
        | ServerErrorKind::ReadOnly
        | ServerErrorKind::NoScript
        | ServerErrorKind::BusyLoading
        | ServerErrorKind::MasterDown
        | ServerErrorKind::NoPerm => true,
        // ERR says anything, also that a script stopped half-way; the others answer commands that are never sent.
        ServerErrorKind::ResponseError
        | ServerErrorKind::ExecAbort
        | ServerErrorKind::NotBusy
        | ServerErrorKind::NoSub => false,
        // A kind of a later release: unknown means may have happened.
        _ => false,
    }
}

/// Whether the error speaks of the connection and not of the command, so that the connection is to be replaced.
pub(super) fn breaks_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::Client | ErrorKind::ClusterConnectionNotFound => true,
        // No longer the primary: ask again who is.
        ErrorKind::Server(kind) => kind == ServerErrorKind::ReadOnly,
        ErrorKind::Extension
        | ErrorKind::UnexpectedReturnType
        | ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::EmptySentinelList
        | ErrorKind::RESP3NotSupported => false,
        // A kind of a later release: a new connection does no harm.
        _ => true,
    }
}

/// A reply of a shape that the command does not have.
pub(super) fn unexpected_reply() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "a reply of another shape than the command's"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn reply(line: &str) -> RedisError {
        ::redis::parse_redis_value(format!("{line}\r\n").as_bytes())
            .and_then(::redis::Value::extract_error)
            .expect_err("an error reply")
    }

    fn happened(error: RedisError) -> bool {
        match failed("test", error) {
            StoreError::DidNotHappen { .. } => false,
            StoreError::MayHaveHappened { .. } => true,
            StoreError::Rejected { .. } => panic!("the hot tier refuses no content"),
        }
    }

    #[test]
    fn a_refusal_did_not_happen_and_a_lost_reply_may_have() {
        for line in [
            "-OOM no room",
            "-READONLY a replica",
            "-MOVED 1 h:1",
            "-ASK 1 h:1",
            "-CLUSTERDOWN x",
            "-NOSCRIPT x",
            "-NOREPLICAS x",
            "-LOADING x",
            "-MASTERDOWN x",
        ] {
            assert!(!happened(reply(line)), "{line}");
        }
        for line in ["-ERR anything", "-NEWKIND x"] {
            assert!(happened(reply(line)), "{line}");
        }
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
            assert!(happened(io::Error::from(kind).into()), "{kind}");
        }
        assert!(!happened(io::Error::from(io::ErrorKind::ConnectionRefused).into()));
    }
}
