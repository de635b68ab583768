use std::collections::{BTreeMap, VecDeque};

use futures::future::join_all;
use ledger_domain::PolicySet;
use ledger_testkit::clock::{ManualClock, SeededEntropy};

use super::*;
use crate::os_time::manual::ManualTime;

const START_MS: i64 = 1_790_000_000_000;

/// What the control plane does with the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Work,
    /// Nothing, and says so.
    Refuse,
    /// It works, but the reply is lost.
    LoseReply,
    /// Nothing, and the reply is lost.
    LoseRequest,
    /// It works, but never comes back.
    Hang,
    /// It works, and while it does so much time goes by.
    Take(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Open,
    Renew,
}

struct Scripted {
    items: Mutex<BTreeMap<SessionId, Timestamp>>,
    script: Mutex<VecDeque<Does>>,
    writes: Mutex<Vec<Write>>,
    clock: Arc<ManualClock>,
}

impl Scripted {
    fn script(&self, does: impl IntoIterator<Item = Does>) {
        self.script.lock().unwrap().extend(does);
    }

    fn writes(&self) -> Vec<Write> {
        std::mem::take(&mut *self.writes.lock().unwrap())
    }

    fn items(&self) -> BTreeMap<SessionId, Timestamp> {
        self.items.lock().unwrap().clone()
    }

    async fn write<T>(
        &self,
        write: Write,
        done: impl FnOnce(&mut BTreeMap<SessionId, Timestamp>) -> T,
    ) -> Result<T, StoreError> {
        self.writes.lock().unwrap().push(write);
        tokio::task::yield_now().await;
        let does = self.script.lock().unwrap().pop_front().unwrap_or(Does::Work);
        let lost = || Err(StoreError::may_have_happened("test", "lost"));
        if does == Does::Refuse {
            return Err(StoreError::did_not_happen("test", "refused"));
        }
        if does == Does::LoseRequest {
            return lost();
        }
        let outcome = done(&mut self.items.lock().unwrap());
        match does {
            Does::Hang => std::future::pending().await,
            Does::LoseReply => lost(),
            Does::Take(millis) => {
                self.clock.advance(millis);
                Ok(outcome)
            }
            Does::Work | Does::Refuse | Does::LoseRequest => Ok(outcome),
        }
    }
}

#[async_trait]
impl ControlPlane for Scripted {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        Ok(PolicySet::default())
    }

    async fn open_cold_session(&self, session: &ColdSession) -> Result<(), StoreError> {
        self.write(Write::Open, |items| {
            items.entry(session.id).or_insert(session.expires_at);
        })
        .await
    }

    async fn renew_cold_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError> {
        let renew = |items: &mut BTreeMap<SessionId, Timestamp>| match items.get_mut(&read.id) {
            Some(end) if *end == read.expires_at => {
                *end = expires_at;
                true
            }
            Some(_) | None => false,
        };
        self.write(Write::Renew, renew).await
    }

    async fn cold_sessions(&self, _: usize) -> Result<Vec<ledger_domain::ports::ColdSession>, StoreError> {
        unreachable!("nobody looks at sessions")
    }

    async fn remove_cold_session(&self, _: &ledger_domain::ports::ColdSession) -> Result<bool, StoreError> {
        unreachable!("only the keeper removes sessions")
    }

    async fn keeper_state(&self) -> Result<Option<ledger_domain::ports::KeeperState>, StoreError> {
        unreachable!("only the keeper asks for its state")
    }

    async fn save_keeper_state(&self, _: &ledger_domain::ports::KeeperState) -> Result<bool, StoreError> {
        unreachable!("only the keeper writes its state")
    }
}

struct Test {
    control_plane: Arc<Scripted>,
    clock: Arc<ManualClock>,
    time: Arc<ManualTime>,
    sessions: ControlPlaneSessions,
}

