//! One run: processes, a queue, callers that retry, die or give up, a cold writer, and what goes wrong around them.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use ledger_domain::check::{Check, Counters, Ledger};
use ledger_domain::claim::TokenKeys;
use ledger_domain::persist::Writer;
use ledger_domain::ports::{
    ClaimRow, Clock, ClockUnknown, ColdLedger, ColdSessions, EventQueue, FactSink, Fill, HotTier, HotTrust,
    PolicySource, Position, QueueDepth, StoreError,
};
use ledger_domain::{Disposition, EPSILON_MS, State};
use ledger_domain::{Fact, Policy, PolicySet, Refusal, Scope, Slot, Subject, Timestamp, Verdict};
use ledger_testkit::clock::{ManualClock, SeededEntropy};
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::history::all;
use ledger_testkit::hot_tier::RawAccess;
use ledger_testkit::house::{check, claiming, subject, with_request_id};

use crate::holders::Deed;

/// What may happen in a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// Faults of each port.
    pub(crate) faults: FaultRates,
    /// Checks are dropped half way, and answers are lost.
    pub(crate) kills: bool,
    /// The hot tier loses keys.
    pub(crate) losses: bool,
    /// Whether the hot tier's misses are believed.
    pub(crate) trust: Trust,
    /// Half of the checks are in claim mode, and holders act.
    pub(crate) claims: bool,
    /// Whether the clock moves while checks are under way, and not only between rounds.
    pub(crate) clock_moves: bool,
}

/// Whether the hot tier's misses are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Each one.
    Always,
    /// None: the cold ledger decides.
    Never,
    /// By turns, whatever was lost.
    ByTurns,
}

/// The tiers of a run.
pub(crate) struct Tiers {
    /// The hot tier itself.
    pub(crate) hot: Arc<dyn HotTier>,
    /// The way around it.
    pub(crate) raw: Box<dyn RawAccess>,
    /// The cold ledger itself.
    pub(crate) cold: Arc<dyn ColdLedger>,
    /// The tiers' clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// The same, where it can be moved.
    pub(crate) manual: Option<Arc<ManualClock>>,
    /// The windows of the keys, in seconds.
    pub(crate) windows: Vec<u64>,
}

/// What a caller was told, or was not.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// Which key, by its place in [`Tiers::windows`].
    pub(crate) key: usize,
    /// What was asked.
    pub(crate) check: Check,
    /// The answer; `None` where the check was killed.
    pub(crate) answer: Option<Result<Verdict, Refusal>>,
    /// Whether it reached the caller.
    pub(crate) delivered: bool,
    /// When it was asked and when it was answered, in the order of all that happens in a run.
    pub(crate) asked_at: u64,
    pub(crate) told_at: u64,
}

impl Told {
    /// The first sighting of the registration that this caller was told NEW for, and heard it.
    pub(crate) fn heard_new(&self) -> Option<Timestamp> {
        match &self.answer {
            Some(Ok(Verdict::New(new))) if self.delivered => Some(new.first_seen_at),
            _ => None,
        }
    }
}

/// A run.
pub(crate) struct World {
    pub(crate) profile: Profile,
    pub(crate) tiers: Tiers,
    pub(crate) queue: Arc<Queue>,
    pub(crate) told: Mutex<Vec<Told>>,
    pub(crate) violations: Mutex<Vec<String>>,
    /// What holders of claims did.
    pub(crate) acted: Mutex<Vec<Deed>>,
    /// Counts what happens in a run.
    order: AtomicU64,
    /// Checks sent, with repeats in batches and those killed.
    pub(crate) sent: AtomicU64,
    /// False NEWs that the cold writer reported.
    pub(crate) false_new: AtomicU64,
    processes: Vec<Ledger>,
    writer: Writer,
    hot: Arc<Faulty<dyn HotTier>>,
    cold: Arc<Faulty<dyn ColdLedger>>,
    sending: Arc<Faulty<Queue>>,
    trust: Arc<Believed>,
    sessions: Arc<Sessions>,
    pub(crate) random: Arc<SeededEntropy>,
    scope: String,
}

