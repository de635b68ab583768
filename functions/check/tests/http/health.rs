//! `GET /v1/health`, with each tier in each of its states.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use check::{App, Asked, router};
use http::Request;
use ledger_domain::breaker::BreakerSettings;
use ledger_domain::ports::{
    Clock, ColdLedger, ColdSession, ControlPlane, EventQueue, HotTier, KeeperState, StoreError,
};
use ledger_domain::{FillPass, PolicySet, SessionId, Slot, Timestamp};
use ledger_lambda::env::Tenants;
use ledger_stores::guarded::{GuardedHotTier, Lanes};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::sqlite::SqliteLedger;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::house::{FixedTrust, House, ScriptedQueue, subject};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

/// A control plane with one session or none.
#[derive(Default)]
struct Sessions {
    stands: AtomicBool,
    down: AtomicBool,
}

#[async_trait]
impl ControlPlane for Sessions {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        Ok(PolicySet::default())
    }

    async fn cold_sessions(&self, _limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen("read cold sessions", "told so"));
        }
        let session = ColdSession { id: SessionId::from_bytes([1; 8]), expires_at: Timestamp::MAX };
        Ok(if self.stands.load(Ordering::SeqCst) { vec![session] } else { Vec::new() })
    }

    async fn open_cold_session(&self, _: &ColdSession) -> Result<(), StoreError> {
        unreachable!("it is only looked at")
    }

    async fn renew_cold_session(&self, _: &ColdSession, _: Timestamp) -> Result<bool, StoreError> {
        unreachable!("it is only looked at")
    }

    async fn remove_cold_session(&self, _: &ColdSession) -> Result<bool, StoreError> {
        unreachable!("it is only looked at")
    }

    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError> {
        unreachable!("that is the keeper's")
    }

    async fn save_keeper_state(&self, _: &KeeperState) -> Result<bool, StoreError> {
        unreachable!("that is the keeper's")
    }
}

/// A ledger whose tiers go up and down as told.
struct Tiers {
    app: Arc<App>,
    hot: Arc<Faulty<MemoryHotTier>>,
    queue: Arc<Faulty<ScriptedQueue>>,
    cold: Arc<Faulty<SqliteLedger>>,
    control_plane: Arc<Sessions>,
    trust: Arc<FixedTrust>,
    clock: Arc<ManualClock>,
    _dir: TempDir,
}

async fn start() -> Tiers {
    let dir = TempDir::new().expect("a temp folder");
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_790_000_000_000)));
    let memory = Arc::new(MemoryHotTier::new(1_000, Arc::clone(&clock) as Arc<dyn Clock>));
    let hot = Arc::new(Faulty::new(memory, 1, FaultRates::NONE));
    let pass = FillPass::from_bytes([1; 8]);
    hot.begin_fill(pass).await.expect("memory answers");
    assert!(hot.end_fill(pass).await.expect("memory answers"));
    let sqlite = SqliteLedger::open(&dir.path().join("ledger.sqlite")).await.expect("a new ledger");
    let cold = Arc::new(Faulty::new(Arc::new(sqlite), 2, FaultRates::NONE));
    let settings = BreakerSettings { quick_failures: 1, ..BreakerSettings::default() };
    let guard = Arc::new(GuardedHotTier::new(Arc::clone(&hot) as _, Lanes::One, settings));
    let cold_port: Arc<dyn ColdLedger> = Arc::clone(&cold) as _;
    let house = House::new(Arc::clone(&guard) as _, Some(cold_port), Arc::clone(&clock) as _);
    let House { mut ledger, queue, trust, .. } = house;
    let queue = Arc::new(Faulty::new(queue, 3, FaultRates::NONE));
    ledger.queue = Arc::clone(&queue) as Arc<dyn EventQueue>;
    let control_plane = Arc::new(Sessions::default());
    let asked = Asked { guard: Some(guard), control_plane: Some(Arc::clone(&control_plane) as _) };
    let app = Arc::new(App { ledger, tenants: Tenants::All, default_tenant: None, asked });
    Tiers { app, hot, queue, cold, control_plane, trust, clock, _dir: dir }
}

impl Tiers {
    /// The status, and the body.
    async fn health(&self) -> (u16, Value) {
        let request = Request::get("/v1/health").body(Body::empty()).expect("valid");
        let response = router(Arc::clone(&self.app)).oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("in memory");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }
}

