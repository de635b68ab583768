//! A process that gets frozen, another one that does not, and what both share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ledger_domain::Slot;
use ledger_domain::keep::{Keeper, KeeperSettings};
use ledger_domain::ports::{Clock as _, ControlPlane as _, KeeperState};
use ledger_stores::clock::{OsEntropy, SystemClock};
use ledger_stores::dynamodb::DynamoControlPlane;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::redis::RedisHotTier;
use ledger_stores::sqs::{SqsQueue, SqsSettings};
use ledger_testkit::aws_server::AwsServer;
use ledger_testkit::faulty::number;
use ledger_testkit::hot_tier::{RawAccess as _, RedisRaw};
use ledger_testkit::house::subject;
use ledger_testkit::redis_server::{RedisServer, with_timeouts};
use ledger_testkit::tcp_proxy::{Mode, TcpProxy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::block_on;
use crate::process::{Answer, HASH, Local, eventually};
use crate::tiers::{aws, empty_database, policy_table, queues};

pub(crate) const SCOPE: &str = "tenant42:as4";
/// How long every freeze lasts at least, in seconds: for minutes, by hand.
const SECONDS_VARIABLE: &str = "LEDGER_FREEZE_SECONDS";
/// A reply of Redis that is kept back for a freeze is no failure of Redis: as long as it may be, in milliseconds.
const REDIS_LIMIT_MS: u64 = 60_000;

/// Longer than any test.
const AWAY_MS: i64 = 3_600_000;
/// How long one run of a keeper may take.
const KEEPER_RUN_MS: i64 = 10_000;
/// Between two of them; and how many of them: 100 s at least.
const KEEPER_PAUSE: Duration = Duration::from_millis(500);
const KEEPER_RUNS_MAX: u32 = 200;

/// Both processes, on real tiers and one control plane. Redis is complete.
pub(crate) struct World {
    redis: RedisServer,
    /// The way to Redis of the process that gets frozen.
    pub(crate) to_redis: TcpProxy,
    /// Its way to the queue.
    pub(crate) to_queue: TcpProxy,
    pub(crate) database_url: String,
    control_table: String,
    queue_url: String,
    dead_url: String,
    pub(crate) frozen: Local,
    pub(crate) other: Local,
    _data: TempDir,
}

impl World {
    pub(crate) fn start(name: &str) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let redis = RedisServer::start();
        let database_url = empty_database(&format!("frozen_{name}"));
        let (queue_url, dead_url) = queues(&format!("frozen-{name}"));
        let control_table = format!("frozen-{name}");
        policy_table(&control_table);
        let to_redis = block_on(TcpProxy::start(redis.address()));
        let queue = AwsServer::shared().endpoint_url().strip_prefix("http://");
        let queue: SocketAddr = queue.and_then(|address| address.parse().ok()).expect("the stand-in's address");
        let to_queue = block_on(TcpProxy::start(queue));

        let token_keys = "a1".repeat(32);
        let redis_url = ("REDIS_URL", redis.url());
        let mut shared = aws();
        shared.extend([("DATABASE_URL", database_url.as_str()), ("POLICY_TABLE", &control_table)]);
        shared.push(("LEDGER_TOKEN_KEYS", &token_keys));
        // With a queue of its own it knows that nothing is on its way, and says at once that Redis is complete.
        Local::start(&data.path().join("alone"), &[&shared[..], &[redis_url]].concat()).stop();
        shared.extend([("SQS_QUEUE_URL", queue_url.as_str()), ("SQS_DLQ_URL", &dead_url), ("SQS_DEPTH_LAG_MS", "0")]);
        let other = Local::start(&data.path().join("other"), &[&shared[..], &[redis_url]].concat());
        let redis_url = with_timeouts(&format!("redis://{}", to_redis.address()), REDIS_LIMIT_MS, REDIS_LIMIT_MS);
        let sqs_url = format!("http://{}", to_queue.address());
        let own = [("REDIS_URL", redis_url.as_str()), ("AWS_ENDPOINT_URL_SQS", &sqs_url), ("RUST_LOG", "info")];
        let frozen = Local::start(&data.path().join("frozen"), &[&shared[..], &own].concat());
        let world = Self {
            redis,
            to_redis,
            to_queue,
            database_url,
            control_table,
            queue_url,
            dead_url,
            frozen,
            other,
            _data: data,
        };
        wait_until_decides(&world.frozen, "hot");
        wait_until_decides(&world.other, "hot");
        world
    }

    /// Whether the process that gets frozen believed Redis when it last looked.
    pub(crate) fn believes(&self) -> bool {
        let said = self.frozen.said();
        let last = |what: &str| said.rfind(what);
        last("the hot tier vouches for its misses") > last("the hot tier cannot vouch for its misses")
    }

    /// Freezes the process while it believes Redis.
    pub(crate) fn freeze_in_good_faith(&self) {
        let is_caught = eventually(|| {
            self.frozen.freeze();
            if !self.believes() {
                // A busy machine kept it from looking in time; it looks again.
                self.frozen.thaw();
                return None;
            }
            Some(())
        });
        is_caught.expect("it believes Redis");
    }

    /// Thaws the process, which is frozen, after so many seconds, or more where `meanwhile` takes longer. Where it is to be longer
    /// by hand, nothing happens first: what then does is not healed when it thaws.
    pub(crate) fn thaw_after<T>(&self, seconds: u64, meanwhile: impl FnOnce() -> T) -> T {
        std::thread::sleep(Duration::from_secs(asked_for().saturating_sub(seconds)));
        let thaws_at = Instant::now() + Duration::from_secs(seconds);
        let done = meanwhile();
        std::thread::sleep(thaws_at.saturating_duration_since(Instant::now()));
        assert!(self.frozen.is_frozen());
        self.frozen.thaw();
        done
    }

    /// Redis loses everything. The other process, which has noticed it, decides in the cold ledger; and Redis loses that too, and
    /// is not filled again.
    pub(crate) fn elsewhere<T>(&self, keys: &[&str], decide: impl FnOnce(&Local) -> T) -> T {
        block_on(self.keep_keepers_away());
        self.lose_everything();
        wait_until_decides(&self.other, "cold");
        let decided = decide(&self.other);
        self.lose_everything();
        for key in keys {
            assert_eq!(self.value(key), None, "Redis knows nothing of {key}");
        }
        decided
    }

    /// Both processes' keepers, whenever they run, find that another run is at work.
    async fn keep_keepers_away(&self) {
        let config = AwsServer::shared().config().await;
        let control_plane = DynamoControlPlane::new(&config, self.control_table.as_str());
        loop {
            let state = control_plane.keeper_state().await.expect("it answers").expect("a pass has filled Redis");
            let busy_until = state.busy_until.max(SystemClock.now().expect("never unknown")).plus_millis(AWAY_MS);
            let busy = KeeperState { version: state.version + 1, busy_until, ..state };
            if control_plane.save_keeper_state(&busy).await.expect("it answers") {
                return;
            }
        }
    }

    fn lose_everything(&self) {
        let () = self.redis.command(&["FLUSHALL"]);
    }

    /// The process loses each connection to Redis, and gets no other.
    pub(crate) fn cut_off(&self) {
        self.to_redis.set_mode(Mode::Refuse);
        self.to_redis.reset();
    }

    /// Keeps the tiers until Redis is complete and no cold session stands. This keeper waits for no fact of a check that began
    /// before: its settings say how long one may be on its way, and the process is frozen for longer.
    pub(crate) fn keep_until_complete(&self) {
        block_on(async {
            let config = AwsServer::shared().config().await;
            let queue = SqsSettings {
                dead_letter_url: Some(self.dead_url.clone()),
                depth_lag_ms: 0,
                ..SqsSettings::new(&self.queue_url)
            };
            let cold =
                PostgresLedger::connect_lazy(&self.database_url, &PostgresConfig::default()).expect("our own URL");
            let keeper = Keeper {
                hot: Arc::new(RedisHotTier::open(self.redis.url()).expect("our own URL")),
                cold: Arc::new(cold),
                queue: Arc::new(SqsQueue::new(&config, queue)),
                control_plane: Arc::new(DynamoControlPlane::new(&config, self.control_table.as_str())),
                clock: Arc::new(SystemClock),
                entropy: Arc::new(OsEntropy),
                settings: KeeperSettings { in_flight_ms: 0, ..KeeperSettings::default() },
            };
            for _ in 0..KEEPER_RUNS_MAX {
                let deadline = SystemClock.now().expect("never unknown").plus_millis(KEEPER_RUN_MS);
                if keeper.run(deadline).await.is_ok_and(|report| report.is_complete) {
                    return;
                }
                tokio::time::sleep(KEEPER_PAUSE).await;
            }
            panic!("Redis is never complete");
        });
    }

    /// What Redis holds of a key.
    pub(crate) fn value(&self, key: &str) -> Option<Vec<u8>> {
        let subject = subject(SCOPE, key);
        let slot = Slot::of(&subject.scope, &subject.key);
        block_on(async { RedisRaw::connect(self.redis.url()).await.get(slot).await }).map(|raw| raw.value)
    }

    /// Waits until the cold ledger has heard of a key.
    pub(crate) fn is_drained(&self, key: &str) {
        eventually(|| self.other.in_history(key)).unwrap_or_else(|| panic!("{key} is drained"));
    }
}

