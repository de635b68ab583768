//! A TCP proxy between a process and a server, to cut off that process alone.
#![allow(clippy::expect_used, reason = "a fixture that cannot start fails the test at once")]

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The most that is read at once and held back.
const CHUNK_BYTES: usize = 16 * 1024;

/// What the proxy does with what it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Pass,
    /// Passes everything on later, in either direction.
    Delay {
        /// By so much, in milliseconds.
        by_ms: u64,
    },
    /// Says nothing. A new connection is accepted, what it sends is swallowed, and it is reset when this ends. One that stands
    /// already is held, and what was sent on it arrives when this ends: so TCP does it over a network that was cut.
    BlackHole,
    /// Resets each new connection at once; those that stand go on.
    Refuse,
    /// Passes on what the server says, and keeps what the client says until this ends; [`TcpProxy::holds`] tells what.
    HoldRequests,
    /// The other way round: the server has done what it was asked, and the client does not hear of it before this ends.
    HoldReplies,
}

#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    target: SocketAddr,
    /// Counts [`TcpProxy::reset`].
    resets: u64,
}

/// The proxy. It listens on a port of its own until it is dropped.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    held: Held,
    accepting: JoinHandle<()>,
}

/// What is kept back, of all connections.
type Held = Arc<Mutex<Vec<u8>>>;

impl TcpProxy {
    /// A proxy before `target` that passes everything on.
    ///
    /// # Panics
    /// Where no port is free.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (state, seen) = watch::channel(State { mode: Mode::Pass, target, resets: 0 });
        let held = Held::default();
        let accepting = tokio::spawn(accept(listener, seen, Arc::clone(&held)));
        Self { address, state, held, accepting }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does from now on, to connections that stand too.
    pub fn set_mode(&self, mode: Mode) {
        lock(&self.held).clear();
        self.state.send_modify(|state| state.mode = mode);
    }

    /// Whether these bytes are in what it keeps back, since it was told to.
    #[must_use]
    pub fn holds(&self, bytes: &[u8]) -> bool {
        lock(&self.held).windows(bytes.len()).any(|held| held == bytes)
    }

    /// Where new connections lead from now on; those that stand go on.
    pub fn set_target(&self, target: SocketAddr) {
        self.state.send_modify(|state| state.target = target);
    }

    /// Resets each connection that stands.
    pub fn reset(&self) {
        self.state.send_modify(|state| state.resets += 1);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        // The connections go with it.
        self.accepting.abort();
    }
}

fn lock(held: &Held) -> MutexGuard<'_, Vec<u8>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: watch::Receiver<State>, held: Held) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((client, _)) = listener.accept().await {
            connections.spawn(serve(client, state.clone(), Arc::clone(&held)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, mut state: watch::Receiver<State>, held: Held) {
    let State { mode, target, resets } = *state.borrow_and_update();
    match mode {
        Mode::Refuse => close_by_reset(&client),
        Mode::BlackHole => {
            let mut over = state.clone();
            let over = over.wait_for(|now| now.mode != Mode::BlackHole || now.resets != resets);
            tokio::select! {
                _ = over => close_by_reset(&client),
                () = swallow(&mut client) => {}
            }
        }
        Mode::Pass | Mode::Delay { .. } | Mode::HoldRequests | Mode::HoldReplies => {
            // Where nobody answers there, the client finds its connection reset.
            let Ok(mut server) = TcpStream::connect(target).await else { return close_by_reset(&client) };
            // Small requests must not wait for one another here either.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let is_reset = {
                let (from_client, to_client) = client.split();
                let (from_server, to_server) = server.split();
                let both = async {
                    let there = pump(from_client, to_server, state.clone(), (Mode::HoldRequests, &held));
                    let back = pump(from_server, to_client, state.clone(), (Mode::HoldReplies, &held));
                    tokio::try_join!(there, back)
                };
                let mut reset = state.clone();
                tokio::select! {
                    passed = both => passed.is_err(),
                    _ = reset.wait_for(|now| now.resets != resets) => true,
                }
            };
            if is_reset {
                close_by_reset(&client);
                close_by_reset(&server);
            }
        }
    }
}

