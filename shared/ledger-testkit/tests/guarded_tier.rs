//! A hot tier behind breakers is a hot tier: the suite, with the lanes of one server and of a cluster. And what the breakers
//! take from a real Redis for silence.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use ledger_domain::breaker::BreakerSettings;
use ledger_domain::ports::{Begin, Begun, HotTier, StoreError};
use ledger_domain::{MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, Slot, State};
use ledger_stores::clock::SystemClock;
use ledger_stores::guarded::{CircuitOpen, GuardedHotTier, Lanes};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::hot_tier::{MemoryRaw, Place};
use ledger_testkit::redis_server::RedisServer;

fn place_with(lanes: Lanes) -> Place {
    let tier = Arc::new(MemoryHotTier::new(10_000, Arc::new(SystemClock)));
    let guarded = || Arc::new(GuardedHotTier::new(Arc::clone(&tier) as _, lanes, BreakerSettings::default()));
    Place { first: guarded(), second: guarded(), raw: Box::new(MemoryRaw(Arc::clone(&tier))), server: Box::new(()) }
}

mod one_lane {
    async fn place() -> ledger_testkit::hot_tier::Place {
        super::place_with(super::Lanes::One)
    }
    ledger_testkit::hot_tier_suite!(place);
}

mod lanes_of_a_cluster {
    async fn place() -> ledger_testkit::hot_tier::Place {
        super::place_with(super::Lanes::Cluster)
    }
    ledger_testkit::hot_tier_suite!(place);
}

fn slot(name: &str) -> Slot {
    Slot::of(&Scope::parse("t:guard", None).expect("valid"), &MessageKey::text(name).expect("valid"))
}

async fn begin(tier: &GuardedHotTier, name: &str) -> Result<Begun, StoreError> {
    let now = ledger_domain::Timestamp::from_millis(1_790_000_000_000);
    let pending = Record {
        registration_id: RegistrationId::from_bytes([1; 8]),
        state: State::Pending,
        attempt: 1,
        nonce: Nonce::from_bytes([1; 8]),
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        window_ends_at: now.plus_seconds(60),
        payload_hash: PayloadHash::from_bytes([1; 32]),
        retry_count: 0,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    };
    tier.begin(&[Begin { slot: slot(name), pending, ttl_ms: 10_000 }]).await.pop().expect("one result")
}

/// Behind breakers for which `slow_ms` is a time-out.
fn guarded(url: &str, slow_ms: i64) -> GuardedHotTier {
    let redis = Arc::new(RedisHotTier::open(url).expect("a URL"));
    let settings = BreakerSettings { slow_us: slow_ms * 1_000, ..BreakerSettings::default() };
    GuardedHotTier::new(redis, Lanes::One, settings)
}

fn is_refused<T>(result: &Result<T, StoreError>) -> bool {
    match result {
        Err(StoreError::DidNotHappen { source, .. }) => source.downcast_ref::<CircuitOpen>().is_some(),
        Ok(_) | Err(StoreError::MayHaveHappened { .. } | StoreError::Rejected { .. }) => false,
    }
}

#[tokio::test]
async fn a_black_hole_opens_it_at_the_first_call_which_is_the_last_that_waits() {
    // It takes connections, and never says a word.
    let hole = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = hole.local_addr().expect("bound").port();
    let tier = guarded(&format!("redis://127.0.0.1:{port}?connect_timeout_ms=50&response_timeout_ms=50"), 50);
    let first = begin(&tier, "k").await;
    assert!(first.is_err() && !is_refused(&first), "{first:?}");
    assert_eq!(tier.open_of(), (1, 1));
}

#[tokio::test]
async fn a_server_that_was_killed_opens_it_by_writes_alone() {
    let mut server = RedisServer::start();
    // A minute is far from quick: what opens it is the number of its failures.
    let tier = guarded(server.url(), 60_000);
    assert!(matches!(begin(&tier, "k").await, Ok(Begun::Won)));
    server.kill();
    for call in 0..5 {
        assert_eq!(tier.open_of(), (0, 1), "{call}");
        let failed = begin(&tier, "k").await;
        assert!(failed.is_err() && !is_refused(&failed), "{failed:?}");
    }
    assert!(is_refused(&begin(&tier, "k").await));
}

#[tokio::test]
async fn a_full_server_and_a_replica_refuse_writes_and_are_read_as_before() {
    let (full, replica) = (RedisServer::start(), RedisServer::start());
    for (server, refuse_writes) in [
        (&full, &["CONFIG", "SET", "maxmemory", "1"][..]),
        // Of nobody: it goes on serving what it has.
        (&replica, &["REPLICAOF", "127.0.0.1", "1"]),
    ] {
        let tier = guarded(server.url(), 60_000);
        assert!(matches!(begin(&tier, "k").await, Ok(Begun::Won)));
        let _: redis::Value = server.command(refuse_writes);
        for call in 0..20 {
            let refused = begin(&tier, "other").await;
            assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })) && !is_refused(&refused), "{refused:?}");
            let read = tier.read(&[slot("k")]).await.pop().expect("one result");
            assert!(read.is_ok(), "{refuse_writes:?}, {call}: {read:?}");
        }
        assert_eq!(tier.open_of(), (0, 1));
    }
}
