//! A local stand-in for AWS: moto's server, started by the test that needs it.
//!
//! What it does not show, so nothing here proves it: who may do what (IAM is not checked, any credentials will do),
//! throttling and the service's own failures, delayed consistency (its depths are exact at once), reordering and spontaneous
//! redelivery, and which characters a message may hold. It does check the size of a message and of a batch, receipts,
//! visibility, redrive to a dead-letter queue, and paging in DynamoDB.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use aws_config::timeout::TimeoutConfig;

/// Names moto's server program; without it `moto_server` is looked for in `PATH`.
pub const PROGRAM_VARIABLE: &str = "LEDGER_MOTO_SERVER";

/// A running moto server. It is killed when this is dropped and, by the kernel, when the test process ends.
pub struct AwsServer {
    endpoint_url: String,
    process_id: u32,
}

impl fmt::Debug for AwsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsServer").field("endpoint_url", &self.endpoint_url).finish_non_exhaustive()
    }
}

impl AwsServer {
    /// Starts a server on a free port and waits until it listens.
    ///
    /// # Panics
    /// Where the program is missing or does not start; the message says how to install it. Nothing is skipped.
    #[must_use]
    pub fn start() -> Self {
        let (told, heard) = mpsc::channel();
        // The kernel kills the child when the *thread* that started it ends, so that thread lives as long as the child.
        let keeper = std::thread::Builder::new().name("moto".to_owned()).spawn(move || keep(&told));
        assert!(keeper.is_ok(), "a thread for moto's server: {keeper:?}");
        match heard.recv() {
            Ok(Ok(server)) => server,
            Ok(Err(problem)) => panic!(
                "moto's server did not start: {problem}\n\
                 Install it (pip install 'moto[server]') and put moto_server into PATH or its path into {PROGRAM_VARIABLE}."
            ),
            Err(_) => panic!("moto's server: its keeper ended before it told anything"),
        }
    }

    /// The one server of this test process: started with the first call, ended with the process.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<AwsServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Where it listens: `http://127.0.0.1:PORT`, for every service.
    #[must_use]
    pub fn endpoint_url(&self) -> &str {
        &self.endpoint_url
    }

    /// A client configuration for this server. Region, endpoint and credentials are given here: neither the environment nor
    /// the network is asked for them.
    pub async fn config(&self) -> aws_config::SdkConfig {
        config_for(&self.endpoint_url).await
    }
}

/// How long one call may take, in seconds: a busy machine is no failure.
const CALL_TIMEOUT_SECONDS: u64 = 60;

/// A client configuration for any endpoint, with made-up credentials and long timeouts, otherwise as in production.
pub async fn config_for(endpoint_url: &str) -> aws_config::SdkConfig {
    let credentials = aws_sdk_sqs::config::Credentials::new("testing", "testing", None, None, "testkit");
    let timeout = Duration::from_secs(CALL_TIMEOUT_SECONDS);
    let timeouts = TimeoutConfig::builder().operation_timeout(timeout).operation_attempt_timeout(timeout).build();
    ledger_stores::aws::load_with(|loader| {
        loader
            .region(aws_config::Region::new("eu-central-1"))
            .endpoint_url(endpoint_url)
            .credentials_provider(credentials)
            .timeout_config(timeouts)
    })
    .await
}

impl Drop for AwsServer {
    fn drop(&mut self) {
        // The keeper thread reaps it once its output ends. A failure means that it has ended already.
        let killed = Command::new("kill").args(["-KILL", &self.process_id.to_string()]).status();
        drop(killed);
    }
}

/// Starts the server, tells where it listens, and stays until it ends: it reads the server's log, so that the pipe never
/// fills, and reaps the process.
fn keep(told: &mpsc::Sender<Result<AwsServer, String>>) {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads where the test's server program is")]
    let program = std::env::var(PROGRAM_VARIABLE).unwrap_or_else(|_| "moto_server".to_owned());
    // Port 0: the kernel picks a free one, and the server's log says which.
    let started = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", &program, "-H", "127.0.0.1", "-p", "0"])
        .env("PYTHONUNBUFFERED", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(e) => return drop(told.send(Err(format!("setpriv (util-linux) for {program}: {e}")))),
    };
    let process_id = child.id();
    let mut log = String::new();
    let mut listening = false;
    for line in child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok) {
        if listening {
            continue;
        }
        if let Some((_, url)) = line.split_once("Running on ") {
            let endpoint_url = url.trim().to_owned();
            listening = told.send(Ok(AwsServer { endpoint_url, process_id })).is_ok();
        }
        log.push_str(&line);
        log.push('\n');
    }
    let status = child.wait();
    if !listening {
        drop(told.send(Err(format!("{program} ended with {status:?}:\n{log}"))));
    }
}
