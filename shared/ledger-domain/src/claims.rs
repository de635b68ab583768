//! What a claim's holder does: resolve, fail, renew.
//!
//! An act changes the hot tier first, marked as not durable, then its fact is sent, then the mark is cleared, then the holder is
//! answered. So no later visitor is told to discard what the holder was not told is done, and whoever meets the mark can make
//! it durable himself, for the record holds all of its fact. A record that the hot tier does not hold, or cannot vouch for, or
//! is cut off from, is acted on in the cold ledger.

use std::sync::atomic::Ordering;

use crate::check::Ledger;
use crate::claim::{Act, ClaimId, TokenError};
use crate::digest::Slot;
use crate::fact::Fact;
use crate::ports::{ActedCold, Amend, Fill, StoreError, chain};
use crate::record::{Record, State, Subject};
use crate::text::Invalid;
use crate::time::Timestamp;
use crate::transition::{ActRefused, Acted, Amended, Found, act};
use crate::verdict::{DecidedBy, Undecided};

/// How long an act waits for a take-over under way, in milliseconds: as long as a check does (DESIGN section 4).
const WAIT_MS: u64 = 500;
/// The first pause of that wait; each further one is twice as long.
const FIRST_PAUSE_MS: u64 = 5;
/// How often the record may change under one act, or the hot tier fail it, before it gives up.
const TRIES: u8 = 8;
/// How often the hot tier may fail one act.
const FAILURES_MAX: u8 = 2;

/// What a holder asks for, with its proof.
#[derive(Debug, Clone)]
pub struct ClaimAct {
    /// The message.
    pub subject: Subject,
    /// The token of its claim.
    pub token: String,
    /// What is to be done.
    pub act: Act,
}

/// The record after an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Where it stands.
    pub state: State,
    /// The attempt.
    pub attempt: u16,
    /// Its lease; of a claim that is over it says no more than until when it ran.
    pub lease_ends_at: Option<Timestamp>,
    /// When the message's window ends.
    pub window_ends_at: Timestamp,
    /// Which tier holds it.
    pub decided_by: DecidedBy,
}