fn start() -> Test {
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(START_MS)));
    let time = ManualTime::new(START_MS);
    let control_plane = Arc::new(Scripted {
        items: Mutex::default(),
        script: Mutex::default(),
        writes: Mutex::default(),
        clock: Arc::clone(&clock),
    });
    let sessions = ControlPlaneSessions::with_time(
        Arc::clone(&control_plane) as _,
        Arc::clone(&clock) as _,
        Arc::new(SeededEntropy::new(7)),
        ColdSessionSettings::default(),
        Arc::clone(&time) as _,
    );
    Test { control_plane, clock, time, sessions }
}

impl Test {
    fn pass_ms(&self, millis: u32) {
        self.clock.advance(u64::from(millis));
        self.time.pass_ms(i64::from(millis));
    }

    fn now(&self) -> Timestamp {
        self.clock.now().expect("known")
    }

    /// A session is had, and what is relied on is what stands: an item that lasts the margin longer at least.
    async fn ensured(&self) -> Timestamp {
        let until = self.sessions.ensure().await.expect("a session");
        self.covers(until);
        until
    }

    #[track_caller]
    fn covers(&self, until: Timestamp) {
        assert!(until.millis_since(self.now()) >= 2_000, "enough for a decision");
        let covered = self.control_plane.items().into_values().any(|end| end.millis_since(until) >= 2_000);
        assert!(covered, "{until} by {:?}", self.control_plane.items());
    }
}

async fn let_tasks_run() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_is_opened_at_the_first_need_and_then_relied_on_without_a_write() {
    let test = start();
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 18_000));
    for _ in 0..10 {
        test.pass_ms(1_000);
        assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 18_000));
    }
    assert_eq!(test.control_plane.writes(), [Write::Open]);
}

#[tokio::test]
async fn with_less_than_half_left_it_is_renewed_off_the_callers_way_once() {
    let test = start();
    test.ensured().await;
    test.pass_ms(10_001);
    for until in join_all((0..10).map(|_| test.ensured())).await {
        assert_eq!(until, Timestamp::from_millis(START_MS + 18_000), "nobody waits for it");
    }
    let_tasks_run().await;
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Renew]);
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 28_001));
    assert_eq!(test.control_plane.items().len(), 1);
}

#[tokio::test]
async fn with_too_little_left_for_a_decision_the_caller_waits_for_the_renewal() {
    let test = start();
    test.ensured().await;
    test.pass_ms(16_001);
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 34_001));
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Renew]);
}

#[tokio::test]
async fn many_who_need_one_open_one_and_share_a_failure() {
    let test = start();
    test.control_plane.script([Does::Refuse]);
    for outcome in join_all((0..20).map(|_| test.sessions.ensure())).await {
        assert!(matches!(outcome, Err(StoreError::DidNotHappen { .. })));
    }
    assert_eq!(test.control_plane.writes(), [Write::Open]);
    test.time.pass_ms(249);
    assert!(test.sessions.ensure().await.is_err(), "remembered for a while");
    assert_eq!(test.control_plane.writes(), []);
    test.time.pass_ms(1);
    join_all((0..20).map(|_| test.ensured())).await;
    assert_eq!(test.control_plane.writes(), [Write::Open]);
    assert_eq!(test.control_plane.items().len(), 1);
}

#[tokio::test]
async fn an_opening_whose_reply_was_lost_is_repeated_as_it_was() {
    for does in [Does::LoseReply, Does::LoseRequest] {
        let test = start();
        test.control_plane.script([does]);
        assert!(matches!(test.sessions.ensure().await, Err(StoreError::MayHaveHappened { .. })));
        test.pass_ms(1_000);
        assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 18_000), "by the end that was sent");
        assert_eq!(test.control_plane.items().len(), 1, "{does:?}");
    }
    // With little of it left another is opened: under the same name the first one's end would stand.
    let test = start();
    test.control_plane.script([Does::LoseReply]);
    assert!(test.sessions.ensure().await.is_err());
    test.pass_ms(10_001);
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 28_001));
    assert_eq!(test.control_plane.items().len(), 2);
}

