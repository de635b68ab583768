//! What only a real server can show: refusals, broken connections, fail-overs.

use ledger_domain::ports::{Amend, Begin, Begun, Count, HotTier, Settle, StoreError};
use ledger_domain::transition::{Amended, Counted, Found, Guard, Sighting, Swapped};
use ledger_domain::{FillPass, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, Slot, State, Timestamp};
use ledger_stores::redis::{RedisHotTier, RedisSetupError};
use ledger_testkit::redis_server::{RedisCluster, RedisServer, with_timeouts};

use crate::open;

pub(crate) fn slot(n: u64) -> Slot {
    let scope = Scope::parse("faults:own", None).expect("valid");
    Slot::of(&scope, &MessageKey::text(&n.to_string()).expect("valid"))
}

pub(crate) fn pending(now: Timestamp, n: u8) -> Record {
    Record {
        registration_id: RegistrationId::from_bytes([n; 8]),
        state: State::Pending,
        attempt: 1,
        nonce: Nonce::from_bytes([n; 8]),
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        window_ends_at: now.plus_seconds(86_400),
        payload_hash: PayloadHash::from_bytes([n; 32]),
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

pub(crate) async fn begin(tier: &dyn HotTier, n: u64) -> Result<Begun, StoreError> {
    let pending = pending(Timestamp::from_millis(1_790_000_000_000), 1);
    tier.begin(&[Begin { slot: slot(n), pending, ttl_ms: 60_000 }]).await.remove(0)
}

pub(crate) async fn settle(tier: &dyn HotTier, n: u64) -> Result<Swapped, StoreError> {
    let won = pending(Timestamp::from_millis(1_790_000_000_000), 1);
    let settled = Record { window_ends_at: Timestamp::MAX, ..won.confirmed() };
    tier.settle(&[Settle { slot: slot(n), guard: Guard::of(&won), settled }]).await.remove(0)
}

/// On slot 0, from one lease to another, counted with it.
async fn amend(tier: &dyn HotTier, from_lease: Option<i64>, to_lease: Option<i64>) -> Result<Amended, StoreError> {
    let won = pending(Timestamp::from_millis(1_790_000_000_000), 1);
    let leased = |at: Option<i64>| Record { lease_ends_at: at.map(Timestamp::from_millis), ..won.clone() };
    let sighting = Some(Sighting { at: won.first_seen_at, payload: won.payload_hash });
    let request = Amend { slot: slot(0), read: leased(from_lease), to: leased(to_lease), sighting };
    tier.amend(&[request]).await.remove(0)
}

pub(crate) fn did_not_happen<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::DidNotHappen { .. }))
}

/// Asks until it is answered; how often a connection that just broke may fail before is bounded.
pub(crate) async fn soon<T, F: Future<Output = Result<T, StoreError>>>(mut ask: impl FnMut() -> F) -> T {
    let mut last = None;
    for _ in 0..100 {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => last = Some(error),
        }
    }
    panic!("100 failures, the last {last:?}");
}

