//! The trail that attempts leave in history: each one's start, end, outcome, reason and source service.

use crate::ids::Nonce;
use crate::record::{Ended, Record, State};
use crate::text::SourceService;
use crate::time::Timestamp;

/// One attempt on a registration, as known at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its number, from 1.
    pub attempt: u16,
    /// The nonce of the check that won it. Two of one number are a claim acted on in two tiers at once.
    pub nonce: Nonce,
    /// How far it came. IN_PROGRESS with a later attempt beside it: its lease lapsed.
    pub state: State,
    /// When it was won.
    pub started_at: Timestamp,
    /// Its lease; `None` in plain mode.
    pub lease_ends_at: Option<Timestamp>,
    /// Who asked for it, if it said so.
    pub source_service: Option<SourceService>,
    /// How its holder ended it.
    pub ended: Option<Ended>,
}

impl Attempt {
    /// The attempt that stands on a record. `None` for a first one in plain mode: the record says all about it.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        if record.attempt == 1 && record.lease_ends_at.is_none() {
            return None;
        }
        let first_source = || if record.attempt == 1 { record.source_service.clone() } else { None };
        Some(Self {
            attempt: record.attempt,
            nonce: record.nonce,
            state: record.state,
            started_at: record.won_at,
            lease_ends_at: record.lease_ends_at,
            source_service: record.attempt_source.clone().or_else(first_source),
            ended: record.ended.clone(),
        })
    }

    /// Its place in a trail.
    #[must_use]
    pub fn place(&self) -> (u16, Nonce) {
        (self.attempt, self.nonce)
    }

    /// Takes over what `other`, **of the same place**, knows better: the later state, and with it start, lease and end.
    pub fn merge(&mut self, other: &Self) {
        if other.rank() > self.rank() {
            self.state = other.state;
            self.started_at = other.started_at;
            self.lease_ends_at = other.lease_ends_at;
            self.ended.clone_from(&other.ended);
        }
        if other.source_service > self.source_service {
            self.source_service.clone_from(&other.source_service);
        }
    }

    fn rank(&self) -> (State, Timestamp, Option<Timestamp>, Option<&Ended>) {
        (self.state, self.started_at, self.lease_ends_at, self.ended.as_ref())
    }
}

/// The attempts on one registration, in the order of their places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trail(Vec<Attempt>);

impl Trail {
    /// The most attempts kept; of more the latest.
    pub const MAX_ATTEMPTS: usize = 64;

    /// The attempts, each place once.
    #[must_use]
    pub fn of(attempts: impl IntoIterator<Item = Attempt>) -> Self {
        let mut trail = Self::default();
        for attempt in attempts {
            trail.add(attempt);
        }
        trail
    }

    /// The attempts, in the order of their places.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.0
    }

    /// Merges one attempt in. Commutative, associative and idempotent.
    pub fn add(&mut self, attempt: Attempt) {
        match self.0.binary_search_by_key(&attempt.place(), Attempt::place) {
            Ok(at) => self.0[at].merge(&attempt),
            Err(at) => self.0.insert(at, attempt),
        }
        if self.0.len() > Self::MAX_ATTEMPTS {
            self.0.remove(0);
        }
    }

    /// Merges another trail of the same registration in.
    pub fn merge(&mut self, other: &Self) {
        for attempt in &other.0 {
            self.add(attempt.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::FailReason;
    use proptest::prelude::*;

    fn attempts() -> impl Strategy<Value = Attempt> {
        let states =
            proptest::sample::select(vec![State::Registered, State::InProgress, State::Failed, State::Resolved]);
        let times = || (1..4_i64).prop_map(Timestamp::from_millis);
        let texts = || proptest::option::of("[ab]");
        (
            0..70_u16,
            0..2_u8,
            states,
            times(),
            proptest::option::of(times()),
            texts(),
            proptest::option::of((times(), texts())),
        )
            .prop_map(|(attempt, nonce, state, started_at, lease_ends_at, source, ended)| Attempt {
                attempt,
                nonce: Nonce::from_bytes([nonce; 8]),
                state,
                started_at,
                lease_ends_at,
                source_service: source.map(|text| SourceService::parse(&text).expect("valid")),
                ended: ended.map(|(at, reason)| Ended {
                    at,
                    reason: reason.map(|text| FailReason::parse(&text).expect("valid")),
                }),
            })
    }

    proptest! {
        #[test]
        fn a_trail_is_the_same_in_whatever_order_and_however_often_attempts_come(
            all in proptest::collection::vec(attempts(), 0..200),
            seed in any::<u64>(),
        ) {
            let in_order = Trail::of(all.iter().cloned());
            prop_assert!(in_order.attempts().len() <= Trail::MAX_ATTEMPTS);
            let mut shuffled = all.clone();
            shuffled.extend(all.iter().take(20).cloned());
            let len = shuffled.len();
            for at in 0..len {
                let other = usize::try_from(seed.rotate_left(u32::try_from(at % 64).expect("small"))).unwrap_or(0) % len.max(1);
                shuffled.swap(at, other);
            }
            prop_assert_eq!(&Trail::of(shuffled), &in_order);
            let (left, right) = all.split_at(all.len() / 2);
            let mut merged = Trail::of(right.iter().cloned());
            merged.merge(&Trail::of(left.iter().cloned()));
            prop_assert_eq!(&merged, &in_order);
        }
    }
}
