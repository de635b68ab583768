//! A cluster: its layout, and one connection to each node.
//!
//! Written out here because the crate's own client stalls while a primary fails over under load, and fails commands under way
//! with errors of its search for the layout, so that nobody knows what happened to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use ::redis::{ErrorKind, RedisError, RedisResult};
use futures::future::join_all;
use tokio::time::Instant;

use super::connect::{Connector, Live, no_address, within};
use super::layout::{Address, Layout};
use super::url::RedisUrl;

/// How many nodes are asked for the layout at once: what most of them cannot answer, or know too little of, one will.
const ASKED_AT_ONCE: usize = 3;
/// The pause after a search for the layout that failures brought about, in milliseconds.
const SEARCH_PAUSE_MS: u64 = 100;

/// How long nobody waits for a node that let a connection's time run out, in milliseconds: the first call after it tries again.
const REST_MS: u64 = 500;

/// One node, and the connection to it.
pub(super) struct Node {
    connector: Connector,
    rests_until: Mutex<Option<Instant>>,
}

impl Node {
    /// The connection to it.
    pub(super) async fn live(&self) -> RedisResult<Arc<Live>> {
        self.connector.live().await
    }

    /// The connection to it, for one of many calls that other nodes' answers wait for: of a node that is silent they do not all
    /// find that out for themselves.
    pub(super) async fn live_unless_silent(&self) -> RedisResult<Arc<Live>> {
        if let Some(live) = self.connector.current() {
            return Ok(live);
        }
        if self.rests().is_some_and(|until| Instant::now() < until) {
            return Err(RedisError::from((ErrorKind::ClusterConnectionNotFound, "the node was silent a moment ago")));
        }
        let outcome = self.connector.live().await;
        let is_silent = outcome.as_ref().is_err_and(RedisError::is_timeout);
        *self.rests() = is_silent.then(|| Instant::now() + Duration::from_millis(REST_MS));
        outcome
    }

