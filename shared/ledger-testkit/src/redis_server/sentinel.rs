//! Sentinels that watch a primary and its replica.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use std::net::SocketAddr;

use tempfile::TempDir;

use super::{Node, args, connect, is_role, patient, plain_url, temp_dir};
use crate::process::poll;

/// The name by which the Sentinels know the primary.
const PRIMARY_NAME: &str = "the-primary";
/// After twice this time Sentinels that did not agree on a leader try again, in milliseconds.
const FAIL_OVER_TIMEOUT_MS: u64 = 2_000;

/// A primary, its replica, and three Sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    url: String,
    _dir: TempDir,
}

impl RedisSentinel {
    /// Starts them and waits until each Sentinel knows the replica and the other Sentinels. By themselves they do nothing within
    /// a test: see [`RedisSentinel::fail_over`].
    #[must_use]
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// As [`RedisSentinel::start`], with Sentinels that replace a primary which has not answered for `down_after_ms`.
    #[must_use]
    pub fn start_watchful(down_after_ms: u64) -> Self {
        Self::start_with(&format!(
            "sentinel down-after-milliseconds {PRIMARY_NAME} {down_after_ms}\n\
             sentinel failover-timeout {PRIMARY_NAME} {FAIL_OVER_TIMEOUT_MS}\n"
        ))
    }

    fn start_with(settings: &str) -> Self {
        let dir = temp_dir();
        let plain = |port: u16| args(dir.path(), &["--port", &port.to_string(), "--repl-diskless-sync-delay", "0"]);
        let primary = Node::start(dir.path(), plain, plain_url, None);
        let replica = Node::start(dir.path(), plain, plain_url, None);
        let () = replica.ask(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        poll(|| replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up").then_some(()))
            .expect("a replica follows its primary");
        let sentinel_args = |port: u16| {
            let config = dir.path().join(format!("sentinel-{port}.conf"));
            let lines = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {PRIMARY_NAME} 127.0.0.1 {} 2\n{settings}",
                dir.path().display(),
                primary.port
            );
            std::fs::write(&config, lines).expect("write a Sentinel's configuration");
            vec![config.to_str().expect("temp folders have UTF-8 names").to_owned(), "--sentinel".to_owned()]
        };
        let sentinels: Vec<Node> = (0..3).map(|_| Node::start(dir.path(), sentinel_args, plain_url, None)).collect();
        let ready = |sentinel: &Node| {
            let info: String = sentinel.ask(&["INFO", "sentinel"]);
            info.contains("status=ok") && info.contains("slaves=1,sentinels=3")
        };
        poll(|| sentinels.iter().all(ready).then_some(())).expect("the Sentinels know everyone");
        let addresses: Vec<String> = sentinels.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let url = patient(&format!("redis+sentinel://{}/{PRIMARY_NAME}", addresses.join(",")));
        Self { servers: vec![primary, replica], sentinels, url, _dir: dir }
    }

    /// The URL of a hot tier on it, patient.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the server that is the primary now, as a single server.
    #[must_use]
    pub fn primary_url(&self) -> String {
        plain_url(known_to(&self.sentinels[0]))
    }

    /// Where the server listens that is the primary now.
    #[must_use]
    pub fn primary_address(&self) -> SocketAddr {
        ([127, 0, 0, 1], known_to(&self.sentinels[0])).into()
    }

    /// Kills the primary, as a crash would.
    pub fn kill_primary(&mut self) {
        let port = known_to(&self.sentinels[0]);
        let primary = self.servers.iter_mut().find(|node| node.port == port).expect("the Sentinels know our primary");
        primary.process.kill();
    }

    /// Starts each server again that was killed, on its port and with nothing in it. The Sentinels make it a replica.
    pub fn restart_killed(&mut self) {
        self.servers.iter_mut().filter_map(|node| node.process.has_ended().then_some(node)).for_each(Node::restart);
    }

    /// Makes the Sentinels promote the replica, and waits until it is done and the old primary, where it lives, follows.
    pub fn fail_over(&self) {
        let before = self.primary_address();
        // A Sentinel that has just met the replica does not yet know that it may promote it.
        let mut sentinel = connect(&self.sentinels[0].url(), None).expect("connect to a Sentinel that answered");
        let begun =
            poll(|| match redis::cmd("SENTINEL").arg("FAILOVER").arg(PRIMARY_NAME).query::<()>(&mut sentinel) {
                Ok(()) => Some(()),
                Err(error) if error.code() == Some("NOGOODSLAVE") => None,
                Err(error) => panic!("SENTINEL FAILOVER: {error}"),
            });
        begun.expect("a Sentinel comes to know the replica");
        poll(|| self.have_replaced(before).then_some(())).expect("the Sentinels promote the replica");
    }

    /// Whether another than the one at `before` is the only primary, and each Sentinel knows it.
    #[must_use]
    pub fn have_replaced(&self, before: SocketAddr) -> bool {
        let primaries: Vec<&Node> = self.servers.iter().filter(|node| is_role(node, "master")).collect();
        let [primary] = primaries.as_slice() else { return false };
        primary.port != before.port() && self.sentinels.iter().all(|sentinel| known_to(sentinel) == primary.port)
    }
}

/// The port of the primary, as a Sentinel knows it.
fn known_to(sentinel: &Node) -> u16 {
    let address: Vec<String> = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME]);
    address[1].parse().expect("a port")
}
