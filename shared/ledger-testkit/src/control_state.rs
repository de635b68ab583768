//! The control plane's conformance suite, of the hot tier's state: cold sessions, and how far the keeper is.
#![allow(clippy::expect_used, reason = "a case fails where its control plane does")]

use std::sync::Arc;

use futures::future::join_all;
use ledger_domain::ports::{ColdSession, ControlPlane, KeeperState, Position, StoreError};
use ledger_domain::{FillPass, RegistrationId, SessionId, Timestamp};

/// Two handles on one control plane, as two processes would have them.
pub type Handles = [Arc<dyn ControlPlane>; 2];

/// One `#[tokio::test]` per case of the suite. `$fixture` is an async expression that makes a fixture of a test's own, with a
/// method `handles`.
#[macro_export]
macro_rules! control_state_conformance {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::control_state_conformance!(@cases $fixture;
                at_first_there_is_neither_session_nor_state,
                a_session_is_seen_by_everybody_at_once_and_stands_after_its_end,
                opening_a_session_again_changes_nothing,
                a_renewal_compares_with_what_was_read,
                a_removal_compares_with_what_was_read,
                of_many_who_change_what_they_read_exactly_one_does,
                no_more_sessions_come_than_asked_for,
                sessions_of_many_pages_all_come,
                every_field_of_the_keepers_state_is_kept,
                a_state_is_written_only_over_the_version_before_it,
                of_concurrent_savers_exactly_one_wins,
            );
        }
    };
    (@cases $fixture:expr; $($case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = $fixture.await;
                $crate::control_state::$case(fixture.handles()).await;
            }
        )*
    };
}

/// The suite's *now*.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::from_millis(1_790_000_000_123)
}

/// Session number `n`, which ends `seconds` from now.
#[must_use]
pub fn session(n: u64, seconds: u64) -> ColdSession {
    ColdSession { id: SessionId::from_bytes(n.to_be_bytes()), expires_at: now().plus_seconds(seconds) }
}

/// A state with every field set; `version` also tells its pass from another's.
#[must_use]
pub fn state(version: u64) -> KeeperState {
    let registration_id = RegistrationId::from_bytes([0xab; 8]);
    KeeperState {
        version,
        busy_until: now().plus_seconds(60),
        lost_at: now().plus_millis(-1),
        zero_runs: 2,
        zero_at: Some(now().plus_millis(1)),
        pass: Some(FillPass::from_bytes(version.to_be_bytes())),
        pass_began_at: now(),
        cursor: Some(Position { first_seen_at: now().plus_seconds(5), registration_id }),
        pass_done: false,
        pass_rows: 7_000,
    }
}

async fn sessions(control_plane: &Arc<dyn ControlPlane>) -> Vec<ColdSession> {
    let mut sessions = control_plane.cold_sessions(10_000).await.expect("sessions");
    sessions.sort_by_key(|session| session.id);
    sessions
}

/// Nothing there is no error, and there is nothing to renew or to remove.
pub async fn at_first_there_is_neither_session_nor_state([a, b]: Handles) {
    assert_eq!(sessions(&a).await, []);
    assert_eq!(b.keeper_state().await.expect("a state"), None);
    assert!(!a.renew_cold_session(&session(1, 10), now()).await.expect("an answer"));
    assert!(!b.remove_cold_session(&session(1, 10)).await.expect("an answer"));
    assert_eq!(sessions(&b).await, []);
}

/// Ended sessions too are there until somebody removes them: the hot tier lacks what was decided under them.
pub async fn a_session_is_seen_by_everybody_at_once_and_stands_after_its_end([a, b]: Handles) {
    let ended = ColdSession { expires_at: Timestamp::MIN, ..session(2, 0) };
    let endless = ColdSession { expires_at: Timestamp::MAX, ..session(3, 0) };
    let mut opened = Vec::new();
    for one in [session(1, 10), ended, endless] {
        a.open_cold_session(&one).await.expect("opened");
        opened.push(one);
        assert_eq!(sessions(&b).await, opened);
    }
    assert!(b.remove_cold_session(&ended).await.expect("an answer"));
    assert_eq!(sessions(&a).await, [session(1, 10), endless]);
}

