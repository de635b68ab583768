//! Server processes that end with the test, however it ends.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// How often a condition is looked at before it counts as never coming: 30 s in all.
const POLLS_MAX: u32 = 1_200;
const POLL_EVERY: Duration = Duration::from_millis(25);

type Spawn = (Command, mpsc::Sender<std::io::Result<Child>>);

/// The thread that starts servers and never ends. The kernel kills a child when the *thread* that started it ends; a
/// test's own thread may end before its server is to.
static SPAWNER: LazyLock<Mutex<mpsc::Sender<Spawn>>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<Spawn>();
    thread::spawn(move || {
        for (mut command, reply) in receiver {
            // Where nobody waits any more, the child is dropped with the message.
            drop(reply.send(command.spawn()));
        }
    });
    Mutex::new(sender)
});

/// A running server. Killed when dropped, and by the kernel when the test process ends in any other way.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with `args`; its output goes to `log`.
    ///
    /// # Panics
    /// Where `setpriv` or `program` is not installed.
    pub(crate) fn start(program: &str, args: &[String], log: PathBuf) -> Self {
        let out = File::create(&log).expect("create the server's log");
        let err = out.try_clone().expect("share the server's log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]).args(args);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let (sender, receiver) = mpsc::channel();
        SPAWNER.lock().expect("no spawn panicked").send((command, sender)).expect("the spawner never ends");
        let child = receiver.recv().expect("the spawner answers").unwrap_or_else(|error| {
            panic!("setpriv (util-linux) must be installed to start {program}: {error}");
        });
        Self { child, log }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("ask after the server").is_some()
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        run("kill", &["-s", name, &self.child.id().to_string()], Path::new("/"));
    }

    /// What it wrote.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind to a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

/// Looks again and again until `probe` gives something; `None` where it never does.
pub(crate) fn poll<T>(mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..POLLS_MAX {
        if let Some(found) = probe() {
            return Some(found);
        }
        thread::sleep(POLL_EVERY);
    }
    None
}

/// Runs a program to its end.
///
/// # Panics
/// Where it is not installed or fails.
pub(crate) fn run(program: &str, args: &[&str], dir: &Path) {
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap_or_else(|error| panic!("{program} must be installed: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