#[tokio::test]
async fn after_a_renewal_whose_reply_was_lost_what_was_acknowledged_counts_and_then_another_is_opened() {
    for (does, writes) in [(Does::LoseReply, &[Write::Renew, Write::Open][..]), (Does::LoseRequest, &[Write::Renew])] {
        let test = start();
        test.ensured().await;
        test.pass_ms(12_000);
        test.control_plane.writes();
        test.control_plane.script([does]);
        test.ensured().await;
        let_tasks_run().await;
        assert_eq!(test.control_plane.writes(), [Write::Renew]);
        assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 18_000));
        test.pass_ms(4_001);
        assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 34_001));
        assert_eq!(test.control_plane.writes(), writes, "{does:?}");
    }
}

#[tokio::test]
async fn a_session_that_the_keeper_removed_is_not_renewed() {
    let test = start();
    test.ensured().await;
    test.pass_ms(17_000);
    test.control_plane.items.lock().unwrap().clear();
    test.ensured().await;
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Renew, Write::Open]);
    assert_eq!(test.control_plane.items().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_hangs_costs_one_wait_within_the_limit() {
    let test = start();
    test.control_plane.script([Does::Hang]);
    let before = tokio::time::Instant::now();
    for outcome in join_all((0..20).map(|_| test.sessions.ensure())).await {
        assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })));
    }
    assert_eq!(before.elapsed(), Duration::from_secs(1));
    assert!(test.sessions.ensure().await.is_err());
    assert_eq!(before.elapsed(), Duration::from_secs(1), "the next does not wait again");
    test.pass_ms(1_000);
    test.ensured().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_off_the_way_leaves_what_is_left_and_blocks_no_later_one() {
    let test = start();
    test.ensured().await;
    test.pass_ms(11_000);
    test.control_plane.script([Does::Hang]);
    test.ensured().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    test.pass_ms(1_000);
    test.ensured().await;
    let_tasks_run().await;
    // It had happened; so the second finds another end, and opens.
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Renew, Write::Renew, Write::Open]);
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 30_000));
}

#[tokio::test]
async fn a_thawed_process_opens_another_where_its_own_is_over_and_renews_it_where_it_is_not() {
    let test = start();
    test.ensured().await;
    test.pass_ms(19_999);
    test.ensured().await;
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Renew]);
    for minutes in [1, 5, 60] {
        let before = test.control_plane.items();
        test.pass_ms(minutes * 60_000);
        let until = test.ensured().await;
        assert_eq!(test.control_plane.writes(), [Write::Open]);
        assert!(test.control_plane.items().len() == before.len() + 1, "what is over is not revived: {until}");
    }
}

#[tokio::test]
async fn one_that_was_over_when_it_was_acknowledged_is_not_relied_on() {
    let test = start();
    test.control_plane.script([Does::Take(60_000)]);
    assert_eq!(test.ensured().await, Timestamp::from_millis(START_MS + 78_000));
    assert_eq!(test.control_plane.writes(), [Write::Open, Write::Open]);
    let test = start();
    test.control_plane.script([Does::Take(60_000); 2]);
    assert!(test.sessions.ensure().await.is_err());
    assert_eq!(test.control_plane.writes().len(), 2);
}

#[tokio::test]
async fn where_the_time_is_unknown_nothing_is_relied_on() {
    let test = start();
    test.ensured().await;
    test.clock.set_unknown(true);
    assert!(test.sessions.ensure().await.is_err());
    test.clock.set_unknown(false);
    test.ensured().await;
    assert_eq!(test.control_plane.writes(), [Write::Open]);
}

#[tokio::test]
async fn a_caller_that_leaves_blocks_nobody() {
    let test = start();
    test.control_plane.script([Does::Hang]);
    let mut leaves = Box::pin(test.sessions.ensure());
    assert!(futures::poll!(&mut leaves).is_pending());
    let_tasks_run().await;
    assert!(futures::poll!(&mut leaves).is_pending());
    drop(leaves);
    test.ensured().await;
    assert_eq!(test.control_plane.items().len(), 1, "what the first one sent is sent again");
}
