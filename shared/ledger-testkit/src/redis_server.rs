//! Real Redis servers on free ports, without persistence, gone with the test.
//!
//! They need the programs `redis-server` (7 or later), `setpriv` and, for TLS, `openssl`; a missing one fails the test.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use std::path::{Path, PathBuf};

use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult, TlsCertificates, Value};
use tempfile::TempDir;

use crate::process::{Process, free_port, poll, run};

/// How often a start is tried again because another process took the port in between.
const STARTS_MAX: u32 = 5;
const PASSWORD: &str = "s3cret:/word";
const PASSWORD_ENCODED: &str = "s3cret%3A%2Fword";
/// The name by which the Sentinels know the primary.
const PRIMARY_NAME: &str = "the-primary";
/// Hash slots of a Redis Cluster.
const HASH_SLOTS: u32 = 16_384;

fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("ledger-redis-").tempdir().expect("create a temp folder")
}

/// One server process.
#[derive(Debug)]
struct Node {
    process: Process,
    port: u16,
}

impl Node {
    /// Starts one that answers. `args` gives the arguments for a port.
    fn start(dir: &Path, args: impl Fn(u16) -> Vec<String>, url: impl Fn(u16) -> String, ca: Option<&[u8]>) -> Self {
        for _ in 0..STARTS_MAX {
            let port = free_port();
            let mut process = Process::start("redis-server", &args(port), dir.join(format!("{port}.log")));
            let answers = poll(|| {
                if process.has_ended() {
                    return Some(false);
                }
                let mut connection = connect(&url(port), ca)?;
                redis::cmd("PING").query::<Value>(&mut connection).is_ok().then_some(true)
            });
            match answers {
                Some(true) => return Self { process, port },
                Some(false) if process.output().contains("Address already in use") => {}
                Some(false) | None => panic!("redis-server did not start: {}", process.output()),
            }
        }
        panic!("no port stayed free for redis-server");
    }

    fn url(&self) -> String {
        plain_url(self.port)
    }

    fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let mut connection = connect(&self.url(), None).expect("connect to a server that answered");
        query(&mut connection, command)
    }

    /// As [`Node::ask`], of a server that may close connections at any time, as in a fail-over; `None` where it did.
    fn try_ask<T: FromRedisValue>(&self, command: &[&str]) -> Option<T> {
        let mut connection = connect(&self.url(), None)?;
        try_query(&mut connection, command).ok()
    }
}

fn plain_url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

fn connect(url: &str, ca: Option<&[u8]>) -> Option<Connection> {
    let client = match ca {
        None => Client::open(url).expect("a URL of this fixture"),
        Some(ca) => {
            // Where another part of the process installed it, it stands.
            drop(rustls::crypto::ring::default_provider().install_default());
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
            Client::build_with_tls(url, certificates).expect("certificates of this fixture")
        }
    };
    client.get_connection().ok()
}

fn query<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    try_query(connection, command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn try_query<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> RedisResult<T> {
    let mut cmd = Cmd::new();
    for arg in command {
        cmd.arg(*arg);
    }
    cmd.query(connection)
}

fn args(dir: &Path, more: &[&str]) -> Vec<String> {
    let dir = dir.to_str().expect("temp folders have UTF-8 names");
    let common = ["--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"];
    common.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
}

/// One server.
#[derive(Debug)]
pub struct RedisServer {
    node: Node,
    url: String,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server that anyone may use.
    #[must_use]
    pub fn start() -> Self {
        let dir = temp_dir();
        let node = Node::start(dir.path(), |port| args(dir.path(), &["--port", &port.to_string()]), plain_url, None);
        let url = node.url();
        Self { node, url, dir }
    }

    /// Starts a server that takes TLS only, and no user but `ledger` with a password that needs encoding.
    #[must_use]
    pub fn start_tls_auth() -> Self {
        let dir = temp_dir();
        let ca = make_certificates(dir.path());
        let path = |file: &str| dir.path().join(file).to_str().expect("temp folders have UTF-8 names").to_owned();
        let (cert, key, authority) = (path("server.pem"), path("server.key"), path("ca.pem"));
        let acl = path("users.acl");
        let users = format!("user default off\nuser ledger on >{PASSWORD} ~* &* +@all\n");
        std::fs::write(&acl, users).expect("write the users");
        let server_args = |port: u16| {
            let port = port.to_string();
            let tls = ["--port", "0", "--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
            let trust = ["--tls-ca-cert-file", &authority, "--tls-auth-clients", "no", "--aclfile", &acl];
            args(dir.path(), &[tls.as_slice(), trust.as_slice()].concat())
        };
        let bare_url = |port: u16| format!("rediss://ledger:{PASSWORD_ENCODED}@127.0.0.1:{port}");
        let node = Node::start(dir.path(), server_args, bare_url, Some(&ca));
        let url = format!("{}?ca_file={authority}", bare_url(node.port));
        Self { node, url, dir }
    }

    /// The URL of a hot tier on it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file of the certificate authority, where the server takes TLS.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Sends a command on a connection of its own; only to a server without TLS.
    ///
    /// # Panics
    /// Where the server refuses it or the reply has another type.
    pub fn command<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.node.ask(command)
    }

    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        self.node.process.kill();
    }
}