#[tokio::test]
async fn it_says_each_tiers_state() {
    let tiers = start().await;
    let (status, body) = tiers.health().await;
    assert_eq!((status, &body["status"]), (200, &json!("ok")));
    assert_eq!(body["decidedBy"], json!(["hot", "cold"]));
    assert_eq!(
        body["tiers"],
        json!({
            "hot": {"state": "up", "complete": true, "breaker": "closed"},
            "queue": {"state": "up", "waiting": 0},
            "cold": {"state": "up"},
            "controlPlane": {"state": "up", "coldSessions": false},
            "clock": {"state": "up"},
        })
    );
    assert_eq!(body["answers"]["new"], 0);
}

#[tokio::test]
async fn it_is_ok_where_some_tier_can_decide_and_names_which() {
    // Down: hot, queue, cold, control plane. Then whether a cold session stands, and who can decide.
    let cases = [
        ("----", false, &["hot", "cold"][..]),
        ("--c-", false, &["hot"]),
        ("----", true, &["cold"]),
        ("--c-", true, &[]),
        ("-q--", false, &["cold"]),
        ("-qc-", false, &[]),
        ("h---", false, &["cold"]),
        ("hq--", false, &["cold"]),
        ("h-c-", false, &[]),
        // Without sessions a hot tier that is down cannot be told of what is decided; one that is up learns of it at once.
        ("h--p", false, &[]),
        ("---p", false, &["cold"]),
        ("--cp", false, &[]),
    ];
    for (down, session, decided_by) in cases {
        let tiers = start().await;
        let rates = |name| if down.contains(name) { FaultRates::DOWN } else { FaultRates::NONE };
        tiers.hot.set_rates(rates('h'));
        tiers.queue.set_rates(rates('q'));
        tiers.cold.set_rates(rates('c'));
        tiers.control_plane.down.store(down.contains('p'), Ordering::SeqCst);
        tiers.control_plane.stands.store(session, Ordering::SeqCst);
        let (status, body) = tiers.health().await;
        assert_eq!(body["decidedBy"], json!(decided_by), "{down} {session}");
        let expected = if decided_by.is_empty() { (503, "failing") } else { (200, "ok") };
        assert_eq!((status, body["status"].as_str().expect("text")), expected, "{down} {session}");
        for (name, tier) in [('h', "hot"), ('q', "queue"), ('c', "cold"), ('p', "controlPlane")] {
            let state = if down.contains(name) { "down" } else { "up" };
            assert_eq!(body["tiers"][tier]["state"], state, "{down}: {tier}");
        }
        assert_eq!(body["tiers"]["hot"]["breaker"], if down.contains('h') { "open" } else { "closed" });
    }
}

#[tokio::test]
async fn while_the_breaker_is_open_the_hot_tier_decides_nothing_though_it_answers() {
    let tiers = start().await;
    tiers.hot.set_rates(FaultRates::DOWN);
    let asked = subject("t:as4", "k");
    assert!(tiers.app.ledger.hot.read(&[Slot::of(&asked.scope, &asked.key)]).await[0].is_err());
    tiers.hot.set_rates(FaultRates::NONE);
    let (status, body) = tiers.health().await;
    assert_eq!((status, &body["tiers"]["hot"]["breaker"], &body["decidedBy"]), (200, &json!("open"), &json!(["cold"])));
    assert_eq!(body["tiers"]["hot"]["state"], "up");
}

#[tokio::test]
async fn a_hot_tier_that_is_not_in_place_decides_nothing_and_the_cold_ledger_needs_a_session() {
    let tiers = start().await;
    tiers.trust.set_in_place(false);
    for (control_plane_is_down, status, decided_by) in [(false, 200, &["cold"][..]), (true, 503, &[])] {
        tiers.control_plane.down.store(control_plane_is_down, Ordering::SeqCst);
        let (told, body) = tiers.health().await;
        assert_eq!(
            (told, &body["decidedBy"], &body["tiers"]["hot"]["complete"]),
            (status, &json!(decided_by), &json!(false))
        );
        let problem = body["tiers"]["hot"]["problems"][0].as_str().expect("text");
        assert!(problem.contains("lost its place"), "{problem}");
    }
}

#[tokio::test]
async fn without_the_time_nothing_is_decided() {
    let tiers = start().await;
    tiers.clock.set_unknown(true);
    let (status, body) = tiers.health().await;
    assert_eq!((status, &body["decidedBy"]), (503, &json!([])));
    assert_eq!(body["tiers"]["clock"]["state"], "down");
}
