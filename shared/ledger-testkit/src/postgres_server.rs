//! A real PostgreSQL server for tests: one per test process, a database per test.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use ledger_stores::postgres::PostgresLedger;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::sync::OnceCell;

/// The oldest major version supported, and the newest looked for.
const VERSIONS: std::ops::RangeInclusive<u32> = 15..=19;

/// Prepares a cluster, starts it and does as each line of standard input says, a function's name: when standard input ends, be
/// it that the test process closes it or dies in any way, the server goes too, and its files with it. Arguments: where the
/// programs are, the folder, and whether a commit is written before it is acknowledged. It listens on a socket in that folder
/// only, and nothing is synced to disk: a server that crashes loses what it has not written, and nothing that it has.
const SUPERVISOR: &str = r#"
bin=$1 dir=$2 commits=$3
cd "$dir" || exit 1
start() {
    "$bin"pg_ctl -D data -l server.log -w -t 60 -o "-c listen_addresses='' -c unix_socket_directories='$dir' \
        -c fsync=off -c synchronous_commit=$commits -c full_page_writes=off -c max_connections=200" start
}
stop() {
    "$bin"pg_ctl -D data -m fast -w -t 60 stop
}
crash() {
    "$bin"pg_ctl -D data -m immediate -w -t 60 stop
}
fill() {
    dd if=/dev/zero of=small/ballast bs=4k; test -s small/ballast
}
free() {
    rm small/ballast
}
{
    { test ! -d small || mkdir small/space; } && "$bin"initdb -D data -U postgres -A trust -E UTF8 --locale=C --no-sync && start
} >supervisor.log 2>&1 || { cat supervisor.log server.log; exit 1; }
echo ready
while read -r order; do
    "$order" >supervisor.log 2>&1 || { cat supervisor.log server.log; exit 1; }
    echo ready
done
"$bin"pg_ctl -D data -m immediate stop >/dev/null 2>&1
rm -rf "$dir" 2>/dev/null
"#;

/// Mounts a small disk that only what is started behind it can see, and that goes with it. Arguments: where, and the command.
const SMALL_DISK: &str = r#"
disk=$1; shift
mkdir "$disk" && mount -t tmpfs -o size=48m,mode=777 tmpfs "$disk" || exit 1
"$@"
umount "$disk"; rmdir "$disk" "${disk%/*}"
"#;
/// Put before the command: who may not mount a disk may do so in a world of its own, where it is root, and goes back from there
/// to who it was.
const AS_USER: [&str; 2] = ["unshare", "--user"];

const TEMPLATE: &str = "ledger_template";
/// The small disk's folder, and its tablespace.
const SMALL: &str = "small";

/// A running server. It is stopped, and its files are removed, when this is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct PostgresServer {
    supervisor: Child,
    said: Mutex<Lines<BufReader<ChildStdout>>>,
    socket: PathBuf,
    migrated: OnceCell<()>,
    databases: AtomicU32,
}

