//! The hot tier's conformance suite over every implementation, and what only real servers can show.
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

mod faults;
mod fill_speed;
mod many_servers;
mod markers;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ledger_domain::ports::HotTier;
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::hot_tier::{Place, RedisRaw};

/// A server that the tests running at one time share; it ends with the last of them.
struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self, start: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *shared = Arc::downgrade(&started);
            started
        })
    }
}

fn open(url: &str) -> Arc<dyn HotTier> {
    Arc::new(RedisHotTier::open(url).expect("a fixture's URL"))
}

async fn redis_place<T: Send + Sync + 'static>(server: Arc<T>, url: &str, raw_url: &str) -> Place {
    let raw = Box::new(RedisRaw::connect(raw_url).await);
    Place { first: open(url), second: open(url), raw, server: Box::new(server) }
}

mod memory {
    use std::sync::Arc;

    use ledger_domain::Timestamp;
    use ledger_domain::ports::{Begin, Begun, HotTier, StoreError};
    use ledger_domain::transition::Found;
    use ledger_stores::memory::MemoryHotTier;
    use ledger_testkit::clock::ManualClock;
    use ledger_testkit::hot_tier::{MemoryRaw, Place};

    use crate::faults::{pending, slot};

    const NOW: i64 = 1_790_000_000_000;

    async fn place() -> Place {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOW)));
        let tier = Arc::new(MemoryHotTier::new(10_000, clock));
        let raw = Box::new(MemoryRaw(Arc::clone(&tier)));
        Place { first: Arc::clone(&tier) as Arc<dyn HotTier>, second: tier, raw, server: Box::new(()) }
    }

    ledger_testkit::hot_tier_suite!(place);

    #[tokio::test]
    async fn with_no_room_it_refuses_and_drops_only_what_has_expired() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOW)));
        let tier = MemoryHotTier::new(2, Arc::clone(&clock) as Arc<_>);
        let begin = async |n: u64, ttl_ms: u64| {
            let pending = pending(Timestamp::from_millis(NOW), 1);
            tier.begin(&[Begin { slot: slot(n), pending, ttl_ms }]).await.remove(0)
        };
        assert!(matches!(begin(0, 1_000).await, Ok(Begun::Won)));
        assert!(matches!(begin(1, 5_000).await, Ok(Begun::Won)));
        assert!(matches!(begin(2, 1_000).await, Err(StoreError::DidNotHappen { .. })));
        assert!(matches!(begin(1, 1_000).await, Ok(Begun::Present(_))), "what stands is still found");
        clock.advance(1_199);
        assert!(matches!(begin(2, 1_000).await, Err(StoreError::DidNotHappen { .. })), "not before its end and 2 ε");
        clock.advance(1);
        assert!(matches!(begin(2, 1_000).await, Ok(Begun::Won)));
        let found = tier.read(&[slot(0), slot(1)]).await;
        assert!(matches!(found.as_slice(), [Ok(Found::Absent), Ok(Found::Record(_))]));
    }

    #[tokio::test]
    async fn without_a_clock_nothing_happens() {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(NOW)));
        let tier = MemoryHotTier::new(2, Arc::clone(&clock) as Arc<_>);
        clock.set_unknown(true);
        let pending = pending(Timestamp::from_millis(NOW), 1);
        let begun = tier.begin(&[Begin { slot: slot(0), pending, ttl_ms: 1 }]).await.remove(0);
        assert!(matches!(begun, Err(StoreError::DidNotHappen { .. })));
        assert!(tier.time().await.is_err());
        clock.set_unknown(false);
        assert!(matches!(tier.read(&[slot(0)]).await.remove(0), Ok(Found::Absent)));
    }
}

mod redis {
    use ledger_testkit::hot_tier::Place;
    use ledger_testkit::redis_server::RedisServer;

    use crate::{Shared, redis_place};

    static SERVER: Shared<RedisServer> = Shared::new();

    async fn place() -> Place {
        let server = SERVER.get(RedisServer::start);
        let url = server.url().to_owned();
        redis_place(server, &url, &url).await
    }

    ledger_testkit::hot_tier_suite!(place);
}

mod redis_tls_auth {
    use ledger_testkit::hot_tier::Place;
    use ledger_testkit::redis_server::RedisServer;

    use crate::{Shared, redis_place};

    static SERVER: Shared<RedisServer> = Shared::new();

    async fn place() -> Place {
        let server = SERVER.get(RedisServer::start_tls_auth);
        let url = server.url().to_owned();
        redis_place(server, &url, &url).await
    }

    ledger_testkit::hot_tier_suite!(place);
}

mod redis_sentinel {
    use ledger_testkit::hot_tier::Place;
    use ledger_testkit::redis_server::RedisSentinel;

    use crate::{Shared, redis_place};

    static SERVERS: Shared<RedisSentinel> = Shared::new();

    async fn place() -> Place {
        let servers = SERVERS.get(RedisSentinel::start);
        let (url, primary_url) = (servers.url().to_owned(), servers.primary_url());
        redis_place(servers, &url, &primary_url).await
    }

    ledger_testkit::hot_tier_suite!(place);
}

mod redis_cluster {
    use ledger_testkit::hot_tier::Place;
    use ledger_testkit::redis_server::RedisCluster;

    use crate::{Shared, redis_place};

    static CLUSTER: Shared<RedisCluster> = Shared::new();

    async fn place() -> Place {
        let cluster = CLUSTER.get(RedisCluster::start);
        let url = cluster.url().to_owned();
        redis_place(cluster, &url, &url).await
    }

    ledger_testkit::hot_tier_suite!(place);
}