/// Why an act was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActProblem {
    /// The request is not acceptable; nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The token proves nothing; nothing was done.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The claim is not in a state for it; nothing was done.
    #[error(transparent)]
    Refused(#[from] ActRefused),
    /// No tier knows the message.
    #[error("no record of the message is known")]
    UnknownClaim,
    /// It may have happened: to be repeated with the same content.
    #[error(transparent)]
    Undecided(#[from] Undecided),
}

impl Ledger {
    /// Does what the holder of a claim asks for. Repeating an act with the same content is acknowledged again while its attempt
    /// stands.
    ///
    /// # Errors
    /// [`ActProblem`].
    pub async fn act(&self, request: &ClaimAct) -> Result<Acknowledged, ActProblem> {
        let outcome = self.act_uncounted(request).await;
        let counter = match (&outcome, &request.act) {
            (Ok(_), Act::Resolve(_)) => &self.counters.resolved,
            (Ok(_), Act::Fail(_)) => &self.counters.failed,
            (Ok(_), Act::Renew { .. }) => &self.counters.renewed,
            (Err(ActProblem::Refused(_)), _) => &self.counters.stale_claims,
            (Err(ActProblem::Undecided(_)), _) => &self.counters.undecided,
            (Err(ActProblem::Invalid(_) | ActProblem::Token(_) | ActProblem::UnknownClaim), _) => return outcome,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    async fn act_uncounted(&self, request: &ClaimAct) -> Result<Acknowledged, ActProblem> {
        if let Act::Renew { lease_seconds } = request.act {
            let policy = self.policies.policy(&request.subject.scope).ok_or(Undecided::Policy)?;
            policy.check_lease("leaseSeconds", lease_seconds)?;
        }
        let slot = Slot::of(&request.subject.scope, &request.subject.key);
        let claim = self.tokens.verify(&slot, &request.token)?;
        let (mut waited_ms, mut pause_ms, mut failures) = (0, FIRST_PAUSE_MS, 0);
        // What the hot tier last showed of it.
        let mut shown: Option<Box<Record>> = None;
        for _ in 0..TRIES {
            // A fresh look each time: a frozen process must not act on the time it went to sleep.
            let now = self.clock.now().map_err(|_| Undecided::Clock)?;
            let found = match self.hot.read(&[slot]).await.pop() {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    if self.hot_failed(&error, &mut failures)? {
                        return self.act_cut_off(request, slot, &claim, shown.as_deref()).await;
                    }
                    continue;
                }
                None => return Err(Undecided::HotTier.into()),
            };
            let record = match found {
                Found::Record(record) => record,
                Found::Absent => return self.act_in_cold(request, slot, &claim, None, true).await,
                Found::Unreadable => return Err(Undecided::Unsupported.into()),
            };
            match act(&record, &claim, &request.act, now) {
                Acted::Pending if waited_ms < WAIT_MS => {
                    let pause = pause_ms.min(WAIT_MS - waited_ms);
                    self.clock.pause(pause).await;
                    waited_ms += pause;
                    pause_ms *= 2;
                }
                Acted::Pending => return Err(Undecided::Pending.into()),
                // Another attempt may stand in the cold ledger, or this one where the hot tier shows another.
                Acted::Refused(_) | Acted::Stands | Acted::Changed(_) if !self.trust.vouches() => {
                    return self.act_in_cold(request, slot, &claim, Some(&record), true).await;
                }
                Acted::Refused(refused) => return Err(refused.into()),
                Acted::Stands if !record.undurable => return Ok(acknowledged(&record, DecidedBy::Hot)),
                Acted::Stands => return self.make_durable(request, slot, *record).await,
                Acted::Changed(to) => {
                    let amend = Amend { slot, read: *record, to: (*to).clone(), sighting: None };
                    match self.hot.amend(std::slice::from_ref(&amend)).await.pop() {
                        Some(Ok(Amended::Done(stands))) => {
                            let stands = Record { response: to.response, ..*stands };
                            return self.make_durable(request, slot, stands).await;
                        }
                        // Changed meanwhile: what stands there now decides.
                        Some(Ok(Amended::Moved(_))) => {}
                        // Perhaps done: then it stands at the next look.
                        Some(Err(error)) => {
                            if self.hot_failed(&error, &mut failures)? {
                                return self.act_cut_off(request, slot, &claim, Some(&amend.read)).await;
                            }
                            shown = Some(Box::new(amend.read));
                        }
                        None => return Err(Undecided::HotTier.into()),
                    }
                }
            }
        }
        Err(Undecided::Contended.into())
    }

    /// `true` where the hot tier has failed too often, and the cold ledger is to act without it.
    fn hot_failed(&self, error: &StoreError, failures: &mut u8) -> Result<bool, Undecided> {
        *failures += 1;
        tracing::warn!(error = chain(error), failures = *failures, "the hot tier did not answer an act on a claim");
        match *failures < FAILURES_MAX {
            true => Ok(false),
            false if self.cold.is_some() => Ok(true),
            false => Err(Undecided::HotTier),
        }
    }

    /// Sends the fact of an act that stands marked, and clears the mark.
    async fn make_durable(&self, request: &ClaimAct, slot: Slot, marked: Record) -> Result<Acknowledged, ActProblem> {
        let (take_over, acknowledged) = (marked.take_over, acknowledged(&marked, DecidedBy::Hot));
        let record = Record { undurable: false, take_over: None, ..marked };
        let fact = Fact { subject: request.subject.clone(), record, before: None };
        // No PENDING lapses here: its window's end is all there is to keep to.
        let deadline = fact.record.window_ends_at;
        if self.send_or_persist(std::slice::from_ref(&fact), &[deadline]).await != [true] {
            // It stands marked: whoever meets it, a repeat of this act or a check, sends the fact again.
            return Err(Undecided::Queue.into());
        }
        let again = fact.clone();
        let response = fact.record.response;
        let to = Record { take_over, response: None, ..fact.record };
        let read = Record { undurable: true, response, ..to.clone() };
        let clear = Amend { slot, read, to, sighting: None };
        match self.hot.amend(&[clear]).await.pop() {
            Some(Ok(Amended::Done(_))) => return Ok(acknowledged),
            Some(Ok(Amended::Moved(_))) | None => {}
            Some(Err(error)) => tracing::warn!(error = chain(&error), "a mark may not be cleared in the hot tier"),
        }
        // It is durable. But what stood there may be lost, and an older state be filled in its place: then nothing would tell of
        // the end before the fact is drained, and whoever was told that the tier is filled would believe it.
        let Some(cold) = &self.cold else { return Ok(acknowledged) };
        self.persist(std::slice::from_ref(&again)).await?;
        let standing = cold.standing(&request.subject).await.map_err(|error| {
            tracing::warn!(error = chain(&error), "the cold ledger did not answer what stands there");
            Undecided::ColdLedger
        })?;
        if let Some(row) = standing
            && self.tell_hot(&[Fill { slot, row }]).await != [true]
        {
            return Err(Undecided::ColdSession.into());
        }
        Ok(acknowledged)
    }

    /// The hot tier is cut off: the cold ledger acts alone, under a cold session.
    async fn act_cut_off(
        &self,
        request: &ClaimAct,
        slot: Slot,
        claim: &ClaimId,
        shown: Option<&Record>,
    ) -> Result<Acknowledged, ActProblem> {
        let until = self.cold_session().await.ok_or(Undecided::ColdSession)?;
        let acknowledged = self.act_in_cold(request, slot, claim, shown, false).await?;
        // Past the session's end nobody is told to look into the cold ledger: a repeat of the act finds it done.
        if self.is_before(until) { Ok(acknowledged) } else { Err(Undecided::ColdSession.into()) }
    }

    /// The cold ledger acts, after it has learnt what the hot tier showed; the hot tier is told where `tells_hot`.
    async fn act_in_cold(
        &self,
        request: &ClaimAct,
        slot: Slot,
        claim: &ClaimId,
        shown: Option<&Record>,
        tells_hot: bool,
    ) -> Result<Acknowledged, ActProblem> {
        let vouched = tells_hot && self.trust.vouches();
        let Some(cold) = &self.cold else {
            return Err(if vouched { ActProblem::UnknownClaim } else { Undecided::Absence.into() });
        };
        // A PENDING is nobody's to make durable but its own check's.
        if let Some(shown) = shown.filter(|shown| shown.state != State::Pending) {
            self.tell_cold(&[(request.subject.clone(), shown.clone())]).await?;
        }
        let now = self.clock.now().map_err(|_| Undecided::Clock)?;
        let acted = cold.act(&request.subject, claim, &request.act, now).await.map_err(|error| {
            tracing::warn!(error = chain(&error), "the cold ledger did not answer an act on a claim");
            Undecided::ColdLedger
        })?;
        let row = match acted {
            ActedCold::Done(row) => row,
            ActedCold::Unchanged(Some(row)) => match act(&row, claim, &request.act, now) {
                Acted::Stands => row,
                Acted::Refused(_) if is_behind(&row, claim, vouched, now) => return Err(Undecided::Absence.into()),
                Acted::Refused(refused) => return Err(refused.into()),
                // It changed between the statement and the look.
                Acted::Changed(_) | Acted::Pending => return Err(Undecided::Contended.into()),
            },
            ActedCold::Unchanged(None) if vouched => return Err(ActProblem::UnknownClaim),
            ActedCold::Unchanged(None) => return Err(Undecided::Absence.into()),
        };
        let acknowledged = acknowledged(&row, DecidedBy::Cold);
        if tells_hot && self.tell_hot(&[Fill { slot, row: *row }]).await != [true] {
            return Err(Undecided::ColdSession.into());
        }
        Ok(acknowledged)
    }
}

/// Whether the row cannot speak of `claim`, because facts about it are still on their way: it knows an earlier attempt only, or,
/// where the hot tier may have lost the claim, an earlier registration.
fn is_behind(row: &Record, claim: &ClaimId, vouched: bool, now: Timestamp) -> bool {
    if row.registration_id == claim.registration_id {
        return row.attempt < claim.attempt;
    }
    !vouched && row.is_over(now)
}

fn acknowledged(record: &Record, decided_by: DecidedBy) -> Acknowledged {
    Acknowledged {
        state: record.state,
        attempt: record.attempt,
        lease_ends_at: record.lease_ends_at,
        window_ends_at: record.window_ends_at,
        decided_by,
    }
}
