//! A process of the ledger: tiers, clock, watch and cold session of its own, and a way to Redis that can be cut for it alone.

use std::net::SocketAddr;
use std::sync::Arc;

use ledger_domain::breaker::BreakerSettings;
use ledger_domain::check::{Counters, Ledger};
use ledger_domain::claim::TokenKeys;
use ledger_domain::ports::{
    ColdLedger, ColdSessions, ControlPlane, EventQueue, FactSink, HotTier, HotTrust, PolicySource,
};
use ledger_domain::{Policy, PolicySet, Scope};
use ledger_stores::clock::{ColdTime, HotTime, LedgerClock, LedgerClockSettings, OsEntropy};
use ledger_stores::cold_session::{ColdSessionSettings, ControlPlaneSessions};
use ledger_stores::guarded::{GuardedHotTier, Lanes};
use ledger_stores::hot_watch::{HotWatch, HotWatchSettings};
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::redis_server::with_timeouts;
use ledger_testkit::tcp_proxy::TcpProxy;

use crate::load::pause_ms;

/// What every process of a deployment has.
pub(crate) const TOKEN_KEY: [u8; 32] = [7; 32];

/// How long Redis has for a connection, and for an answer: longer than in production, for many runs share this machine.
const REDIS_LIMIT_MS: u64 = 200;
/// The same where Redis is not to fail, however slow the machine is.
const PATIENT_REDIS_LIMIT_MS: u64 = 20_000;
/// How often the time is asked for before a run counts as one that cannot be set up.
const MEASURES_MAX: u32 = 120;
/// Shorter than in production, for a run lasts seconds.
const SESSION: ColdSessionSettings =
    ColdSessionSettings { lifetime_ms: 4_000, margin_ms: 700, decision_ms: 1_000, timeout_ms: 500, retry_ms: 250 };

/// How a process finds Redis.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// At this address, through a proxy of its own.
    Proxied(SocketAddr),
    /// By this URL, of Sentinels, which name the servers themselves: no proxy can be put in between.
    Sentinels(String),
}

/// The URL of the Redis at `address`, for a tier that waits for it.
pub(crate) fn patient_url(address: SocketAddr) -> String {
    with_timeouts(&format!("redis://{address}"), PATIENT_REDIS_LIMIT_MS, PATIENT_REDIS_LIMIT_MS)
}

pub(crate) struct Process {
    /// On its way to Redis, where one can be.
    pub(crate) proxy: Option<TcpProxy>,
    pub(crate) hot: Arc<dyn HotTier>,
    pub(crate) cold: Arc<dyn ColdLedger>,
    pub(crate) watch: Arc<HotWatch>,
    pub(crate) clock: Arc<LedgerClock>,
    pub(crate) sessions: Arc<dyn ColdSessions>,
}

impl Process {
    pub(crate) async fn start(
        redis: Way,
        redis_fails: bool,
        postgres_url: &str,
        control_plane: Arc<dyn ControlPlane>,
    ) -> Self {
        let (proxy, url) = match redis {
            Way::Proxied(address) => {
                let proxy = TcpProxy::start(address).await;
                let url = patient_url(proxy.address());
                (Some(proxy), url)
            }
            Way::Sentinels(url) => (None, url),
        };
        let limit_ms = if redis_fails { REDIS_LIMIT_MS } else { PATIENT_REDIS_LIMIT_MS };
        let url = with_timeouts(&url, limit_ms, limit_ms);
        let bare: Arc<dyn HotTier> = Arc::new(RedisHotTier::open(&url).expect("a URL of this fixture"));
        let hot: Arc<dyn HotTier> =
            Arc::new(GuardedHotTier::new(Arc::clone(&bare), Lanes::One, BreakerSettings::default()));
        let config = PostgresConfig { operation_timeout_ms: 2_000, ..PostgresConfig::default() };
        let cold = PostgresLedger::connect_lazy(postgres_url, &config).expect("a URL of this fixture");
        let cold: Arc<dyn ColdLedger> = Arc::new(cold);
        let references: Vec<Arc<dyn ledger_stores::clock::TimeReference>> =
            vec![Arc::new(HotTime(bare)), Arc::new(ColdTime(Arc::clone(&cold)))];
        let clock = Arc::new(LedgerClock::new(references, LedgerClockSettings::default()));
        // On a machine that starts many servers at once it may take a while until one answers soon enough to be sure of.
        let mut measures = 0;
        while clock.measure().await.is_err() {
            measures += 1;
            assert!(measures < MEASURES_MAX, "the servers tell the time");
            pause_ms(250).await;
        }
        clock.refresh_in_background();
        let sessions = ControlPlaneSessions::new(
            Arc::clone(&control_plane),
            Arc::clone(&clock) as Arc<_>,
            Arc::new(OsEntropy),
            SESSION,
        );
        let watch = Arc::new(HotWatch::new(Arc::clone(&hot), control_plane, HotWatchSettings::default()));
        watch.refresh_in_background();
        Self { proxy, hot, cold, watch, clock, sessions: Arc::new(sessions) }
    }

    /// What an edge does when a request arrives: what is remembered must be fresh.
    pub(crate) async fn wake(&self) {
        let (_, ()) = futures::join!(self.clock.ensure_known(), self.watch.ensure_fresh());
    }

    /// The use cases of a check function in this process.
    pub(crate) fn ledger(&self, queue: Arc<dyn EventQueue>, repeats: Arc<dyn FactSink>) -> Ledger {
        Ledger {
            hot: Arc::clone(&self.hot),
            trust: Arc::clone(&self.watch) as Arc<dyn HotTrust>,
            queue,
            repeats,
            cold: Some(Arc::clone(&self.cold)),
            sessions: Arc::clone(&self.sessions),
            policies: Arc::new(BuiltIn),
            clock: Arc::clone(&self.clock) as Arc<_>,
            entropy: Arc::new(OsEntropy),
            tokens: TokenKeys::new(&[TOKEN_KEY]).expect("a key"),
            counters: Counters::default(),
        }
    }
}

struct BuiltIn;

impl PolicySource for BuiltIn {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        Some(PolicySet::default().resolve(scope))
    }
}
