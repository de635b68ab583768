//! Requests to a cluster: each to the node that serves its hash slot, and on to where that node sends it.

use std::collections::HashMap;
use std::sync::Arc;

use ::redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind};
use futures::future::join_all;
use ledger_domain::Slot;
use ledger_domain::ports::StoreError;

use super::cluster::{Cluster, Node};
use super::command::Command;
use super::error::breaks_connection;
use super::layout::{Address, redirection};
use super::scripts::Call;
use super::{Reply, exchange, overtaken, unknown};
use crate::hash_slot::hash_slot;

/// How often a request that a node refused, because it is not the node to ask, is sent on.
const REDIRECTS_MAX: usize = 4;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Way {
    to: Address,
    /// It goes there for this once: the hash slot is under way to that node.
    asking: bool,
}

/// What one group of requests came to: where they were sent, which they are, their replies.
type Answers = (Address, Vec<usize>, Vec<Reply>);

/// Sends all requests at once, grouped by node, and on where nodes say so. What one node does not answer is unknown, or did not
/// happen, of its own requests alone; nothing takes longer than two attempts at a command may.
pub(super) async fn routed<C: Command>(cluster: &Arc<Cluster>, requests: &[C]) -> Vec<Reply> {
    let layout = match cluster.layout().await {
        Ok(layout) => layout,
        Err(error) => return all_refused::<C>(requests.len(), error),
    };
    let mut by_owner: HashMap<&Address, Vec<usize>> = HashMap::new();
    let mut replies: Vec<Reply> = all_refused::<C>(requests.len(), unserved());
    let mut has_unserved = false;
    for (index, request) in requests.iter().enumerate() {
        match layout.owner(hash_slot(request.slot().as_bytes())) {
            Some(owner) => by_owner.entry(owner).or_default().push(index),
            None => has_unserved = true,
        }
    }
    if has_unserved {
        cluster.suspect();
    }
    let to = |(to, indexes): (&Address, _)| (Way { to: to.clone(), asking: false }, indexes);
    let mut answers = round(cluster, requests, by_owner.into_iter().map(to).collect()).await;
    let following = async {
        for _ in 0..REDIRECTS_MAX {
            let ways = take(cluster, requests, std::mem::take(&mut answers), &mut replies);
            if ways.is_empty() {
                return;
            }
            let mut groups: HashMap<Way, Vec<usize>> = HashMap::new();
            for (index, way) in ways {
                // Should the time run out, nobody knows.
                replies[index] = Err(unknown::<C>(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
                groups.entry(way).or_default().push(index);
            }
            answers = round(cluster, requests, groups).await;
        }
        // What was sent on too often keeps its refusal.
        take(cluster, requests, std::mem::take(&mut answers), &mut replies);
    };
    // What the time ran out for stands as unknown in `replies`.
    let _ = tokio::time::timeout(cluster.attempt_limit(), following).await;
    replies
}

/// Puts answers where they belong, and says which requests are to be sent on, and where to.
fn take<C: Command>(
    cluster: &Arc<Cluster>,
    requests: &[C],
    answers: Vec<Answers>,
    replies: &mut [Reply],
) -> Vec<(usize, Way)> {
    let (mut moved, mut is_suspect) = (Vec::new(), false);
    let mut sent_on: Vec<(usize, Way)> = Vec::new();
    for (asked, indexes, group) in answers {
        for (index, reply) in indexes.into_iter().zip(group) {
            match &reply {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => match way(error, &asked) {
                    Some((slot, way)) => {
                        if !way.asking && !moved.iter().any(|(known, _)| *known == slot) {
                            moved.push((slot, way.to.clone()));
                        }
                        sent_on.push((index, way));
                    }
                    None => is_suspect |= is_of_the_node(error),
                },
                Err(_) => is_suspect = true,
            }
            replies[index] = reply;
        }
    }
    cluster.moved(&moved);
    if is_suspect {
        cluster.suspect();
    }
    sent_on.sort_unstable_by_key(|(index, _)| *index);
    // Requests on one slot take effect in their order: what a later one has overtaken is not sent on, and all go one way.
    let refused = |index: usize| sent_on.binary_search_by_key(&index, |(index, _)| *index).is_ok();
    let mut ways: HashMap<Slot, Way> = HashMap::new();
    let in_order: Vec<(usize, Way)> = sent_on
        .iter()
        .filter(|(index, _)| !overtaken(requests, *index, refused))
        .map(|(index, way)| {
            let first = ways.entry(*requests[*index].slot()).or_insert_with(|| way.clone());
            (*index, first.clone())
        })
        .collect();
    in_order
}

/// Where a refusal sends a request, and which hash slot it speaks of.
fn way(error: &RedisError, asked: &Address) -> Option<(u16, Way)> {
    // Nothing else leads anywhere.
    let (slot, to) = redirection(error, asked)?;
    Some((slot, Way { to, asking: error.kind() == ErrorKind::Server(ServerErrorKind::Ask) }))
}

/// Whether a failure speaks of the node, which may have lost its slots to another.
fn is_of_the_node(error: &RedisError) -> bool {
    let ErrorKind::Server(kind) = error.kind() else { return breaks_connection(error) };
    matches!(
        kind,
        ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
    )
}

/// Each group to its node, all at once.
async fn round<C: Command>(cluster: &Arc<Cluster>, requests: &[C], groups: HashMap<Way, Vec<usize>>) -> Vec<Answers> {
    let groups = groups.into_iter().map(|(way, indexes)| async move {
        let picked: Vec<&C> = indexes.iter().map(|index| &requests[*index]).collect();
        let replies = match cluster.node(&way.to) {
            Ok(node) => group(&node, &picked, way.asking).await,
            Err(error) => all_refused::<C>(picked.len(), error),
        };
        (way.to, indexes, replies)
    });
    join_all(groups).await
}

async fn group<C: Command>(node: &Node, requests: &[&C], asking: bool) -> Vec<Reply> {
    let live = match node.live_unless_silent().await {
        Ok(live) => live,
        Err(error) => return all_refused::<C>(requests.len(), error),
    };
    if !asking {
        return exchange(&live, requests).await;
    }
    // `ASKING` holds for the one command after it. By text: the node may be new.
    let mut pipeline = Pipeline::with_capacity(2 * requests.len());
    for request in requests {
        pipeline.cmd("ASKING").add_command(request.command(Call::ByText));
    }
    match live.send_all(&pipeline).await {
        Ok(replies) if replies.len() == 2 * requests.len() => replies.into_iter().skip(1).step_by(2).map(Ok).collect(),
        Ok(_) => requests.iter().map(|_| Err(unknown::<C>(super::error::unexpected_reply()))).collect(),
        Err(error) => requests.iter().map(|_| Err(unknown::<C>(error.clone()))).collect(),
    }
}

/// Nothing was sent.
fn all_refused<C: Command>(requests: usize, error: RedisError) -> Vec<Reply> {
    let error = StoreError::did_not_happen(C::OPERATION, error);
    (0..requests).map(|_| Err(error.clone())).collect()
}

fn unserved() -> RedisError {
    RedisError::from((ErrorKind::ClusterConnectionNotFound, "no primary serves the hash slot"))
}
