//! The hot tier on Redis 7+ or Valkey: one server, behind Sentinels, or a Cluster.
//!
//! A slot's sixteen bytes are its key, [`ledger_domain::value`]'s layout is its value. A process has one connection (to each
//! node of a cluster), and concurrent requests share it. Nothing whose reply was lost is sent again: the caller is told that
//! it may have happened. No call takes longer than connecting and one reply may; twice that where somebody has to be asked first who the
//! primary is, or nodes of a cluster send requests on.

mod cluster;
mod command;
mod connect;
mod error;
mod fill;
mod health;
mod layout;
mod marker;
mod routed;
mod scripts;
mod url;

use std::fmt;
use std::sync::Arc;

use ::redis::{ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use async_trait::async_trait;
use ledger_domain::ports::{
    Amend, Begin, Begun, Count, Fill, Heal, HotHealth, HotTier, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{FillPass, Slot, Timestamp};

use self::cluster::Cluster;
use self::command::Command;
use self::connect::{Connector, Live, no_address};
use self::error::failed;
use self::scripts::Call;
pub use self::url::{RedisUrl, RedisUrlError, Topology};

/// Why a hot tier could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RedisSetupError {
    /// The URL says something else than it should.
    #[error(transparent)]
    Url(#[from] RedisUrlError),
    /// The file of certificate authorities cannot be read.
    #[error("read the hot tier's ca_file {0}")]
    CaFile(std::path::PathBuf, #[source] std::io::Error),
    /// The client refuses the configuration, for example a file of no certificates.
    #[error("configure the hot tier's client")]
    Client(#[from] RedisError),
}

/// The hot tier on Redis.
pub struct RedisHotTier {
    url: RedisUrl,
    servers: Servers,
}

/// Where the tier is.
enum Servers {
    /// On one server, which may be another after a fail-over.
    One(Box<Connector>),
    /// Spread over a cluster's primaries.
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisHotTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHotTier").field("url", &self.url).finish_non_exhaustive()
    }
}

impl RedisHotTier {
    /// The tier that [`RedisUrl`] describes. It connects at its first use.
    ///
    /// # Errors
    /// [`RedisSetupError`] where the URL, the CA file or the two together cannot be used.
    pub fn open(url: &str) -> Result<Self, RedisSetupError> {
        let url = RedisUrl::parse(url)?;
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|error| RedisSetupError::CaFile(path.clone(), error))
        };
        let ca_pem = url.ca_file.as_ref().map(read).transpose()?;
        let servers = match &url.topology {
            Topology::Single => {
                let address = url.nodes.first().ok_or_else(no_address)?;
                Servers::One(Box::new(Connector::to(&url, address, ca_pem)?))
            }
            Topology::Sentinel(name) => Servers::One(Box::new(Connector::to_primary(&url, name, ca_pem)?)),
            Topology::Cluster => Servers::Cluster(Arc::new(Cluster::new(&url, ca_pem)?)),
        };
        Ok(Self { url, servers })
    }

    async fn all<C: Command>(&self, requests: &[C]) -> Vec<Result<C::Output, StoreError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let connector = match &self.servers {
            Servers::One(connector) => connector,
            // A large future, in which that of one command would be lost.
            Servers::Cluster(cluster) => {
                let replies = Box::pin(routed::routed(cluster, requests)).await;
                return requests.iter().zip(replies).map(|(request, reply)| outcome(request, reply?)).collect();
            }
        };
        let live = match connector.live().await {
            Ok(live) => live,
            Err(error) => {
                let error = StoreError::did_not_happen(C::OPERATION, error);
                return requests.iter().map(|_| Err(error.clone())).collect();
            }
        };
        match requests {
            [request] => vec![outcome(request, one(&live, request).await)],
            _ => {
                let replies = Box::pin(pipelined(&live, requests)).await;
                requests.iter().zip(replies).map(|(request, reply)| outcome(request, reply?)).collect()
            }
        }
    }
}

