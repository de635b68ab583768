//! Filling from durable rows: nearly always into nothing, by one command; over what stands, by compare and swap.

use ::redis::{Cmd, RedisError, Value};
use ledger_domain::ports::{Fill, StoreError};
use ledger_domain::transition::{self, Found};
use ledger_domain::{Record, Slot, value};

use super::RedisHotTier;
use super::command::{Command, NUMBER_BYTES, pxat_ms};
use super::error::unexpected_reply;
use super::scripts::{Call, SWAP, Script};

/// How often a value that changed between being read and being swapped is looked at again. Each time somebody else's write went
/// ahead, so this is for a key that many callers count on.
const ROUNDS_MAX: usize = 8;

/// How many bytes of records are sent at once, about: what takes a small part of the time that a reply may take, so that the
/// calls beside it, on the same connection, need not wait. It holds some thousands of plain records.
const RUN_BYTES_MAX: usize = 512 * 1_024;
/// A record's bytes without its response, about.
const RECORD_BYTES: usize = 160;

/// What stands under a slot, as it is.
type Standing = Option<Vec<u8>>;

impl Command for Fill {
    const OPERATION: &'static str = OPERATION;
    /// What stood there; nothing where the row stands there now.
    type Output = Standing;

    fn script() -> Option<&'static Script> {
        None
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    fn command(&self, _call: Call) -> Cmd {
        let value = value::encode(&self.row);
        let mut cmd = Cmd::with_capacity(7, 12 + self.slot.as_bytes().len() + value.len() + NUMBER_BYTES);
        cmd.arg("SET").arg(self.slot.as_bytes().as_slice()).arg(value);
        cmd.arg("NX").arg("GET").arg("PXAT").arg(pxat_ms(&self.row));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Standing, RedisError> {
        standing(reply)
    }
}

const OPERATION: &str = "fill a key";

/// Writes `to` where `read` stands, whole.
struct Swap<'a> {
    slot: &'a Slot,
    read: Vec<u8>,
    to: Record,
}

impl Command for Swap<'_> {
    const OPERATION: &'static str = OPERATION;
    /// `Ok` where it was written, else what stands there.
    type Output = Result<(), Standing>;

    fn script() -> Option<&'static Script> {
        Some(&SWAP)
    }

    fn slot(&self) -> &Slot {
        self.slot
    }

    fn command(&self, call: Call) -> Cmd {
        let to = value::encode(&self.to);
        let mut cmd = SWAP.call(call, self.slot.as_bytes(), 3, self.read.len() + to.len() + NUMBER_BYTES);
        cmd.arg(self.read.as_slice()).arg(to).arg(pxat_ms(&self.to));
        cmd
    }

    fn read_reply(&self, reply: Value) -> Result<Result<(), Standing>, RedisError> {
        if reply == Value::Int(1) { Ok(Ok(())) } else { standing(reply).map(Err) }
    }
}

fn standing(reply: Value) -> Result<Standing, RedisError> {
    if reply == Value::Nil {
        Ok(None)
    } else if let Value::BulkString(bytes) = reply {
        Ok(Some(bytes))
    } else {
        Err(unexpected_reply())
    }
}

/// What is next for a request that is not settled.
enum Next {
    /// Into nothing.
    Set,
    /// Over what was read.
    Swap { read: Vec<u8>, to: Box<Record> },
}

/// [`ledger_domain::ports::HotTier::fill`].
pub(super) async fn fill(tier: &RedisHotTier, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
    let mut outcomes: Vec<Result<bool, StoreError>> = Vec::with_capacity(requests.len());
    let mut rest = requests;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run_len(rest));
        let filled = at_once(tier, run).await;
        let is_down = filled.iter().all(Result::is_err);
        outcomes.extend(filled);
        if is_down {
            // Each run would wait as long to learn the same.
            let not_sent =
                || Err(StoreError::did_not_happen(OPERATION, "not sent: none of those before it was filled"));
            outcomes.extend(after.iter().map(|_| not_sent()));
            break;
        }
        rest = after;
    }
    outcomes
}

/// How many of the first requests are sent at once; at least one.
fn run_len(requests: &[Fill]) -> usize {
    let mut bytes = 0;
    let fits = |request: &&Fill| {
        bytes += RECORD_BYTES + request.row.response.as_ref().map_or(0, |response| response.body.len());
        bytes <= RUN_BYTES_MAX
    };
    requests.iter().take_while(fits).count().max(1)
}