/// Opened twice, it is one session. One that ends earlier than asked for is no success: the caller would rely on it too long.
pub async fn opening_a_session_again_changes_nothing([a, b]: Handles) {
    for control_plane in [&a, &b, &a] {
        control_plane.open_cold_session(&session(1, 10)).await.expect("opened");
    }
    a.open_cold_session(&session(1, 5)).await.expect("it stands for longer");
    let refused = b.open_cold_session(&session(1, 11)).await;
    assert!(matches!(refused, Err(StoreError::Rejected { .. })), "{refused:?}");
    assert_eq!(sessions(&b).await, [session(1, 10)]);
}

/// Renewed from what stands, and from nothing else.
pub async fn a_renewal_compares_with_what_was_read([a, b]: Handles) {
    for n in 1..=2 {
        a.open_cold_session(&session(n, 10)).await.expect("opened");
    }
    assert!(a.renew_cold_session(&session(1, 10), now().plus_seconds(20)).await.expect("an answer"));
    assert_eq!(sessions(&b).await, [session(1, 20), session(2, 10)]);
    assert!(!b.renew_cold_session(&session(1, 10), now().plus_seconds(30)).await.expect("an answer"));
    assert!(!b.renew_cold_session(&session(3, 10), now().plus_seconds(30)).await.expect("an answer"));
    assert!(b.renew_cold_session(&session(1, 20), now().plus_seconds(15)).await.expect("an answer"));
    assert_eq!(sessions(&a).await, [session(1, 15), session(2, 10)]);
}

/// Who read a session before it was renewed does not remove it.
pub async fn a_removal_compares_with_what_was_read([a, b]: Handles) {
    for n in 1..=2 {
        a.open_cold_session(&session(n, 10)).await.expect("opened");
    }
    let read = sessions(&b).await;
    assert!(a.renew_cold_session(&read[0], now().plus_seconds(20)).await.expect("an answer"));
    assert!(!b.remove_cold_session(&read[0]).await.expect("an answer"));
    assert_eq!(sessions(&a).await, [session(1, 20), session(2, 10)]);
    assert!(b.remove_cold_session(&read[1]).await.expect("an answer"));
    assert!(!a.remove_cold_session(&read[1]).await.expect("an answer"));
    assert!(!a.renew_cold_session(&read[1], now().plus_seconds(20)).await.expect("an answer"));
    assert!(b.remove_cold_session(&session(1, 20)).await.expect("an answer"));
    assert_eq!(sessions(&a).await, []);
}

/// Renewals and removals of one reading, all at once.
pub async fn of_many_who_change_what_they_read_exactly_one_does(handles: Handles) {
    for round in 0..4 {
        let read = session(round, 10);
        handles[0].open_cold_session(&read).await.expect("opened");
        let changes = (0..8_u64).map(|n| {
            let control_plane = Arc::clone(&handles[usize::from(n % 2 == 0)]);
            tokio::spawn(async move {
                let done = if n < 5 {
                    control_plane.renew_cold_session(&read, read.expires_at.plus_seconds(n + 1)).await
                } else {
                    control_plane.remove_cold_session(&read).await
                };
                done.expect("an answer").then_some(n)
            })
        });
        let won: Vec<u64> =
            join_all(changes.collect::<Vec<_>>()).await.into_iter().filter_map(|one| one.expect("no panic")).collect();
        let [winner] = won.as_slice() else { panic!("round {round}: {won:?}") };
        let stands = sessions(&handles[1]).await.into_iter().find(|one| one.id == read.id);
        let expected = (*winner < 5).then(|| session(round, 10 + winner + 1));
        assert_eq!(stands, expected, "round {round}, won by {winner}");
    }
}

/// At most so many, and all of them where there are no more.
pub async fn no_more_sessions_come_than_asked_for([a, b]: Handles) {
    for n in 1..=3 {
        a.open_cold_session(&session(n, 10)).await.expect("opened");
    }
    for (limit, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (usize::MAX, 3)] {
        assert_eq!(b.cold_sessions(limit).await.expect("sessions").len(), expected, "{limit}");
    }
}

