//! What only several real servers can show: fail-overs, hash slots under way, a shard that is lost or slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ledger_domain::ports::{Begin, Begun, Count, HotTier, StoreError};
use ledger_domain::transition::{Counted, Found, Guard, Swapped};
use ledger_domain::{Record, Slot, Timestamp};
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::redis_server::{RedisCluster, RedisSentinel, with_timeouts};

use crate::faults::{begin, did_not_happen, pending, settle, slot, soon};
use crate::open;

/// How long a reply may take, in milliseconds, where a test waits for one that will not come.
const HASTY_MS: u64 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_sentinel_fail_over_the_new_primary_is_found() {
    let servers = RedisSentinel::start();
    let tier = open(servers.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    tokio::task::block_in_place(|| servers.fail_over());
    assert!(matches!(soon(|| begin(&*tier, 1)).await, Begun::Won | Begun::Present(_)));
    let new_primary = ledger_testkit::hot_tier::RedisRaw::connect(&servers.primary_url()).await;
    assert!(ledger_testkit::hot_tier::RawAccess::get(&new_primary, slot(1)).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_behind_sentinels_is_replaced() {
    let mut servers = RedisSentinel::start();
    let tier = open(servers.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    tokio::task::block_in_place(|| servers.kill_primary());
    // At the latest the second finds the connection closed and no other to be had.
    let lost = [begin(&*tier, 1).await, begin(&*tier, 1).await];
    assert!(lost[0].is_err() && did_not_happen(&lost[1]), "{lost:?}");
    tokio::task::block_in_place(|| servers.fail_over());
    assert!(matches!(begin(&*tier, 1).await, Ok(Begun::Won)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cluster_fail_over_every_slot_is_served() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    tokio::task::block_in_place(|| cluster.fail_over());
    let now = Timestamp::from_millis(1_790_000_000_000);
    let begins: Vec<Begin> =
        (1..60).map(|n| Begin { slot: slot(n), pending: pending(now, 1), ttl_ms: 60_000 }).collect();
    let begun = tier.begin(&begins).await;
    assert!(begun.iter().all(|begun| matches!(begun, Ok(Begun::Won))), "{begun:?}");
}

#[tokio::test]
async fn a_hash_slot_under_way_to_another_primary_is_served_there() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    assert!(matches!(begin(&*tier, 0).await, Ok(Begun::Won)));
    cluster.begin_migration(slot(1).as_bytes());
    assert!(matches!(begin(&*tier, 1).await, Ok(Begun::Won)));
    assert!(matches!(begin(&*tier, 1).await, Ok(Begun::Present(_))));
    assert!(matches!(settle(&*tier, 1).await, Ok(Swapped::Done)));
    assert!(matches!(tier.read(&[slot(1)]).await.remove(0), Ok(Found::Record(_))));
    let exists: i64 = cluster.owner_command(slot(1).as_bytes(), &["DBSIZE"]);
    let other: i64 = cluster.owner_command(slot(0).as_bytes(), &["DBSIZE"]);
    assert!(exists + other <= 1, "the old owner does not hold it");
}

/// How many counts each of some records got, by tasks that go on until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Counts>>,
}

/// What came of one record's counts.
struct Counts {
    slot: Slot,
    counted: u32,
    /// May have counted.
    unknown: u32,
    refused: u32,
}

impl Load {
    /// Begins a record under each slot, then counts on all of them at once.
    async fn start(tier: &Arc<dyn HotTier>, slots: &[Slot]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begins: Vec<Begin> =
            slots.iter().map(|slot| Begin { slot: *slot, pending: pending(now(), 1), ttl_ms: 600_000 }).collect();
        assert!(tier.begin(&begins).await.iter().all(|begun| matches!(begun, Ok(Begun::Won))));
        let task = |slot: &Slot| {
            let (slot, tier, stop, done) = (*slot, Arc::clone(tier), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                let mut counts = Counts { slot, counted: 0, unknown: 0, refused: 0 };
                while !stop.load(Ordering::Relaxed) {
                    match count(&*tier, slot).await {
                        Ok(Counted::Counted(_)) => counts.counted += 1,
                        Err(StoreError::MayHaveHappened { .. }) => counts.unknown += 1,
                        Err(StoreError::DidNotHappen { .. }) => counts.refused += 1,
                        other @ (Ok(Counted::Moved(_)) | Err(StoreError::Rejected { .. })) => panic!("{other:?}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
                counts
            })
        };
        let tasks = slots.iter().map(task).collect();
        Self { stop, done, tasks }
    }

    /// Waits until this many more are done; outside the runtime.
    fn go_on(&self, more: u64) {
        let until = self.done.load(Ordering::Relaxed) + more;
        while self.done.load(Ordering::Relaxed) < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    async fn stop(self) -> Vec<Counts> {
        self.stop.store(true, Ordering::Relaxed);
        futures::future::join_all(self.tasks).await.into_iter().map(|task| task.expect("no task panics")).collect()
    }
}

fn now() -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000)
}

async fn count(tier: &dyn HotTier, slot: Slot) -> Result<Counted, StoreError> {
    let read = pending(now(), 1);
    let (guard, now, payload) = (Guard::of(&read), now(), read.payload_hash);
    tier.count(&[Count { slot, guard, now, payload, read }]).await.remove(0)
}

async fn retry_count(tier: &dyn HotTier, slot: Slot) -> u32 {
    match tier.read(&[slot]).await.remove(0) {
        Ok(Found::Record(record)) => record.retry_count,
        other => panic!("it stands: {other:?}"),
    }
}

/// Slots of one hash slot, that of `slot(0)`.
fn in_one_hash_slot(many: usize) -> Vec<Slot> {
    let hash_slot = |slot: &Slot| redis::cluster_routing::Slot::for_key(slot.as_bytes());
    let wanted = hash_slot(&slot(0));
    (0..).map(slot).filter(|slot| hash_slot(slot) == wanted).take(many).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_hash_slot_moves_under_load_every_request_is_right() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    let slots = in_one_hash_slot(12);
    let load = Load::start(&tier, &slots).await;
    tokio::task::block_in_place(|| {
        load.go_on(100);
        // Key by key: what is still there is served there, what has moved is asked for at the other.
        cluster.move_hash_slot(slots[0].as_bytes(), || load.go_on(50));
        load.go_on(100);
    });
    for counts in load.stop().await {
        assert_eq!((counts.unknown, counts.refused), (0, 0));
        assert!(counts.counted > 0);
        assert_eq!(retry_count(&*tier, counts.slot).await, counts.counted);
    }
    // In one batch: what stands there, and what is new.
    let begins: Vec<Begin> = slots
        .iter()
        .chain([&slot(1)])
        .map(|slot| Begin { slot: *slot, pending: pending(now(), 1), ttl_ms: 60_000 })
        .collect();
    let begun = tier.begin(&begins).await;
    assert!(begun[..12].iter().all(|begun| matches!(begun, Ok(Begun::Present(Found::Record(_))))), "{begun:?}");
    assert!(matches!(begun[12], Ok(Begun::Won)), "{begun:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_meets_a_hash_slot_under_way_takes_effect_in_order() {
    let cluster = RedisCluster::start();
    let tier = open(cluster.url());
    let slots = in_one_hash_slot(4);
    for slot in &slots[..2] {
        let begin = Begin { slot: *slot, pending: pending(now(), 1), ttl_ms: 60_000 };
        assert!(matches!(tier.begin(&[begin]).await.remove(0), Ok(Begun::Won)));
    }
    cluster.begin_migration(slots[0].as_bytes());
    // Half of them stand where they were; the others are to begin where they will be. Each slot twice, then all a third time.
    let order: Vec<Slot> = slots.iter().flat_map(|slot| [*slot, *slot]).chain(slots.iter().copied()).collect();
    let begins: Vec<Begin> =
        (2..).zip(&order).map(|(n, slot)| Begin { slot: *slot, pending: pending(now(), n), ttl_ms: 60_000 }).collect();
    let begun = tier.begin(&begins).await;
    let stands = |index: usize| Begun::Present(Found::record(begins[index].pending.clone()));
    let was = Begun::Present(Found::record(pending(now(), 1)));
    let expected =
        [&was, &was, &was, &was, &Begun::Won, &stands(4), &Begun::Won, &stands(6), &was, &was, &stands(4), &stands(6)];
    let begun: Vec<&Begun> = begun.iter().map(|begun| begun.as_ref().expect("it answers")).collect();
    assert_eq!(begun, expected);
}

/// Which of the slots are a shard's.
fn split(cluster: &RedisCluster, slots: &[Slot], shard: usize) -> (Vec<Slot>, Vec<Slot>) {
    slots.iter().partition(|slot| cluster.shard_of(slot.as_bytes()) == shard)
}

fn begins(slots: &[Slot]) -> Vec<Begin> {
    slots.iter().map(|slot| Begin { slot: *slot, pending: pending(now(), 1), ttl_ms: 600_000 }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_shard_silent_the_others_items_are_decided_and_its_own_are_unknown() {
    let cluster = RedisCluster::start();
    let tier = RedisHotTier::open(&with_timeouts(cluster.url(), HASTY_MS, HASTY_MS)).expect("valid");
    let slots: Vec<Slot> = (0..60).map(slot).collect();
    for slot in &slots {
        drop(soon(|| async { tier.read(&[*slot]).await.remove(0) }).await);
    }
    let (silent, _) = split(&cluster, &slots, 1);
    // Long beyond the test: whoever waits for it, fails.
    let () = cluster.primary_command(1, &["CLIENT", "PAUSE", "3600000", "ALL"]);
    let begun = tier.begin(&begins(&slots)).await;
    for (slot, begun) in slots.iter().zip(&begun) {
        match begun {
            Err(StoreError::MayHaveHappened { .. }) => assert!(silent.contains(slot), "{begun:?}"),
            Ok(Begun::Won) => assert!(!silent.contains(slot)),
            other => panic!("{other:?}"),
        }
    }
    assert!(tier.time().await.is_ok(), "of a shard that answers");
    assert!(tier.health().await.is_err());
    // Nor does each further call find out for itself that nobody answers there.
    let asks = async {
        for slot in silent.iter().cycle().take(200) {
            assert!(did_not_happen(&tier.read(&[*slot]).await.remove(0)));
        }
    };
    let limit = Duration::from_millis(HASTY_MS * 200 / 4);
    assert!(tokio::time::timeout(limit, asks).await.is_ok(), "each waited for itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_is_lost_and_its_replica_promoted_under_load() {
    let mut cluster = RedisCluster::start();
    let tier = open(cluster.url());
    let slots: Vec<Slot> = (0..30).map(slot).collect();
    let (lost, kept) = split(&cluster, &slots, 0);
    assert!(!lost.is_empty() && !kept.is_empty());
    let load = Load::start(&tier, &slots).await;
    tokio::task::block_in_place(|| {
        load.go_on(300);
        cluster.kill_primary(0);
        load.go_on(300);
    });
    // One batch: the other shards' items are decided, and nothing is said of what nobody knows.
    let read = tier.read(&slots).await;
    for (slot, read) in slots.iter().zip(&read) {
        assert_eq!(read.is_ok(), kept.contains(slot), "{read:?}");
    }
    tokio::task::block_in_place(|| {
        cluster.promote_replica(0);
        load.go_on(300);
    });
    for slot in &lost {
        soon_read(&*tier, *slot).await;
    }
    let counts = load.stop().await;
    for counts in counts {
        if kept.contains(&counts.slot) {
            assert_eq!((counts.unknown, counts.refused), (0, 0));
            assert_eq!(retry_count(&*tier, counts.slot).await, counts.counted);
        } else {
            // Replication lags: of what the lost master counted some may be gone, but nothing is counted twice.
            assert!(counts.refused > 0);
            let stands = retry_count(&*tier, counts.slot).await;
            assert!(stands <= counts.counted + counts.unknown, "{stands} of {} and {}", counts.counted, counts.unknown);
        }
    }
}

/// The layout is searched for beside the calls; until it is found, what is asked of the lost master is refused.
async fn soon_read(tier: &dyn HotTier, slot: Slot) -> Record {
    for _ in 0..10_000 {
        match tier.read(&[slot]).await.remove(0) {
            Ok(Found::Record(record)) => return *record,
            Err(StoreError::DidNotHappen { .. } | StoreError::MayHaveHappened { .. }) => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the promoted master is never found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_all_of_whose_nodes_are_dead_is_refused() {
    let mut cluster = RedisCluster::start();
    let tier = open(cluster.url());
    assert!(tier.read(&[slot(0)]).await.remove(0).is_ok());
    for shard in 0..3 {
        cluster.kill_primary(shard);
    }
    let slots: Vec<Slot> = (0..20).map(slot).collect();
    drop(tier.begin(&begins(&slots)).await);
    assert!(tier.begin(&begins(&slots)).await.iter().all(did_not_happen));
    assert!(did_not_happen(&tier.time().await));
}
