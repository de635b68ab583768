//! The whole HTTP router on a loopback socket, against a bare axum handler that echoes a body of the same size.
//!
//! A third handler reads nothing and says nothing: it issues the bare commands and echoes. What it reaches is what Redis and its
//! crate leave to any router.
//!
//! One server thread for both, as in [`super`]; the client has a thread of its own and does as little as it can: it writes
//! requests made before and reads as far as the answer's length says.

use std::sync::Arc;

use axum::body::Bytes;
use axum::routing::post;
use axum::{Extension, Router};
use check::{App, Asked};
use ledger_lambda::env::Tenants;
use ledger_lambda::http::Caller;
use ledger_testkit::redis_server::RedisServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::bare::Bare;
use super::load::{Load, POPULATION, Side as _};
use super::ours::{SCOPE, key_text, ledger, payload_of};
use super::{MANY, PAIRS};
use crate::one_thread;
use crate::table::{Mark, Table};
use crate::timing::{Pairs, now, spread};

/// Requests in a sample.
const REQUESTS: usize = 4_000;
/// The longest answer the client takes, head and body.
const ANSWER_MAX_BYTES: usize = 16 * 1_024;
/// What stands in an answer that is the request's own body.
const ECHOED: &str = "payloadSha256";
/// What svix/diom, the nearest peer in Rust, was measured at on such a machine, in requests a second.
const DIOM_PER_SECOND: f64 = 6_300.0;

/// A row for NEW and one for SEEN.
pub(super) fn run(server: &RedisServer, table: &mut Table) {
    let () = server.command(&["FLUSHALL", "SYNC"]);
    let (send_address, address) = std::sync::mpsc::channel();
    let url = server.url().to_owned();
    std::thread::spawn(move || one_thread().block_on(serve(&url, &send_address)));
    let address: u16 = address.recv().expect("the server starts");

    one_thread().block_on(async {
        let all = (0..POPULATION).map(|number| request("/v1/check", number)).collect();
        drive(address, all, "\"NEW\"").await;
        let mut next = POPULATION;
        for (what, load, expected, bare_path) in
            [("NEW", Load::New, "\"NEW\"", "/bare/new"), ("SEEN", Load::Seen, "\"SEEN\"", "/bare/seen")]
        {
            let mut sample = |path: &'static str, expected: &'static str| {
                let requests = (0..REQUESTS).map(|_| {
                    next += 1;
                    request(path, if load == Load::New { next } else { spread(next) % POPULATION })
                });
                drive(address, requests.collect(), expected)
            };
            let targets = [("/v1/check", expected), (bare_path, ECHOED), ("/echo", ECHOED)];
            let (mut to_echo, mut bare_to_echo, mut to_bare) = (Pairs::default(), Pairs::default(), Pairs::default());
            for index in 0..=PAIRS {
                let mut rates = [0.0; 3];
                for turn in 0..targets.len() {
                    let at = (index + turn) % targets.len();
                    rates[at] = sample(targets[at].0, targets[at].1).await;
                }
                let [ours, bare, echo] = rates;
                // The first round warms up.
                if index > 0 {
                    to_echo.push(ours, echo);
                    bare_to_echo.push(bare, echo);
                    to_bare.push(ours, bare);
                }
            }
            let row = |which: &str| format!("{which}, {what}, 50 at once");
            table.push_rates(row("HTTP router to axum echo"), &to_echo, Mark::AtLeast(0.4), "requests");
            table.push_rates(row("bare commands behind axum to echo"), &bare_to_echo, Mark::None, "requests");
            table.push_rates(row("HTTP router to bare behind axum"), &to_bare, Mark::None, "requests");
            let to_diom = to_echo.ours().median / DIOM_PER_SECOND;
            println!("  {to_diom:.1} times the 6.3 k/s that svix/diom was measured at");
        }
    });
}

/// Serves the check function's routes and the echo until the process ends.
async fn serve(url: &str, address: &std::sync::mpsc::Sender<u16>) {
    let app = App { ledger: ledger(url).await, tenants: Tenants::All, default_tenant: None, asked: Asked::default() };
    let bare = Arc::new(Bare::connect(url).await);
    bare.populate().await;
    let by_bare = |load: Load| {
        let bare = Arc::clone(&bare);
        post(move |body: Bytes| async move {
            for call in bare.calls(load, 1, 1) {
                bare.call(call).await;
            }
            body
        })
    };
    let echo = Router::new()
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/bare/new", by_bare(Load::New))
        .route("/bare/seen", by_bare(Load::Seen));
    let routes = routes(app).merge(echo);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    address.send(listener.local_addr().expect("a bound listener has an address").port()).expect("somebody waits");
    axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true))), routes)
        .await
        .expect("the server serves");
}

/// The check function's routes, for a caller that the gateway has named.
pub(crate) fn routes(app: App) -> Router {
    let caller = Caller::named("bench").expect("a principal");
    check::router(Arc::new(app)).layer(Extension(caller))
}

/// What the check of `number` is asked with.
pub(crate) fn body_of(number: u64) -> String {
    let hash: String = payload_of(number).iter().map(|byte| format!("{byte:02x}")).collect();
    let key = key_text(number);
    format!(r#"{{"scope":"{SCOPE}","key":"{key}","payloadSha256":"{hash}"}}"#)
}

fn request(path: &str, number: u64) -> Vec<u8> {
    let body = body_of(number);
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: ledger\r\ncontent-type: application/json\r\ncontent-length: {length}");
    format!("{head}\r\n\r\n{body}").into_bytes()
}

/// Requests answered in a second, over [`MANY`] connections. Each answer is 200 and holds `expected`.
async fn drive(port: u16, requests: Vec<Vec<u8>>, expected: &'static str) -> f64 {
    let count = requests.len();
    let mut connections = Vec::with_capacity(MANY);
    for _ in 0..MANY {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket option");
        connections.push(stream);
    }
    let mut shares: Vec<Vec<Vec<u8>>> = (0..MANY).map(|_| Vec::with_capacity(count / MANY + 1)).collect();
    for (index, request) in requests.into_iter().enumerate() {
        shares[index % MANY].push(request);
    }
    let started = now();
    let tasks: Vec<_> = connections
        .into_iter()
        .zip(shares)
        .map(|(mut stream, share)| {
            tokio::spawn(async move {
                let mut answer = Vec::with_capacity(ANSWER_MAX_BYTES);
                for request in share {
                    stream.write_all(&request).await.expect("the server reads");
                    read_answer(&mut stream, &mut answer).await;
                    let text = str::from_utf8(&answer).expect("an answer in UTF-8");
                    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains(expected), "{text}");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("every answer is as expected");
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// One answer, head and body, into `answer`.
async fn read_answer(stream: &mut TcpStream, answer: &mut Vec<u8>) {
    answer.clear();
    loop {
        let read = stream.read_buf(answer).await.expect("the server answers");
        assert!(read > 0 && answer.len() <= ANSWER_MAX_BYTES, "the whole answer comes");
        if whole_length(answer).is_some_and(|length| answer.len() >= length) {
            return;
        }
    }
}

/// How long the answer is that begins so, once its head is there.
fn whole_length(answer: &[u8]) -> Option<usize> {
    let head_length = answer.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = str::from_utf8(answer.get(..head_length)?).ok()?;
    let body_length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    Some(head_length + body_length.parse::<usize>().ok()?)
}
