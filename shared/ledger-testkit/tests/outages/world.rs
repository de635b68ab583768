//! A run: processes on real servers, their shared control plane and queue, a cold writer, a keeper, and callers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ledger_domain::check::Ledger;
use ledger_domain::keep::{Keeper, KeeperSettings};
use ledger_domain::persist::Writer;
use ledger_domain::ports::{ColdLedger, ControlPlane, EventQueue, FactSink, HotTrust as _};
use ledger_domain::{Slot, Subject, Timestamp};
use ledger_stores::clock::{OsEntropy, SystemClock};
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::clock::SeededEntropy;
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::house::subject;
use tokio::time::Instant;

use crate::control_plane::SharedControlPlane;
use crate::load::{Deed, Told, pause_ms};
use crate::lock;
use crate::process::Process;
use crate::queue::Queue;
use crate::servers::{Outage, Part, Servers};

/// How long a fact may be on its way to this queue, which takes it at once: as long as a process may be held up.
const IN_FLIGHT_MS: u64 = 2_000;
/// How long one run of the keeper may take.
const KEEPER_RUN_MS: i64 = 10_000;
/// Processes that answer checks.
const CHECKERS: usize = 3;

/// A process that answers checks.
pub(crate) struct Checker {
    pub(crate) process: Process,
    pub(crate) ledger: Ledger,
}

/// A run.
pub(crate) struct World {
    pub(crate) scope: String,
    pub(crate) random: SeededEntropy,
    pub(crate) is_calm: bool,
    servers: Mutex<Servers>,
    inspected: PostgresLedger,
    pub(crate) checkers: Vec<Checker>,
    writing: Process,
    pub(crate) keeping: Process,
    pub(crate) queue: Arc<Queue>,
    pub(crate) sending: Arc<Faulty<Queue>>,
    pub(crate) control_plane: Arc<SharedControlPlane>,
    /// How many keys there are so far.
    pub(crate) keys: AtomicUsize,
    pub(crate) calling: AtomicBool,
    pub(crate) stopped_at: Mutex<Option<Duration>>,
    pub(crate) told: Mutex<Vec<Told>>,
    pub(crate) deeds: Mutex<Vec<Deed>>,
    pub(crate) violations: Mutex<Vec<String>>,
    /// False NEWs that the cold writer reported.
    pub(crate) false_new: AtomicU64,
    /// Deliveries to the cold writer that failed.
    pub(crate) failed: AtomicUsize,
    /// Messages that were given up on, and came again.
    pub(crate) redriven: AtomicUsize,
    /// What the keeper last said.
    kept: Mutex<String>,
    /// When nothing goes wrong any more, and when the keeper first found the hot tier complete after that.
    pub(crate) over_at: Mutex<Option<Duration>>,
    pub(crate) complete_at: Mutex<Option<Duration>>,
    began: Instant,
}

impl World {
    pub(crate) async fn start(seed: u64, outages: &[Outage]) -> Arc<Self> {
        let random = SeededEntropy::new(seed);
        let (servers, postgres_url) = Servers::start(outages).await;
        let patient = PostgresConfig { max_connections: 2, acquire_timeout_ms: 60_000, operation_timeout_ms: 60_000 };
        let inspected = PostgresLedger::connect_lazy(&postgres_url, &patient).expect("a URL of this fixture");
        let control_plane = Arc::new(SharedControlPlane::default());
        let queue = Arc::new(Queue::new(random.next()));
        let sending = Arc::new(Faulty::new(Arc::clone(&queue), random.next(), FaultRates::NONE));
        let redis_fails = outages.iter().any(|outage| matches!(outage.part(), Part::Redis | Part::Network));
        let start = async || {
            let control_plane = Arc::clone(&control_plane) as Arc<dyn ControlPlane>;
            Process::start(servers.way_to_redis(), redis_fails, &postgres_url, control_plane).await
        };
        let mut checkers = Vec::new();
        for _ in 0..CHECKERS {
            let process = start().await;
            let sending = Arc::clone(&sending) as Arc<dyn EventQueue>;
            let ledger = process.ledger(sending, Arc::clone(&queue) as Arc<dyn FactSink>);
            checkers.push(Checker { process, ledger });
        }
        let (writing, keeping) = (start().await, start().await);
        Arc::new(Self {
            scope: format!("t:run/{seed}"),
            random,
            is_calm: outages.is_empty(),
            servers: Mutex::new(servers),
            inspected,
            checkers,
            writing,
            keeping,
            queue,
            sending,
            control_plane,
            keys: AtomicUsize::new(1),
            calling: AtomicBool::new(true),
            stopped_at: Mutex::default(),
            told: Mutex::default(),
            deeds: Mutex::default(),
            violations: Mutex::default(),
            false_new: AtomicU64::new(0),
            failed: AtomicUsize::new(0),
            redriven: AtomicUsize::new(0),
            kept: Mutex::default(),
            over_at: Mutex::default(),
            complete_at: Mutex::default(),
            began: Instant::now(),
        })
    }

