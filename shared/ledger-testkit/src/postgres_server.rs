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

/// Prepares a cluster, starts it and does as each line of standard input says, `stop` or `start`: when standard input ends, be it that the test process closes it or dies in any
/// way, the server goes too, and its files with it. Arguments: where the programs are, and the folder. It listens on a
/// socket in that folder only, and nothing is synced to disk.
const SUPERVISOR: &str = r#"
bin=$1 dir=$2
cd "$dir" || exit 1
start() {
    "$bin"pg_ctl -D data -l server.log -w -t 60 -o "-c listen_addresses='' -c unix_socket_directories='$dir' \
        -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=200" start
}
stop() {
    "$bin"pg_ctl -D data -m fast -w -t 60 stop
}
{
    "$bin"initdb -D data -U postgres -A trust -E UTF8 --locale=C --no-sync && start
} >supervisor.log 2>&1 || { cat supervisor.log server.log; exit 1; }
echo ready
while read -r order; do
    "$order" >supervisor.log 2>&1 || { cat supervisor.log server.log; exit 1; }
    echo ready
done
"$bin"pg_ctl -D data -m immediate stop >/dev/null 2>&1
rm -rf "$dir"
"#;

const TEMPLATE: &str = "ledger_template";

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
    #[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("ledger-pg-").tempdir().expect("a temporary folder").keep();
        let mut command = as_ordinary_user(&dir);
        command.args(["sh", "-c", SUPERVISOR, "supervisor", &programs()]).arg(&dir);
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

/// PostgreSQL refuses to run as root. Where the tests do, the server runs as `postgres`, or else as `nobody`.
#[allow(clippy::expect_used, reason = "a fixture that cannot start fails the test")]
fn as_ordinary_user(dir: &Path) -> Command {
    if dir.metadata().expect("the folder just made").uid() != 0 {
        return Command::new("env");
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("the list of users");
    let ids = ["postgres", "nobody"].iter().find_map(|name| {
        let mut fields =
            users.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(name))?;
        Some((fields.nth(2)?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?))
    });
    let (uid, gid) = ids.expect("a user postgres or nobody, as PostgreSQL refuses to run as root");
    chown(dir, Some(uid), Some(gid)).expect("root may give a folder away");
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups"]);
    command
}

/// The folder of PostgreSQL's programs with a `/` behind it, or nothing where they are looked up on the path.
fn programs() -> String {
    let debian = VERSIONS.rev().map(|version| format!("/usr/lib/postgresql/{version}/bin/"));
    let red_hat = VERSIONS.rev().map(|version| format!("/usr/pgsql-{version}/bin/"));
    debian.chain(red_hat).find(|dir| Path::new(&format!("{dir}initdb")).exists()).unwrap_or_default()
}