/// 1,010 sessions: three pages of the DynamoDB table.
pub async fn sessions_of_many_pages_all_come(handles: Handles) {
    let all: Vec<_> = (0..1_010).map(|n| session(n, n)).collect();
    for chunk in all.chunks(8) {
        let opened = chunk.iter().zip(handles.iter().cycle()).map(|(one, handle)| handle.open_cold_session(one));
        assert!(join_all(opened).await.into_iter().all(|opened| opened.is_ok()));
    }
    assert_eq!(sessions(&handles[0]).await, all);
    for limit in [499, 500, 501, 1_000, 1_009] {
        let mut some = handles[1].cold_sessions(limit).await.expect("sessions");
        some.sort_by_key(|session| session.id);
        some.dedup_by_key(|session| session.id);
        assert_eq!(some.len(), limit);
    }
}

/// With all that may be missing there and missing, at the ends of what each field holds.
pub async fn every_field_of_the_keepers_state_is_kept([a, b]: Handles) {
    let first = KeeperState {
        busy_until: Timestamp::MIN,
        lost_at: Timestamp::MAX,
        zero_runs: u32::MAX,
        zero_at: None,
        pass: None,
        cursor: None,
        pass_done: true,
        pass_rows: u64::MAX,
        ..state(1)
    };
    let second = KeeperState { zero_at: Some(Timestamp::MIN), zero_runs: 0, pass_rows: 0, ..state(2) };
    let third = KeeperState { zero_at: None, cursor: None, pass_done: true, ..state(3) };
    for written in [first, second, third, state(4)] {
        assert!(a.save_keeper_state(&written).await.expect("an answer"));
        assert_eq!(b.keeper_state().await.expect("a state"), Some(written));
    }
    // Sessions and state leave each other alone.
    b.open_cold_session(&session(1, 10)).await.expect("opened");
    assert!(b.save_keeper_state(&state(5)).await.expect("an answer"));
    assert_eq!((sessions(&a).await, a.keeper_state().await.expect("a state")), (vec![session(1, 10)], Some(state(5))));
}

/// The first one where there is none, each other one over the one just before it.
pub async fn a_state_is_written_only_over_the_version_before_it([a, b]: Handles) {
    assert!(!a.save_keeper_state(&state(2)).await.expect("an answer"));
    assert_eq!(b.keeper_state().await.expect("a state"), None);
    let none = a.save_keeper_state(&state(0)).await;
    assert!(matches!(none, Err(StoreError::Rejected { .. })), "{none:?}");
    assert!(a.save_keeper_state(&state(1)).await.expect("an answer"));
    assert!(b.save_keeper_state(&state(2)).await.expect("an answer"));
    for stale in [1, 2, 4, u64::MAX] {
        let other = KeeperState { pass_rows: 1, ..state(stale) };
        assert!(!a.save_keeper_state(&other).await.expect("an answer"), "{stale}");
        assert_eq!(b.keeper_state().await.expect("a state"), Some(state(2)), "{stale}");
    }
    assert!(a.save_keeper_state(&state(3)).await.expect("an answer"));
}

/// Of runs that read the same version, whatever they write.
pub async fn of_concurrent_savers_exactly_one_wins(handles: Handles) {
    for version in 1..=5 {
        let savers = (0..8_u64).map(|n| {
            let control_plane = Arc::clone(&handles[usize::from(n % 2 == 0)]);
            // Two runs may well want to write the very same.
            let wanted = KeeperState { pass_rows: n / 2, ..state(version) };
            tokio::spawn(
                async move { control_plane.save_keeper_state(&wanted).await.expect("an answer").then_some(wanted) },
            )
        });
        let won: Vec<_> =
            join_all(savers.collect::<Vec<_>>()).await.into_iter().filter_map(|one| one.expect("no panic")).collect();
        assert_eq!(won.len(), 1, "version {version}: {won:?}");
        assert_eq!(handles[0].keeper_state().await.expect("a state"), won.first().copied());
    }
}