/// A certificate authority and a server certificate for 127.0.0.1, in PEM files; gives the authority's.
fn make_certificates(dir: &Path) -> Vec<u8> {
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let request = |more: &[&str]| run("openssl", &[&["req"], key.as_slice(), more].concat(), dir);
    request(&["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"]);
    request(&["-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"]);
    std::fs::write(dir.join("server.ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .expect("write the certificate's extensions");
    let sign = ["x509", "-req", "-days", "2", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"];
    let out = ["-CAcreateserial", "-extfile", "server.ext", "-out", "server.pem"];
    run("openssl", &[sign.as_slice(), out.as_slice()].concat(), dir);
    std::fs::read(dir.join("ca.pem")).expect("read the authority just made")
}

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
        for (replica, primary) in nodes[3..].iter().zip(&ids) {
            let known = poll(|| replica.ask::<String>(&["CLUSTER", "NODES"]).contains(primary).then_some(()));
            known.expect("a cluster's nodes come to know each other");
            let () = replica.ask(&["CLUSTER", "REPLICATE", primary]);
        }
        let whole = |node: &Node| {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
            replicas == 3 && node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        poll(|| nodes.iter().all(whole).then_some(())).expect("a cluster becomes whole");
        let linked = |node: &Node| node.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up");
        poll(|| nodes[3..].iter().all(linked).then_some(())).expect("replicas follow their primaries");
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let url = format!("redis+cluster://{}", addresses.join(","));
        Self { nodes, url, _dir: dir }
    }

    /// The URL of a hot tier on it.
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
        let mut connection = connect(&self.nodes[0].url(), None).expect("connect to a server that answered");
        let slot: u32 =
            redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut connection).expect("a key has a hash slot");
        let owner = (1..=2).filter(|index| slot >= HASH_SLOTS * index / 3).count();
        (slot, owner)
    }

    /// Begins to move the hash slot of `key`, which must not stand: its owner sends who asks for it to the next primary.
    pub fn begin_migration(&self, key: &[u8]) {
        let (slot, owner) = self.owner(key);
        let (from, to) = (&self.nodes[owner], &self.nodes[(owner + 1) % 3]);
        let (from_id, to_id): (String, String) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
        let slot = slot.to_string();
        let () = to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        let () = from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Makes a replica take over from its primary, and waits until every node knows.
    pub fn fail_over(&self) {
        let replica = self.nodes[3..].iter().find(|node| is_role(node, "slave")).expect("one replica is left");
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

fn is_role(node: &Node, role: &str) -> bool {
    node.try_ask(&["INFO", "replication"]).is_some_and(|info: String| info.contains(&format!("role:{role}")))
}

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
        let url = format!("redis+sentinel://{}/{PRIMARY_NAME}", addresses.join(","));
        Self { servers: vec![primary, replica], sentinels, url, _dir: dir }
    }

    /// The URL of a hot tier on it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the server that is the primary now, as a single server.
    #[must_use]
    pub fn primary_url(&self) -> String {
        self.servers.iter().find(|node| is_role(node, "master")).expect("one is the primary").url()
    }

    /// Makes the Sentinels promote the replica, and waits until it is done and the old primary follows.
    pub fn fail_over(&self) {
        let before = self.primary_url();
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
            let told = |sentinel: &Node| {
                let address: Vec<String> = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME]);
                address.get(1) == Some(&primary.port.to_string())
            };
            (primary.url() != before && self.sentinels.iter().all(told)).then_some(())
        });
        done.expect("the Sentinels promote the replica");
    }
}
