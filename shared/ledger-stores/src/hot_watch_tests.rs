use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use ledger_domain::ports::{
    Amend, Begin, Begun, ColdSession, Count, Heal, HotHealth, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{FillPass, PolicySet, SessionId, Slot, Timestamp};

use super::*;
use crate::clock::SystemClock;
use crate::memory::MemoryHotTier;
use crate::os_time::manual::ManualTime;

/// The keeper's last.
const LAST_PASS: FillPass = FillPass::from_bytes([1; 8]);

/// A hot tier that says of itself what it is told to, and a control plane with the sessions it is told to have.
struct Says {
    inner: MemoryHotTier,
    health: Mutex<Option<Result<HotHealth, StoreError>>>,
    sessions: Mutex<Option<Result<Vec<ColdSession>, StoreError>>>,
    /// The keeper's last pass; the last of them stays.
    passes: Mutex<Vec<Result<FillPass, StoreError>>>,
    reads: AtomicUsize,
}

/// What was told, or nothing for ever where that is `None`.
async fn told<T: Clone>(what: &Mutex<Option<Result<T, StoreError>>>) -> Result<T, StoreError> {
    let told = what.lock().unwrap_or_else(PoisonError::into_inner).clone();
    tokio::task::yield_now().await;
    match told {
        Some(told) => told,
        None => std::future::pending().await,
    }
}

#[async_trait]
impl HotTier for Says {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        self.inner.begin(requests).await
    }
    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        self.inner.settle(requests).await
    }
    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        self.inner.count(requests).await
    }
    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        self.inner.replace(requests).await
    }
    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        self.inner.amend(requests).await
    }
    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        self.inner.release(requests).await
    }
    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        self.inner.read(slots).await
    }
    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.inner.heal(requests).await
    }
    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.inner.time().await
    }
    async fn health(&self) -> Result<HotHealth, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        told(&self.health).await
    }

    async fn fill(&self, requests: &[ledger_domain::ports::Fill]) -> Vec<Result<bool, StoreError>> {
        self.inner.fill(requests).await
    }

    async fn begin_fill(&self, _: ledger_domain::FillPass) -> Result<(), StoreError> {
        unreachable!("nobody fills it")
    }

    async fn end_fill(&self, _: ledger_domain::FillPass) -> Result<bool, StoreError> {
        unreachable!("nobody fills it")
    }
}

#[async_trait]
impl ControlPlane for Says {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        Ok(PolicySet::default())
    }
    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        assert_eq!(limit, 1, "one is enough to know");
        told(&self.sessions).await
    }

    async fn open_cold_session(&self, _: &ledger_domain::ports::ColdSession) -> Result<(), StoreError> {
        unreachable!("nobody opens a session")
    }

    async fn renew_cold_session(
        &self,
        _: &ledger_domain::ports::ColdSession,
        _: ledger_domain::Timestamp,
    ) -> Result<bool, StoreError> {
        unreachable!("nobody renews a session")
    }

    async fn remove_cold_session(&self, _: &ledger_domain::ports::ColdSession) -> Result<bool, StoreError> {
        unreachable!("only the keeper removes sessions")
    }

    async fn keeper_state(&self) -> Result<Option<ledger_domain::ports::KeeperState>, StoreError> {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = if passes.len() > 1 { passes.remove(0) } else { passes[0].clone() };
        Ok(Some(ledger_domain::ports::KeeperState {
            version: 1,
            busy_until: Timestamp::MIN,
            lost_at: Timestamp::MIN,
            zero_runs: 0,
            zero_at: None,
            pass: Some(pass?),
            pass_began_at: Timestamp::MIN,
            cursor: None,
            pass_done: true,
            pass_rows: 0,
        }))
    }

    async fn save_keeper_state(&self, _: &ledger_domain::ports::KeeperState) -> Result<bool, StoreError> {
        unreachable!("only the keeper writes its state")
    }
}

impl Says {
    fn health(&self, health: Option<Result<HotHealth, StoreError>>) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    fn sessions(&self, sessions: Option<Result<Vec<ColdSession>, StoreError>>) {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = sessions;
    }

    fn passes(&self, passes: &[Result<FillPass, StoreError>]) {
        *self.passes.lock().unwrap_or_else(PoisonError::into_inner) = passes.to_vec();
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }
}