#[tokio::test]
async fn with_its_memory_full_it_refuses_writes_drops_nothing_and_still_reads() {
    let server = RedisServer::start();
    let tier = open(server.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(did_not_happen(&begin(&*tier, 1).await));
    assert!(did_not_happen(&settle(&*tier, 0).await));
    assert!(did_not_happen(&amend(&*tier, None, Some(1)).await));
    let batch: Vec<Begin> = (2..5)
        .map(|n| Begin { slot: slot(n), pending: pending(Timestamp::from_millis(1), 1), ttl_ms: 60_000 })
        .collect();
    assert!(tier.begin(&batch).await.iter().all(did_not_happen));
    assert!(matches!(tier.read(&[slot(0)]).await.remove(0), Ok(Found::Record(_))));
    assert_eq!(tier.health().await.expect("it answers").problems, Vec::<String>::new());
    assert!(did_not_happen(&tier.begin_fill(FillPass::from_bytes([1; 8])).await));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(settle(&*tier, 0).await, Ok(Swapped::Done)));
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = RedisServer::start();
    let tier = open(server.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    for _ in 0..2 {
        let () = server.command(&["SCRIPT", "FLUSH"]);
        assert!(matches!(settle(&*tier, 0).await, Ok(Swapped::Done)));
    }
    let read = pending(Timestamp::from_millis(1_790_000_000_000), 1);
    let read = Record { window_ends_at: Timestamp::MAX, ..read.confirmed() };
    let count =
        Count { slot: slot(0), guard: Guard::of(&read), now: read.first_seen_at, payload: read.payload_hash, read };
    // The first time it has not called the script in a pipeline before, the second time it has.
    for time in 0..2 {
        let () = server.command(&["SCRIPT", "FLUSH"]);
        let counted = tier.count(&vec![count.clone(); 100]).await;
        assert_eq!(counted.len(), 100);
        for (n, counted) in (1..).zip(counted) {
            assert!(matches!(counted, Ok(Counted::Counted(record)) if record.retry_count == time * 100 + n));
        }
    }
}

#[tokio::test]
async fn a_batch_of_100_is_sent_at_once() {
    let server = RedisServer::start();
    let tier = open(server.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    let stat = |name: &str| {
        let info: String = server.command(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
        line.expect("the server counts it").parse::<u64>().expect("a number")
    };
    let (reads, commands) = (stat("total_reads_processed"), stat("total_commands_processed"));
    let slots: Vec<Slot> = (0..100).map(slot).collect();
    assert!(tier.read(&slots).await.iter().all(Result::is_ok));
    let (reads, commands) = (stat("total_reads_processed") - reads, stat("total_commands_processed") - commands);
    assert!(commands >= 100, "{commands} commands");
    // The batch's bytes may come in a few pieces; the fixture's own connections add a few more.
    assert!(reads <= 30, "{reads} reads of the socket");
}

#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let server = RedisServer::start();
    let tier = open(server.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    for round in 1..4 {
        let _: i64 = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // The first request may meet the closed connection: then nobody can say whether it happened.
        let begun = soon(|| begin(&*tier, round)).await;
        assert!(matches!(begun, Begun::Won | Begun::Present(_)));
    }
}

#[tokio::test]
async fn a_reply_lost_to_a_time_out_may_have_happened_and_without_a_server_nothing_happens() {
    let mut server = RedisServer::start();
    let url = with_timeouts(server.url(), 200, 200);
    let tier = RedisHotTier::open(&url).expect("valid");
    assert!(matches!(begin(&tier, 0).await, Ok(Begun::Won)));
    let () = server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert!(matches!(begin(&tier, 1).await, Err(StoreError::MayHaveHappened { .. })));
    server.kill();
    // The connection that timed out is not used again, and a new one is refused.
    let refused = futures::future::join_all((0..50).map(|n| begin(&tier, n))).await;
    assert!(refused.iter().all(did_not_happen));
    assert!(did_not_happen(&tier.health().await));
}

#[tokio::test]
async fn wrong_credentials_and_unknown_authorities_are_refused_before_anything_is_sent() {
    let server = RedisServer::start_tls_auth();
    let ca = server.ca_file();
    let (_, address) = server.url().rsplit_once('@').expect("the URL has a user");
    let other = RedisServer::start_tls_auth();
    for url in [
        format!("rediss://ledger:wrong@{address}"),
        format!("rediss://{address}"),
        server.url().replace(ca.to_str().expect("UTF-8"), other.ca_file().to_str().expect("UTF-8")),
        server.url().replace(&format!("&ca_file={}", ca.display()), ""),
    ] {
        let tier = RedisHotTier::open(&url).expect("valid");
        assert!(did_not_happen(&begin(&tier, 0).await));
    }
    let missing = RedisHotTier::open(&format!("rediss://{}", address.replace("ca.pem", "none.pem")));
    assert!(matches!(missing, Err(RedisSetupError::CaFile(..))));
}

/// A count whose reply is lost: it happens once where the server goes on, and not at all where it dropped the connection.
async fn a_lost_reply(url: &str, command: impl Fn(&[&str]) -> String + Send + Sync) {
    let read = pending(Timestamp::from_millis(1_790_000_000_000), 1);
    let count = async |tier: &RedisHotTier| {
        let (guard, now, payload) = (Guard::of(&read), read.first_seen_at, read.payload_hash);
        tier.count(&[Count { slot: slot(0), guard, now, payload, read: read.clone() }]).await.remove(0)
    };
    let retry_count = async |tier: &RedisHotTier| match tier.read(&[slot(0)]).await.remove(0) {
        Ok(Found::Record(record)) => record.retry_count,
        other => panic!("it stands: {other:?}"),
    };
    // A patient tier beside the one whose replies are lost; and a script is only known to the server once it ran.
    let patient = RedisHotTier::open(url).expect("valid");
    assert!(matches!(begin(&patient, 0).await, Ok(Begun::Won)));
    assert!(matches!(count(&patient).await, Ok(Counted::Counted(_))));

    let hasty = with_timeouts(url, 20_000, 300);
    let hasty = RedisHotTier::open(&hasty).expect("valid");
    assert_eq!(retry_count(&hasty).await, 1);
    command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert!(matches!(count(&hasty).await, Err(StoreError::MayHaveHappened { .. })));
    command(&["CLIENT", "UNPAUSE"]);
    // The server does what it held back before it takes anything new.
    assert!(matches!(count(&patient).await, Ok(Counted::Counted(record)) if record.retry_count == 3));
    assert!(matches!(soon(|| count(&hasty)).await, Counted::Counted(record) if record.retry_count == 4));

    command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let (lost, ()) = futures::future::join(count(&patient), async {
        while !command(&["CLIENT", "LIST"]).contains("flags=b") {
            tokio::task::yield_now().await;
        }
        command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    })
    .await;
    assert!(matches!(lost, Err(StoreError::MayHaveHappened { .. })));
    command(&["CLIENT", "UNPAUSE"]);
    let counted = soon(|| count(&patient)).await;
    assert!(
        matches!(counted, Counted::Counted(record) if record.retry_count == 5),
        "what was dropped is not sent again"
    );
}

#[tokio::test]
async fn a_lost_reply_is_not_asked_for_twice() {
    let server = RedisServer::start();
    a_lost_reply(server.url(), |command| server.command(command)).await;
}

#[tokio::test]
async fn a_lost_reply_is_not_asked_for_twice_in_a_cluster() {
    let cluster = RedisCluster::start();
    a_lost_reply(cluster.url(), |command| cluster.owner_command(slot(0).as_bytes(), command)).await;
}

#[tokio::test]
async fn a_claims_transition_whose_reply_was_lost_is_done_when_asked_for_again_and_counted_once() {
    let server = RedisServer::start();
    let patient = open(server.url());
    assert!(matches!(begin(&*patient, 0).await, Ok(Begun::Won)));
    let is_done = |amended: Result<Amended, StoreError>, lease: i64, retry_count: u32| {
        let lease_ends_at = Some(Timestamp::from_millis(lease));
        matches!(amended, Ok(Amended::Done(record))
            if record.lease_ends_at == lease_ends_at && record.retry_count == retry_count)
    };
    // The server knows a script once it ran.
    assert!(is_done(amend(&*patient, None, Some(1)).await, 1, 1));
    let hasty = with_timeouts(server.url(), 20_000, 300);
    let hasty = RedisHotTier::open(&hasty).expect("valid");
    assert!(matches!(hasty.read(&[slot(0)]).await.remove(0), Ok(Found::Record(_))));
    let () = server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert!(matches!(amend(&hasty, Some(1), Some(2)).await, Err(StoreError::MayHaveHappened { .. })));
    let () = server.command(&["CLIENT", "UNPAUSE"]);
    // The server does what it held back before it takes anything new.
    assert!(is_done(amend(&*patient, Some(1), Some(2)).await, 2, 2));
    assert!(matches!(amend(&*patient, Some(1), Some(3)).await, Ok(Amended::Moved(Found::Record(_)))));
}