/// Sends requests on one connection, all at once.
async fn exchange<C: Command>(live: &Live, requests: &[C]) -> Vec<Reply> {
    match requests {
        [request] => vec![Ok(one(live, request).await)],
        _ => pipelined(live, requests).await,
    }
}

/// One command, no pipeline around it.
async fn one<C: Command>(live: &Live, request: &C) -> RedisResult<Value> {
    let mut reply = live.send(&request.command(Call::ByDigest)).await;
    if C::script().is_some() && reply.as_ref().is_err_and(is_no_script) {
        // Once for a server; in a place of its own, it does not weigh on every other call.
        let by_text = request.command(Call::ByText);
        reply = Box::pin(live.send(&by_text)).await;
    }
    reply
}

/// All at once. Where this connection has not called the script in a pipeline before, the first call leaves it with the
/// server for the others.
async fn pipelined<C: Command>(live: &Live, requests: &[C]) -> Vec<Reply> {
    let script = C::script();
    let known = script.is_none_or(|script| script.is_in(live.loaded()));
    let mut replies = send_all(live, requests, if known { Call::ByDigest } else { Call::ByText }).await;
    if let Some(script) = script {
        script.note(live.loaded());
        // The server has lost it since (SCRIPT FLUSH): what it refused did not happen, and is sent again. Not so what a later
        // request on the same slot has overtaken, for these take effect in their order.
        let is_refused = |reply: &Reply| matches!(reply, Ok(Err(error)) if is_no_script(error));
        let refused = |index: usize| is_refused(&replies[index]);
        let again: Vec<usize> =
            (0..replies.len()).filter(|index| refused(*index) && !overtaken(requests, *index, refused)).collect();
        if !again.is_empty() {
            let picked: Vec<&C> = again.iter().map(|index| &requests[*index]).collect();
            let second = send_all(live, &picked, Call::ByText).await;
            again.into_iter().zip(second).for_each(|(index, reply)| replies[index] = reply);
        }
    }
    replies
}

/// Whether a later request on the slot of the one at `index` was not refused.
fn overtaken<C: Command>(requests: &[C], index: usize, refused: impl Fn(usize) -> bool) -> bool {
    let mut later = requests.iter().enumerate().skip(index + 1);
    later.any(|(later, request)| request.slot() == requests[index].slot() && !refused(later))
}

/// The reply to one command of a pipeline, or why none is known.
type Reply = Result<RedisResult<Value>, StoreError>;

/// Sends requests in a pipeline, the first one's script as `first` says and the others' by digest; as many replies.
async fn send_all<C: Command>(live: &Live, requests: &[C], first: Call) -> Vec<Reply> {
    let mut pipeline = Pipeline::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        pipeline.add_command(request.command(if index == 0 { first } else { Call::ByDigest }));
    }
    let error = match live.send_all(&pipeline).await {
        Ok(replies) if replies.len() == requests.len() => return replies.into_iter().map(Ok).collect(),
        Ok(_) => error::unexpected_reply(),
        Err(error) => error,
    };
    requests.iter().map(|_| Err(unknown::<C>(error.clone()))).collect()
}

/// It was sent, and nobody knows what came of it.
fn unknown<C: Command>(error: RedisError) -> StoreError {
    StoreError::may_have_happened(C::OPERATION, error)
}

fn outcome<C: Command>(request: &C, reply: RedisResult<Value>) -> Result<C::Output, StoreError> {
    reply.and_then(|reply| request.read_reply(reply)).map_err(|error| failed(C::OPERATION, error))
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[async_trait]
impl HotTier for RedisHotTier {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        self.all(requests).await
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        self.all(requests).await
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        self.all(requests).await
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        self.all(requests).await
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        self.all(requests).await
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        self.all(requests).await
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        self.all(slots).await
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        fill::fill(self, requests).await
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        marker::begin_fill(&self.servers, pass).await
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        marker::end_fill(&self.servers, pass).await
    }

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.all(requests).await
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        health::time(&self.servers).await.map_err(|error| failed("ask the hot tier's time", error))
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        health::health(&self.servers).await.map_err(|error| failed("ask the hot tier's health", error))
    }
}
