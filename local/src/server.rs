//! The HTTP server of `local`: bounded on every side that a slow or greedy client could push.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use ledger_lambda::http::{Caller, Kind, Problem, body};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// The server's limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a connection may take to send a request's head, idle time before it included, in milliseconds.
    pub(crate) header_timeout_ms: u64,
    /// How long a request's body may take, in milliseconds.
    pub(crate) body_timeout_ms: u64,
    /// How many connections are served at once; a further one waits to be accepted.
    pub(crate) connections_max: usize,
    /// How long requests under way may take after a stop was asked for, in milliseconds.
    pub(crate) drain_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { header_timeout_ms: 10_000, body_timeout_ms: 10_000, connections_max: 1_024, drain_timeout_ms: 10_000 }
    }
}

/// Serves `router` until `stop` completes, then lets requests under way finish.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    caller: Caller,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let router = router
        .layer(from_fn(move |request, next| bounded_body(request, next, limits.body_timeout_ms)))
        .layer(axum::Extension(caller));
    let connections = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = graceful.watch(connection(stream, router.clone(), limits));
                tokio::spawn(async move {
                    // A client that breaks off is no concern of ours; its request ends or was never begun.
                    drop(connection.await);
                    drop(permit);
                });
            }
            // Out of file handles, or a connection gone before it was accepted: others go on.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let drained = tokio::time::timeout(Duration::from_millis(limits.drain_timeout_ms), graceful.shutdown()).await;
    if drained.is_err() {
        tracing::warn!(timeout_ms = limits.drain_timeout_ms, "requests were still under way at the end of the drain");
    }
}

fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> {
    drop(stream.set_nodelay(true));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request.map(Body::new)).await.into_response()) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_timeout_ms))
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), service)
}

/// Collects the body before the router sees the request, within its size and time.
async fn bounded_body(request: Request, next: Next, timeout_ms: u64) -> Response {
    let (parts, incoming) = request.into_parts();
    match tokio::time::timeout(Duration::from_millis(timeout_ms), body::collect(incoming)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(problem)) => problem.into_response(),
        Err(_) => {
            let detail = format!("the body did not arrive within {timeout_ms} ms");
            Problem::new(Kind::RequestTimeout, detail).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMITS: Limits =
        Limits { header_timeout_ms: 200, body_timeout_ms: 200, connections_max: 2, drain_timeout_ms: 5_000 };

    async fn start() -> std::net::SocketAddr {
        let router = Router::new().route("/echo", post(|body: String| async move { body }));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let caller = Caller::named("test").expect("valid");
        tokio::spawn(serve(listener, router, caller, LIMITS, std::future::pending()));
        addr
    }

    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        drop(stream.read_to_string(&mut text).await);
        text
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut_off() {
        let mut stream = TcpStream::connect(start().await).await.expect("connects");
        stream.write_all(b"POST /echo HTTP/1.1\r\nHost: x\r\n").await.expect("sent");
        assert!(!answer(&mut stream).await.contains("200 OK"));
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_a_408() {
        let mut stream = TcpStream::connect(start().await).await.expect("connects");
        let head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\nab";
        stream.write_all(head).await.expect("sent");
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 408"));
    }

    #[tokio::test]
    async fn a_body_over_1_mib_is_a_413_unread() {
        let mut stream = TcpStream::connect(start().await).await.expect("connects");
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body::BODY_MAX_BYTES + 1
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        // The server may hang up before all of it is sent.
        drop(stream.write_all(&vec![b'a'; body::BODY_MAX_BYTES + 1]).await);
        let text = answer(&mut stream).await;
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 413"), "{text}");
    }

    #[tokio::test]
    async fn a_connection_over_the_cap_waits_and_is_then_served() {
        let addr = start().await;
        let idle =
            [TcpStream::connect(addr).await.expect("connects"), TcpStream::connect(addr).await.expect("connects")];
        let mut third = TcpStream::connect(addr).await.expect("connects");
        let request = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        third.write_all(request).await.expect("sent");
        // The idle ones are cut off by the header limit; the third is served only then.
        let text = answer(&mut third).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        drop(idle);
    }
}