/// Waits until the process decides in this tier what nobody has asked for yet.
pub(crate) fn wait_until_decides(local: &Local, tier: &str) {
    static PROBES: AtomicU32 = AtomicU32::new(0);
    let decides = eventually(|| {
        let new = local.post("/v1/check", &plain(&format!("{tier}? {}", PROBES.fetch_add(1, Ordering::Relaxed))));
        new.is_new();
        (new.body["decidedBy"] == tier).then_some(())
    });
    decides.unwrap_or_else(|| panic!("it never decides in the {tier} tier"));
}

/// How long every freeze is to last at least, in seconds.
fn asked_for() -> u64 {
    number(SECONDS_VARIABLE).unwrap_or(0)
}

/// Whether every freeze lasts so long.
pub(crate) fn is_longer_than(seconds: u64) -> bool {
    asked_for() >= seconds
}

/// A plain check.
pub(crate) fn plain(key: &str) -> Value {
    json!({"scope": SCOPE, "key": key, "payloadSha256": HASH})
}

/// A plain check whose caller can ask again.
pub(crate) fn identified(key: &str) -> Value {
    json!({"scope": SCOPE, "key": key, "payloadSha256": HASH, "requestId": format!("of {key}")})
}

/// A check in claim mode.
pub(crate) fn claiming(key: &str, lease_seconds: u64) -> Value {
    json!({"scope": SCOPE, "key": key, "payloadSha256": HASH, "claim": {"leaseSeconds": lease_seconds}})
}

/// NEW, by the cold ledger, and said to be durable and confirmed.
#[track_caller]
pub(crate) fn is_new_in_cold(answer: &Answer) {
    answer.is_new();
    assert_eq!((&answer.body["decidedBy"], answer.body.get("confirmed")), (&json!("cold"), None), "{}", answer.body);
}

/// SEEN, by the cold ledger.
#[track_caller]
pub(crate) fn is_seen_in_cold(answer: &Answer, disposition: &str) {
    let body = &answer.body;
    assert_eq!((answer.status, &body["status"]), (200, &json!("SEEN")), "{body}");
    assert_eq!((&body["decidedBy"], &body["disposition"]), (&json!("cold"), &json!(disposition)), "{body}");
}

/// 503, which is retried, or SEEN.
#[track_caller]
pub(crate) fn is_not_new(answer: &Answer) {
    let is_seen = answer.status == 200 && answer.body["status"] == "SEEN";
    assert!(is_seen || answer.status == 503, "{answer:?}");
}
