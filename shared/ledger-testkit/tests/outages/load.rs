//! Callers: many at once over keys old and new, with retries, deaths, batches, and claims that are worked on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ledger_domain::check::Check;
use ledger_domain::claim::Act;
use ledger_domain::claims::{Acknowledged, ActProblem, ClaimAct};
use ledger_domain::{ContentType, FailReason, Refusal, StoredResponse, Timestamp, Verdict};
use ledger_testkit::clock::SeededEntropy;
use ledger_testkit::house::{check, claiming, with_request_id};

use crate::lock;
use crate::world::World;

/// How long callers go on trying after the last new call, in seconds: longer than a PENDING holds.
const PATIENCE_SECONDS: u64 = 14;
/// How often a caller gives up before it tries again.
const GIVES_UP_ONE_IN: u64 = 20;
/// Of so many keys the latest are asked for most: so concurrent checks meet.
const LATEST: usize = 6;

/// A check, and what its caller was told or was not.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) key: usize,
    pub(crate) check: Check,
    /// The answer; `None` where the process died on the way.
    pub(crate) answer: Option<Result<Verdict, Refusal>>,
    /// Whether it reached the caller.
    pub(crate) delivered: bool,
    /// Since the run began.
    pub(crate) asked_at: Duration,
    pub(crate) told_at: Duration,
}

impl Told {
    /// The first sighting of the registration that this caller was told NEW for, and heard it.
    pub(crate) fn heard_new(&self) -> Option<Timestamp> {
        match &self.answer {
            Some(Ok(Verdict::New(new))) if self.delivered => Some(new.first_seen_at),
            Some(Ok(Verdict::New(_) | Verdict::Seen(_)) | Err(_)) | None => None,
        }
    }

    fn is_open(&self) -> bool {
        !self.delivered || matches!(self.answer, Some(Err(_)) | None)
    }
}

/// What a holder did, and what it heard of it.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub(crate) key: usize,
    pub(crate) token: String,
    pub(crate) act: Act,
    /// `None` where it did not hear.
    pub(crate) outcome: Option<Result<Acknowledged, ActProblem>>,
}

/// What a key is used for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyUse {
    pub(crate) window_seconds: u64,
    /// Mostly by claims; else by plain checks alone.
    pub(crate) claims: bool,
}

impl KeyUse {
    /// Of key number `key`: some windows end within the run.
    pub(crate) fn of(key: usize) -> Self {
        let window_seconds = if key.is_multiple_of(4) { 2 + (key as u64 / 4) % 4 } else { 600 };
        Self { window_seconds, claims: key % 3 == 1 }
    }
}

