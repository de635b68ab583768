//! The conformance suite of [`ColdLedger`]: named cases, each over a place of its own.
//!
//! `cold_ledger_conformance!(make_place)` makes a test of each case; `make_place` is an async function that gives a
//! [`Place`] that nobody else uses.

pub mod acts;
pub mod claims;
pub mod false_new;
pub mod keep;
pub mod lives;
pub mod model;
pub mod persist;
pub mod register;
pub mod search;
pub mod together;

use std::any::Any;
use std::sync::Arc;

use ledger_domain::ports::{ColdLedger, HistoryQuery, HistoryRow, Registered};
use ledger_domain::{
    Attempt, ContentType, Drift, Fact, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, SourceService,
    State, StoredResponse, Subject, Timestamp,
};

/// Two handles on one ledger, empty at first.
pub struct Place {
    /// One handle.
    pub a: Arc<dyn ColdLedger>,
    /// Another handle on the same ledger, as another process would have.
    pub b: Arc<dyn ColdLedger>,
    /// What must live as long as the handles: a folder, a server.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// The suite's *now*: 2026-09-21T14:13:20.123Z.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::from_millis(1_790_000_000_123)
}

/// A replay time of 15 minutes, in seconds.
pub const REPLAY_SECONDS: u64 = 900;

/// A subject of one text.
#[must_use]
#[allow(clippy::expect_used, reason = "a case with an invalid word is broken")]
pub fn subject(scope: &str, key: &str) -> Subject {
    Subject { scope: Scope::parse(scope, None).expect("a scope"), key: MessageKey::text(key).expect("a key") }
}