    fn rests(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cluster as this process knows it.
pub(super) struct Cluster {
    url: RedisUrl,
    ca_pem: Option<Vec<u8>>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    layout: RwLock<Option<Arc<Layout>>>,
    /// Held while the first layout is searched for, so that callers share one search, and its failure.
    first: tokio::sync::Mutex<Option<RedisError>>,
    first_searches: AtomicUsize,
    /// Whether a search in the background is under way, or was a moment ago.
    searching: AtomicBool,
    /// Who was asked first the last time: others each time, for some may know less.
    turn: AtomicUsize,
}

impl Cluster {
    /// Prepares to connect; sends nothing.
    pub(super) fn new(url: &RedisUrl, ca_pem: Option<Vec<u8>>) -> RedisResult<Self> {
        let cluster = Self {
            url: url.clone(),
            ca_pem,
            nodes: Mutex::default(),
            layout: RwLock::new(None),
            first: tokio::sync::Mutex::new(None),
            first_searches: AtomicUsize::new(0),
            searching: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        };
        // A configuration that the client refuses shows now.
        for address in &url.nodes {
            cluster.node(address)?;
        }
        Ok(cluster)
    }

    /// How long one attempt at a command may take: connecting, and the reply.
    pub(super) fn attempt_limit(&self) -> Duration {
        self.url.connect_timeout.saturating_add(self.url.response_timeout)
    }

    /// The layout as it is known; searched for where none is.
    pub(super) async fn layout(&self) -> RedisResult<Arc<Layout>> {
        if let Some(layout) = self.known() {
            return Ok(layout);
        }
        let searches_before = self.first_searches.load(Ordering::Acquire);
        let mut last_error = self.first.lock().await;
        if let Some(layout) = self.known() {
            return Ok(layout);
        }
        if self.first_searches.load(Ordering::Acquire) != searches_before
            && let Some(error) = last_error.as_ref()
        {
            return Err(error.clone());
        }
        let outcome = self.search().await;
        self.first_searches.fetch_add(1, Ordering::Release);
        *last_error = outcome.as_ref().err().cloned();
        outcome
    }

    fn known(&self) -> Option<Arc<Layout>> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The node at `address`.
    pub(super) fn node(&self, address: &Address) -> RedisResult<Arc<Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let connector = Connector::to(&self.url, address, self.ca_pem.clone())?;
        let node = Arc::new(Node { connector, rests_until: Mutex::new(None) });
        nodes.insert(address.clone(), Arc::clone(&node));
        Ok(node)
    }

    /// Takes over what redirections told: these hash slots are served by these nodes now.
    pub(super) fn moved(self: &Arc<Self>, moved: &[(u16, Address)]) {
        if moved.is_empty() {
            return;
        }
        let mut layout = self.layout.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = layout.as_ref() {
            let mut changed = Layout::clone(known);
            moved.iter().for_each(|(slot, address)| changed.set(*slot, address));
            *layout = Some(Arc::new(changed));
        }
        drop(layout);
        self.suspect();
    }

    /// Something speaks against the layout: searches for it anew, beside the calls, which need not wait for that.
    pub(super) fn suspect(self: &Arc<Self>) {
        if self.searching.swap(true, Ordering::AcqRel) {
            return;
        }
        let searching = Searching(Arc::clone(self));
        tokio::spawn(async move {
            // Where nobody answers, the layout stays as it is, and the next failure brings the next search.
            drop(searching.0.search().await);
            tokio::time::sleep(Duration::from_millis(SEARCH_PAUSE_MS)).await;
            drop(searching);
        });
    }

    /// Asks for the layout, for as long as two attempts at a command may take, and keeps it.
    pub(super) async fn search(&self) -> RedisResult<Arc<Layout>> {
        let limit = self.attempt_limit().saturating_mul(2);
        let layout = Arc::new(within(limit, self.ask_around()).await?);
        // Who serves nothing now, and was not configured, is forgotten with its connection.
        let shards = layout.shards();
        let is_known = |address: &Address| {
            self.url.nodes.contains(address) || shards.iter().any(|shard| shard.primary == *address)
        };
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).retain(|address, _| is_known(address));
        *self.layout.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&layout));
        Ok(layout)
    }

    /// Some nodes at once, then the next ones; of their answers that of the latest configuration.
    async fn ask_around(&self) -> RedisResult<Layout> {
        let mut candidates: Vec<Address> = self
            .known()
            .map(|layout| layout.shards().into_iter().map(|shard| shard.primary).collect())
            .unwrap_or_default();
        for address in &self.url.nodes {
            if !candidates.contains(address) {
                candidates.push(address.clone());
            }
        }
        let turn = self.turn.fetch_add(ASKED_AT_ONCE, Ordering::Relaxed) % candidates.len().max(1);
        candidates.rotate_left(turn);
        let mut last_error: RedisError = no_address();
        for asked in candidates.chunks(ASKED_AT_ONCE) {
            let mut latest: Option<(u64, Layout)> = None;
            for answer in join_all(asked.iter().map(|address| self.ask(address))).await {
                match answer {
                    Ok((epoch, layout)) if latest.as_ref().is_none_or(|(latest, _)| epoch > *latest) => {
                        latest = Some((epoch, layout));
                    }
                    Ok(_) => {}
                    Err(error) => last_error = error,
                }
            }
            if let Some((_, layout)) = latest {
                return Ok(layout);
            }
        }
        Err(last_error)
    }

    /// The layout as the node at `address` knows it, and the configuration epoch that it has heard of.
    async fn ask(&self, address: &Address) -> RedisResult<(u64, Layout)> {
        within(self.attempt_limit(), async {
            let live = self.node(address)?.live().await?;
            let mut pipeline = ::redis::Pipeline::with_capacity(2);
            pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
            let mut replies = live.send_all(&pipeline).await?.into_iter();
            let (Some(info), Some(slots)) = (replies.next(), replies.next()) else { return Err(no_address()) };
            let info: ::redis::InfoDict = ::redis::from_redis_value(info?)?;
            Ok((info.get("cluster_current_epoch").unwrap_or(0), Layout::read(slots?, address)?))
        })
        .await
    }
}

/// A search in the background. However it ends, with its runtime too, another may follow.
struct Searching(Arc<Cluster>);

impl Drop for Searching {
    fn drop(&mut self) {
        self.0.searching.store(false, Ordering::Release);
    }
}
