//! Holders of claims, and what must be true of them.

use ledger_domain::claim::Act;
use ledger_domain::claims::{Acknowledged, ActProblem, ClaimAct};
use ledger_domain::ports::HistoryRow;
use ledger_domain::{ContentType, FailReason, State, StoredResponse, Timestamp, Verdict};

use crate::world::{Told, World, lock};

/// What a holder did, and what it heard of it.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    key: usize,
    first_seen_at: Timestamp,
    attempt: u16,
    act: Act,
    /// `None` where it did not hear.
    outcome: Option<Result<Acknowledged, ActProblem>>,
    asked_at: u64,
    told_at: u64,
}

impl Deed {
    fn is_acknowledged(&self) -> bool {
        matches!(self.outcome, Some(Ok(_)))
    }

    fn response(&self) -> Option<&StoredResponse> {
        match &self.act {
            Act::Resolve(response) => response.as_ref(),
            Act::Fail(_) | Act::Renew { .. } => None,
        }
    }
}

impl World {
    /// Who was handed a claim works on it: for a while or too long, to an end or none, and says so until it is heard.
    pub(crate) async fn hold(&self, told: &Told) {
        let Some(Ok(Verdict::New(new))) = &told.answer else { return };
        let (Some(claim), Some(attempt), true) = (&new.claim, new.attempt, told.delivered) else { return };
        let mut renewed = false;
        loop {
            for _ in 0..self.random.below(40) {
                tokio::task::yield_now().await;
            }
            let act = match self.random.below(8) {
                0 => return,
                1 if !renewed => Act::Renew { lease_seconds: 5 },
                1 | 2 => Act::Fail(Some(FailReason::parse(&format!("by {}", claim.token)).expect("short"))),
                _ => Act::Resolve(Some(StoredResponse {
                    content_type: ContentType::parse("text/plain").expect("valid"),
                    body: format!("{} {}", claim.token, self.random.next()).into_bytes(),
                })),
            };
            renewed = matches!(act, Act::Renew { .. });
            for _ in 0..4 {
                let request =
                    ClaimAct { subject: told.check.subject.clone(), token: claim.token.clone(), act: act.clone() };
                let asked_at = self.next_moment();
                let outcome = self.killed(self.process().act(&request)).await;
                let told_at = self.next_moment();
                let heard = outcome.is_some();
                let again = !heard || matches!(outcome, Some(Err(ActProblem::Undecided(_))));
                let (key, first_seen_at) = (told.key, new.first_seen_at);
                let act = act.clone();
                lock(&self.acted).push(Deed { key, first_seen_at, attempt, act, outcome, asked_at, told_at });
                if !again {
                    break;
                }
                self.tiers.clock.pause(10).await;
            }
            if !renewed {
                return;
            }
        }
    }

    /// Of one key's claims: one holder at a time, one answer, and what is resolved stays so.
    pub(crate) async fn claims_hold(
        &self,
        key: usize,
        told: &[&Told],
        rows: &[HistoryRow],
        violations: &mut Vec<String>,
    ) {
        let deeds: Vec<_> = lock(&self.acted).iter().filter(|deed| deed.key == key).cloned().collect();
        let told_new = || {
            told.iter().filter_map(|told| match &told.answer {
                Some(Ok(Verdict::New(new))) if !new.replayed => Some((*told, new)),
                Some(Ok(_) | Err(_)) | None => None,
            })
        };
        let before = violations.len();
        for (told, new) in told_new() {
            // Fencing: whose claim was followed, and that one is told so, does nothing more.
            let late = deeds.iter().find(|deed| {
                deed.first_seen_at == new.first_seen_at
                    && Some(deed.attempt) < new.attempt
                    && deed.is_acknowledged()
                    && deed.asked_at > told.told_at
                    && !self.stood_already(deed, &deeds)
            });
            if let Some(late) = late {
                violations.push(format!("key {key}: a dead token acted: {late:?} after {told:?}"));
            }
            let twice = self.other_holder(told, new.attempt, new.first_seen_at, told_new());
            if let Some(other) = twice {
                violations.push(format!("key {key}: one attempt, two holders: {told:?} and {other:?}"));
            }
        }
        for resolved in deeds.iter().filter(|deed| deed.is_acknowledged() && deed.response().is_some()) {
            let undone = told_new()
                .find(|(told, new)| new.first_seen_at == resolved.first_seen_at && told.asked_at > resolved.told_at);
            if let Some((undone, _)) = undone {
                violations.push(format!("key {key}: NEW after it was resolved: {resolved:?}, {undone:?}"));
            }
            let row = rows.iter().find(|row| row.record.first_seen_at == resolved.first_seen_at);
            if row.is_none_or(|row| row.record.state != State::Resolved || row.record.attempt != resolved.attempt) {
                violations.push(format!("key {key}: {resolved:?}, and its row is {row:?}"));
            }
            let other = deeds.iter().find(|deed| {
                deed.is_acknowledged()
                    && deed.first_seen_at == resolved.first_seen_at
                    && deed.response().is_some_and(|response| Some(response) != resolved.response())
            });
            if let Some(other) = other {
                violations.push(format!("key {key}: resolved twice: {resolved:?}, {other:?}"));
            }
            let seen = told.iter().find(|told| match &told.answer {
                Some(Ok(Verdict::Seen(seen))) => {
                    seen.first_seen_at == resolved.first_seen_at
                        && seen.state == State::Resolved
                        && seen.response.as_ref() != resolved.response()
                }
                Some(Ok(Verdict::New(_)) | Err(_)) | None => false,
            });
            if let Some(seen) = seen {
                violations.push(format!("key {key}: another answer replayed: {resolved:?}, {seen:?}"));
            }
        }
        // Fencing holds within a tier: where a process that was cut off from one gave an attempt that the other gave too, the
        // trail shows both, and that is what is promised.
        if !self.is_calm() && rows.iter().any(given_twice) {
            violations.truncate(before);
        }
        for row in rows.iter().filter(|row| row.record.attempt > 1 || row.record.lease_ends_at.is_some()) {
            let last = row.trail.attempts().last().map(ledger_domain::Attempt::place);
            if last.is_none_or(|last| last < (row.record.attempt, row.record.nonce)) {
                violations.push(format!("key {key}: the trail misses what stands: {row:?}"));
            }
        }
    }

    /// Whether the same act was done before: an acknowledgement given again changes nothing.
    fn stood_already(&self, deed: &Deed, deeds: &[Deed]) -> bool {
        deeds.iter().any(|earlier| {
            earlier.asked_at < deed.asked_at
                && (earlier.first_seen_at, earlier.attempt) == (deed.first_seen_at, deed.attempt)
                && earlier.act == deed.act
        })
    }

    /// Another caller that holds the same attempt.
    fn other_holder<'a>(
        &self,
        told: &Told,
        attempt: Option<u16>,
        first_seen_at: Timestamp,
        all: impl Iterator<Item = (&'a Told, &'a ledger_domain::NewVerdict)>,
    ) -> Option<&'a Told> {
        let mut others = all.filter(|(other, new)| {
            attempt.is_some()
                && (new.attempt, new.first_seen_at) == (attempt, first_seen_at)
                && other.asked_at != told.asked_at
                && other.check.request_id != told.check.request_id
        });
        others.next().map(|(other, _)| other)
    }
}

/// Whether one attempt has two winners in the trail.
fn given_twice(row: &HistoryRow) -> bool {
    let attempts = row.trail.attempts();
    attempts.windows(2).any(|pair| pair[0].attempt == pair[1].attempt)
}
