//! What an SQS failure says of the fact: each kind on a server that fails in just that way.

#![expect(clippy::expect_used, reason = "a test; its helpers too may fail loudly")]

use std::net::SocketAddr;

use ledger_domain::ports::{EventQueue as _, StoreError};
use ledger_stores::sqs::{SqsQueue, SqsSettings};
use ledger_testkit::aws_server::{AwsServer, config_for};
use ledger_testkit::event_queue::{did_not_happen, sample_fact};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Where an answer comes: long enough for the slowest machine.
const PATIENT_MS: u64 = 60_000;
/// Where none comes.
const IMPATIENT_MS: u64 = 300;

async fn queue_at(endpoint_url: &str, path: &str, send_attempt_timeout_ms: u64) -> SqsQueue {
    let settings = SqsSettings { send_attempt_timeout_ms, ..SqsSettings::new(format!("{endpoint_url}/{path}")) };
    SqsQueue::new(&config_for(endpoint_url).await, settings)
}

async fn send_one(endpoint: &str) -> Result<(), StoreError> {
    send_one_within(endpoint, PATIENT_MS).await
}

async fn send_one_within(endpoint: &str, timeout_ms: u64) -> Result<(), StoreError> {
    let mut outcomes = queue_at(endpoint, "1/facts", timeout_ms).await.send(&[sample_fact("m", 0)]).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// A server that takes requests, reads each to its end, and then does as its script says; the last line repeats.
async fn scripted(script: &'static [Reply]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address: SocketAddr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut next = 0;
        let mut silent = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            read_request(&mut stream).await;
            match &script[next.min(script.len() - 1)] {
                Reply::Status(status, body) => {
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/x-amz-json-1.0\r\n");
                    let answer = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
                    stream.write_all(answer.as_bytes()).await.expect("written");
                }
                Reply::Close => drop(stream),
                Reply::Silence => silent.push(stream),
            }
            next += 1;
        }
    });
    format!("http://{address}")
}

enum Reply {
    Status(&'static str, &'static str),
    Close,
    Silence,
}

async fn read_request(stream: &mut TcpStream) {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|text| text.trim().parse().ok()).unwrap_or(0) {
                return;
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
}

const THROTTLED: Reply =
    Reply::Status("400 Bad Request", r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"slow down"}"#);
const SENT: Reply =
    Reply::Status("200 OK", r#"{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"0"}],"Failed":[]}"#);

#[tokio::test]
async fn nobody_listens_did_not_happen() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let outcome = send_one(&format!("http://{address}")).await;
    assert!(did_not_happen(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn no_answer_in_time_may_have_happened() {
    let outcome = send_one_within(&scripted(&[Reply::Silence]).await, IMPATIENT_MS).await;
    assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_connection_that_ends_without_an_answer_may_have_happened() {
    let outcome = send_one(&scripted(&[Reply::Close]).await).await;
    assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_server_error_may_have_happened() {
    let outcome = send_one(&scripted(&[Reply::Status("500 Internal Server Error", "{}")]).await).await;
    assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })), "{outcome:?}");
}

#[tokio::test]
async fn throttled_did_not_happen() {
    let outcome = send_one(&scripted(&[THROTTLED]).await).await;
    assert!(did_not_happen(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn throttled_once_is_sent_by_the_second_attempt() {
    let outcome = send_one(&scripted(&[THROTTLED, SENT]).await).await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

#[tokio::test]
async fn a_lost_attempt_followed_by_a_clear_no_may_have_happened() {
    let outcome = send_one(&scripted(&[Reply::Close, THROTTLED]).await).await;
    assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })), "{outcome:?}");
}

#[tokio::test]
async fn an_answer_that_names_no_outcome_may_have_happened() {
    let empty = Reply::Status("200 OK", r#"{"Successful":[],"Failed":[]}"#);
    let script: &'static [Reply] = Box::leak(Box::new([empty]));
    let outcome = send_one(&scripted(script).await).await;
    assert!(matches!(outcome, Err(StoreError::MayHaveHappened { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_queue_that_is_not_there_did_not_happen() {
    let server = AwsServer::shared();
    let outcomes =
        queue_at(server.endpoint_url(), "123456789012/nobody", PATIENT_MS).await.send(&[sample_fact("m", 0)]).await;
    assert!(outcomes.iter().all(did_not_happen), "{outcomes:?}");
}

#[tokio::test]
async fn one_message_that_is_too_long_is_refused_alone() {
    let server = AwsServer::shared();
    let config = server.config().await;
    let client = aws_sdk_sqs::Client::new(&config);
    let small = aws_sdk_sqs::types::QueueAttributeName::MaximumMessageSize;
    let created = client.create_queue().queue_name("small").attributes(small, "1024").send().await.expect("created");
    let queue = SqsQueue::new(
        &config,
        SqsSettings { send_attempt_timeout_ms: PATIENT_MS, ..SqsSettings::new(created.queue_url.expect("a URL")) },
    );
    let outcomes = queue.send(&[sample_fact("a", 0), sample_fact(&"k".repeat(1_000), 1), sample_fact("b", 2)]).await;
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert!(matches!(outcomes[1], Err(StoreError::Rejected { .. })), "{outcomes:?}");
    assert_eq!(queue.depth().await.expect("depth").waiting, 2);
}