impl World {
    pub(crate) fn new(seed: u64, profile: Profile, tiers: Tiers) -> Arc<Self> {
        let random = Arc::new(SeededEntropy::new(seed));
        let queue = Arc::new(Queue::new(profile.faults != FaultRates::NONE, random.next()));
        let hot = Arc::new(Faulty::new(Arc::clone(&tiers.hot), random.next(), profile.faults).yielding());
        let cold = Arc::new(Faulty::new(Arc::clone(&tiers.cold), random.next(), profile.faults).yielding());
        let sending = Arc::new(Faulty::new(Arc::clone(&queue), random.next(), profile.faults).yielding());
        // Time that stands still between steps goes by in seconds at once, real time does not.
        let lifetime_ms = if tiers.manual.is_some() { 4_000 } else { 40 };
        let sessions = Arc::new(Sessions {
            clock: Arc::clone(&tiers.clock),
            lifetime_ms,
            stands_until: Mutex::default(),
            refuses: profile.faults != FaultRates::NONE,
            random: SeededEntropy::new(random.next()),
        });
        let believed = Mutex::new(profile.trust != Trust::Never);
        let trust = Arc::new(Believed { complete: believed, sessions: Arc::clone(&sessions) });
        // Three processes whose clocks are as far apart as they may be.
        let processes = [-100, 0, 100].map(|off_by_ms| Ledger {
            hot: Arc::clone(&hot) as Arc<dyn HotTier>,
            trust: Arc::clone(&trust) as Arc<dyn HotTrust>,
            queue: Arc::clone(&sending) as Arc<dyn EventQueue>,
            repeats: Arc::clone(&queue) as Arc<dyn FactSink>,
            cold: Some(Arc::clone(&cold) as Arc<dyn ColdLedger>),
            sessions: Arc::clone(&sessions) as Arc<dyn ColdSessions>,
            policies: Arc::new(BuiltIn),
            clock: Arc::new(OffClock { clock: Arc::clone(&tiers.clock), off_by_ms }),
            entropy: Arc::clone(&random) as Arc<_>,
            tokens: TokenKeys::new(&[[7; 32]]).expect("a key"),
            counters: Counters::default(),
        });
        let writer = Writer {
            trust: None,
            sessions: Some(Arc::clone(&sessions) as Arc<dyn ColdSessions>),
            poison: None,
            cold: Arc::clone(&cold) as Arc<dyn ColdLedger>,
            hot: Some(Arc::clone(&hot) as Arc<dyn HotTier>),
            clock: Arc::clone(&tiers.clock),
        };
        Arc::new(Self {
            profile,
            tiers,
            queue,
            told: Mutex::default(),
            acted: Mutex::default(),
            order: AtomicU64::new(0),
            violations: Mutex::default(),
            sent: AtomicU64::new(0),
            false_new: AtomicU64::new(0),
            processes: processes.into(),
            writer,
            hot,
            cold,
            sending,
            trust,
            sessions,
            scope: format!("t:run/{seed}"),
            random,
        })
    }

    pub(crate) fn subject(&self, key: usize) -> Subject {
        subject(&self.scope, &key.to_string())
    }

    pub(crate) fn slot(&self, key: usize) -> Slot {
        let Subject { scope, key } = self.subject(key);
        Slot::of(&scope, &key)
    }

    pub(crate) fn set_faults(&self, rates: FaultRates) {
        self.hot.set_rates(rates);
        self.cold.set_rates(rates);
        self.sending.set_rates(rates);
    }

    pub(crate) fn faults(&self) -> u64 {
        self.hot.faults() + self.cold.faults() + self.sending.faults()
    }

    fn violation(&self, what: String) {
        lock(&self.violations).push(what);
    }

