//! What a shard loses, it loses with its marker.

use std::sync::Arc;

use ledger_domain::ports::{Begun, Fill, HotTier, WarmMarker};
use ledger_domain::{FillPass, Record};
use ledger_testkit::redis_server::{RedisCluster, RedisSentinel, RedisServer};

use crate::faults::{begin, did_not_happen, pending, slot};
use crate::open;

fn pass(n: u8) -> FillPass {
    FillPass::from_bytes([n; 8])
}

async fn marker(tier: &Arc<dyn HotTier>) -> WarmMarker {
    let health = tier.health().await.expect("it answers");
    assert_eq!(health.problems, Vec::<String>::new());
    health.marker
}

async fn warm(tier: &Arc<dyn HotTier>, n: u8) {
    tier.begin_fill(pass(n)).await.expect("it answers");
    assert!(matches!(tier.end_fill(pass(n)).await, Ok(true)));
    assert_eq!(marker(tier).await, WarmMarker::Warm(pass(n)));
}

/// A warm tier that does `loses` is so no longer, and is again after another pass; a pass that it happens to does not end.
async fn is_noticed(tier: &Arc<dyn HotTier>, mut loses: impl FnMut()) {
    warm(tier, 1).await;
    tokio::task::block_in_place(&mut loses);
    // The connection may be one of those that were lost.
    drop(tier.health().await);
    assert_eq!(marker(tier).await, WarmMarker::Missing);
    tier.begin_fill(pass(2)).await.expect("it answers");
    assert_eq!(marker(tier).await, WarmMarker::Filling(pass(2)));
    tokio::task::block_in_place(&mut loses);
    drop(tier.health().await);
    assert!(matches!(tier.end_fill(pass(2)).await, Ok(false)));
    assert_eq!(marker(tier).await, WarmMarker::Missing);
    warm(tier, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_noticed() {
    let server = RedisServer::start();
    is_noticed(&open(server.url()), || server.command(&["FLUSHALL"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_noticed() {
    let mut server = RedisServer::start();
    let tier = open(server.url());
    is_noticed(&tier, || server.restart()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_is_noticed_and_no_problem_once_filled_again() {
    let server = RedisServer::start();
    let tier = open(server.url());
    is_noticed(&tier, || {
        // Only what has an expiry may go: the marker stays, and tells all the same.
        let () = server.command(&["SET", "anything", "1", "EX", "3600"]);
        let () = server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
        let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        while server.command::<i64>(&["EXISTS", "anything"]) == 1 {}
        let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        let () = server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        assert_eq!(server.command::<i64>(&["EXISTS", "ledger:warm"]), 1);
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_evicts_and_a_replica_are_problems_that_no_pass_heals() {
    let server = RedisServer::start();
    let tier = open(server.url());
    warm(&tier, 1).await;
    let () = server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let health = tier.health().await.expect("it answers");
    assert_eq!(health.problems, ["maxmemory_policy is allkeys-lru, expected noeviction"]);
    assert_eq!((health.marker, health.is_complete()), (WarmMarker::Warm(pass(1)), false));
    let () = server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert!(tier.health().await.expect("it answers").is_complete());
    let () = server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let health = tier.health().await.expect("it answers");
    assert_eq!(health.problems, ["role is slave, expected master"]);
    // Back again it is another history: what it missed meanwhile it may lack.
    let () = server.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(marker(&tier).await, WarmMarker::Missing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_to_a_replica_is_noticed() {
    let servers = RedisSentinel::start();
    let tier = open(servers.url());
    // The marker is replicated too, but names another server.
    is_noticed(&tier, || servers.fail_over()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_of_a_cluster_that_lost_something_is_noticed() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    is_noticed(&tier, || cluster.primary_command(1, &["FLUSHALL"])).await;
    // A fail-over, which replaces one of three.
    tokio::task::block_in_place(|| cluster.fail_over());
    assert_eq!(marker(&tier).await, WarmMarker::Missing);
    warm(&tier, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_slot_that_moved_between_shards_is_noticed() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    let mut keys = (0..).map(|n| *slot(n).as_bytes());
    is_noticed(&tier, || {
        let key = keys.next().expect("there are more");
        cluster.move_hash_slot(&key, || {});
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_one_shard_no_pass_begins_or_ends() {
    let mut cluster = RedisCluster::start();
    let tier = open(cluster.url());
    warm(&tier, 1).await;
    cluster.kill_primary(2);
    assert!(tier.begin_fill(pass(2)).await.is_err());
    assert!(tier.end_fill(pass(1)).await.is_err());
    assert!(tier.health().await.is_err());
    tokio::task::block_in_place(|| cluster.promote_replica(2));
    assert_eq!(marker(&tier).await, WarmMarker::Missing);
    warm(&tier, 3).await;
}

#[tokio::test]
async fn a_full_server_takes_no_fill_and_says_so() {
    let server = RedisServer::start();
    let tier = open(server.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let row =
        Record { window_ends_at: ledger_domain::Timestamp::MAX, ..pending(tier.time().await.expect("it answers"), 1) };
    let fills: Vec<Fill> = (0..3).map(|n| Fill { slot: slot(n), row: row.confirmed() }).collect();
    assert!(tier.fill(&fills).await.iter().all(did_not_happen));
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(tier.fill(&fills).await.iter().all(|filled| matches!(filled, Ok(true))));
}
