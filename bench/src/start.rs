//! How large a release build of the check function is, and how soon after its start it asks for work.
//!
//! A listener in this process acts as the Lambda runtime API; the time ends when the first request for an invocation is
//! there. Redis runs, as it would; the other addresses lead nowhere: to wait for them before would show.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ledger_testkit::redis_server::RedisServer;

use crate::table::{Mark, Table};
use crate::timing::{Spread, now};

/// Starts that the median is of.
const STARTS: usize = 21;
/// The request for work.
const NEXT: &str = "GET /2018-06-01/runtime/invocation/next ";
/// What it asks besides, to be told of its end.
const REGISTER: &str = "POST /2020-01-01/extension/register ";
const EVENT: &str = "GET /2020-01-01/extension/event/next ";
/// The body of the answer to [`REGISTER`].
const REGISTERED: &str = r#"{"functionName":"check","functionVersion":"1","handler":"bootstrap"}"#;
const MEGABYTE: f64 = 1e6;

/// A started function, ended with the measurement.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Both rows.
///
/// # Panics
/// Where `binary` is not there or does not ask for work.
pub(crate) fn run(table: &mut Table, binary: &Path) {
    let Ok(binary) = binary.canonicalize() else {
        panic!("{} is not there: `cargo build --release -p check` builds it", binary.display());
    };
    let bytes = binary.metadata().expect("a file has a size").len();
    let size = Spread::of([bytes as f64 / MEGABYTE]);
    table.push("size of check, MB, stripped by the profile", size, Mark::Under(16.0), format!("{bytes} bytes"));

    let redis = RedisServer::start();
    let starts: Vec<f64> = (0..=STARTS).map(|_| start_ms(&binary, redis.url())).collect();
    // The first one reads the file from disk.
    let (first, others) = starts.split_first().expect("it was started");
    let absolute = format!("the first of all: {first:.1} ms");
    table.push(
        "exec of check to its request for work, ms",
        Spread::of(others.iter().copied()),
        Mark::Under(20.0),
        absolute,
    );
}

/// Starts it once; the milliseconds until it asks for work.
fn start_ms(binary: &Path, redis_url: &str) -> f64 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let environment = [
        ("AWS_LAMBDA_RUNTIME_API", address.as_str()),
        ("AWS_LAMBDA_FUNCTION_NAME", "check"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "check"),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "check"),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("REDIS_URL", redis_url),
        ("SQS_QUEUE_URL", "http://127.0.0.1:9/000000000000/facts"),
        ("POLICY_TABLE", "policies"),
        ("LEDGER_TENANTS", "tenant42"),
        ("LEDGER_TOKEN_KEYS", &"k".repeat(64)),
    ];
    let mut command = Command::new(binary);
    command.env_clear().envs(environment).stdin(Stdio::null()).stdout(Stdio::null());
    let started = now();
    let _started = Started(command.spawn().expect("a program"));
    // What was not answered yet stays open.
    let mut unanswered = Vec::new();
    for stream in listener.incoming() {
        let mut stream = stream.expect("it calls the runtime API");
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("it sends a request");
        if line.starts_with(NEXT) {
            return started.elapsed().as_secs_f64() * 1e3;
        }
        if line.starts_with(REGISTER) {
            read_rest(&mut reader);
            let head = "HTTP/1.1 200 OK\r\nlambda-extension-identifier: bench\r\nconnection: close\r\ncontent-length";
            write!(stream, "{head}: {}\r\n\r\n{REGISTERED}", REGISTERED.len()).expect("it reads the answer");
        } else {
            assert!(line.starts_with(EVENT), "it asks for work, or registers for the end, and does not say {line:?}");
            unanswered.push(stream);
        }
    }
    unreachable!("a listener takes connections without end")
}

/// The rest of a head, and the body behind it.
fn read_rest(reader: &mut impl BufRead) {
    let mut body_bytes = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("it sends the whole head");
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(length) = line.strip_prefix("content-length:") {
            body_bytes = length.trim().parse().expect("a length is a number");
        }
    }
    reader.read_exact(&mut vec![0; body_bytes]).expect("it sends the whole body");
}
