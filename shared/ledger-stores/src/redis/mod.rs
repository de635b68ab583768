//! The hot tier on Redis 7+ or Valkey: one server, behind Sentinels, or a Cluster.
//!
//! A slot's sixteen bytes are its key, [`ledger_domain::value`]'s layout is its value. A process has one connection (to each
//! node of a cluster), and concurrent requests share it. Nothing whose reply was lost is sent again: the caller is told that
//! it may have happened.

mod command;
mod connect;
mod error;
mod health;
mod scripts;
mod url;

use std::collections::HashMap;
use std::fmt;

use ::redis::{ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use async_trait::async_trait;
use futures::future::join_all;
use ledger_domain::ports::{
    Amend, Begin, Begun, Count, Heal, HotHealth, HotTier, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{Slot, Timestamp};

use self::command::Command;
use self::connect::{Connector, Live};
use self::error::{Speaker, failed};
use self::scripts::{Call, Script};
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
    connector: Connector,
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
        let connector = Connector::new(&url, ca_pem)?;
        Ok(Self { url, connector })
    }

    async fn live(&self, operation: &'static str) -> Result<std::sync::Arc<Live>, StoreError> {
        if let Some(live) = self.connector.current() {
            return Ok(live);
        }
        // Connecting is rare and its future large, so it has a place of its own. Without a connection nothing was sent.
        Box::pin(self.connector.get()).await.map_err(|error| StoreError::did_not_happen(operation, error))
    }

    async fn all<C: Command>(&self, requests: &[C]) -> Vec<Result<C::Output, StoreError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let live = match self.live(C::OPERATION).await {
            Ok(live) => live,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        match requests {
            [request] => vec![one(&live, request).await],
            // Large futures, in which that of one command would be lost.
            _ if live.speaker() == Speaker::Cluster => Box::pin(by_slot(&live, requests)).await,
            _ => Box::pin(pipelined(&live, requests)).await,
        }
    }
}

/// One command, no pipeline around it.
async fn one<C: Command>(live: &Live, request: &C) -> Result<C::Output, StoreError> {
    let mut reply = live.send(&request.command(Call::ByDigest)).await;
    if C::script().is_some() && reply.as_ref().is_err_and(is_no_script) {
        // Once for a server; in a place of its own, it does not weigh on every other call.
        let by_text = request.command(Call::ByText);
        reply = Box::pin(live.send(&by_text)).await;
    }
    outcome(live, request, reply)
}

/// All at once. Where this connection has not called the script in a pipeline before, the first call leaves it with the
/// server for the others.
async fn pipelined<C: Command>(live: &Live, requests: &[C]) -> Vec<Result<C::Output, StoreError>> {
    let script = C::script();
    let known = script.is_none_or(|script| script.is_in(live.loaded()));
    let mut replies = send_all(live, requests, if known { Call::ByDigest } else { Call::ByText }).await;
    if let Some(script) = script {
        script.note(live.loaded());
        // The server has lost it since (SCRIPT FLUSH): what it refused did not happen, and is sent again. Not so what a later
        // request on the same slot has overtaken, for these take effect in their order.
        let is_refused = |reply: &Reply| matches!(reply, Ok(Err(error)) if is_no_script(error));
        let is_overtaken = |index: usize| {
            let mut later = requests.iter().zip(&replies).skip(index + 1);
            later.any(|(request, reply)| request.slot() == requests[index].slot() && !is_refused(reply))
        };
        let again: Vec<usize> =
            (0..replies.len()).filter(|index| is_refused(&replies[*index]) && !is_overtaken(*index)).collect();
        if !again.is_empty() {
            let picked: Vec<_> = again.iter().map(|index| Pick(&requests[*index])).collect();
            let second = send_all(live, &picked, Call::ByText).await;
            again.into_iter().zip(second).for_each(|(index, reply)| replies[index] = reply);
        }
    }
    requests.iter().zip(replies).map(|(request, reply)| outcome(live, request, reply?)).collect()
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
        // In a cluster the error of one command stands for all of them, and those before it happened.
        Err(error) => error,
    };
    let error = StoreError::may_have_happened(C::OPERATION, error);
    requests.iter().map(|_| Err(error.clone())).collect()
}

/// In a cluster: each slot's first request at once, and what repeats a slot at once after it; two round trips at most.
async fn by_slot<C: Command>(live: &Live, requests: &[C]) -> Vec<Result<C::Output, StoreError>> {
    let mut slots: HashMap<&Slot, Vec<usize>> = HashMap::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        slots.entry(request.slot()).or_default().push(index);
    }
    let in_order = slots.into_values().map(|indexes| async move {
        let group: Vec<Pick<'_, C>> = indexes.iter().filter_map(|index| requests.get(*index)).map(Pick).collect();
        let mut outcomes = Vec::with_capacity(group.len());
        if let Some((Pick(first), repeats)) = group.split_first() {
            outcomes.push(one(live, *first).await);
            if !repeats.is_empty() {
                outcomes.extend(pipelined(live, repeats).await);
            }
        }
        indexes.into_iter().zip(outcomes)
    });
    let mut results: Vec<(usize, Result<C::Output, StoreError>)> =
        join_all(in_order).await.into_iter().flatten().collect();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A request picked out of a batch.
struct Pick<'a, C>(&'a C);

impl<C: Command> Command for Pick<'_, C> {
    const OPERATION: &'static str = C::OPERATION;
    type Output = C::Output;

    fn script() -> Option<&'static Script> {
        C::script()
    }

    fn slot(&self) -> &Slot {
        self.0.slot()
    }

    fn command(&self, call: Call) -> ::redis::Cmd {
        self.0.command(call)
    }

    fn read_reply(&self, reply: Value) -> Result<C::Output, RedisError> {
        self.0.read_reply(reply)
    }
}

fn outcome<C: Command>(live: &Live, request: &C, reply: RedisResult<Value>) -> Result<C::Output, StoreError> {
    reply.and_then(|reply| request.read_reply(reply)).map_err(|error| failed(C::OPERATION, live.speaker(), error))
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

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.all(requests).await
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        let live = self.live("ask the hot tier's time").await?;
        health::time(&live).await.map_err(|error| failed("ask the hot tier's time", live.speaker(), error))
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        let live = self.live("ask the hot tier's health").await?;
        health::health(&live).await.map_err(|error| failed("ask the hot tier's health", live.speaker(), error))
    }
}