fn says(marker: WarmMarker, problems: &[&str]) -> Option<Result<HotHealth, StoreError>> {
    Some(Ok(HotHealth { marker, problems: problems.iter().map(|&problem| problem.to_owned()).collect() }))
}

fn down() -> StoreError {
    StoreError::did_not_happen("ask", "down")
}

fn start() -> (Arc<Says>, Arc<ManualTime>, HotWatch) {
    let says = Arc::new(Says {
        inner: MemoryHotTier::new(1, Arc::new(SystemClock)),
        health: Mutex::new(says(WarmMarker::Warm(LAST_PASS), &[])),
        sessions: Mutex::new(Some(Ok(Vec::new()))),
        passes: Mutex::new(vec![Ok(LAST_PASS)]),
        reads: AtomicUsize::new(0),
    });
    let time = ManualTime::new(1_790_000_000_000);
    let settings = HotWatchSettings::default();
    let watch = HotWatch::with_time(Arc::clone(&says) as _, Arc::clone(&says) as _, settings, Arc::clone(&time) as _);
    (says, time, watch)
}

async fn let_tasks_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nothing_is_trusted_before_the_first_read_and_then_for_two_seconds() {
    let (says, time, watch) = start();
    assert!(!watch.vouches());
    watch.ensure_fresh().await;
    assert!(watch.vouches());
    time.pass_ms(2_000);
    watch.ensure_fresh().await;
    assert_eq!((watch.vouches(), says.reads()), (true, 1), "fresh: not read again");
    time.pass_ms(1);
    assert!(!watch.vouches());
    futures::future::join_all((0..20).map(|_| watch.ensure_fresh())).await;
    assert_eq!((watch.vouches(), says.reads()), (true, 2), "one read for all");
}

