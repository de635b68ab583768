//! A circuit breaker: while a tier is known not to answer, nobody waits for it.
//!
//! ```text
//! closed ── a slow failure, or some quick ones in a row ──> open: every call is refused at once
//! open ── it is time ──> one caller starts a probe, and is refused like the others
//! probe ── answered in time ──> closed      not answered ──> open for twice as long      no report ──> another probe
//! ```
//! No I/O, and time is an argument: microseconds of a clock that tells real time. What lies outside an interval on either
//! side, because time jumped forth (the process was frozen) or back (the clock was set), is over: a jump brings a probe and
//! never closes anything.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// When a breaker opens, and when it tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// A call that failed after so long was not answered: it opens the breaker by itself. In microseconds.
    pub slow_us: i64,
    /// How many quicker failures in a row open it. More than one: a lost connection fails what is under way, and the next is
    /// made at once.
    pub quick_failures: u32,
    /// How long it stays open before the first probe, in microseconds. Twice as long after each that fails.
    pub interval_us: i64,
    /// The longest that it waits for the next probe, in microseconds. One that opens again sooner than this after it closed
    /// goes on where it was, so that a tier which answers probes and nothing else costs one time-out in this time.
    pub interval_max_us: i64,
    /// How long a probe may take, in microseconds. One that has not reported by then is given up.
    pub probe_limit_us: i64,
}

impl Default for BreakerSettings {
    /// For a tier that answers within 100 ms or not at all.
    fn default() -> Self {
        Self {
            slow_us: 100_000,
            quick_failures: 5,
            interval_us: 200_000,
            interval_max_us: 2_000_000,
            probe_limit_us: 5_000_000,
        }
    }
}

/// A circuit breaker, for any number of callers at once. While it is closed a call costs it one atomic load before and one
/// after.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    /// How often it opened or closed: even while it is closed, odd while it is open. Changes under the lock of `open` only.
    turns: AtomicU64,
    quick_failures: AtomicU32,
    open: Mutex<Open>,
}

/// What matters while it is open.
#[derive(Debug)]
struct Open {
    since_us: i64,
    interval_us: i64,
    /// The number of the probe that is under way, and when it began.
    probe: Option<(u64, i64)>,
    probes: u64,
    closed_at_us: Option<i64>,
}

/// What a caller may do.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// Call, and report the outcome.
    Call(Pass),
    /// Not call.
    Refused,
    /// Not call, but start this probe off the caller's way and report it. Nobody else is told so until it is reported or given
    /// up.
    Probe(Probe),
}

/// A call that was let through. What it reports counts until the breaker opens or closes: then it is news of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(u64);

/// A probe to start.
#[derive(Debug, PartialEq, Eq)]
pub struct Probe(u64);

