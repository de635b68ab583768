//! Sentinels that watch a primary and its replica.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use tempfile::TempDir;

use super::{Node, args, connect, is_role, patient, plain_url, temp_dir};
use crate::process::poll;

/// The name by which the Sentinels know the primary.
const PRIMARY_NAME: &str = "the-primary";

/// A primary, its replica, and three Sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    url: String,
    _dir: TempDir,
}

impl RedisSentinel {
    /// Starts them and waits until each Sentinel knows the replica and the other Sentinels.
    #[must_use]
    pub fn start() -> Self {
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
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {PRIMARY_NAME} 127.0.0.1 {} 2\n",
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
        self.servers.iter().find(|node| is_role(node, "master")).expect("one is the primary").url()
    }

    /// Kills the primary, as a crash would.
    pub fn kill_primary(&mut self) {
        let primary = self.servers.iter_mut().find(|node| is_role(node, "master")).expect("one is the primary");
        primary.process.kill();
    }

    /// Makes the Sentinels promote the replica, and waits until it is done and the old primary, where it lives, follows.
    pub fn fail_over(&self) {
        let known = |sentinel: &Node| {
            sentinel.ask::<Vec<String>>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME]).remove(1)
        };
        let before = known(&self.sentinels[0]);
        // A Sentinel that has just met the replica does not yet know that it may promote it.
        let mut sentinel = connect(&self.sentinels[0].url(), None).expect("connect to a Sentinel that answered");
        let begun =
            poll(|| match redis::cmd("SENTINEL").arg("FAILOVER").arg(PRIMARY_NAME).query::<()>(&mut sentinel) {
                Ok(()) => Some(()),
                Err(error) if error.code() == Some("NOGOODSLAVE") => None,
                Err(error) => panic!("SENTINEL FAILOVER: {error}"),
            });
        begun.expect("a Sentinel comes to know the replica");
        let done = poll(|| {
            let primaries: Vec<&Node> = self.servers.iter().filter(|node| is_role(node, "master")).collect();
            let [primary] = primaries.as_slice() else { return None };
            let port = primary.port.to_string();
            (port != before && self.sentinels.iter().all(|sentinel| known(sentinel) == port)).then_some(())
        });
        done.expect("the Sentinels promote the replica");
    }
}
