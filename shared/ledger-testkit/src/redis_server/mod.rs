//! Real Redis servers on free ports, without persistence, gone with the test.
//!
//! They need the programs `redis-server` (7 or later), `setpriv` and, for TLS, `openssl`; a missing one fails the test.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

mod cluster;
mod sentinel;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult, TlsCertificates, Value};
use tempfile::TempDir;

pub use self::cluster::RedisCluster;
pub use self::sentinel::RedisSentinel;
use crate::process::{Process, free_port, poll, run};

/// How often a start is tried again because another process took the port in between.
const STARTS_MAX: u32 = 5;
const PASSWORD: &str = "s3cret:/word";
const PASSWORD_ENCODED: &str = "s3cret%3A%2Fword";
/// How patient a tier on a fixture's URL is, in milliseconds: suites press 200 requests at once through few cores that servers
/// and other tests share.
const PATIENT_MS: u64 = 20_000;

/// `url`, of a fixture, with other time-outs.
#[must_use]
pub fn with_timeouts(url: &str, connect_timeout_ms: u64, response_timeout_ms: u64) -> String {
    let (bare, query) = url.split_once('?').unwrap_or((url, ""));
    let others = query.split('&').filter(|parameter| !parameter.is_empty() && !parameter.contains("_timeout_ms="));
    let others: String = others.map(|parameter| format!("&{parameter}")).collect();
    format!("{bare}?connect_timeout_ms={connect_timeout_ms}&response_timeout_ms={response_timeout_ms}{others}")
}

fn patient(url: &str) -> String {
    with_timeouts(url, PATIENT_MS, PATIENT_MS)
}

fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("ledger-redis-").tempdir().expect("create a temp folder")
}

/// One server process.
#[derive(Debug)]
struct Node {
    process: Process,
    port: u16,
    args: Vec<String>,
    log: PathBuf,
}

impl Node {
    /// Starts one that answers. `args` gives the arguments for a port.
    fn start(dir: &Path, args: impl Fn(u16) -> Vec<String>, url: impl Fn(u16) -> String, ca: Option<&[u8]>) -> Self {
        for _ in 0..STARTS_MAX {
            let port = free_port();
            let (args, log) = (args(port), dir.join(format!("{port}.log")));
            let mut process = Process::start("redis-server", &args, log.clone());
            match answers(&mut process, &url(port), ca) {
                Some(true) => return Self { process, port, args, log },
                Some(false) if process.output().contains("Address already in use") => {}
                Some(false) | None => panic!("redis-server did not start: {}", process.output()),
            }
        }
        panic!("no port stayed free for redis-server");
    }

    fn url(&self) -> String {
        plain_url(self.port)
    }

    /// Kills it and starts it again with the same arguments, which leave it nothing of what it held.
    fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start("redis-server", &self.args, self.log.clone());
        let url = self.url();
        assert_eq!(answers(&mut self.process, &url, None), Some(true), "redis-server did not start again");
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

/// Waits until it answers; `false` where it has ended.
fn answers(process: &mut Process, url: &str, ca: Option<&[u8]>) -> Option<bool> {
    poll(|| {
        if process.has_ended() {
            return Some(false);
        }
        let mut connection = connect(url, ca)?;
        redis::cmd("PING").query::<Value>(&mut connection).is_ok().then_some(true)
    })
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

fn is_role(node: &Node, role: &str) -> bool {
    node.try_ask(&["INFO", "replication"]).is_some_and(|info: String| info.contains(&format!("role:{role}")))
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
        let url = patient(&node.url());
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
        let url = patient(&format!("{}?ca_file={authority}", bare_url(node.port)));
        Self { node, url, dir }
    }

    /// The URL of a hot tier on it, patient: see [`with_timeouts`].
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.node.port).into()
    }

    /// Makes it follow the primary at `primary`, and waits until it has all that stands there.
    ///
    /// # Panics
    /// Where it does not.
    pub fn follow(&self, primary: SocketAddr) {
        let () = self.command(&["REPLICAOF", &primary.ip().to_string(), &primary.port().to_string()]);
        let linked = || self.command::<String>(&["INFO", "replication"]).contains("master_link_status:up");
        poll(|| linked().then_some(())).expect("a replica follows its primary");
    }

    /// Freezes the server: it keeps its connections and answers nothing. A frozen one can be killed.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn freeze(&self) {
        self.node.process.signal("STOP");
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn thaw(&self) {
        self.node.process.signal("CONT");
    }

    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        self.node.process.kill();
    }

    /// Kills the server and starts it again on the same port, with nothing in it; only one without TLS.
    pub fn restart(&mut self) {
        self.node.restart();
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