#[tokio::test]
async fn only_a_warm_tier_without_problems_and_without_sessions_is_complete() {
    let session = ColdSession { id: SessionId::from_bytes([1; 8]), expires_at: Timestamp::MIN };
    let warm = || says(WarmMarker::Warm(LAST_PASS), &[]);
    let cases = [
        (warm(), Some(Ok(Vec::new())), true),
        (says(WarmMarker::Filling(FillPass::from_bytes([1; 8])), &[]), Some(Ok(Vec::new())), false),
        (says(WarmMarker::Missing, &[]), Some(Ok(Vec::new())), false),
        (says(WarmMarker::Warm(LAST_PASS), &["evicted_keys is 3"]), Some(Ok(Vec::new())), false),
        // A primary that lost its place and does not know: another was filled since.
        (says(WarmMarker::Warm(FillPass::from_bytes([9; 8])), &[]), Some(Ok(Vec::new())), false),
        (Some(Err(down())), Some(Ok(Vec::new())), false),
        (warm(), Some(Ok(vec![session])), false),
        (warm(), Some(Err(down())), false),
    ];
    for (health, sessions, vouches) in cases {
        let (says, _time, watch) = start();
        println!("{health:?} {sessions:?}");
        says.health(health);
        says.sessions(sessions);
        watch.ensure_fresh().await;
        assert_eq!(watch.vouches(), vouches);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tier_is_in_place_where_its_marker_is_of_the_keepers_last_pass() {
    let other = FillPass::from_bytes([9; 8]);
    let cases = [
        (WarmMarker::Warm(LAST_PASS), true),
        (WarmMarker::Filling(LAST_PASS), true),
        (WarmMarker::Warm(other), false),
        (WarmMarker::Filling(other), false),
        (WarmMarker::Missing, false),
    ];
    for (marker, in_place) in cases {
        let (says, _time, watch) = start();
        assert!(!watch.is_in_place(), "nothing was heard");
        says.health(self::says(marker, &["its policy evicts"]));
        watch.ensure_fresh().await;
        assert_eq!((watch.is_in_place(), watch.vouches()), (in_place, false), "{marker:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_is_between_marker_and_state_puts_no_tier_out_of_place() {
    let next = FillPass::from_bytes([9; 8]);
    let (says, time, watch) = start();
    watch.ensure_fresh().await;
    says.health(self::says(WarmMarker::Filling(next), &[]));
    says.passes(&[Ok(LAST_PASS), Ok(next)]);
    time.pass_ms(2_001);
    watch.ensure_fresh().await;
    assert_eq!((watch.is_in_place(), watch.vouches(), says.reads()), (true, false, 3));
    // Where it stays so it is out of place, and not looked at twice each time.
    says.passes(&[Ok(LAST_PASS)]);
    for reads in [5, 6] {
        time.pass_ms(2_001);
        watch.ensure_fresh().await;
        assert_eq!((watch.is_in_place(), says.reads()), (false, reads));
    }
    says.passes(&[Ok(next)]);
    time.pass_ms(2_001);
    watch.ensure_fresh().await;
    assert!(watch.is_in_place());
}

#[tokio::test(start_paused = true)]
async fn what_was_last_heard_of_its_place_counts_while_nothing_is_heard() {
    for in_place in [true, false] {
        let (says, time, watch) = start();
        if !in_place {
            says.health(self::says(WarmMarker::Missing, &[]));
        }
        watch.ensure_fresh().await;
        for tier_fails in [true, false] {
            says.health(if tier_fails { Some(Err(down())) } else { self::says(WarmMarker::Warm(LAST_PASS), &[]) });
            says.passes(&[if tier_fails { Ok(LAST_PASS) } else { Err(down()) }]);
            time.pass_ms(2_001);
            watch.ensure_fresh().await;
            // The second time it is read aside.
            let_tasks_run().await;
            assert_eq!((watch.is_in_place(), watch.vouches()), (in_place, false));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_waited_for_once_and_asked_again_off_the_callers_way() {
    for hot_hangs in [true, false] {
        let (says, time, watch) = start();
        if hot_hangs {
            says.health(None)
        } else {
            says.sessions(None)
        }
        let before = tokio::time::Instant::now();
        futures::future::join_all((0..20).map(|_| watch.ensure_fresh())).await;
        assert_eq!((before.elapsed(), says.reads()), (Duration::from_millis(500), 1));
        // Not again within the age that an answer would have, and then not on anybody's way.
        time.pass_ms(2_000);
        watch.ensure_fresh().await;
        assert_eq!(says.reads(), 1);
        time.pass_ms(1);
        futures::future::join_all((0..20).map(|_| watch.ensure_fresh())).await;
        assert_eq!(before.elapsed(), Duration::from_millis(500));
        assert!(!watch.vouches());
        let_tasks_run().await;
        assert_eq!(says.reads(), 2, "one for all");
        // It answers again: found by the next read, also after the task that hung.
        says.health(self::says(WarmMarker::Warm(LAST_PASS), &[]));
        says.sessions(Some(Ok(Vec::new())));
        tokio::time::sleep(Duration::from_millis(501)).await;
        time.pass_ms(2_001);
        watch.ensure_fresh().await;
        let_tasks_run().await;
        assert!(watch.vouches());
    }
}

#[tokio::test]
async fn a_thawed_process_trusts_nothing_that_it_knew_before() {
    for minutes_are_seen_by_the_monotonic_clock in [true, false] {
        let (says, time, watch) = start();
        watch.ensure_fresh().await;
        assert!(watch.vouches());
        if minutes_are_seen_by_the_monotonic_clock {
            time.pass_ms(5 * 60_000);
        } else {
            time.set_wall_ms_by(5 * 60_000);
        }
        assert!(!watch.vouches());
        says.health(self::says(WarmMarker::Missing, &[]));
        watch.ensure_fresh().await;
        assert!(!watch.vouches(), "the tier lost everything meanwhile");
    }
}

#[tokio::test]
async fn what_was_read_before_a_freeze_in_the_middle_of_a_read_is_old() {
    let (_says, time, watch) = start();
    let mut reading = Box::pin(watch.ensure_fresh());
    assert!(futures::poll!(&mut reading).is_pending());
    time.set_wall_ms_by(60_000);
    reading.await;
    assert!(!watch.vouches());
}

#[tokio::test(start_paused = true)]
async fn the_background_reads_each_second_and_ends_with_the_watch() {
    let (says, time, watch) = start();
    watch.refresh_in_background();
    for second in 1..=5 {
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        let_tasks_run().await;
        time.pass_ms(1_000);
        assert_eq!((says.reads(), watch.vouches()), (second, true));
    }
    says.sessions(Some(Err(down())));
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let_tasks_run().await;
    assert!(!watch.vouches(), "at the next read, not when the last is too old");
    drop(watch);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(says.reads(), 6);
}
