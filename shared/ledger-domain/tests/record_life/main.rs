//! The record's life, explored exhaustively within bounds: every order in which a few callers, their retries, the holders'
//! acts, lost replies, refused and repeated facts, killed processes, time and the cold writer can follow each other.
//!
//! What runs is the use case itself, on ports that ask one question at a time, and [`ledger_domain::transition`] on one hot slot; nothing
//! of the rules is written again here. Each test prints what it explored.
#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

mod calls;
mod keep;
mod ports;
mod properties;
mod tiers;
mod world;

use std::io::Write as _;

use stateright::{Checker, HasDiscoveries, Model};

use crate::calls::Mode;
use crate::properties::Reached;
use crate::world::{Bounds, Life, Who};

/// Explores all of `bounds`, where nothing that must hold is broken and each of `reached` happens.
fn explore(bounds: Bounds, reached: &[Reached]) {
    let name = bounds.name;
    // One thread: the numbers printed are then the same each time, and the tests run beside each other.
    let checker = Life::new(bounds).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let life = checker.model();
    // Not by `println!`, which a test's runner keeps for itself where the test passes.
    let _ = writeln!(
        std::io::stderr(),
        "the record's life, {name}: {} states, {} transitions, depth {}, {} runs of the use case",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        life.calls.runs()
    );
    checker.assert_properties();
    let times: Vec<_> = reached.iter().map(|reached| (*reached, life.times_reached(*reached))).collect();
    let _ = writeln!(std::io::stderr(), "    reached {times:?}");
    assert!(times.iter().all(|(_, times)| *times > 0), "what is proved of it means nothing: {times:?}");
}

fn claim(checks: u8, acts: u8) -> Who {
    Who { mode: Mode::Claim, checks, acts }
}

fn plain(checks: u8) -> Who {
    Who { mode: Mode::Plain, checks, acts: 0 }
}

#[test]
fn first_registrations() {
    explore(
        Bounds {
            name: "first registrations",
            callers: vec![claim(1, 0), claim(1, 0), plain(1)],
            held: false,
            from: 0,
            instants_ms: vec![0, 11_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 1,
            repeats: false,
        },
        &[
            Reached::Replayed,
            Reached::HealsMiss,
            Reached::HealsPending,
            Reached::DiscardBeforeProcess,
            Reached::NotDurable,
            Reached::FalseNew,
        ],
    );
}

#[test]
fn two_faults() {
    explore(
        Bounds {
            name: "two faults",
            callers: vec![claim(2, 0), plain(1)],
            held: false,
            from: 0,
            instants_ms: vec![0, 11_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 2,
            repeats: true,
        },
        &[Reached::Replayed, Reached::HealsMiss, Reached::HealsPending, Reached::NotDurable, Reached::FalseNew],
    );
}

#[test]
fn retries() {
    explore(
        Bounds {
            name: "retries",
            callers: vec![claim(2, 0), plain(1)],
            held: false,
            from: 0,
            instants_ms: vec![0, 11_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 1,
            repeats: false,
        },
        &[
            Reached::Replayed,
            Reached::HealsMiss,
            Reached::HealsPending,
            Reached::DiscardBeforeProcess,
            Reached::NotDurable,
        ],
    );
}

#[test]
fn take_overs() {
    explore(
        Bounds {
            name: "take-overs",
            callers: vec![claim(1, 1), claim(1, 0), claim(1, 0)],
            held: true,
            from: 1,
            instants_ms: vec![0, 21_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 1,
            repeats: false,
        },
        &[
            Reached::TakenOver,
            Reached::VisitorClearsMark,
            Reached::HealsTakeOver,
            Reached::StaleRefused,
            Reached::ActsAfterItsLease,
        ],
    );
}

#[test]
fn acts() {
    explore(
        Bounds {
            name: "acts",
            callers: vec![claim(1, 2), plain(1)],
            held: true,
            from: 0,
            instants_ms: vec![0, 21_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 1,
            repeats: false,
        },
        &[
            Reached::TakenOver,
            Reached::VisitorClearsMark,
            Reached::HealsTakeOver,
            Reached::StaleRefused,
            Reached::ActsAfterItsLease,
        ],
    );
}

#[test]
fn windows() {
    explore(
        Bounds {
            name: "windows",
            callers: vec![claim(2, 0), plain(1)],
            held: true,
            from: 0,
            instants_ms: vec![0, 15_000, 16_000],
            lease_seconds: 5,
            window_seconds: 15,
            faults: 1,
            repeats: false,
        },
        &[Reached::WindowOver, Reached::HealsPending],
    );
}

#[test]
fn acts_at_the_window_end() {
    explore(
        Bounds {
            name: "acts at the window end",
            callers: vec![claim(1, 1), plain(1)],
            held: true,
            from: 0,
            instants_ms: vec![0, 15_000, 16_000],
            lease_seconds: 5,
            window_seconds: 15,
            faults: 1,
            repeats: false,
        },
        &[Reached::WindowOver, Reached::VisitorClearsMark],
    );
}

#[test]
fn second_attempts() {
    explore(
        Bounds {
            name: "second attempts",
            callers: vec![claim(1, 1), claim(2, 1)],
            held: true,
            from: 1,
            instants_ms: vec![0, 21_000, 32_000],
            lease_seconds: 20,
            window_seconds: 40,
            faults: 1,
            repeats: false,
        },
        &[
            Reached::Replayed,
            Reached::TakenOverAfterLapse,
            Reached::HealsTakeOver,
            Reached::StaleRefused,
            Reached::ActsAfterLapsedTakeOver,
        ],
    );
}
