//! The main job: has this been seen before?
//!
//! [`Ledger::check`] takes one check or a batch. `decide` orders the tiers, `judge` holds the rules that need no tier.

mod confirm;
mod decide;
mod item;
mod judge;
mod settle;
mod take_over;
mod together;
mod unconfirmed;

pub use self::together::{Looked, TogetherAnswer};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::claim::TokenKeys;
use crate::digest::{Slot, nonce_of};
use crate::hash::PayloadHash;
use crate::ids::{Nonce, RegistrationId};
use crate::policy::Policy;
use crate::ports::{Clock, ColdLedger, ColdSessions, Entropy, EventQueue, FactSink, HotTier, HotTrust, PolicySource};
use crate::record::Subject;
use crate::text::{Invalid, Principal, RequestId, SourceService};
use crate::verdict::{DecidedBy, Disposition, Refusal, Undecided, Verdict};

/// One question: has this (scope, key) been seen before?
#[derive(Debug, Clone)]
pub struct Check {
    /// The message.
    pub subject: Subject,
    /// SHA-256 of its payload.
    pub payload: PayloadHash,
    /// The window asked for, in seconds; the scope's policy gives the default and the bounds.
    pub ttl_seconds: Option<u64>,
    /// Who asks, as it names itself.
    pub source_service: Option<SourceService>,
    /// Unique per delivery attempt, so that the caller's own retry gets its answer again.
    pub request_id: Option<RequestId>,
    /// Who asks, as the gateway vouches for it.
    pub principal: Principal,
    /// Claim mode: NEW hands the caller a claim. `None`: plain mode.
    pub claim: Option<ClaimRequest>,
}

/// What a check in claim mode asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The lease, in seconds; the scope's policy gives the bounds, and it never runs past the window.
    pub lease_seconds: u64,
}

/// The most checks in one batch.
pub const BATCH_MAX: usize = 100;

/// The tiers and what else a decision needs.
pub struct Ledger {
    /// Decides.
    pub hot: Arc<dyn HotTier>,
    /// Whether a hot miss can be believed.
    pub trust: Arc<dyn HotTrust>,
    /// Makes registrations durable.
    pub queue: Arc<dyn EventQueue>,
    /// Takes the facts about repeats, for which nobody waits.
    pub repeats: Arc<dyn FactSink>,
    /// Settles what the hot tier cannot, and decides while it is down; a deployment without it answers 503 there.
    pub cold: Option<Arc<dyn ColdLedger>>,
    /// What this process must hold while it decides in the cold ledger and the hot tier does not learn of it.
    pub sessions: Arc<dyn ColdSessions>,
    /// The scopes' policies.
    pub policies: Arc<dyn PolicySource>,
    /// Ledger time.
    pub clock: Arc<dyn Clock>,
    /// Registration ids, and nonces for checks without a `requestId`.
    pub entropy: Arc<dyn Entropy>,
    /// The deployment's keys for claims' tokens.
    pub tokens: TokenKeys,
    /// What this process has answered.
    pub counters: Counters,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// What this process has answered since it started. Each is a plain sum; a log line or metric is made from the verdict.
#[derive(Debug, Default)]
pub struct Counters {
    /// NEW, replays not included.
    pub new: AtomicU64,
    /// A caller's own answer given again.
    pub replayed: AtomicU64,
    /// NEW, a failed or lapsed claim taken over; counted under `new` too.
    pub taken_over: AtomicU64,
    /// SEEN.
    pub seen: AtomicU64,
    /// SEEN while another caller is at work; counted under `seen` too.
    pub in_progress: AtomicU64,
    /// SEEN with another payload than the first.
    pub drift: AtomicU64,
    /// SEEN by a client that sends a constant `requestId`.
    pub constant_request_id: AtomicU64,
    /// NEW with `durable: false`.
    pub not_durable: AtomicU64,
    /// NEW with `confirmed: false`: no tier could say that it was not seen before.
    pub unconfirmed: AtomicU64,
    /// NEW whose confirmation was lost or too late: a possible false NEW until the cold writer heals it.
    pub confirm_lost: AtomicU64,
    /// Claims resolved by their holders.
    pub resolved: AtomicU64,
    /// Claims that their holders said failed.
    pub failed: AtomicU64,
    /// Leases renewed.
    pub renewed: AtomicU64,
    /// Acts refused because the claim had moved on, or was over.
    pub stale_claims: AtomicU64,
    /// NEW or SEEN, decided by the cold ledger; counted under those too.
    pub decided_in_cold: AtomicU64,
    /// No tier could decide: 503.
    pub undecided: AtomicU64,
}

impl Counters {
    /// The counters by name, for a report.
    #[must_use]
    pub fn snapshot(&self) -> [(&'static str, u64); 16] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("new", get(&self.new)),
            ("replayed", get(&self.replayed)),
            ("takenOver", get(&self.taken_over)),
            ("seen", get(&self.seen)),
            ("inProgress", get(&self.in_progress)),
            ("drift", get(&self.drift)),
            ("constantRequestId", get(&self.constant_request_id)),
            ("notDurable", get(&self.not_durable)),
            ("unconfirmed", get(&self.unconfirmed)),
            ("confirmLost", get(&self.confirm_lost)),
            ("resolved", get(&self.resolved)),
            ("failed", get(&self.failed)),
            ("renewed", get(&self.renewed)),
            ("staleClaims", get(&self.stale_claims)),
            ("decidedInCold", get(&self.decided_in_cold)),
            ("undecided", get(&self.undecided)),
        ]
    }

