//! A Redis Cluster.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use std::path::Path;

use redis::FromRedisValue;
use tempfile::TempDir;

use super::{Node, args, connect, is_role, patient, plain_url, temp_dir};
use crate::process::{free_port, poll};

/// Hash slots of a Redis Cluster.
const HASH_SLOTS: u32 = 16_384;
const PRIMARIES: usize = 3;

/// A cluster: three primaries, each with a replica.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
    url: String,
    _dir: TempDir,
}

impl RedisCluster {
    /// Starts it and waits until every node finds it whole.
    #[must_use]
    pub fn start() -> Self {
        let dir = temp_dir();
        let nodes: Vec<Node> =
            (0..6).map(|_| Node::start(dir.path(), |port| cluster_args(dir.path(), port), plain_url, None)).collect();
        let ids: Vec<String> = nodes.iter().map(|node| node.ask(&["CLUSTER", "MYID"])).collect();
        let first = &nodes[0];
        for (index, node) in nodes.iter().enumerate() {
            let () = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for node in &nodes[1..] {
            let bus = node.ask::<Vec<String>>(&["CONFIG", "GET", "cluster-port"]).remove(1);
            let () = first.ask(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), &bus]);
        }
        for (index, node) in (0..3).zip(&nodes) {
            let (from, to) = (HASH_SLOTS * index / 3, HASH_SLOTS * (index + 1) / 3 - 1);
            let () = node.ask(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
        }
        for (replica, primary) in nodes[PRIMARIES..].iter().zip(&ids) {
            let known = poll(|| replica.ask::<String>(&["CLUSTER", "NODES"]).contains(primary).then_some(()));
            known.expect("a cluster's nodes come to know each other");
            let () = replica.ask(&["CLUSTER", "REPLICATE", primary]);
        }
        let whole = |node: &Node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
            replicas == PRIMARIES && node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        poll(|| nodes.iter().all(whole).then_some(())).expect("a cluster becomes whole");
        let linked = |node: &Node| node.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up");
        poll(|| nodes[PRIMARIES..].iter().all(linked).then_some(())).expect("replicas follow their primaries");
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let url = patient(&format!("redis+cluster://{}", addresses.join(",")));
        Self { nodes, url, _dir: dir }
    }

    /// The URL of a hot tier on it, patient.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URLs of its nodes, each as a single server.
    #[must_use]
    pub fn node_urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// Sends a command to the primary that owned `key` at the start, on a connection of its own.
    ///
    /// # Panics
    /// Where the server refuses it or the reply has another type.
    pub fn owner_command<T: FromRedisValue>(&self, key: &[u8], command: &[&str]) -> T {
        self.nodes[self.owner(key).1].ask(command)
    }

    /// The hash slot of `key`, and the index of the primary that owned it at the start.
    fn owner(&self, key: &[u8]) -> (u32, usize) {
        let mut living = self.nodes.iter().find_map(|node| connect(&node.url(), None)).expect("some node lives");
        let slot: u32 =
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut living).expect("a key has a hash slot");
        let owner = (1..=2).filter(|index| slot >= HASH_SLOTS * index / 3).count();
        (slot, owner)
    }

    /// The index, among the shards as they were at the start, of the one that owned `key`; each has a third of the hash slots.
    #[must_use]
    pub fn shard_of(&self, key: &[u8]) -> usize {
        self.owner(key).1
    }

    /// Sends a command to the primary that a shard had at the start, on a connection of its own.
    ///
    /// # Panics
    /// Where the server refuses it or the reply has another type.
    pub fn primary_command<T: FromRedisValue>(&self, shard: usize, command: &[&str]) -> T {
        self.nodes[shard].ask(command)
    }

    /// Kills the primary that a shard had at the start, as a crash would.
    pub fn kill_primary(&mut self, shard: usize) {
        self.nodes[shard].process.kill();
    }

    /// Makes the replica of a shard whose primary was killed take its place, and waits until every node that lives knows.
    pub fn promote_replica(&self, shard: usize) {
        let replica = &self.nodes[PRIMARIES + shard];
        let () = replica.ask(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let id: String = replica.ask(&["CLUSTER", "MYID"]);
        let knows = |node: &Node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            // A primary's line ends with the hash slots that it serves.
            nodes.lines().any(|line| line.starts_with(&id) && line.contains("master") && line.split(' ').count() > 8)
        };
        let living = || self.nodes.iter().enumerate().filter(|(index, _)| *index != shard);
        poll(|| living().all(|(_, node)| knows(node)).then_some(())).expect("the take-over is known everywhere");
    }

    /// Moves the hash slot of `key` with all keys in it to the primary that the next shard had at the start, key by key, calling
    /// `between` before the first key and after each.
    pub fn move_hash_slot(&self, key: &[u8], mut between: impl FnMut()) {
        let (slot, owner) = self.owner(key);
        let (from, to) = (&self.nodes[owner], &self.nodes[(owner + 1) % PRIMARIES]);
        let (port, slot) = (to.port.to_string(), slot.to_string());
        self.begin_migration(key);
        between();
        let mut source = connect(&from.url(), None).expect("connect to a server that answered");
        loop {
            let mut keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
                .arg("GETKEYSINSLOT")
                .arg(&slot)
                .arg(1)
                .query(&mut source)
                .expect("the hash slot's keys");
            let Some(key) = keys.pop() else { break };
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(&port).arg(key).arg(0).arg(5_000);
            let _: String = migrate.query(&mut source).expect("a key moves");
            between();
        }
        let id: String = to.ask(&["CLUSTER", "MYID"]);
        for node in [to, from] {
            let () = node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
        let knows = |node: &Node| {
            let mut connection = connect(&node.url(), None).expect("connect to a server that answered");
            let reply = redis::cmd("GET").arg(key).query::<Option<Vec<u8>>>(&mut connection);
            match reply {
                Ok(_) => node.port == to.port,
                Err(error) => error.redirect_node().is_some_and(|(address, _)| address.ends_with(&format!(":{port}"))),
            }
        };
        poll(|| self.nodes.iter().all(knows).then_some(())).expect("the move is known everywhere");
    }

    /// Begins to move the hash slot of `key`: its owner sends who asks for what it does not hold to the next primary.
    pub fn begin_migration(&self, key: &[u8]) {
        let (slot, owner) = self.owner(key);
        let (from, to) = (&self.nodes[owner], &self.nodes[(owner + 1) % PRIMARIES]);
        let (from_id, to_id): (String, String) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
        let slot = slot.to_string();
        let () = to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        let () = from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Makes a replica take over from its primary, and waits until every node knows.
    pub fn fail_over(&self) {
        let replica = self.nodes[PRIMARIES..].iter().find(|node| is_role(node, "slave")).expect("one replica is left");
        let () = replica.ask(&["CLUSTER", "FAILOVER"]);
        poll(|| is_role(replica, "master").then_some(())).expect("a replica takes over");
        let id: String = replica.ask(&["CLUSTER", "MYID"]);
        let knows = |node: &Node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.starts_with(&id) && line.contains("master"))
        };
        poll(|| self.nodes.iter().all(knows).then_some(())).expect("the take-over is known everywhere");
    }
}

fn cluster_args(dir: &Path, port: u16) -> Vec<String> {
    let (bus, port, config) = (free_port().to_string(), port.to_string(), format!("nodes-{port}.conf"));
    args(dir, &["--port", &port, "--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-config-file", &config])
}
