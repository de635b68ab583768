//! The warm markers: one key per shard, lost with anything else that the shard loses.
//!
//! A marker is text: `filling` or `warm`, the pass, and the incarnation under which the shard was marked: run id, replication
//! id, how many keys were evicted, and in a cluster the hash slots that it served. Where any of these is another now, the
//! shard restarted, was promoted, evicted something, or got hash slots from elsewhere: the marker counts for nothing.

use std::sync::Arc;

use ::redis::{Cmd, InfoDict, Pipeline, RedisError, RedisResult, Value};
use futures::future::join_all;
use ledger_domain::FillPass;
use ledger_domain::ports::{StoreError, WarmMarker};

use super::Servers;
use super::connect::Live;
use super::error::{failed, unexpected_reply};
use super::layout::tag_of;
use super::scripts::{Call, MARK};

/// The marker's key. In a cluster a hash tag follows, which brings it to its shard. A ledger slot's key has 16 bytes and this
/// never, so that they do not meet.
const KEY: &str = "ledger:warm";

const BEGIN: &str = "mark the hot tier as being filled";
const END: &str = "mark the hot tier as warm";

/// One shard, and the connection to its primary.
pub(super) struct Part {
    /// The primary's address; nothing where there is one server only.
    pub(super) name: String,
    pub(super) live: Arc<Live>,
    key: String,
    slots: String,
}

/// The shards as they are now, and how many hash slots none of them serves.
pub(super) async fn parts(servers: &Servers) -> RedisResult<(Vec<Part>, usize)> {
    let cluster = match servers {
        Servers::One(connector) => {
            let live = connector.live().await?;
            let only = Part { name: String::new(), live, key: KEY.to_owned(), slots: String::new() };
            return Ok((vec![only], 0));
        }
        Servers::Cluster(cluster) => cluster,
    };
    let layout = cluster.search().await?;
    let parts = layout.shards().into_iter().map(|shard| async move {
        let (host, port) = &shard.primary;
        Ok(Part {
            name: format!("{host}:{port}"),
            live: cluster.node(&shard.primary)?.live().await?,
            key: format!("{KEY}:{{{}}}", tag_of(shard.lowest())),
            slots: shard.slots(),
        })
    });
    let parts: RedisResult<Vec<Part>> = join_all(parts).await.into_iter().collect();
    Ok((parts?, layout.unserved()))
}

impl Part {
    /// What the server says of itself, and which marker stands.
    pub(super) async fn look(&self) -> RedisResult<(InfoDict, Mark)> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("INFO").arg("server").arg("memory").arg("stats").arg("persistence").arg("replication");
        pipeline.cmd("GET").arg(&self.key);
        let mut replies = self.live.send_all(&pipeline).await?.into_iter();
        let (Some(info), Some(marker)) = (replies.next(), replies.next()) else { return Err(unexpected_reply()) };
        let info: InfoDict = ::redis::from_redis_value(info?)?;
        let marker = match marker {
            Ok(marker) => ::redis::from_redis_value(marker)?,
            // Its hash slot is under way to another shard, or there already.
            Err(error) if error.redirect_node().is_some() => None,
            Err(error) => return Err(error),
        };
        let mark = Mark::read(marker, self.incarnation(&info).as_deref());
        Ok((info, mark))
    }

    /// Which server this is, with which history; `None` where it does not say.
    fn incarnation(&self, info: &InfoDict) -> Option<String> {
        let said = |field: &str| info.get::<String>(field).filter(|value| !value.is_empty());
        let (run_id, replication, evicted) = (said("run_id")?, said("master_replid")?, said("evicted_keys")?);
        Some(format!("{run_id} {replication} {evicted} {}", self.slots))
    }

    async fn incarnation_now(&self) -> RedisResult<String> {
        let (info, _) = self.look().await?;
        self.incarnation(&info).ok_or_else(unexpected_reply)
    }

    async fn begin(&self, pass: FillPass) -> RedisResult<()> {
        let mut cmd: Cmd = ::redis::cmd("SET");
        cmd.arg(&self.key).arg(text(FILLING, pass, &self.incarnation_now().await?));
        self.live.send(&cmd).await.map(drop)
    }

    async fn end(&self, pass: FillPass) -> RedisResult<bool> {
        let incarnation = self.incarnation_now().await?;
        let (filling, warm) = (text(FILLING, pass, &incarnation), text(WARM, pass, &incarnation));
        let mut cmd = MARK.call(Call::ByText, self.key.as_bytes(), 2, filling.len() + warm.len());
        cmd.arg(filling).arg(warm);
        Ok(self.live.send(&cmd).await? == Value::Int(1))
    }
}

const FILLING: &str = "filling";
const WARM: &str = "warm";

fn text(state: &str, pass: FillPass, incarnation: &str) -> String {
    format!("{state} {pass} {incarnation}")
}

/// What one shard's marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing that counts.
    None,
    Filling(FillPass),
    Warm(FillPass),
}