async fn at_once(tier: &RedisHotTier, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
    let first = tier.all(requests).await;
    let mut open: Vec<(usize, Next)> = Vec::new();
    let mut outcomes: Vec<Result<bool, StoreError>> = Vec::with_capacity(requests.len());
    for (index, set) in first.into_iter().enumerate() {
        outcomes.push(set.map(|standing| into_nothing(index, &requests[index].row, standing, &mut open)));
    }
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            return outcomes;
        }
        let (mut sets, mut swaps) = (Vec::new(), Vec::new());
        for (index, next) in open.drain(..) {
            match next {
                Next::Set => sets.push((index, &requests[index])),
                Next::Swap { read, to } => swaps.push((index, Swap { slot: &requests[index].slot, read, to: *to })),
            }
        }
        let (indexes, sets): (Vec<usize>, Vec<&Fill>) = sets.into_iter().unzip();
        for (index, set) in indexes.into_iter().zip(tier.all(&sets).await) {
            outcomes[index] = set.map(|standing| into_nothing(index, &requests[index].row, standing, &mut open));
        }
        let (indexes, swaps): (Vec<usize>, Vec<Swap<'_>>) = swaps.into_iter().unzip();
        for (index, swap) in indexes.into_iter().zip(tier.all(&swaps).await) {
            outcomes[index] = swap.map(|swapped| match swapped {
                Ok(()) => true,
                Err(None) => {
                    open.push((index, Next::Set));
                    false
                }
                Err(Some(read)) => over(index, &requests[index].row, read, &mut open),
            });
        }
    }
    for (index, _) in open {
        outcomes[index] =
            Err(StoreError::did_not_happen(OPERATION, "the value changed each time before it was swapped"));
    }
    outcomes
}

/// What a row put into nothing came to: written, or something stood there.
fn into_nothing(index: usize, row: &Record, standing: Standing, open: &mut Vec<(usize, Next)>) -> bool {
    standing.is_none_or(|read| over(index, row, read, open))
}

/// What is to be done where `read` stands. `false`: nothing, or not yet.
fn over(index: usize, row: &Record, read: Vec<u8>, open: &mut Vec<(usize, Next)>) -> bool {
    let found = value::decode(&read).map_or(Found::Unreadable, Found::record);
    if let Some(to) = transition::fill(&found, row) {
        open.push((index, Next::Swap { read, to: Box::new(to) }));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger_domain::{
        ContentType, MessageKey, Nonce, PayloadHash, RegistrationId, Scope, State, StoredResponse, Timestamp,
    };

    fn fill(body_bytes: Option<usize>) -> Fill {
        let now = Timestamp::from_millis(1_790_000_000_000);
        let content_type = ContentType::parse("text/plain").expect("valid");
        let response = body_bytes.map(|bytes| StoredResponse { content_type, body: vec![0; bytes] });
        let row = Record {
            registration_id: RegistrationId::from_bytes([0; 8]),
            state: State::Resolved,
            attempt: 1,
            nonce: Nonce::from_bytes([0; 8]),
            won_at: now,
            first_seen_at: now,
            last_seen_at: now,
            window_ends_at: now.plus_seconds(60),
            payload_hash: PayloadHash::from_bytes([0; 32]),
            retry_count: 0,
            source_service: None,
            drift: None,
            lease_ends_at: None,
            response,
            attempt_source: None,
            ended: None,
            undurable: false,
            take_over: None,
        };
        let scope = Scope::parse("t:f", None).expect("valid");
        Fill { slot: Slot::of(&scope, &MessageKey::text("k").expect("valid")), row }
    }

    #[test]
    fn what_is_sent_at_once_is_a_keepers_chunk_or_some_large_answers_and_never_nothing() {
        assert_eq!(run_len(&vec![fill(None); 1_000]), 1_000);
        assert_eq!(run_len(&vec![fill(Some(StoredResponse::MAX_BYTES)); 1_000]), 7);
        assert_eq!(run_len(&[fill(Some(RUN_BYTES_MAX))]), 1);
        assert_eq!(run_len(&[fill(None), fill(Some(RUN_BYTES_MAX)), fill(None)]), 1);
    }
}
