//! The conformance suite of [`ledger_domain::ports::HotTier`]: named cases, one per line of its contract.
//!
//! ```text
//! mod memory {
//!     async fn place() -> ledger_testkit::hot_tier::Place { ... }
//!     ledger_testkit::hot_tier_suite!(place);
//! }
//! ```
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

mod batches;
mod cases;
mod claims;
mod fills;
mod random;
mod raw;

use std::any::Any;
use std::sync::Arc;

use ledger_domain::ports::{Begin, Begun, HotTier, Settle, StoreError};
use ledger_domain::transition::{Found, Guard, Swapped};
use ledger_domain::{
    ContentType, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, Slot, State, StoredResponse, Timestamp,
};

pub use batches::*;
pub use cases::*;
pub use claims::*;
pub use fills::*;
pub use random::random_operations_do_what_the_model_does;
pub use raw::{MemoryRaw, Raw, RawAccess, RedisRaw};

/// Two handles on one hot tier, a way around it, and what must live as long as they do.
pub struct Place {
    /// A handle.
    pub first: Arc<dyn HotTier>,
    /// Another handle on the same place, with a connection of its own where there are connections.
    pub second: Arc<dyn HotTier>,
    /// The values as they are.
    pub raw: Box<dyn RawAccess>,
    /// The server, where there is one.
    pub server: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl Place {
    async fn now(&self) -> Timestamp {
        self.first.time().await.expect("the tier tells its time")
    }

    /// The value as it is.
    async fn value(&self, slot: Slot) -> Option<Vec<u8>> {
        self.raw.get(slot).await.map(|raw| raw.value)
    }

    /// Writes `record` settled, the way a check does.
    async fn settled(&self, slot: Slot, record: &Record) {
        let pending = Record { state: State::Pending, ..record.clone() };
        assert_eq!(begin(&*self.first, slot, &pending).await, Begun::Won);
        assert_eq!(settle(&*self.first, slot, Guard::of(&pending), record).await, Swapped::Done);
    }
}

/// Makes a test of each case. `$place` is an async function that gives a [`Place`]; places may share a server.
#[macro_export]
macro_rules! hot_tier_suite {
    ($place:path) => {
        $crate::hot_tier_suite! { $place;
            one_of_200_concurrent_begins_wins
            what_one_handle_wrote_the_other_sees
            each_of_200_concurrent_counts_is_counted_once
            drift_keeps_the_first_hash_and_the_last_one
            counts_saturate
            settling_twice_is_done_twice
            settling_what_moved_or_is_absent_writes_nothing
            unreadable_values_stand_whatever_is_asked
            each_byte_is_judged_as_the_decoder_does
            a_record_is_replaced_only_if_unchanged
            release_removes_only_its_own_pending
            heal_writes_over_nothing_and_its_own_pending_only
            each_value_has_the_right_expiry
            what_is_past_its_end_is_absent
            a_read_never_registers
            a_stored_response_is_kept_and_counted_over
            a_claims_steps_leave_all_else_as_it_is
            an_amend_loses_no_sighting_counted_in_between
            one_of_100_concurrent_take_overs_is_laid_and_counts_beside_them_stay
            a_lease_renewed_in_between_makes_a_take_over_moved
            amending_twice_is_done_twice_and_counts_once
            an_amend_of_what_moved_or_is_absent_writes_nothing
            an_amend_keeps_the_expiry
            an_amend_leaves_damaged_values
            texts_are_bounded_as_the_decoder_has_it
            amends_in_a_batch_take_effect_in_order
            heal_writes_over_its_own_take_over_and_keeps_what_was_counted
            a_batch_of_100_answers_in_order
            repeats_of_a_slot_in_a_batch_take_effect_in_order
            an_items_failure_to_swap_is_its_own
            an_empty_batch_answers_nothing
            fill_writes_over_nothing_and_what_is_older_only
            what_a_fill_replaced_is_not_confirmed
            fills_lose_no_sighting_counted_in_between
            fills_and_amends_at_once_lose_neither
            fills_with_large_answers_are_all_written
            a_batch_of_1000_fills_and_repeats_takes_effect_in_order
            the_markers_say_missing_then_filling_then_warm
            random_operations_do_what_the_model_does
            it_tells_the_time
        }
    };
    ($place:path; $($case:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::hot_tier::$case(&$place().await).await;
            }
        )+
    };
}

/// A slot of the case's own key space.
fn slot(case: &str, n: u64) -> Slot {
    let scope = Scope::parse(&format!("conformance:{case}"), None).expect("a case's name is a flow");
    Slot::of(&scope, &MessageKey::text(&n.to_string()).expect("a number is a key"))
}

fn hash(byte: u8) -> PayloadHash {
    PayloadHash::from_bytes([byte; 32])
}

/// A plain PENDING, won at `now`, with a window of a day; `n` makes its ids and its payload.
fn pending(now: Timestamp, n: u8) -> Record {
    Record {
        registration_id: RegistrationId::from_bytes([n; 8]),
        state: State::Pending,
        attempt: 1,
        nonce: Nonce::from_bytes([n ^ 0x80; 8]),
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        window_ends_at: now.plus_seconds(86_400),
        payload_hash: hash(n),
        retry_count: 0,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    }
}

fn response(bytes: usize) -> StoredResponse {
    StoredResponse { content_type: ContentType::parse("application/xml").expect("valid"), body: vec![7; bytes] }
}

/// How long the cases' PENDINGs hold.
const TTL_MS: u64 = 10_000;

/// The one outcome of a batch of one.
fn only<T>(mut outcomes: Vec<Result<T, StoreError>>) -> T {
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0).expect("the tier answers")
}

async fn begin(tier: &dyn HotTier, slot: Slot, pending: &Record) -> Begun {
    only(tier.begin(&[Begin { slot, pending: pending.clone(), ttl_ms: TTL_MS }]).await)
}

async fn settle(tier: &dyn HotTier, slot: Slot, guard: Guard, settled: &Record) -> Swapped {
    only(tier.settle(&[Settle { slot, guard, settled: settled.clone() }]).await)
}

async fn read(tier: &dyn HotTier, slot: Slot) -> Found {
    only(tier.read(&[slot]).await)
}