/// A plain registration: number `n` gives its id and nonce, and the payload is always the same.
#[must_use]
pub fn registration(n: u64, first_seen_at: Timestamp, window_seconds: u64) -> Record {
    Record {
        registration_id: RegistrationId::from_bytes(n.to_be_bytes()),
        state: State::Registered,
        attempt: 1,
        nonce: Nonce::from_bytes(n.to_be_bytes()),
        won_at: first_seen_at,
        first_seen_at,
        last_seen_at: first_seen_at,
        window_ends_at: first_seen_at.plus_seconds(window_seconds),
        payload_hash: PayloadHash::from_bytes([7; 32]),
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

/// A claim on a registration: number `n` gives its id, nonce and source service.
#[must_use]
pub fn claimed(n: u64, first_seen_at: Timestamp, window_seconds: u64, lease_seconds: u64) -> Record {
    Record {
        state: State::InProgress,
        lease_ends_at: Some(first_seen_at.plus_seconds(lease_seconds)),
        source_service: Some(service(&format!("service-{n}"))),
        ..registration(n, first_seen_at, window_seconds)
    }
}

/// A source service.
#[must_use]
#[allow(clippy::expect_used, reason = "a case with an invalid word is broken")]
pub fn service(name: &str) -> SourceService {
    SourceService::parse(name).expect("a service")
}

/// A stored response.
#[must_use]
#[allow(clippy::expect_used, reason = "a case with an invalid word is broken")]
pub fn response(body: &[u8]) -> StoredResponse {
    StoredResponse { content_type: ContentType::parse("application/xml").expect("a type"), body: body.to_vec() }
}

/// The attempt that stands on a record that was claimed.
#[must_use]
#[allow(clippy::expect_used, reason = "a case that asks a plain record is broken")]
pub fn attempt(record: &Record) -> Attempt {
    Attempt::of(record).expect("an attempt")
}

/// Asserts that a key's only registration stands as `record`, with these attempts in its trail.
#[allow(clippy::expect_used, reason = "a case fails where its ledger does")]
pub async fn assert_stands(ledger: &dyn ColdLedger, key: &Subject, record: &Record, trail: &[Attempt]) {
    assert_eq!(ledger.standing(key).await.expect("an answer").as_ref(), Some(record), "{key:?}");
    let rows = history(ledger, key).await;
    let [row] = rows.as_slice() else { panic!("{key:?}: expected one row, got {rows:#?}") };
    assert_eq!(row.record, Record { response: None, ..record.clone() }, "{key:?}");
    assert_eq!(row.trail.attempts(), trail, "{key:?}");
}

/// The fact of a record.
#[must_use]
pub fn fact(subject: &Subject, record: &Record) -> Fact {
    Fact::of(subject.clone(), record)
}

/// All of history, a first page of it.
#[must_use]
pub fn all() -> HistoryQuery {
    HistoryQuery { from: Timestamp::MIN, to: Timestamp::MAX, after: None, limit: 1_000 }
}

/// A key's rows of history, newest first.
#[allow(clippy::expect_used, reason = "a case fails where its ledger does")]
pub async fn history(ledger: &dyn ColdLedger, subject: &Subject) -> Vec<HistoryRow> {
    let page = ledger.by_key(subject, &all()).await.expect("history");
    assert!(!page.more);
    page.rows
}

/// A key's live row, where its window is not over at `at`.
#[allow(clippy::expect_used, reason = "a case fails where its ledger does")]
pub async fn live(ledger: &dyn ColdLedger, subject: &Subject, at: Timestamp) -> Option<Record> {
    let rows = ledger.newest_live(at, None, 10_000).await.expect("live rows");
    rows.into_iter().find(|row| row.subject == *subject).map(|row| row.record)
}

/// The record of a registration that was ours.
///
/// # Panics
/// Where it was not.
pub fn ours(registered: Registered) -> Record {
    match registered {
        Registered::Ours(record) => *record,
        Registered::Theirs(record) => panic!("expected ours, got theirs: {record:?}"),
    }
}

/// The record of a registration that was another's.
///
/// # Panics
/// Where it was ours.
pub fn theirs(registered: Registered) -> Record {
    match registered {
        Registered::Theirs(record) => *record,
        Registered::Ours(record) => panic!("expected theirs, got ours: {record:?}"),
    }
}

/// A drift.
#[must_use]
pub fn drift(count: u32, hash: [u8; 32], last_at: Timestamp) -> Drift {
    Drift { count, last_hash: PayloadHash::from_bytes(hash), last_at }
}

/// Makes a test of each case of the suite.
#[macro_export]
macro_rules! cold_ledger_conformance {
    ($make_place:path) => {
        $crate::cold_ledger_conformance! { $make_place =>
            register::of_fifty_concurrent_checks_exactly_one_registers_and_each_other_counts_once,
            register::the_same_nonce_gets_its_registration_again_and_is_not_counted,
            register::after_the_replay_time_the_same_nonce_is_a_repeat,
            register::the_very_record_again_is_ours_whatever_the_replay_time,
            register::a_taken_over_registration_is_not_given_to_its_first_winner,
            register::a_window_that_is_over_is_replaced_and_history_keeps_both,
            register::a_window_that_is_not_over_is_not_replaced,
            register::a_repeat_is_counted_with_its_drift_in_both_tables,
            register::counts_stop_at_the_greatest_number,
            register::a_text_and_a_tuple_of_the_same_text_are_two_keys,
            register::keys_are_never_folded,
            register::the_longest_scope_and_key_are_stored_and_found,
            persist::facts_merge_in_any_order_and_however_often,
            persist::of_two_registrations_in_one_batch_the_greater_stands,
            persist::a_late_fact_of_an_older_registration_replaces_nothing,
            persist::a_fact_about_a_repeat_does_not_erase_the_response,
            persist::a_fact_counts_on_what_was_registered_here,
            persist::a_registration_whose_window_is_over_is_kept,
            persist::every_field_is_kept_to_the_letter,
            persist::an_implausible_first_sighting_is_refused_and_nothing_is_written,
            persist::what_no_caller_can_have_sent_is_refused_and_nothing_is_written,
            persist::no_facts_are_no_work,
            persist::a_large_batch_is_one_call,
            persist::writers_of_the_same_keys_do_not_stop_each_other,
            persist::random_batches_give_what_the_domain_merges,
            claims::a_failed_or_lapsed_claim_is_taken_over_as_the_next_attempt,
            claims::a_plain_take_over_stands_before_claims_of_any_attempt,
            claims::a_claim_whose_lease_runs_is_not_taken_over,
            claims::a_take_overs_lease_ends_with_the_window_at_the_latest,
            claims::attempts_stop_at_the_greatest_number,
            claims::of_many_takers_of_a_lapsed_claim_exactly_one_wins,
            claims::a_live_claim_is_given_to_its_own_check_again,
            claims::its_own_claim_that_is_over_is_taken_over_and_a_resolved_one_is_a_repeat,
            claims::the_very_take_over_again_is_ours_whatever_the_replay_time,
            claims::a_sighting_alone_takes_nothing_over,
            claims::what_stands_is_read_whatever_its_window,
            acts::a_claim_is_renewed_and_resolved,
            acts::a_claim_fails_with_its_reason_and_leaves_it_in_the_trail,
            acts::a_renewal_never_shortens_a_lease_and_ends_with_the_window_at_the_latest,
            acts::a_lapsed_claim_is_its_holders_until_somebody_takes_it_over,
            acts::an_act_again_finds_its_record_standing_and_the_first_one_stands,
            acts::stale_and_foreign_claims_change_nothing,
            acts::a_stored_response_is_kept_byte_for_byte_and_no_repeat_erases_it,
            acts::a_response_too_large_is_refused_and_changes_nothing,
            acts::of_a_holder_and_a_taker_exactly_one_wins,
            together::all_are_registered_in_the_order_asked_for,
            together::one_that_stands_leaves_all_as_they_were,
            together::the_very_same_again_is_ours,
            together::of_rivals_over_the_same_keys_exactly_one_gets_them_all,
            lives::every_order_of_a_claims_facts_gives_the_same_rows,
            lives::random_lives_give_what_the_domain_merges,
            lives::a_trail_keeps_the_latest_attempts,
            lives::random_operations_give_what_the_domain_says,
            false_new::is_found_in_either_order_and_counted_once,
            false_new::in_one_batch_is_found,
            false_new::of_three_registrations_each_names_the_least_earlier_in_every_order,
            false_new::a_chain_names_what_each_overlaps,
            false_new::a_longer_window_hidden_behind_a_shorter_one_is_found,
            false_new::of_one_registered_here_is_found_when_the_fact_arrives,
            false_new::a_new_window_is_none,
            false_new::the_same_check_registered_twice_is_none,
            false_new::concurrent_writers_count_each_once,
            false_new::random_batches_give_the_canonical_links,
            search::history_pages_are_newest_first_also_among_equal_times,
            search::from_is_inclusive_and_to_exclusive,
            search::tenants_do_not_see_each_other_by_payload,
            keep::live_rows_come_newest_first_and_end_with_their_window,
            keep::live_rows_are_found_behind_long_gaps_and_many_ended_ones,
            keep::live_rows_come_as_they_stand,
            keep::rows_that_arrive_while_pages_are_read_are_no_part_of_them,
            keep::a_purge_removes_what_ended_before_and_nothing_else,
            keep::a_purge_is_bounded_and_comes_to_an_end,
            keep::a_purge_waits_for_the_windows_of_the_keys_other_registrations,
            keep::what_was_purged_registers_anew_and_late_facts_still_merge,
            keep::what_was_purged_is_registered_again_by_its_own_check_in_one_row,
            keep::a_purge_beside_writers_removes_no_row_that_was_registered_again,
            search::the_watermark_never_moves_back,
            search::the_ledger_tells_its_time,
        }
    };
    ($make_place:path => $($module:ident :: $case:ident,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::cold_ledger::$module::$case($make_place().await).await;
            }
        )+
    };
}