    fn new_check(&self) -> (usize, Check) {
        let key = usize::try_from(self.random.below(self.tiers.windows.len() as u64)).expect("few keys");
        let payload = if self.random.one_in(10) { 2 } else { 1 };
        let plain =
            Check { ttl_seconds: Some(self.tiers.windows[key]), ..check(&self.scope, &key.to_string(), payload) };
        let plain = if self.profile.claims && self.random.one_in(2) {
            claiming(plain, [1, 5, 30][usize::try_from(self.random.below(3)).expect("three")])
        } else {
            plain
        };
        // Without a requestId nobody recognises its retry, so such a caller must get its answer: see `ask`.
        let answered = self.profile.trust == Trust::Always && self.profile.faults == FaultRates::NONE;
        let anonymous = answered && self.random.one_in(4);
        let request_id = format!("r{}", self.random.next());
        (key, if anonymous { plain } else { with_request_id(plain, &request_id) })
    }

    /// Asks some process, and notes what the caller was told.
    pub(crate) async fn ask(&self, checks: &[(usize, Check)], may_fail: bool) -> Vec<Told> {
        let asked: Vec<_> = checks.iter().map(|(_, check)| check.clone()).collect();
        self.sent.fetch_add(asked.len() as u64, Ordering::Relaxed);
        let process = self.process();
        let asked_at = self.next_moment();
        let may_fail = may_fail && self.profile.kills && asked.iter().all(|check| check.request_id.is_some());
        let polls = if may_fail && self.random.one_in(4) { self.random.below(30) } else { u64::MAX };
        let answers = killed_after(polls, process.check(&asked)).await;
        let told_at = self.next_moment();
        let delivered = answers.is_some() && !(may_fail && self.random.one_in(6));
        let mut told = Vec::with_capacity(asked.len());
        for (place, (key, check)) in checks.iter().enumerate() {
            let answer = answers.as_ref().map(|answers| answers[place].clone());
            if let Some(Ok(Verdict::Seen(seen))) = &answer
                && seen.disposition == Disposition::Discard
                && !self.is_durable(*key, seen.first_seen_at, seen.state).await
            {
                self.violation(format!("SEEN from what is not durable: key {key}, {seen:?}"));
            }
            told.push(Told { key: *key, check: check.clone(), answer, delivered, asked_at, told_at });
        }
        lock(&self.told).extend_from_slice(&told);
        told
    }

    /// The next moment in the order of all that happens.
    pub(crate) fn next_moment(&self) -> u64 {
        self.order.fetch_add(1, Ordering::SeqCst)
    }

    /// Some process.
    pub(crate) fn process(&self) -> &Ledger {
        &self.processes[usize::try_from(self.random.below(3)).expect("three")]
    }

