//! A small world for the keeper: each port in memory, and what happens meanwhile, by a seed, around each of its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ledger_domain::ports::{ClaimRow, Clock, ColdSession, KeeperState, Position, StoreError, WarmMarker};
use ledger_domain::{FillPass, Record, RegistrationId, SessionId, Slot, State, Subject, Timestamp, transition};
use ledger_testkit::clock::{ManualClock, SeededEntropy};
use ledger_testkit::event_queue::sample_record;
use ledger_testkit::house::subject;

/// How long after a PENDING was won its fact may be sent.
const PENDING_MS: i64 = Record::PENDING_MS;
/// How long a process believes what it last heard of the hot tier.
const TRUST_MS: i64 = 5_000;
/// How long a cold session lasts, and how long before its end nobody relies on it any more.
const SESSION_MS: i64 = 30_000;
const SESSION_MARGIN_MS: i64 = 1_000;
/// Windows end, so that rows leave too.
const WINDOW_SECONDS: u64 = 3_600;
const SHARDS: usize = 2;
/// How long a storm takes; two such times of lull follow.
const STORM_MS: i64 = 400_000;
/// Checks come in bursts of this length, one in five.
const BURST_MS: i64 = 30_000;

/// How wild the world is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// How far the queue's counts lag.
    pub(crate) lag_ms: u64,
    /// Whether anything but the keeper happens.
    pub(crate) eventful: bool,
    /// Whether calls fail and runs freeze.
    pub(crate) faulty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    Filling(FillPass),
    Warm(FillPass),
}

#[derive(Debug)]
struct Shard {
    mark: Mark,
    records: BTreeMap<Slot, Record>,
    /// What a replica has; it takes over when the primary is lost.
    replica: BTreeMap<Slot, Record>,
}

/// A fact on its way, and when it went from one place to the next.
#[derive(Debug)]
struct Sent {
    subject: Subject,
    record: Record,
    sent_at: Timestamp,
    /// The cold writer does not get to it before.
    drained_from: Timestamp,
    dead_at: Option<Timestamp>,
    done_at: Option<Timestamp>,
}

#[derive(Debug)]
struct InFlight {
    subject: Subject,
    record: Record,
    send_at: Timestamp,
}