    /// Since the run began.
    pub(crate) fn at(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn servers(&self) -> MutexGuard<'_, Servers> {
        lock(&self.servers)
    }

    /// The Redis that every process finds now.
    pub(crate) fn redis_address(&self) -> SocketAddr {
        self.servers().redis_address()
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.checkers.iter().map(|checker| &checker.process).chain([&self.writing, &self.keeping])
    }

    pub(crate) fn some_checker(&self, random: &SeededEntropy) -> &Checker {
        &self.checkers[usize::try_from(random.below(CHECKERS as u64)).expect("few")]
    }

    pub(crate) fn subject(&self, key: usize) -> Subject {
        subject(&self.scope, &key.to_string())
    }

    pub(crate) fn slot(&self, key: usize) -> Slot {
        let Subject { scope, key } = self.subject(key);
        Slot::of(&scope, &key)
    }

    /// The cold ledger, for the oracle: it waits as long as a slow machine takes.
    pub(crate) fn cold(&self) -> &dyn ColdLedger {
        &self.inspected
    }

    pub(crate) fn violation(&self, what: String) {
        lock(&self.violations).push(what);
    }

    /// The servers' time; all of them run on this machine.
    pub(crate) fn now(&self) -> Timestamp {
        use ledger_domain::ports::Clock as _;
        SystemClock.now().expect("a clock that is never unknown")
    }

    /// The cold writer, until the run ends.
    pub(crate) async fn write(self: Arc<Self>) {
        let writer = Writer {
            cold: Arc::clone(&self.writing.cold),
            hot: Some(Arc::clone(&self.writing.hot)),
            trust: Some(Arc::clone(&self.writing.watch) as _),
            sessions: Some(Arc::clone(&self.writing.sessions)),
            poison: None,
            clock: Arc::clone(&self.writing.clock) as Arc<_>,
        };
        loop {
            let taken = self.queue.take(100);
            if taken.is_empty() {
                pause_ms(20).await;
                continue;
            }
            self.writing.wake().await;
            let bodies: Vec<_> = taken.iter().map(|message| message.body.clone()).collect();
            let written = writer.write(&bodies).await;
            self.false_new.fetch_add(written.false_new, Ordering::Relaxed);
            let failed: Vec<_> = written.failures.iter().map(|(at, _)| taken[*at].clone()).collect();
            self.failed.fetch_add(failed.len(), Ordering::Relaxed);
            let backs_off = !failed.is_empty();
            self.queue.settle(&taken, failed);
            pause_ms(if backs_off { 100 } else { 20 }).await;
        }
    }

    /// Whether everything is drained, filled and believed again.
    async fn is_healed(&self) -> Result<(), String> {
        self.redriven.fetch_add(self.queue.redrive(), Ordering::Relaxed);
        if !self.queue.is_empty() {
            return Err("the queue is not empty".to_owned());
        }
        let standing = self.control_plane.standing();
        if !standing.is_empty() {
            return Err(format!("cold sessions stand: {standing:?}"));
        }
        let health = self.keeping.hot.health().await.map_err(|error| format!("{error:?}"))?;
        if !health.is_complete() {
            return Err(format!("the hot tier is not complete: {health:?}"));
        }
        for (number, Checker { process, .. }) in self.checkers.iter().enumerate() {
            process.wake().await;
            if !process.watch.vouches() {
                return Err(format!("process {number} does not believe the hot tier"));
            }
        }
        Ok(())
    }

    /// Waits until everything is healed.
    pub(crate) async fn heal(&self) {
        let give_up_at = self.at() + Duration::from_secs(120);
        while let Err(why) = self.is_healed().await {
            if self.at() > give_up_at {
                self.violation(format!("not healed: {why}; the keeper says {}", lock(&self.kept)));
                return;
            }
            pause_ms(100).await;
        }
    }
}

impl World {
    /// The keeper, until the run ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        let keeper = Keeper {
            hot: Arc::clone(&self.keeping.hot),
            cold: Arc::clone(&self.keeping.cold),
            queue: Arc::clone(&self.queue) as Arc<dyn EventQueue>,
            control_plane: Arc::clone(&self.control_plane) as Arc<dyn ControlPlane>,
            clock: Arc::clone(&self.keeping.clock) as Arc<_>,
            entropy: Arc::new(OsEntropy),
            settings: KeeperSettings { in_flight_ms: IN_FLIGHT_MS, ..KeeperSettings::default() },
        };
        loop {
            self.keeping.wake().await;
            let deadline = self.now().plus_millis(KEEPER_RUN_MS);
            // What fails is in its report, and tried again; what is wrong with that is found at the end.
            let report = keeper.run(deadline).await;
            *lock(&self.kept) = format!("{report:?}");
            if report.is_ok_and(|report| report.is_complete) && lock(&self.over_at).is_some() {
                lock(&self.complete_at).get_or_insert(self.at());
            }
            pause_ms(200).await;
        }
    }
}