    /// Does `work`, or is killed on the way where processes are.
    pub(crate) async fn killed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let polls = if self.profile.kills && self.random.one_in(4) { self.random.below(30) } else { u64::MAX };
        killed_after(polls, work).await
    }

    async fn is_durable(&self, key: usize, first_seen_at: Timestamp, state: State) -> bool {
        let subject = self.subject(key);
        if self.queue.ever_took(&subject, first_seen_at, state) {
            return true;
        }
        let rows = self.tiers.cold.by_key(&subject, &all()).await.expect("the ledger itself answers").rows;
        rows.iter().any(|row| row.record.first_seen_at == first_seen_at && row.record.state == state)
    }

    /// A caller: one check or a batch, and its retries.
    pub(crate) async fn call(&self) {
        let size = if self.random.one_in(4) { 2 + self.random.below(4) } else { 1 };
        let checks: Vec<_> = (0..size).map(|_| self.new_check()).collect();
        let mut open = self.ask(&checks, true).await;
        for _ in 0..4 {
            if self.random.one_in(10) {
                return;
            }
            let again = |told: &Told| {
                let lost = !told.delivered || matches!(told.answer, Some(Err(_)));
                lost && told.check.request_id.is_some()
            };
            let asked: Vec<_> = open.iter().filter(|told| again(told)).map(|t| (t.key, t.check.clone())).collect();
            if asked.is_empty() {
                break;
            }
            self.tiers.clock.pause(10).await;
            let mut told = Vec::new();
            for one in &asked {
                told.extend(self.ask(std::slice::from_ref(one), true).await);
            }
            open = told;
        }
        for told in &open {
            self.hold(told).await;
        }
        // A needless retry of an answered check: its own answer again.
        if let Some(told) = open.first().filter(|told| told.check.request_id.is_some())
            && let Some(first) = told.heard_new()
            && self.random.one_in(3)
        {
            let again = self.ask(&[(told.key, told.check.clone())], false).await.remove(0);
            if self.is_calm() && !self.profile.claims && again.heard_new() != Some(first) {
                self.violation(format!("not its own answer again: {told:?}, then {again:?}"));
            }
        }
    }

    /// Nothing goes wrong in this run.
    pub(crate) fn is_calm(&self) -> bool {
        let Profile { faults, kills, losses, trust: _, claims: _, clock_moves } = self.profile;
        faults == FaultRates::NONE && !kills && !losses && !clock_moves
    }

    /// A cold writer takes some messages, in any order, some of them again later.
    pub(crate) async fn drain(&self, at_most: u64) {
        let bodies = self.queue.take(at_most);
        let written = self.writer.write(&bodies).await;
        self.false_new.fetch_add(written.false_new, Ordering::Relaxed);
        self.queue.put_back(written.failures.iter().map(|(at, _)| bodies[*at].clone()));
    }

    /// Between rounds, where a cold session has ended: what it kept from the hot tier is filled in, and then it goes. Nothing
    /// is under way then but what waits in the queue.
    pub(crate) async fn refill(&self) {
        let Some(ended) = self.sessions.ended() else { return };
        self.set_faults(FaultRates::NONE);
        while !self.queue.is_empty() {
            self.drain(1_000).await;
        }
        let mut after = None;
        loop {
            let now = self.tiers.clock.now().expect("known");
            let rows = self.tiers.cold.newest_live(now, after, 2).await.expect("answers");
            let Some(last) = rows.last().map(|row| &row.record) else { break };
            after = Some(Position { first_seen_at: last.first_seen_at, registration_id: last.registration_id });
            let fills: Vec<_> = rows
                .into_iter()
                .map(|ClaimRow { subject, record }| Fill { slot: Slot::of(&subject.scope, &subject.key), row: record })
                .collect();
            for filled in self.tiers.hot.fill(&fills).await {
                filled.expect("answers");
            }
        }
        let mut stands = lock(&self.sessions.stands_until);
        if *stands == Some(ended) {
            *stands = None;
        }
        drop(stands);
        self.set_faults(self.profile.faults);
    }

    /// Something goes wrong, or time goes by.
    pub(crate) async fn disturb(&self) {
        if self.profile.losses && self.random.one_in(3) {
            let all = self.random.one_in(2);
            for key in 0..self.tiers.windows.len() {
                if all || self.random.one_in(4) {
                    // It expired long ago: gone.
                    let gone = self.tiers.clock.now().expect("known").plus_millis(-1_000);
                    self.tiers.raw.put(self.slot(key), b"lost", gone).await;
                }
            }
        }
        if self.profile.clock_moves && self.random.one_in(2) {
            self.advance(&[1, 90, 400, 2_000, 5_100, 10_300]);
        }
    }

    /// Moves the clock, where it can be moved, by one of these.
    pub(crate) fn advance(&self, steps_ms: &[u64]) {
        if let Some(manual) = &self.tiers.manual {
            let step = usize::try_from(self.random.below(steps_ms.len() as u64)).expect("few steps");
            manual.advance(steps_ms[step]);
        }
    }

    /// Callers, a cold writer and disturbances, at once.
    pub(crate) async fn round(self: &Arc<Self>) {
        if self.profile.trust == Trust::ByTurns {
            *lock(&self.trust.complete) = self.random.one_in(2);
        }
        let mut tasks = Vec::new();
        for _ in 0..4 + self.random.below(8) {
            let world = Arc::clone(self);
            tasks.push(tokio::spawn(async move { world.call().await }));
        }
        let world = Arc::clone(self);
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                world.disturb().await;
                world.drain(world.random.below(12)).await;
            }
        }));
        for task in tasks {
            task.await.expect("no task panics");
        }
    }
}

