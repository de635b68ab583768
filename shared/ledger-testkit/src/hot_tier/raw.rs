//! The way around a hot tier: values and expiries as they are.
#![allow(clippy::expect_used, reason = "a case that does not hold fails the test at once")]

use std::sync::Arc;

use async_trait::async_trait;
use ledger_domain::{Slot, Timestamp};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::redis::{RedisUrl, Topology};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Client, Cmd, TlsCertificates, Value};

/// A value as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// Its bytes.
    pub value: Vec<u8>,
    /// When it expires; `None` where it never does, which is wrong.
    pub expires_at: Option<Timestamp>,
}

/// Reads and writes values as they are, past the port.
#[async_trait]
pub trait RawAccess: Send + Sync {
    /// Puts `value`, whatever stands there.
    async fn put(&self, slot: Slot, value: &[u8], expires_at: Timestamp);

    /// What stands there.
    async fn get(&self, slot: Slot) -> Option<Raw>;
}

/// The memory tier's values.
#[derive(Debug)]
pub struct MemoryRaw(pub Arc<MemoryHotTier>);

#[async_trait]
impl RawAccess for MemoryRaw {
    async fn put(&self, slot: Slot, value: &[u8], expires_at: Timestamp) {
        self.0.put_raw(slot, value, expires_at).expect("there is room");
    }

    async fn get(&self, slot: Slot) -> Option<Raw> {
        let (value, expires_at) = self.0.get_raw(slot).expect("the clock is known")?;
        Some(Raw { value, expires_at: Some(expires_at) })
    }
}

/// Redis's values, over a connection of its own to the primary.
pub struct RedisRaw(Connection);

enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for RedisRaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisRaw").finish_non_exhaustive()
    }
}

impl RedisRaw {
    /// Connects to the server, or the cluster, of `url`.
    ///
    /// # Panics
    /// Where it cannot; also for a URL of Sentinels, which name no server.
    pub async fn connect(url: &str) -> Self {
        let parsed = RedisUrl::parse(url).expect("a fixture's URL");
        let nodes: Vec<String> = parsed.nodes.iter().map(|(host, port)| format!("redis://{host}:{port}")).collect();
        match parsed.topology {
            Topology::Cluster => {
                let client = ClusterClient::new(nodes).expect("a cluster's addresses");
                Self(Connection::Cluster(client.get_async_connection().await.expect("connect to the cluster")))
            }
            Topology::Single => {
                let (plain, _) = url.split_once('?').unwrap_or((url, ""));
                let client = match &parsed.ca_file {
                    None => Client::open(plain).expect("a fixture's URL"),
                    Some(ca_file) => {
                        let root_cert = Some(std::fs::read(ca_file).expect("read the fixture's authority"));
                        Client::build_with_tls(plain, TlsCertificates { client_tls: None, root_cert })
                            .expect("a fixture's authority")
                    }
                };
                let connection = client.get_multiplexed_async_connection().await.expect("connect to the server");
                Self(Connection::Single(connection))
            }
            Topology::Sentinel(_) => panic!("give the primary's URL"),
        }
    }

    async fn send(&self, cmd: &Cmd) -> Value {
        let reply = match &self.0 {
            Connection::Single(connection) => connection.clone().req_packed_command(cmd).await,
            Connection::Cluster(connection) => connection.clone().req_packed_command(cmd).await,
        };
        reply.and_then(Value::extract_error).expect("the server takes the command")
    }
}

#[async_trait]
impl RawAccess for RedisRaw {
    async fn put(&self, slot: Slot, value: &[u8], expires_at: Timestamp) {
        let mut cmd = redis::cmd("SET");
        cmd.arg(slot.as_bytes().as_slice()).arg(value).arg("PXAT").arg(expires_at.as_millis());
        self.send(&cmd).await;
    }

    async fn get(&self, slot: Slot) -> Option<Raw> {
        let key = slot.as_bytes().as_slice();
        let Value::BulkString(value) = self.send(redis::cmd("GET").arg(key)).await else { return None };
        let expires_at: i64 =
            redis::from_redis_value(self.send(redis::cmd("PEXPIRETIME").arg(key)).await).expect("a number");
        Some(Raw { value, expires_at: (expires_at >= 0).then(|| Timestamp::from_millis(expires_at)) })
    }
}