#[derive(Debug)]
struct Inner {
    weather: Weather,
    shards: [Shard; SHARDS],
    lost_at: Option<Timestamp>,
    in_flight: Vec<InFlight>,
    queue: Vec<Sent>,
    rows: BTreeMap<Slot, (Subject, Record)>,
    sessions: BTreeMap<SessionId, Timestamp>,
    /// The session of the one process that decides in the cold ledger.
    process: Option<ColdSession>,
    state: Option<KeeperState>,
    /// What somebody was told to process.
    owed: BTreeMap<Slot, Record>,
    registered: u64,
    trail: Vec<String>,
    /// What happened, so that a test knows that it happened at all.
    pub(crate) seen: BTreeSet<&'static str>,
}

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) random: SeededEntropy,
    seed: u64,
    inner: Mutex<Inner>,
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        let shard = || Shard { mark: Mark::None, records: BTreeMap::new(), replica: BTreeMap::new() };
        let inner = Inner {
            weather,
            shards: std::array::from_fn(|_| shard()),
            lost_at: None,
            in_flight: Vec::new(),
            queue: Vec::new(),
            rows: BTreeMap::new(),
            sessions: BTreeMap::new(),
            process: None,
            state: None,
            owed: BTreeMap::new(),
            registered: 0,
            trail: Vec::new(),
            seen: BTreeSet::new(),
        };
        let clock = ManualClock::new(Timestamp::from_millis(1_790_000_000_000));
        Self { clock, random: SeededEntropy::new(seed), seed, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().expect("a manual clock knows the time")
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    pub(crate) fn seen(&self) -> BTreeSet<&'static str> {
        self.lock().seen.clone()
    }

    pub(crate) fn note(&self, what: &'static str) {
        self.lock().seen.insert(what);
    }

    /// Something may happen before, and after, each call of the keeper; the call itself may fail.
    pub(crate) async fn call<T>(&self, name: &'static str, done: impl FnOnce(&Self) -> T) -> Result<T, StoreError> {
        self.pass_time();
        let weather = self.lock().weather;
        if weather.faulty && self.random.one_in(150) {
            // Frozen: the other run goes on, and this one wakes up with what it knew.
            self.clock.advance(90_000);
            self.note("a run was frozen");
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
        tokio::task::yield_now().await;
        let fate = if weather.faulty { self.random.below(250) } else { 99 };
        let failed = || format!("{name}, by the seed");
        if fate == 0 {
            return Err(StoreError::did_not_happen("call", failed()));
        }
        if fate == 1 {
            return Err(StoreError::may_have_happened("call", failed()));
        }
        let outcome = done(self);
        self.log(|| name.to_owned());
        self.check();
        self.pass_time();
        if fate == 2 { Err(StoreError::may_have_happened("call", failed())) } else { Ok(outcome) }
    }

    fn log(&self, what: impl FnOnce() -> String) {
        let now = self.now();
        self.lock().trail.push(format!("{now} {}", what()));
    }

    fn pass_time(&self) {
        let Weather { eventful, .. } = self.lock().weather;
        self.clock.advance(self.random.below(40));
        if !eventful {
            return;
        }
        for _ in 0..self.random.below(3) {
            self.event();
            self.check();
        }
    }

    /// Nobody who is believed lacks what somebody was told to process.
    pub(crate) fn check(&self) {
        let now = self.now();
        let inner = self.lock();
        if !inner.is_warm() || !inner.sessions.is_empty() {
            return;
        }
        for (slot, owed) in &inner.owed {
            let found = inner.shard_of(slot).records.get(slot);
            let stands = found.is_some_and(|found| found.standing() >= owed.standing());
            assert!(
                stands || owed.is_over(now),
                "seed {}: believed, but {owed:?} is missing, found {found:?}; row {:?}; state {:?}\n{}",
                self.seed,
                inner.rows.get(slot),
                inner.state,
                inner.trail.iter().rev().take(400).rev().cloned().collect::<Vec<_>>().join("\n"),
            );
        }
    }

    /// Storms come and go: in a lull facts are drained, and only now and then something breaks.
    fn event(&self) {
        let storm = self.now().as_millis() / STORM_MS % 3 == 0;
        match self.random.below(if storm { 200 } else { 2_000 }) {
            0..4 => self.decide_in_the_cold_ledger(),
            4..6 => self.lose_a_shard(),
            6..10 => self.give_a_fact_up(),
            10 => self.clock.advance(self.random.below(40_000)),
            11..20 => self.register_again_what_was_lost(),
            _ => match self.random.below(10) {
                0..3 => self.win_in_the_hot_tier(),
                3..5 => self.send_a_fact(),
                5..8 => self.drain_a_fact(),
                8 => self.handle_a_dead_letter(),
                _ => self.replicate(),
            },
        }
    }

    fn new_record(&self) -> (Subject, Slot, Record) {
        let now = self.now();
        let mut inner = self.lock();
        inner.registered += 1;
        let number = inner.registered;
        let subject = subject("t1:as4", &format!("k{number}"));
        let slot = Slot::of(&subject.scope, &subject.key);
        let record = Record {
            first_seen_at: now,
            won_at: now,
            last_seen_at: now,
            window_ends_at: now.plus_seconds(WINDOW_SECONDS),
            ..sample_record(number)
        };
        (subject, slot, record)
    }

    /// A check wins PENDING; its fact follows.
    fn win_in_the_hot_tier(&self) {
        let (subject, slot, record) = self.new_record();
        let now = self.now();
        if now.as_millis() / BURST_MS % 5 != 0 {
            return;
        }
        let send_at = now.plus_millis(self.random_ms(PENDING_MS));
        let mut inner = self.lock();
        let pending = Record { state: State::Pending, ..record.clone() };
        inner.shard_of_mut(&slot).records.insert(slot, pending);
        inner.in_flight.push(InFlight { subject, record, send_at });
    }

    /// It sends its fact, confirms what still stands, and answers NEW: from here on it is owed.
    fn send_a_fact(&self) {
        let now = self.now();
        let mut inner = self.lock();
        let Some(at) = inner.in_flight.iter().position(|check| check.send_at <= now) else { return };
        let InFlight { subject, record, .. } = inner.in_flight.swap_remove(at);
        let slot = Slot::of(&subject.scope, &subject.key);
        let stands =
            inner.shard_of(&slot).records.get(&slot).is_some_and(|found| found.identity() == record.identity());
        if now.millis_since(record.won_at) >= PENDING_MS {
            // Past its deadline it sends nothing, and the PENDING lapses.
            if stands {
                inner.shard_of_mut(&slot).records.remove(&slot);
            }
            return;
        }
        if stands {
            inner.shard_of_mut(&slot).records.insert(slot, record.clone());
        } else {
            inner.seen.insert("a fact was sent of what was lost");
        }
        inner.owed.insert(slot, record.clone());
        inner.queue.push(self.sent(subject, record, now));
    }

    /// A fact in the queue: the cold writer is quick, but now and then it is behind.
    fn sent(&self, subject: Subject, record: Record, sent_at: Timestamp) -> Sent {
        let behind_ms = if self.random.one_in(4) { 150_000 } else { 1_000 };
        let drained_from = sent_at.plus_millis(self.random_ms(behind_ms));
        Sent { subject, record, sent_at, drained_from, dead_at: None, done_at: None }
    }

    fn random_ms(&self, below: i64) -> i64 {
        i64::try_from(self.random.below(below.unsigned_abs())).expect("small")
    }

    fn drain_a_fact(&self) {
        let now = self.now();
        self.persist_one(|sent| sent.dead_at.is_none() && sent.drained_from <= now);
    }

    fn handle_a_dead_letter(&self) {
        self.persist_one(|sent| sent.dead_at.is_some());
    }

    /// The cold writer: persists, heals, and where that fails holds a session or fails the message.
    fn persist_one(&self, which: impl Fn(&Sent) -> bool) {
        let now = self.now();
        let mut inner = self.lock();
        let Some(at) = inner.queue.iter().position(|sent| sent.done_at.is_none() && which(sent)) else { return };
        let (subject, record) = (inner.queue[at].subject.clone(), inner.queue[at].record.clone());
        let slot = Slot::of(&subject.scope, &subject.key);
        inner.persist(slot, subject, record);
        let row = inner.rows[&slot].1.clone();
        if self.random.one_in(20) {
            if self.random.one_in(2) || !inner.ensure(now, &self.random) {
                return;
            }
            inner.seen.insert("a heal failed");
        } else {
            let found = inner.found(&slot);
            if let Some(healed) = transition::heal(&found, &row) {
                inner.shard_of_mut(&slot).records.insert(slot, healed);
            }
        }
        inner.queue[at].done_at = Some(now);
    }

    fn give_a_fact_up(&self) {
        let now = self.now();
        let mut inner = self.lock();
        if let Some(sent) = inner.queue.iter_mut().find(|sent| sent.done_at.is_none() && sent.dead_at.is_none()) {
            sent.dead_at = Some(now);
            inner.seen.insert("a fact was given up");
        }
    }

    /// A process that cannot reach the hot tier decides in the cold ledger, under its session.
    pub(crate) fn decide_in_the_cold_ledger(&self) {
        let (subject, slot, record) = self.new_record();
        let now = self.now();
        let mut inner = self.lock();
        if !inner.ensure(now, &self.random) {
            return;
        }
        inner.persist(slot, subject, record.clone());
        inner.owed.insert(slot, record);
        inner.seen.insert("a cold session");
    }

    /// A shard is flushed, or its replica takes over.
    fn lose_a_shard(&self) {
        let at = usize::from(self.random.one_in(2));
        let flushed = self.random.one_in(2);
        let now = self.now();
        self.log(|| format!("shard {at} lost, flushed {flushed}"));
        let mut inner = self.lock();
        let shard = &mut inner.shards[at];
        shard.mark = Mark::None;
        if flushed {
            shard.replica.clear();
        }
        shard.records = shard.replica.clone();
        inner.lost_at = Some(now);
        inner.seen.insert("a loss");
    }

    /// FLUSHALL.
    pub(crate) fn flush(&self) {
        for shard in &mut self.lock().shards {
            shard.mark = Mark::None;
            shard.records.clear();
        }
    }

    fn replicate(&self) {
        for shard in &mut self.lock().shards {
            shard.replica = shard.records.clone();
        }
    }

    /// A process that has not heard of the loss yet answers NEW to what was lost: a false NEW, which moves the key's row to the
    /// front of the pass.
    fn register_again_what_was_lost(&self) {
        let now = self.now();
        let (_, _, fresh) = self.new_record();
        let mut inner = self.lock();
        if inner.lost_at.is_none_or(|lost| now.millis_since(lost) >= TRUST_MS) {
            return;
        }
        let lost = inner.owed.keys().find(|slot| !inner.shard_of(slot).records.contains_key(*slot)).copied();
        let Some((slot, subject)) = lost.and_then(|slot| Some((slot, inner.rows.get(&slot)?.0.clone()))) else {
            return;
        };
        inner.shard_of_mut(&slot).records.insert(slot, fresh.clone());
        inner.owed.insert(slot, fresh.clone());
        inner.queue.push(self.sent(subject, fresh, now));
        inner.seen.insert("a false NEW");
    }

    // ------------------------------------------------------------------------------------------ what the ports do

    pub(crate) fn marker(&self) -> WarmMarker {
        self.lock().marker()
    }

    pub(crate) fn begin_fill(&self, pass: FillPass) {
        for shard in &mut self.lock().shards {
            shard.mark = Mark::Filling(pass);
        }
    }

    pub(crate) fn end_fill(&self, pass: FillPass) -> bool {
        let mut inner = self.lock();
        let mut all = true;
        for shard in &mut inner.shards {
            if shard.mark == Mark::Filling(pass) {
                shard.mark = Mark::Warm(pass);
            } else {
                all = false;
            }
        }
        inner.seen.insert(if all { "a pass ended" } else { "a pass was void" });
        all
    }

    pub(crate) fn fill(&self, slot: Slot, row: &Record) -> bool {
        let mut inner = self.lock();
        let found = inner.found(&slot);
        let filled = transition::fill(&found, row);
        let written = filled.is_some();
        if let Some(filled) = filled {
            inner.shard_of_mut(&slot).records.insert(slot, filled);
        }
        written
    }

    pub(crate) fn newest_live(&self, now: Timestamp, after: Option<Position>, limit: usize) -> Vec<ClaimRow> {
        let inner = self.lock();
        let position =
            |record: &Record| Position { first_seen_at: record.first_seen_at, registration_id: record.registration_id };
        let mut rows: Vec<_> = inner
            .rows
            .values()
            .filter(|(_, record)| !record.is_over(now) && after.is_none_or(|after| position(record) < after))
            .map(|(subject, record)| ClaimRow { subject: subject.clone(), record: record.clone() })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(position(&row.record)));
        rows.truncate(limit);
        rows
    }

    /// What waits and what was given up, each count as of some time within the lag.
    pub(crate) fn depth(&self) -> (u64, u64, u64) {
        let now = self.now();
        let inner = self.lock();
        let lag_ms = inner.weather.lag_ms;
        let back = now.plus_millis(-i64::try_from(self.random.below(lag_ms + 1)).expect("small"));
        let dead_back = now.plus_millis(-i64::try_from(self.random.below(lag_ms + 1)).expect("small"));
        let is = |at: Option<Timestamp>, then: Timestamp| at.is_some_and(|at| at <= then);
        let (mut waiting, mut dead) = (0, 0);
        for sent in &inner.queue {
            waiting += u64::from(sent.sent_at <= back && !is(sent.dead_at, back) && !is(sent.done_at, back));
            dead += u64::from(is(sent.dead_at, dead_back) && !is(sent.done_at, dead_back));
        }
        (waiting, dead, lag_ms)
    }

    pub(crate) fn sessions(&self, limit: usize) -> Vec<ColdSession> {
        self.lock().sessions.iter().take(limit).map(|(&id, &expires_at)| ColdSession { id, expires_at }).collect()
    }

    pub(crate) fn remove_session(&self, read: &ColdSession) -> bool {
        let mut inner = self.lock();
        let stands = inner.sessions.get(&read.id) == Some(&read.expires_at);
        if stands {
            inner.sessions.remove(&read.id);
        } else {
            inner.seen.insert("a session was renewed meanwhile");
        }
        stands
    }

    pub(crate) fn state(&self) -> Option<KeeperState> {
        self.lock().state
    }

    pub(crate) fn save(&self, state: &KeeperState) -> bool {
        let mut inner = self.lock();
        let stands = inner.state.map_or(0, |state| state.version) + 1 == state.version;
        if stands {
            inner.state = Some(*state);
        } else {
            inner.seen.insert("a run lost the state");
        }
        stands
    }

    /// All that is on its way arrives, and nothing else happens any more.
    pub(crate) fn calm_down(&self) {
        let weather = self.lock().weather;
        self.set_weather(Weather { eventful: false, faulty: false, ..weather });
        self.clock.advance(PENDING_MS.unsigned_abs());
        while !self.lock().in_flight.is_empty() {
            self.send_a_fact();
        }
        while self.lock().queue.iter().any(|sent| sent.done_at.is_none()) {
            self.persist_one(|_| true);
        }
    }

    /// A row of its own in the cold ledger, which the hot tier does not know.
    pub(crate) fn plant(&self) {
        let (subject, slot, record) = self.new_record();
        self.lock().persist(slot, subject, record);
    }

    pub(crate) fn hot_records(&self) -> usize {
        self.lock().shards.iter().map(|shard| shard.records.len()).sum()
    }
}