/// Reads and forgets until the other side closes.
async fn swallow(client: &mut TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while client.read(&mut chunk).await.is_ok_and(|bytes| bytes > 0) {}
}

/// With nothing to linger for, closing a connection resets it. One that is closed already need not be.
fn close_by_reset(connection: &TcpStream) {
    let _ = connection.set_zero_linger();
}

/// Passes on what one side says until it closes. In the mode `held_in` it is kept back.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    (held_in, held): (Mode, &Held),
) -> io::Result<()> {
    let gone = |_| io::Error::from(io::ErrorKind::ConnectionAborted);
    let mut chunk = vec![0; CHUNK_BYTES];
    // What was said and is not passed on yet.
    let mut said = Vec::new();
    loop {
        state.wait_for(|now| now.mode != Mode::BlackHole).await.map_err(gone)?;
        let read = tokio::select! {
            bytes = from.read(&mut chunk) => Some(bytes?),
            changed = state.changed() => {
                changed.map_err(gone)?;
                None
            }
        };
        let is_end = read == Some(0);
        let heard = &chunk[..read.unwrap_or(0)];
        said.extend_from_slice(heard);
        let mut mode = state.wait_for(|now| now.mode != Mode::BlackHole).await.map_err(gone)?.mode;
        if mode == held_in && !said.is_empty() {
            lock(held).extend_from_slice(heard);
            if !is_end {
                continue;
            }
            let passes = |now: &State| now.mode != held_in && now.mode != Mode::BlackHole;
            mode = state.wait_for(passes).await.map_err(gone)?.mode;
        }
        if let (Mode::Delay { by_ms }, Some(_)) = (mode, read) {
            tokio::time::sleep(Duration::from_millis(by_ms)).await;
        }
        to.write_all(&said).await?;
        said.clear();
        if is_end {
            return to.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    /// Long enough for a local connection to do anything that it will do; nothing passes by being faster.
    const SOON: Duration = Duration::from_millis(200);
    const LIMIT: Duration = Duration::from_secs(30);

    /// A server that says everything again, after its own letter.
    async fn echo(letter: u8) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut byte = [0; 1];
                    while connection.read_exact(&mut byte).await.is_ok() {
                        connection.write_all(&[letter, byte[0]]).await.unwrap();
                    }
                });
            }
        });
        address
    }

    async fn started() -> (TcpProxy, TcpStream) {
        let proxy = TcpProxy::start(echo(b'a').await).await;
        let mut connection = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut connection, b'0').await.unwrap(), [b'a', b'0']);
        (proxy, connection)
    }

    async fn ask(connection: &mut TcpStream, byte: u8) -> io::Result<[u8; 2]> {
        connection.write_all(&[byte]).await?;
        answer(connection).await
    }

    async fn answer(connection: &mut TcpStream) -> io::Result<[u8; 2]> {
        let mut reply = [0; 2];
        timeout(LIMIT, connection.read_exact(&mut reply)).await.expect("an end of it")?;
        Ok(reply)
    }

    async fn is_silent(connection: &mut TcpStream) -> bool {
        timeout(SOON, connection.read(&mut [0; 1])).await.is_err()
    }

    #[tokio::test]
    async fn a_black_hole_holds_what_stands_and_swallows_what_is_new() {
        let (proxy, mut old) = started().await;
        proxy.set_mode(Mode::BlackHole);
        old.write_all(b"1").await.unwrap();
        assert!(is_silent(&mut old).await);
        let mut new = TcpStream::connect(proxy.address()).await.expect("it is accepted");
        new.write_all(b"2").await.unwrap();
        assert!(is_silent(&mut new).await);
        proxy.set_mode(Mode::Pass);
        assert_eq!(answer(&mut old).await.unwrap(), [b'a', b'1'], "late, but not lost");
        assert!(answer(&mut new).await.is_err(), "lost, and it is told so");
        assert_eq!(ask(&mut old, b'3').await.unwrap(), [b'a', b'3']);
    }

    #[tokio::test]
    async fn what_is_on_its_way_back_is_held_too() {
        let (proxy, mut connection) = started().await;
        proxy.set_mode(Mode::Delay { by_ms: 100 });
        connection.write_all(b"1").await.unwrap();
        // The request is in the proxy's hand, or the answer is.
        proxy.set_mode(Mode::BlackHole);
        assert!(is_silent(&mut connection).await);
        proxy.set_mode(Mode::Pass);
        assert_eq!(answer(&mut connection).await.unwrap(), [b'a', b'1']);
    }

    #[tokio::test]
    async fn a_reset_ends_what_stands_and_nothing_else() {
        let (proxy, mut old) = started().await;
        proxy.reset();
        let error = answer(&mut old).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut new, b'1').await.unwrap(), [b'a', b'1']);
        proxy.set_mode(Mode::BlackHole);
        let mut swallowed = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(is_silent(&mut swallowed).await);
        proxy.reset();
        assert!(answer(&mut swallowed).await.is_err());
    }

    #[tokio::test]
    async fn what_is_refused_is_new() {
        let (proxy, mut old) = started().await;
        proxy.set_mode(Mode::Refuse);
        // The kernel accepts before the proxy can refuse.
        if let Ok(mut new) = TcpStream::connect(proxy.address()).await {
            assert!(ask(&mut new, b'1').await.is_err());
        }
        assert_eq!(ask(&mut old, b'2').await.unwrap(), [b'a', b'2']);
    }

    #[tokio::test]
    async fn another_target_is_for_new_connections() {
        let (proxy, mut old) = started().await;
        proxy.set_target(echo(b'b').await);
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut new, b'1').await.unwrap(), [b'b', b'1']);
        assert_eq!(ask(&mut old, b'2').await.unwrap(), [b'a', b'2']);
        let closed = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
        proxy.set_target(closed);
        let mut nobody = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(ask(&mut nobody, b'3').await.is_err());
    }

    #[tokio::test]
    async fn what_one_side_says_is_kept_back_and_comes_when_that_ends() {
        let (proxy, mut connection) = started().await;
        proxy.set_mode(Mode::HoldRequests);
        connection.write_all(b"1").await.unwrap();
        assert!(is_silent(&mut connection).await);
        assert!(proxy.holds(b"1") && !proxy.holds(b"a"), "the server has not heard of it");
        proxy.set_mode(Mode::HoldReplies);
        assert!(is_silent(&mut connection).await);
        assert!(proxy.holds(b"a1"), "now it has");
        connection.write_all(b"2").await.unwrap();
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        new.write_all(b"3").await.unwrap();
        assert!(is_silent(&mut new).await && is_silent(&mut connection).await);
        assert!(proxy.holds(b"a2") && proxy.holds(b"a3"));
        connection.shutdown().await.unwrap();
        assert!(is_silent(&mut connection).await, "the end comes after what was said before it");
        proxy.set_mode(Mode::Pass);
        assert!(!proxy.holds(b"a"));
        assert_eq!(answer(&mut connection).await.unwrap(), [b'a', b'1']);
        assert_eq!(answer(&mut connection).await.unwrap(), [b'a', b'2']);
        assert_eq!(timeout(LIMIT, connection.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
        assert_eq!(answer(&mut new).await.unwrap(), [b'a', b'3']);
        assert_eq!(ask(&mut new, b'4').await.unwrap(), [b'a', b'4']);
    }

    #[tokio::test]
    async fn a_delay_holds_up_both_ways() {
        let (proxy, mut connection) = started().await;
        proxy.set_mode(Mode::Delay { by_ms: 60 });
        let asked_at = Instant::now();
        assert_eq!(ask(&mut connection, b'1').await.unwrap(), [b'a', b'1']);
        assert!(asked_at.elapsed() >= Duration::from_millis(120));
    }

    #[tokio::test]
    async fn an_end_is_passed_on() {
        let (proxy, mut connection) = started().await;
        connection.shutdown().await.unwrap();
        assert_eq!(timeout(LIMIT, connection.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
        drop(proxy);
    }
}