impl PostgresServer {
    /// This process's server, started when first asked for.
    ///
    /// # Panics
    /// Where there is no PostgreSQL of version 15 or newer, or it does not start. A test that needs it must fail then.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<PostgresServer> = OnceLock::new();
        SERVER.get_or_init(Self::start)
    }

    /// A server of one's own, for tests that stop it.
    ///
    /// # Panics
    /// As [`PostgresServer::shared`].
    #[must_use]
    pub fn start() -> Self {
        Self::start_as(&[], &[], "off")
    }

    /// A server of one's own, for tests that make it crash: what it acknowledged is still there then.
    ///
    /// # Panics
    /// As [`PostgresServer::shared`].
    #[must_use]
    pub fn start_durable() -> Self {
        Self::start_as(&[], &[], "on")
    }

    /// As [`PostgresServer::start_durable`], with a small disk that can be filled.
    ///
    /// # Panics
    /// As [`PostgresServer::shared`], and where `unshare` is missing or no disk may be mounted.
    #[must_use]
    #[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
    pub fn start_with_small_disk() -> Self {
        let uid = Path::new("/proc/self").metadata().expect("this process").uid();
        let (as_root, as_user) = (["unshare", "--mount", "--map-root-user"], format!("--map-user={uid}"));
        let disk = ["sh", "-c", SMALL_DISK, "sh"];
        if uid == 0 {
            Self::start_as(&[&as_root[..2], &disk].concat(), &[], "on")
        } else {
            Self::start_as(&[&as_root[..], &disk].concat(), &[AS_USER[0], AS_USER[1], &as_user], "on")
        }
    }

    #[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
    fn start_as(small_disk: &[&str], on_it: &[&str], commits: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("ledger-pg-").tempdir().expect("a temporary folder").keep();
        let mut words: Vec<std::ffi::OsString> = small_disk.iter().map(Into::into).collect();
        if !small_disk.is_empty() {
            words.push(dir.join(SMALL).into());
        }
        words.extend(on_it.iter().map(Into::into));
        words.extend(as_ordinary_user(&dir).into_iter().map(Into::into));
        words.extend(["sh", "-c", SUPERVISOR, "supervisor", &programs()].map(Into::into));
        words.extend([dir.clone().into(), commits.into()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        // A signal from the terminal must not reach the supervisor before it has cleaned up.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut supervisor = command.spawn().expect("a shell to start PostgreSQL with");
        let said = Mutex::new(BufReader::new(supervisor.stdout.take().expect("a pipe")).lines());
        let server = Self { supervisor, said, socket: dir, migrated: OnceCell::new(), databases: AtomicU32::new(0) };
        server.wait_until_ready("PostgreSQL 15 or newer is needed and did not start");
        server
    }

    /// Stops it: what was committed is kept, what is under way is rolled back, and whoever is connected is cut off.
    ///
    /// # Panics
    /// Where it does not stop.
    pub fn stop(&mut self) {
        self.order("stop");
    }

    /// Starts it again, with what it kept.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_again(&mut self) {
        self.order("start");
    }

    /// Stops it as a crash would.
    ///
    /// # Panics
    /// Where it does not stop.
    pub fn crash(&mut self) {
        self.order("crash");
    }

    /// Fills its small disk to the last byte.
    ///
    /// # Panics
    /// Where it has none.
    pub fn fill_disk(&mut self) {
        self.order("fill");
    }

    /// Gives back what [`PostgresServer::fill_disk`] took.
    ///
    /// # Panics
    /// Where it took nothing.
    pub fn free_disk(&mut self) {
        self.order("free");
    }

    #[allow(clippy::expect_used, reason = "a fixture that cannot be changed fails the test")]
    fn order(&mut self, order: &str) {
        let input = self.supervisor.stdin.as_mut().expect("a pipe");
        writeln!(input, "{order}").expect("the supervisor reads");
        self.wait_until_ready(order);
    }

    #[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
    fn wait_until_ready(&self, what: &str) {
        let mut said = self.said.lock().expect("nobody panicked");
        let first = said.next().transpose().expect("what the supervisor says");
        if first.as_deref() != Some("ready") {
            let rest: Vec<String> = first.into_iter().chain(said.by_ref().map_while(Result::ok)).collect();
            panic!("{what}:\n{}", rest.join("\n"));
        }
    }

    /// A new database with the ledger's schema and nothing in it, and its URL.
    ///
    /// # Panics
    /// Where the server refuses.
    #[allow(clippy::expect_used, reason = "a fixture that cannot be made fails the test")]
    pub async fn database(&self) -> String {
        self.migrated.get_or_init(|| self.make_template()).await;
        let name = format!("ledger_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.administer(format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}")).await;
        self.url(&name)
    }

    /// As [`PostgresServer::database`], on the small disk. It may be asked for once.
    ///
    /// # Panics
    /// Where the server refuses, or has no small disk.
    pub async fn small_database(&self) -> String {
        self.administer(format!(
            "CREATE TABLESPACE {SMALL} LOCATION '{}'",
            self.socket.join(SMALL).join("space").display()
        ))
        .await;
        self.migrated.get_or_init(|| self.make_template()).await;
        self.administer(format!("CREATE DATABASE ledger_{SMALL} TEMPLATE {TEMPLATE} TABLESPACE {SMALL}")).await;
        self.url(&format!("ledger_{SMALL}"))
    }

    /// The URL of a database of this server, as its superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@localhost/{database}?host={}&sslmode=disable", self.socket.display())
    }

    /// Runs one statement as superuser, outside any ledger database.
    ///
    /// # Panics
    /// Where the server refuses it.
    #[allow(clippy::expect_used, reason = "a fixture that cannot be made fails the test")]
    pub async fn administer(&self, statement: String) {
        let options: PgConnectOptions = self.url("postgres").parse().expect("our own URL");
        let mut conn = PgConnection::connect_with(&options).await.expect("the server just started");
        conn.execute(AssertSqlSafe(statement)).await.expect("a statement of the fixture");
        conn.close().await.expect("a close");
    }

    #[allow(clippy::expect_used, reason = "a fixture that cannot be made fails the test")]
    async fn make_template(&self) {
        self.administer(format!("CREATE DATABASE {TEMPLATE}")).await;
        let pool = PgPoolOptions::new().max_connections(1).connect(&self.url(TEMPLATE)).await.expect("the template");
        PostgresLedger::migrate(&pool).await.expect("the migrations run");
        // A template in use cannot be copied.
        pool.close().await;
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The end of its input is what the supervisor waits for.
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// PostgreSQL refuses to run as root. Where the tests do, the server runs as `postgres`, or else as `nobody`: what to put before
/// its command.
#[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
fn as_ordinary_user(dir: &Path) -> Vec<String> {
    if dir.metadata().expect("the folder just made").uid() != 0 {
        return Vec::new();
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("the list of users");
    let ids = ["postgres", "nobody"].iter().find_map(|name| {
        let mut fields =
            users.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(name))?;
        Some((fields.nth(2)?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?))
    });
    let (uid, gid) = ids.expect("a user postgres or nobody, as PostgreSQL refuses to run as root");
    chown(dir, Some(uid), Some(gid)).expect("root may give a folder away");
    vec!["setpriv".into(), format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()]
}

/// The folder of PostgreSQL's programs with a `/` behind it, or nothing where they are looked up on the path.
fn programs() -> String {
    let debian = VERSIONS.rev().map(|version| format!("/usr/lib/postgresql/{version}/bin/"));
    let red_hat = VERSIONS.rev().map(|version| format!("/usr/pgsql-{version}/bin/"));
    debian.chain(red_hat).find(|dir| Path::new(&format!("{dir}initdb")).exists()).unwrap_or_default()
}
