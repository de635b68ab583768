//! The bare side: the commands alone, through the same crate and one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ledger_domain::value::{FIXED_LEN, IDENTITY_LEN};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo as _, Pipeline, ProtocolVersion, RedisResult, Script, Value};

use super::load::{Load, POPULATION, RESPONSE_BYTES, Side};
use crate::timing::spread;

/// How long a PENDING stands, with its grace, in milliseconds.
const PENDING_MS: u64 = 10_200;
/// The window of the measured scope, in milliseconds: 30 days.
const WINDOW_MS: u64 = 30 * 86_400 * 1_000;

/// The least that a compare-and-set is.
const SETTLE: &str = "
local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 1, 20) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'PXAT', ARGV[3])
  return 1
end
return 0";

/// The least that a count is: compare, add one, set the time.
const COUNT: &str = "
local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 1, 20) == ARGV[1] then
  redis.call('SETRANGE', KEYS[1], 20, struct.pack('>I4', struct.unpack('>I4', v, 21) + 1) .. ARGV[2])
  return 1
end
return 0";

/// The least that a claim's transition is: compare, write, keep the expiry.
const AMEND: &str = "
local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 1, 20) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
  return 1
end
return 0";

/// A key of sixteen bytes.
type Key = [u8; 16];

/// The commands, and which key comes next.
pub(super) struct Bare {
    connection: MultiplexedConnection,
    settle: String,
    count: String,
    amend: String,
    expires_at_ms: u64,
    next: AtomicU64,
}

impl Bare {
    /// On the server at `url`, with the settings of our own connection.
    pub(super) async fn connect(url: &str) -> Self {
        let info = url.into_connection_info().expect("a URL of the fixture");
        let resp3 = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true)).set_redis_settings(resp3);
        let client = Client::open(info).expect("a URL of the fixture");
        let mut connection = client.get_multiplexed_async_connection().await.expect("the server answers");
        let (settle, count, amend) = (Script::new(SETTLE), Script::new(COUNT), Script::new(AMEND));
        settle.prepare_invoke().load_async(&mut connection).await.expect("a script of this file");
        amend.prepare_invoke().load_async(&mut connection).await.expect("a script of this file");
        count.prepare_invoke().load_async(&mut connection).await.expect("a script of this file");
        let time: (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await.expect("the server's time");
        Self {
            connection,
            settle: settle.get_hash().to_owned(),
            count: count.get_hash().to_owned(),
            amend: amend.get_hash().to_owned(),
            expires_at_ms: time.0 * 1_000 + WINDOW_MS,
            next: AtomicU64::new(POPULATION),
        }
    }

    async fn send(&self, commands: Vec<Cmd>) -> Vec<Value> {
        let replies: RedisResult<Vec<Value>> = if let [cmd] = commands.as_slice() {
            self.connection.clone().req_packed_command(cmd).await.map(|reply| vec![reply])
        } else {
            let mut pipeline = Pipeline::with_capacity(commands.len());
            for cmd in commands {
                pipeline.add_command(cmd);
            }
            self.connection.clone().req_packed_commands(&pipeline, 0, pipeline.len()).await
        };
        replies.expect("the server answers")
    }
}

/// A value of a plain record's size. Its first bytes are its identity.
fn value(key: &Key, state: u8) -> [u8; FIXED_LEN] {
    let mut value = [0; FIXED_LEN];
    value[..2].copy_from_slice(&[1, state]);
    value[2..18].copy_from_slice(key);
    value[42..58].copy_from_slice(key);
    value
}

fn begin(key: &Key) -> Cmd {
    let mut cmd = Cmd::with_capacity(7, 120);
    cmd.arg("SET").arg(key.as_slice()).arg(value(key, 1).as_slice());
    cmd.arg("NX").arg("GET").arg("PX").arg(PENDING_MS);
    cmd
}

fn script(sha: &str, key: &Key) -> Cmd {
    let mut cmd = Cmd::with_capacity(7, 190);
    cmd.arg("EVALSHA").arg(sha).arg(1).arg(key.as_slice());
    cmd
}

impl Bare {
    /// A look, the act, and its mark cleared: values that hold the response.
    async fn resolve(&self, keys: &[Key]) {
        let look = |key: &Key| {
            let mut cmd = Cmd::with_capacity(2, 20);
            cmd.arg("GET").arg(key.as_slice());
            cmd
        };
        for reply in self.send(keys.iter().map(look).collect()).await {
            assert!(matches!(reply, Value::BulkString(_)), "GET replied {reply:?}");
        }
        for (from, to) in [(2, 5), (5, 5)] {
            let amend = |key: &Key| {
                let resolved = [value(key, to).as_slice(), &[b'x'; RESPONSE_BYTES]].concat();
                let mut cmd = script(&self.amend, key);
                cmd.arg(&value(key, from)[..IDENTITY_LEN]).arg(resolved);
                cmd
            };
            for reply in self.send(keys.iter().map(amend).collect()).await {
                assert_eq!(reply, Value::Int(1), "the script's reply");
            }
        }
    }
}

impl Side for Bare {
    type Call = (Load, Vec<Key>);

    fn calls(&self, load: Load, calls: usize, batch: usize) -> Vec<Self::Call> {
        let one = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let number = if load == Load::Seen { spread(number) % POPULATION } else { number };
            let mut key = [0; 16];
            key[..8].copy_from_slice(&spread(number).to_be_bytes());
            key[8..].copy_from_slice(&spread(!number).to_be_bytes());
            key
        };
        (0..calls).map(|_| (load, (0..batch).map(|_| one()).collect())).collect()
    }

    async fn call(self: &Arc<Self>, (load, keys): Self::Call) {
        for reply in self.send(keys.iter().map(begin).collect()).await {
            assert_eq!(matches!(reply, Value::Nil), load != Load::Seen, "SET NX GET replied {reply:?}");
        }
        let second = |key: &Key| match load {
            Load::New | Load::Claim => {
                let mut cmd = script(&self.settle, key);
                cmd.arg(&value(key, 1)[..IDENTITY_LEN]).arg(value(key, 2).as_slice()).arg(self.expires_at_ms);
                cmd
            }
            Load::Seen => {
                let mut cmd = script(&self.count, key);
                cmd.arg(&value(key, 2)[..IDENTITY_LEN]).arg([0; 6].as_slice());
                cmd
            }
        };
        for reply in self.send(keys.iter().map(second).collect()).await {
            assert_eq!(reply, Value::Int(1), "the script's reply");
        }
        if load == Load::Claim {
            self.resolve(&keys).await;
        }
    }

    async fn populate(self: &Arc<Self>) {
        let next = self.next.swap(0, Ordering::Relaxed);
        let batches = usize::try_from(POPULATION).expect("a number that fits") / super::BATCH;
        for call in self.calls(Load::New, batches, super::BATCH) {
            self.call(call).await;
        }
        self.next.store(next, Ordering::Relaxed);
    }
}