impl Mark {
    fn read(marker: Option<Vec<u8>>, incarnation: Option<&str>) -> Self {
        let read = || {
            let marker = String::from_utf8(marker?).ok()?;
            let (state, rest) = marker.split_once(' ')?;
            let (pass, of) = rest.split_once(' ')?;
            let pass = FillPass::parse(pass)?;
            let mark = match state {
                FILLING => Self::Filling(pass),
                WARM => Self::Warm(pass),
                _ => return None,
            };
            (Some(of) == incarnation).then_some(mark)
        };
        read().unwrap_or(Self::None)
    }
}

/// What the markers of all shards say together. Some shards warm and others being filled is a pass that is being ended. Markers
/// of several passes count for nothing: some shard was not reached when the last one began.
pub(super) fn together(marks: &[Mark]) -> WarmMarker {
    let pass_of = |mark: &Mark| match mark {
        Mark::None => None,
        Mark::Filling(pass) | Mark::Warm(pass) => Some(*pass),
    };
    let Some(pass) = marks.first().and_then(pass_of) else { return WarmMarker::Missing };
    if marks.iter().any(|mark| pass_of(mark) != Some(pass)) {
        WarmMarker::Missing
    } else if marks.contains(&Mark::Filling(pass)) {
        WarmMarker::Filling(pass)
    } else {
        WarmMarker::Warm(pass)
    }
}

/// [`ledger_domain::ports::HotTier::begin_fill`].
pub(super) async fn begin_fill(servers: &Servers, pass: FillPass) -> Result<(), StoreError> {
    let parts = all_parts(servers, BEGIN).await?;
    let begun = join_all(parts.iter().map(|part| part.begin(pass))).await;
    begun.into_iter().collect::<Result<(), RedisError>>().map_err(|error| failed(BEGIN, error))
}

/// [`ledger_domain::ports::HotTier::end_fill`].
pub(super) async fn end_fill(servers: &Servers, pass: FillPass) -> Result<bool, StoreError> {
    let parts = all_parts(servers, END).await?;
    let ended: Result<Vec<bool>, RedisError> =
        join_all(parts.iter().map(|part| part.end(pass))).await.into_iter().collect();
    ended.map(|ended| ended.into_iter().all(|is_warm| is_warm)).map_err(|error| failed(END, error))
}

/// Every shard; an error where some hash slots have none.
async fn all_parts(servers: &Servers, operation: &'static str) -> Result<Vec<Part>, StoreError> {
    let (parts, unserved) = parts(servers).await.map_err(|error| StoreError::did_not_happen(operation, error))?;
    if unserved > 0 {
        return Err(StoreError::did_not_happen(operation, unserved_slots(unserved)));
    }
    Ok(parts)
}

/// In words for an operator.
pub(super) fn unserved_slots(unserved: usize) -> String {
    format!("{unserved} hash slots have no primary")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_counts_under_its_own_incarnation_only() {
        let pass = FillPass::from_bytes([1; 8]);
        let read = |marker: &str, incarnation| Mark::read(Some(marker.into()), incarnation);
        for (state, mark) in [(FILLING, Mark::Filling(pass)), (WARM, Mark::Warm(pass))] {
            let marker = text(state, pass, "run replid 0 0-16383");
            assert_eq!(read(&marker, Some("run replid 0 0-16383")), mark);
            for other in [Some("ran replid 0 0-16383"), Some("run replid 1 0-16383"), Some("run replid 0 0-9"), None] {
                assert_eq!(read(&marker, other), Mark::None, "{other:?}");
            }
        }
        for damaged in ["", "warm", "warm 0101010101010101", "warm 01 a", "warmer 0101010101010101 a"] {
            assert_eq!(read(damaged, Some("a")), Mark::None, "{damaged}");
        }
        assert_eq!(Mark::read(Some(vec![0xFF]), Some("a")), Mark::None);
        assert_eq!(Mark::read(None, Some("a")), Mark::None);
    }

    #[test]
    fn shards_are_warm_together_or_filled_by_one_pass() {
        let (pass, other) = (FillPass::from_bytes([1; 8]), FillPass::from_bytes([2; 8]));
        for (marks, marker) in [
            (vec![], WarmMarker::Missing),
            (vec![Mark::None], WarmMarker::Missing),
            (vec![Mark::Warm(pass), Mark::None], WarmMarker::Missing),
            (vec![Mark::Filling(pass), Mark::None], WarmMarker::Missing),
            (vec![Mark::Warm(pass), Mark::Warm(other)], WarmMarker::Missing),
            (vec![Mark::Warm(pass), Mark::Warm(pass)], WarmMarker::Warm(pass)),
            (vec![Mark::Filling(pass), Mark::Filling(pass)], WarmMarker::Filling(pass)),
            (vec![Mark::Warm(pass), Mark::Filling(pass)], WarmMarker::Filling(pass)),
            (vec![Mark::Warm(other), Mark::Filling(pass)], WarmMarker::Missing),
            (vec![Mark::Filling(other), Mark::Filling(pass)], WarmMarker::Missing),
        ] {
            assert_eq!(together(&marks), marker, "{marks:?}");
        }
    }
}