    fn count(&self, answer: &Result<Verdict, Refusal>) {
        let add = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        match answer {
            Ok(Verdict::New(new)) => {
                if new.decided_by == DecidedBy::Cold {
                    add(&self.decided_in_cold);
                }
                add(if new.replayed { &self.replayed } else { &self.new });
                if !new.replayed && new.taken_over {
                    add(&self.taken_over);
                }
                if new.unconfirmed {
                    add(&self.unconfirmed);
                }
                if !new.durable {
                    add(&self.not_durable);
                } else if !new.confirmed {
                    add(&self.confirm_lost);
                }
            }
            Ok(Verdict::Seen(seen)) => {
                add(&self.seen);
                if seen.decided_by == DecidedBy::Cold {
                    add(&self.decided_in_cold);
                }
                if seen.disposition == Disposition::Retry {
                    add(&self.in_progress);
                }
                if seen.payload_hash_drift {
                    add(&self.drift);
                }
                if seen.constant_request_id {
                    add(&self.constant_request_id);
                }
            }
            Err(Refusal::Undecided(_)) => add(&self.undecided),
            Err(Refusal::Invalid(_)) => {}
        }
    }
}

/// A check with all that is decided about it before a tier is asked.
struct Prepared<'a> {
    check: &'a Check,
    slot: Slot,
    nonce: Nonce,
    /// Of the registration that the check becomes if it wins.
    registration_id: RegistrationId,
    policy: Policy,
    window_seconds: u64,
}

impl Ledger {
    /// Decides checks, each on its own: one that is refused does not fail the others. Answers stand in the order of the
    /// checks. Repeats of one key inside a batch are decided in order, and one whose first could not be decided inherits its
    /// refusal.
    pub async fn check(&self, checks: &[Check]) -> Vec<Result<Verdict, Refusal>> {
        let random = self.entropy.many_eight_bytes(checks.len() * 2);
        let (random, _) = random.as_chunks::<2>();
        let answers = match (checks, random) {
            ([check], [random]) => vec![self.check_one(check, *random).await],
            _ => self.check_many(checks, random).await,
        };
        for answer in &answers {
            self.counters.count(answer);
        }
        answers
    }

    async fn check_one(&self, check: &Check, random: [[u8; 8]; 2]) -> Result<Verdict, Refusal> {
        let prepared = self.prepare(check, random)?;
        let answer = self.decide(std::slice::from_ref(&prepared), &mut 0).await.pop();
        answer.unwrap_or(Err(Undecided::Contended)).map_err(Refusal::from)
    }

    async fn check_many(&self, checks: &[Check], random: &[[[u8; 8]; 2]]) -> Vec<Result<Verdict, Refusal>> {
        let mut answers: Vec<Option<Result<Verdict, Refusal>>> = Vec::new();
        answers.resize_with(checks.len(), || None);
        let mut first_of: HashMap<Slot, (usize, Nonce)> = HashMap::with_capacity(checks.len());
        let mut firsts = Vec::with_capacity(checks.len());
        let mut repeats = Vec::new();
        for (at, (check, random)) in checks.iter().zip(random).enumerate() {
            match self.prepare(check, *random) {
                Err(refusal) => answers[at] = Some(Err(refusal)),
                Ok(mut prepared) => match first_of.get(&prepared.slot) {
                    Some((first, nonce)) => {
                        // One delivery that holds a message twice: the second is a repeat, not a retry of the first.
                        if prepared.nonce == *nonce {
                            prepared.nonce = Nonce::from_bytes(random[1]);
                        }
                        repeats.push((at, *first, prepared));
                    }
                    None => {
                        first_of.insert(prepared.slot, (at, prepared.nonce));
                        firsts.push((at, prepared));
                    }
                },
            }
        }
        let mut waited_ms = 0;
        self.decide_into(&mut answers, firsts, &mut waited_ms).await;
        let mut decidable = Vec::with_capacity(repeats.len());
        for (at, first, prepared) in repeats {
            match &answers[first] {
                Some(Err(refusal)) => answers[at] = Some(Err(refusal.clone())),
                Some(Ok(_)) | None => decidable.push((at, prepared)),
            }
        }
        if !decidable.is_empty() {
            self.decide_into(&mut answers, decidable, &mut waited_ms).await;
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(Undecided::Contended.into()))).collect()
    }

    async fn decide_into(
        &self,
        answers: &mut [Option<Result<Verdict, Refusal>>],
        items: Vec<(usize, Prepared<'_>)>,
        waited_ms: &mut u64,
    ) {
        let (places, prepared): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        for (at, answer) in places.into_iter().zip(self.decide(&prepared, waited_ms).await) {
            answers[at] = Some(answer.map_err(Refusal::from));
        }
    }

    /// `random` is for the registration's id, and for the nonce where there is no `requestId`.
    fn prepare<'a>(&self, check: &'a Check, random: [[u8; 8]; 2]) -> Result<Prepared<'a>, Refusal> {
        let policy = self.policies.policy(&check.subject.scope).ok_or(Undecided::Policy)?;
        let window_seconds = policy.window_seconds(check.ttl_seconds)?;
        let [for_id, for_nonce] = random;
        let nonce = match &check.request_id {
            Some(request_id) => {
                let mode = if check.claim.is_some() { "claim" } else { "plain" };
                nonce_of(&check.principal, request_id, &check.payload, mode)
            }
            None if policy.require_request_id => {
                return Err(Invalid::new("requestId", "a requestId, which the scope's policy requires").into());
            }
            None => Nonce::from_bytes(for_nonce),
        };
        if let Some(claim) = check.claim {
            policy.check_lease("claim.leaseSeconds", claim.lease_seconds)?;
        }
        let slot = Slot::of(&check.subject.scope, &check.subject.key);
        let registration_id = RegistrationId::from_bytes(for_id);
        Ok(Prepared { check, slot, nonce, registration_id, policy, window_seconds })
    }
}