impl Inner {
    fn index(slot: &Slot) -> usize {
        usize::from(slot.as_bytes()[0]) % SHARDS
    }

    fn shard_of(&self, slot: &Slot) -> &Shard {
        &self.shards[Self::index(slot)]
    }

    fn shard_of_mut(&mut self, slot: &Slot) -> &mut Shard {
        &mut self.shards[Self::index(slot)]
    }

    fn found(&self, slot: &Slot) -> transition::Found {
        match self.shard_of(slot).records.get(slot) {
            Some(record) => transition::Found::record(record.clone()),
            None => transition::Found::Absent,
        }
    }

    fn marker(&self) -> WarmMarker {
        let pass_of = |mark: Mark| match mark {
            Mark::None => None,
            Mark::Filling(pass) | Mark::Warm(pass) => Some(pass),
        };
        let Some(pass) = pass_of(self.shards[0].mark) else { return WarmMarker::Missing };
        if self.shards.iter().any(|shard| pass_of(shard.mark) != Some(pass)) {
            WarmMarker::Missing
        } else if self.shards.iter().any(|shard| shard.mark == Mark::Filling(pass)) {
            WarmMarker::Filling(pass)
        } else {
            WarmMarker::Warm(pass)
        }
    }

    /// Whether a process that reads both the markers and the keeper's state believes the tier.
    fn is_warm(&self) -> bool {
        match self.marker() {
            WarmMarker::Warm(pass) => self.state.and_then(|state| state.pass) == Some(pass),
            WarmMarker::Missing | WarmMarker::Filling(_) => false,
        }
    }