/// Polls `work` so often and then drops it: a process that was killed.
async fn killed_after<T>(mut polls: u64, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// A queue that gives its messages in any order and some of them twice.
pub(crate) struct Queue {
    waiting: Mutex<Vec<String>>,
    took: Mutex<HashSet<(Subject, Timestamp, State)>>,
    /// Facts about repeats may get lost on their way.
    loses_repeats: bool,
    random: SeededEntropy,
}

impl Queue {
    fn new(loses_repeats: bool, seed: u64) -> Self {
        Self { waiting: Mutex::default(), took: Mutex::default(), loses_repeats, random: SeededEntropy::new(seed) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    fn ever_took(&self, subject: &Subject, first_seen_at: Timestamp, state: State) -> bool {
        lock(&self.took).contains(&(subject.clone(), first_seen_at, state))
    }

    fn take(&self, at_most: u64) -> Vec<String> {
        let mut waiting = lock(&self.waiting);
        let mut taken = Vec::new();
        while (taken.len() as u64) < at_most && !waiting.is_empty() {
            let at = usize::try_from(self.random.below(waiting.len() as u64)).expect("it fits");
            taken.push(if self.random.one_in(5) { waiting[at].clone() } else { waiting.swap_remove(at) });
        }
        taken
    }

    fn put_back(&self, bodies: impl Iterator<Item = String>) {
        lock(&self.waiting).extend(bodies);
    }
}

#[async_trait]
impl EventQueue for Queue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        lock(&self.waiting).extend(facts.iter().map(Fact::to_json));
        lock(&self.took)
            .extend(facts.iter().map(|fact| (fact.subject.clone(), fact.record.first_seen_at, fact.record.state)));
        vec![Ok(()); facts.len()]
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        lock(&self.waiting).push(Fact::to_json_together(facts));
        lock(&self.took)
            .extend(facts.iter().map(|fact| (fact.subject.clone(), fact.record.first_seen_at, fact.record.state)));
        Ok(())
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        Ok(QueueDepth { waiting: lock(&self.waiting).len() as u64, dead: Some(0), lag_ms: 0 })
    }
}

impl FactSink for Queue {
    fn offer(&self, fact: Fact) {
        if !(self.loses_repeats && self.random.one_in(5)) {
            lock(&self.waiting).push(fact.to_json());
        }
    }
}

/// The hot tier is believed where it is complete and no cold session stands.
struct Believed {
    complete: Mutex<bool>,
    sessions: Arc<Sessions>,
}

impl HotTrust for Believed {
    fn vouches(&self) -> bool {
        *lock(&self.complete) && lock(&self.sessions.stands_until).is_none()
    }

    fn is_in_place(&self) -> bool {
        true
    }
}

/// The cold session of all processes. It stands until the hot tier was filled since it ended, and at times cannot be had.
struct Sessions {
    clock: Arc<dyn Clock>,
    lifetime_ms: i64,
    stands_until: Mutex<Option<Timestamp>>,
    refuses: bool,
    random: SeededEntropy,
}

impl Sessions {
    /// The one that stands, where it has ended on every clock.
    fn ended(&self) -> Option<Timestamp> {
        let now = self.clock.now().ok()?;
        lock(&self.stands_until).filter(|until| until.plus_millis(2 * EPSILON_MS) <= now)
    }
}

#[async_trait]
impl ColdSessions for Sessions {
    async fn ensure(&self) -> Result<Timestamp, StoreError> {
        let failed = || StoreError::did_not_happen("hold a cold session", "told so");
        if self.refuses && self.random.one_in(10) {
            return Err(failed());
        }
        let until = self.clock.now().map_err(|_| failed())?.plus_millis(self.lifetime_ms);
        let mut stands = lock(&self.stands_until);
        *stands = (*stands).max(Some(until));
        Ok(until.plus_millis(-2 * EPSILON_MS))
    }
}

struct BuiltIn;

impl PolicySource for BuiltIn {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        Some(PolicySet::default().resolve(scope))
    }
}

struct OffClock {
    clock: Arc<dyn Clock>,
    off_by_ms: i64,
}

#[async_trait]
impl Clock for OffClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        self.clock.now().map(|now| now.plus_millis(self.off_by_ms))
    }

    async fn pause(&self, millis: u64) {
        self.clock.pause(millis).await;
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