impl World {
    /// Callers until they are told to stop, and until each has its answer or gives up.
    pub(crate) async fn callers(self: &Arc<Self>, count: u64) {
        let callers = (0..count).map(|_| {
            let (world, random) = (Arc::clone(self), SeededEntropy::new(self.random.next()));
            tokio::spawn(async move {
                while world.calling.load(Ordering::SeqCst) {
                    world.call(&random).await;
                    pause_ms(5 + random.below(60)).await;
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.expect("no caller panics");
        }
    }

    fn next_key(&self, random: &SeededEntropy) -> usize {
        let number = |below: usize| usize::try_from(random.below(below as u64)).expect("it fits");
        let known = self.keys.load(Ordering::SeqCst);
        match random.below(10) {
            0..3 => self.keys.fetch_add(1, Ordering::SeqCst),
            3..7 => known.saturating_sub(1 + number(LATEST)),
            _ => number(known),
        }
    }

    fn new_check(&self, random: &SeededEntropy) -> (usize, Check) {
        let key = self.next_key(random);
        let usage = KeyUse::of(key);
        let payload = if random.one_in(10) { 2 } else { 1 };
        let plain = Check { ttl_seconds: Some(usage.window_seconds), ..check(&self.scope, &key.to_string(), payload) };
        let claims = usage.claims && !random.one_in(4);
        let asked = if claims { claiming(plain, 1 + random.below(2)) } else { plain };
        (key, with_request_id(asked, &format!("r{}", random.next())))
    }

    /// One caller: a check or a batch, and its retries.
    async fn call(&self, random: &SeededEntropy) {
        let size = if random.one_in(8) { 2 + random.below(6) } else { 1 };
        let checks: Vec<_> = (0..size).map(|_| self.new_check(random)).collect();
        let mut told = self.ask(&checks, random, true).await;
        let mut pause = 50;
        let mut open: Vec<_> = told.iter().filter(|told| told.is_open()).cloned().collect();
        while !open.is_empty() && !random.one_in(GIVES_UP_ONE_IN) && self.has_patience() {
            pause_ms(pause / 2 + random.below(pause)).await;
            pause = (pause * 2).min(800);
            let again: Vec<_> = open.iter().map(|told| (told.key, told.check.clone())).collect();
            let retried = self.ask(&again, random, true).await;
            open = retried.iter().filter(|told| told.is_open()).cloned().collect();
            told.extend(retried);
        }
        for told in told.iter().filter(|told| !told.is_open()) {
            self.hold(told, random).await;
        }
        // A needless retry: its own answer again, or a repeat's.
        if !self.is_calm && random.one_in(10) {
            self.ask(&[(told[0].key, told[0].check.clone())], random, false).await;
        }
    }

    fn has_patience(&self) -> bool {
        let stopped = *lock(&self.stopped_at);
        stopped.is_none_or(|stopped| self.at() < stopped + Duration::from_secs(PATIENCE_SECONDS))
    }

    /// Asks some process, and notes what the caller was told.
    pub(crate) async fn ask(&self, checks: &[(usize, Check)], random: &SeededEntropy, may_fail: bool) -> Vec<Told> {
        let asked: Vec<_> = checks.iter().map(|(_, check)| check.clone()).collect();
        let checker = self.some_checker(random);
        let may_fail = may_fail && !self.is_calm;
        // It dies on the way, or the answer is lost on its own.
        let dies_after = (may_fail && random.one_in(25)).then(|| Duration::from_micros(random.below(8_000)));
        let asked_at = self.at();
        let work = async {
            checker.process.wake().await;
            checker.ledger.check(&asked).await
        };
        let answers = match dies_after {
            Some(life) => tokio::time::timeout(life, work).await.ok(),
            None => Some(work.await),
        };
        let told_at = self.at();
        let delivered = answers.is_some() && !(may_fail && random.one_in(25));
        let told: Vec<_> = checks
            .iter()
            .enumerate()
            .map(|(place, (key, check))| Told {
                key: *key,
                check: check.clone(),
                answer: answers.as_ref().map(|answers| answers[place].clone()),
                delivered,
                asked_at,
                told_at,
            })
            .collect();
        self.nothing_is_discarded_too_early(&told).await;
        lock(&self.told).extend_from_slice(&told);
        told
    }

    /// Who was handed a claim works on it, to an end or none, and says so until it is heard.
    async fn hold(&self, told: &Told, random: &SeededEntropy) {
        let Some(Ok(Verdict::New(new))) = &told.answer else { return };
        let Some(claim) = &new.claim else { return };
        let mut renewed = false;
        loop {
            pause_ms(2 + random.below(60)).await;
            let act = match random.below(8) {
                0 => return,
                1 if !renewed => Act::Renew { lease_seconds: 2 },
                1 | 2 => Act::Fail(Some(FailReason::parse(&format!("by {}", claim.token)).expect("short"))),
                _ => Act::Resolve(Some(StoredResponse {
                    content_type: ContentType::parse("text/plain").expect("valid"),
                    body: format!("{} {}", claim.token, random.next()).into_bytes(),
                })),
            };
            renewed = matches!(act, Act::Renew { .. });
            let request = ClaimAct { subject: told.check.subject.clone(), token: claim.token.clone(), act };
            self.act(told.key, request, random).await;
            if !renewed {
                return;
            }
        }
    }

    async fn act(&self, key: usize, request: ClaimAct, random: &SeededEntropy) {
        let mut pause = 50;
        while self.has_patience() {
            let checker = self.some_checker(random);
            checker.process.wake().await;
            let outcome = checker.ledger.act(&request).await;
            let heard = self.is_calm || !random.one_in(25);
            let again = !heard || matches!(outcome, Err(ActProblem::Undecided(_)));
            let (token, act) = (request.token.clone(), request.act.clone());
            let outcome = heard.then_some(outcome);
            lock(&self.deeds).push(Deed { key, token, act, outcome });
            if !again || random.one_in(GIVES_UP_ONE_IN) {
                return;
            }
            pause_ms(pause / 2 + random.below(pause)).await;
            pause = (pause * 2).min(800);
        }
    }
}

pub(crate) async fn pause_ms(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