    fn persist(&mut self, slot: Slot, subject: Subject, record: Record) {
        let row = self.rows.entry(slot).or_insert_with(|| (subject, record.clone()));
        if row.1.standing() < record.standing() {
            row.1 = record;
        }
    }

    /// The process's session, opened, renewed or relied on; `false` where the control plane did not answer. Its clock is off by
    /// up to ε.
    fn ensure(&mut self, now: Timestamp, random: &SeededEntropy) -> bool {
        let skew_ms = i64::try_from(random.below(201)).expect("small") - 100;
        let now = now.plus_millis(skew_ms);
        let expires_at = now.plus_millis(SESSION_MS);
        let relied_on = |session: &ColdSession| now < session.expires_at.plus_millis(-SESSION_MARGIN_MS);
        match self.process {
            Some(session) if relied_on(&session) && !random.one_in(3) => true,
            _ if self.weather.faulty && random.one_in(5) => false,
            Some(session) if self.sessions.get(&session.id) == Some(&session.expires_at) => {
                self.sessions.insert(session.id, expires_at);
                self.process = Some(ColdSession { expires_at, ..session });
                true
            }
            Some(_) | None => {
                self.registered += 1;
                let id = SessionId::from_bytes(*RegistrationId::from_bytes(self.registered.to_be_bytes()).as_bytes());
                self.sessions.insert(id, expires_at);
                self.process = Some(ColdSession { id, expires_at });
                true
            }
        }
    }
}