impl Breaker {
    /// A closed one.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Self {
        let open = Open { since_us: 0, interval_us: settings.interval_us, probe: None, probes: 0, closed_at_us: None };
        Self { settings, turns: AtomicU64::new(0), quick_failures: AtomicU32::new(0), open: Mutex::new(open) }
    }

    /// Whether it is open now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        is_open(self.turns.load(Ordering::Acquire))
    }

    /// What a caller may do at `now_us`.
    pub fn admit(&self, now_us: i64) -> Admission {
        let turns = self.turns.load(Ordering::Acquire);
        if !is_open(turns) {
            return Admission::Call(Pass(turns));
        }
        let mut open = self.lock();
        let turns = self.turns.load(Ordering::Acquire);
        if !is_open(turns) {
            return Admission::Call(Pass(turns));
        }
        match open.probe {
            Some((_, began_us)) if !is_over(now_us, began_us, self.settings.probe_limit_us) => Admission::Refused,
            None if !is_over(now_us, open.since_us, open.interval_us) => Admission::Refused,
            Some(_) | None => {
                open.probes += 1;
                open.probe = Some((open.probes, now_us));
                Admission::Probe(Probe(open.probes))
            }
        }
    }

    /// A pass while it is closed, without a look at the clock. `None` while it is open: whoever can be refused asks
    /// [`Breaker::admit`], and the outcome of a call that is made in any case is no news.
    #[must_use]
    pub fn pass(&self) -> Option<Pass> {
        let turns = self.turns.load(Ordering::Acquire);
        (!is_open(turns)).then_some(Pass(turns))
    }

    /// A call that was let through was answered, if only with a refusal.
    pub fn answered(&self, pass: Pass) {
        if self.quick_failures.load(Ordering::Relaxed) != 0 && self.turns.load(Ordering::Acquire) == pass.0 {
            self.quick_failures.store(0, Ordering::Relaxed);
        }
    }

    /// A call that was let through took `took_us` and was not answered; it is `now_us`. `true` where this opened the breaker.
    pub fn failed(&self, pass: Pass, took_us: i64, now_us: i64) -> bool {
        if self.turns.load(Ordering::Acquire) != pass.0 {
            return false;
        }
        if took_us < self.settings.slow_us
            && self.quick_failures.fetch_add(1, Ordering::Relaxed).saturating_add(1) < self.settings.quick_failures
        {
            return false;
        }
        let mut open = self.lock();
        if self.turns.load(Ordering::Acquire) != pass.0 {
            return false;
        }
        let is_again =
            open.closed_at_us.is_some_and(|closed_us| !is_over(now_us, closed_us, self.settings.interval_max_us));
        open.interval_us = if is_again { self.longer(open.interval_us) } else { self.settings.interval_us };
        open.since_us = now_us;
        open.probe = None;
        self.turn();
        true
    }

    /// A probe came back at `now_us`: the tier did what was asked, or did not. `true` where this closed the breaker. A report
    /// of a probe that was given up, or of one that a frozen process began, says nothing of now.
    pub fn probe_ended(&self, probe: &Probe, answered: bool, now_us: i64) -> bool {
        let mut open = self.lock();
        let Some((number, began_us)) = open.probe else { return false };
        if number != probe.0 {
            return false;
        }
        open.probe = None;
        if is_over(now_us, began_us, self.settings.probe_limit_us) {
            return false;
        }
        if answered {
            open.closed_at_us = Some(now_us);
            self.turn();
        } else {
            open.since_us = now_us;
            open.interval_us = self.longer(open.interval_us);
        }
        answered
    }

    /// Opens or closes it. Under the lock of `open`.
    fn turn(&self) {
        self.quick_failures.store(0, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Release);
    }

    fn longer(&self, interval_us: i64) -> i64 {
        interval_us.saturating_mul(2).min(self.settings.interval_max_us)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_open(turns: u64) -> bool {
    turns % 2 == 1
}

fn is_over(now_us: i64, since_us: i64, length_us: i64) -> bool {
    now_us < since_us || now_us >= since_us.saturating_add(length_us)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000;
    const SLOW: i64 = 100 * MS;
    const HOUR: i64 = 3_600_000 * MS;
    const START: i64 = 1_790_000_000_000 * MS;

    fn call(breaker: &Breaker, now_us: i64) -> Pass {
        match breaker.admit(now_us) {
            Admission::Call(pass) => pass,
            other @ (Admission::Refused | Admission::Probe(_)) => panic!("{other:?}"),
        }
    }

    fn probe(breaker: &Breaker, now_us: i64) -> Probe {
        match breaker.admit(now_us) {
            Admission::Probe(probe) => probe,
            other @ (Admission::Refused | Admission::Call(_)) => panic!("{other:?}"),
        }
    }

    /// A breaker that opened at `START`.
    fn opened() -> Breaker {
        let breaker = Breaker::new(BreakerSettings::default());
        assert!(breaker.failed(call(&breaker, START - SLOW), SLOW, START));
        breaker
    }

    #[test]
    fn one_slow_failure_opens_it_and_some_quick_ones_in_a_row() {
        for (failures, opens) in [
            (&[SLOW][..], true),
            (&[SLOW - 1], false),
            (&[0, 0, 0, 0], false),
            (&[0, 0, 0, 0, 0], true),
            (&[0, SLOW], true),
        ] {
            let breaker = Breaker::new(BreakerSettings::default());
            for took_us in failures {
                assert!(!breaker.is_open());
                breaker.failed(call(&breaker, START), *took_us, START);
            }
            assert_eq!(breaker.is_open(), opens, "{failures:?}");
        }
    }

    #[test]
    fn an_answer_between_quick_failures_begins_the_count_anew() {
        let breaker = Breaker::new(BreakerSettings::default());
        for _ in 0..10 {
            for _ in 0..4 {
                breaker.failed(call(&breaker, START), 0, START);
            }
            breaker.answered(call(&breaker, START));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn while_it_is_open_all_are_refused_and_one_is_told_to_probe_when_it_is_time() {
        let breaker = opened();
        assert_eq!(breaker.admit(START), Admission::Refused);
        assert_eq!(breaker.admit(START + 200 * MS - 1), Admission::Refused);
        let first = probe(&breaker, START + 200 * MS);
        assert_eq!(breaker.admit(START + 200 * MS), Admission::Refused, "one at a time");
        assert!(breaker.probe_ended(&first, true, START + 201 * MS));
        call(&breaker, START + 201 * MS);
    }

    #[test]
    fn each_probe_that_fails_doubles_the_interval_up_to_its_greatest() {
        let breaker = opened();
        let mut now_us = START;
        for interval_ms in [200, 400, 800, 1_600, 2_000, 2_000] {
            assert_eq!(breaker.admit(now_us + interval_ms * MS - 1), Admission::Refused, "{interval_ms}");
            now_us += interval_ms * MS;
            assert!(!breaker.probe_ended(&probe(&breaker, now_us), false, now_us));
            assert!(breaker.is_open());
        }
    }

    #[test]
    fn a_probe_that_never_reports_is_given_up_and_its_late_report_counts_for_nothing() {
        let breaker = opened();
        let lost = probe(&breaker, START + 200 * MS);
        assert_eq!(breaker.admit(START + 5_200 * MS - 1), Admission::Refused);
        let next = probe(&breaker, START + 5_200 * MS);
        assert!(!breaker.probe_ended(&lost, true, START + 5_201 * MS));
        assert!(breaker.is_open());
        assert!(breaker.probe_ended(&next, true, START + 5_202 * MS));
    }

    #[test]
    fn one_that_opens_again_soon_goes_on_where_it_was_and_later_begins_anew() {
        for (after_ms, interval_ms) in [(1_999, 400), (2_000, 200)] {
            let breaker = opened();
            let closed_us = START + 200 * MS;
            assert!(breaker.probe_ended(&probe(&breaker, closed_us), true, closed_us));
            let again_us = closed_us + after_ms * MS;
            assert!(breaker.failed(call(&breaker, again_us - SLOW), SLOW, again_us));
            assert_eq!(breaker.admit(again_us + interval_ms * MS - 1), Admission::Refused);
            probe(&breaker, again_us + interval_ms * MS);
        }
    }

    #[test]
    fn news_of_before_it_opened_or_closed_changes_nothing() {
        let breaker = Breaker::new(BreakerSettings::default());
        let before = call(&breaker, START);
        assert!(breaker.failed(before, SLOW, START));
        assert!(!breaker.failed(before, SLOW, START + 150 * MS), "many were under way");
        let since_the_first = probe(&breaker, START + 200 * MS);
        assert!(breaker.probe_ended(&since_the_first, true, START + 201 * MS));
        assert!(!breaker.failed(before, SLOW, START + 202 * MS));
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_jump_of_time_brings_a_probe_and_closes_nothing() {
        for jump_us in [HOUR, -HOUR] {
            let breaker = opened();
            let frozen = probe(&breaker, START + jump_us);
            assert!(breaker.is_open());
            // Frozen once more with the probe under way: its answer, however good, is of before.
            let thawed_us = START + 2 * jump_us;
            assert!(!breaker.probe_ended(&frozen, true, thawed_us));
            assert!(breaker.is_open());
            assert!(breaker.probe_ended(&probe(&breaker, thawed_us), true, thawed_us));
        }
    }

    #[test]
    fn of_many_callers_at_once_one_is_told_to_probe() {
        let breaker = opened();
        let told: usize = std::thread::scope(|scope| {
            let ask = || matches!(breaker.admit(START + HOUR), Admission::Probe(_));
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(move || usize::from(ask()))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(told, 1);
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Pass(i64),
        Admit,
        Answered(usize),
        Failed(usize, i64),
        ProbeEnded(usize, bool),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..3_000i64).prop_map(|ms| Event::Pass(ms * MS)),
            (-HOUR..HOUR).prop_map(Event::Pass),
            Just(Event::Admit),
            Just(Event::Admit),
            any::<usize>().prop_map(Event::Answered),
            (any::<usize>(), 0..2 * SLOW).prop_map(|(which, took_us)| Event::Failed(which, took_us)),
            (any::<usize>(), any::<bool>()).prop_map(|(which, answered)| Event::ProbeEnded(which, answered)),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: it closes only by an answer in time to the newest probe, opens only by a
        /// failure of a call let through since it last closed, and while it is open there are no two probes at a time.
        #[test]
        fn it_opens_and_closes_only_for_its_reasons(events in prop::collection::vec(event(), 1..200)) {
            let settings = BreakerSettings::default();
            let breaker = Breaker::new(settings);
            let (mut now_us, mut turn) = (START, 0);
            let (mut passes, mut probes) = (Vec::new(), Vec::new());
            let mut running: Option<(usize, i64)> = None;
            for event in events {
                let was_open = breaker.is_open();
                match event {
                    Event::Pass(by_us) => now_us += by_us,
                    Event::Admit => match breaker.admit(now_us) {
                        Admission::Call(pass) => {
                            prop_assert!(!was_open);
                            passes.push((pass, turn));
                        }
                        Admission::Refused => prop_assert!(was_open),
                        Admission::Probe(probe) => {
                            prop_assert!(was_open);
                            let is_over = running.is_none_or(|(_, began)| is_over(now_us, began, settings.probe_limit_us));
                            prop_assert!(is_over, "two at a time");
                            running = Some((probes.len(), now_us));
                            probes.push(probe);
                        }
                    },
                    Event::Answered(which) if !passes.is_empty() => breaker.answered(passes[which % passes.len()].0),
                    Event::Failed(which, took_us) if !passes.is_empty() => {
                        let (pass, of_turn) = passes[which % passes.len()];
                        let opened = breaker.failed(pass, took_us, now_us);
                        prop_assert!(!opened || of_turn == turn);
                        prop_assert!(opened || of_turn != turn || took_us < settings.slow_us);
                        prop_assert_eq!(breaker.is_open(), was_open || opened);
                        turn += i32::from(opened);
                    }
                    Event::ProbeEnded(which, answered) if !probes.is_empty() => {
                        let which = which % probes.len();
                        let closed = breaker.probe_ended(&probes[which], answered, now_us);
                        let in_time = running.is_some_and(|(newest, began)| {
                            newest == which && !is_over(now_us, began, settings.probe_limit_us)
                        });
                        prop_assert_eq!(closed, answered && in_time && was_open);
                        prop_assert_eq!(breaker.is_open(), was_open && !closed);
                        if running.is_some_and(|(newest, _)| newest == which) {
                            running = None;
                        }
                        turn += i32::from(closed);
                    }
                    Event::Answered(_) | Event::Failed(..) | Event::ProbeEnded(..) => {}
                }
            }
        }
    }
}
