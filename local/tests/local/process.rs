//! A running `local`, and requests to it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// How often a condition is looked at before it counts as never coming: 60 s in all.
const POLLS_MAX: u32 = 2_400;
const POLL_EVERY: Duration = Duration::from_millis(25);

/// SHA-256 of nothing.
pub(crate) const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Variables of a process. It gets no others but `PATH`.
pub(crate) type Variables<'a> = &'a [(&'a str, &'a str)];

/// The program, to be started with these variables. The kernel kills it with the thread that starts it, a test's own.
fn program(data: &Path, variables: Variables<'_>, arguments: &[&str], log: &Path) -> Command {
    let log = std::fs::File::create(log).expect("create the program's log");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_local")]).args(arguments);
    let path = std::env::vars_os().find(|(name, _)| name == "PATH").map(|(_, value)| value).unwrap_or_default();
    command.env_clear().env("PATH", path).env("LEDGER_ADDR", "127.0.0.1:0").env("LEDGER_DATA", data);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stderr(log);
    command
}

/// A running ledger. Killed when dropped.
pub(crate) struct Local {
    child: Child,
    addr: String,
    folder: TempDir,
    /// Held open, for the program writes to it.
    _stdout: BufReader<ChildStdout>,
}

impl Local {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(data: &Path, variables: Variables<'_>) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the log");
        let mut command = program(data, variables, &[], &log(&folder));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("setpriv (util-linux) starts the program");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        let addr = loop {
            line.clear();
            if stdout.read_line(&mut line).expect("the program writes UTF-8") == 0 {
                let status = child.wait();
                panic!("the program ended before it listened: {status:?}\n{}", read(&log(&folder)));
            }
            if let Some((_, addr)) = line.split_once("http://") {
                break addr.trim().to_owned();
            }
        };
        Self { child, addr, folder, _stdout: stdout }
    }

    /// Ends it as a crash would.
    pub(crate) fn kill_minus_9(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }

    /// Asks it to end.
    pub(crate) fn send_sigterm(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill is there");
        assert!(sent.success());
    }

    /// Freezes it, as Lambda does between requests and a debugger or a full machine at any time. It can still be killed.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
        eventually(|| self.is_frozen().then_some(())).expect("it is stopped");
    }

    /// Whether each of its threads is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it has not ended");
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat")).unwrap_or_default();
            // The name before the state is in brackets, and may hold anything.
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        threads.into_iter().all(is_stopped)
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    /// What it wrote to standard error so far.
    pub(crate) fn said(&self) -> String {
        read(&log(&self.folder))
    }

    /// Waits for its end; the exit status, and what it wrote to standard error.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        (status, read(&log(&self.folder)))
    }

    /// Asks it to end and waits until it has, in good order.
    pub(crate) fn stop(self) {
        self.send_sigterm();
        let (status, log) = self.ended();
        assert!(status.success(), "{status}\n{log}");
    }

    /// A connection of its own; `None` where it is refused.
    pub(crate) fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect(&self.addr).ok()
    }

    /// Checks `key` in `tenant42:as4`.
    pub(crate) fn check(&self, key: &str) -> Answer {
        self.post("/v1/check", &json!({"scope": "tenant42:as4", "key": key, "payloadSha256": HASH}))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        answer(&mut self.send(path, body))
    }

    /// As [`Local::post`], and waits for nothing.
    pub(crate) fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.send_text(&format!(
            "POST {path} HTTP/1.1\r\nHost: local\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// `path` with its query, percent-encoded.
    pub(crate) fn get(&self, path: &str) -> Answer {
        answer(&mut self.send_text(&format!("GET {path} HTTP/1.1\r\nHost: local\r\nConnection: close\r\n\r\n")))
    }

    fn send_text(&self, request: &str) -> TcpStream {
        let mut stream = self.connect().unwrap_or_else(|| panic!("nobody listens\n{}", self.said()));
        stream.write_all(request.as_bytes()).expect("sent");
        stream
    }

    /// What is known of a message in history by its payload hash and key.
    pub(crate) fn in_history(&self, key: &str) -> Option<Value> {
        let page = self.get(&format!("/v1/messages?tenant=tenant42&payloadSha256={HASH}&limit=1000"));
        assert_eq!(page.status, 200, "{}", page.body);
        page.body["messages"].as_array().expect("a list").iter().find(|message| message["key"] == key).cloned()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            println!("the program's log:\n{}", read(&log(&self.folder)));
        }
    }
}

/// Runs the program to its end: the exit status, and what it wrote to standard error.
pub(crate) fn run(variables: Variables<'_>, arguments: &[&str]) -> (ExitStatus, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = program(&folder.path().join("data"), variables, arguments, &log(&folder));
    let mut child = command.stdout(Stdio::null()).spawn().expect("setpriv (util-linux) starts the program");
    let status = wait(&mut child);
    (status, read(&log(&folder)))
}

fn wait(child: &mut Child) -> ExitStatus {
    let ended = eventually(|| child.try_wait().expect("ask after the program"));
    ended.unwrap_or_else(|| {
        drop(child.kill());
        panic!("the program did not end");
    })
}

fn log(folder: &TempDir) -> PathBuf {
    folder.path().join("log")
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

/// Looks again and again until `probe` gives something; `None` where it never does.
pub(crate) fn eventually<T>(mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..POLLS_MAX {
        if let Some(found) = probe() {
            return Some(found);
        }
        std::thread::sleep(POLL_EVERY);
    }
    None
}

/// A status, and the body where that is JSON.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// NEW.
    #[track_caller]
    pub(crate) fn is_new(&self) {
        assert_eq!((self.status, &self.body["status"]), (200, &json!("NEW")), "{}", self.body);
        assert_eq!(self.body["replayed"], false, "{}", self.body);
        assert!(self.body.get("durable").is_none(), "{}", self.body);
    }

    /// SEEN, with so many sightings after the first.
    #[track_caller]
    pub(crate) fn is_seen(&self, retry_count: u32) {
        assert_eq!((self.status, &self.body["status"]), (200, &json!("SEEN")), "{}", self.body);
        assert_eq!(self.body["retryCount"], retry_count, "{}", self.body);
    }
}

/// Reads a response to its end.
pub(crate) fn answer(stream: &mut TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a whole response");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {head}"));
    Answer { status, body: serde_json::from_str(body).unwrap_or(Value::Null) }
}
