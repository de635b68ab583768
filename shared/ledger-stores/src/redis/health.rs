//! What the servers say of themselves.

use ::redis::cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use ::redis::{Cmd, InfoDict, RedisResult, Value};
use ledger_domain::Timestamp;
use ledger_domain::ports::HotHealth;

use super::connect::Live;
use super::error::unexpected_reply;

/// Asks every primary. The tier is complete where each is a primary, not loading, with `noeviction` and without an eviction
/// since its counters began: one that evicted earlier may lack what this process never saw, so it counts as incomplete until
/// an operator has refilled it and reset its counters (`CONFIG RESETSTAT`).
pub(super) async fn health(live: &Live) -> RedisResult<HotHealth> {
    let mut cmd = ::redis::cmd("INFO");
    cmd.arg("memory").arg("stats").arg("persistence").arg("replication");
    let primaries = match live.cluster() {
        None => vec![(String::new(), live.send(&cmd).await?)],
        Some(mut cluster) => {
            let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
            by_node(live.note(cluster.route_command(cmd, everywhere).await)?)?
        }
    };
    let mut problems = Vec::new();
    if primaries.is_empty() {
        problems.push("no primary is known".to_owned());
    }
    for (node, info) in primaries {
        let info: InfoDict = ::redis::from_redis_value(info.extract_error()?)?;
        problems.extend(
            problems_of(&info).into_iter().map(
                |problem| {
                    if node.is_empty() { problem } else { format!("{node}: {problem}") }
                },
            ),
        );
    }
    Ok(HotHealth { complete: problems.is_empty(), problems })
}

/// The server's time; of a cluster, that of the primary of its first hash slot.
pub(super) async fn time(live: &Live) -> RedisResult<Timestamp> {
    let cmd: Cmd = ::redis::cmd("TIME");
    let reply = match live.cluster() {
        None => live.send(&cmd).await?,
        Some(mut cluster) => {
            let first = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::new(0, SlotAddr::Master)));
            live.note(cluster.route_command(cmd, first).await.and_then(Value::extract_error))?
        }
    };
    let (seconds, micros): (i64, i64) = ::redis::from_redis_value(reply)?;
    Ok(Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
}

fn by_node(reply: Value) -> RedisResult<Vec<(String, Value)>> {
    let Value::Map(nodes) = reply else { return Err(unexpected_reply()) };
    nodes.into_iter().map(|(node, info)| Ok((::redis::from_redis_value(node)?, info))).collect()
}

fn problems_of(info: &InfoDict) -> Vec<String> {
    let expected = [("maxmemory_policy", "noeviction"), ("evicted_keys", "0"), ("loading", "0"), ("role", "master")];
    expected
        .into_iter()
        .filter_map(|(field, wanted)| match info.get::<String>(field) {
            Some(value) if value == wanted => None,
            Some(value) => Some(format!("{field} is {value}, expected {wanted}")),
            None => Some(format!("{field} is not said, expected {wanted}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_speaks_against_completeness_is_named() {
        let good = "maxmemory_policy:noeviction\r\nevicted_keys:0\r\nloading:0\r\nrole:master\r\n";
        assert_eq!(problems_of(&InfoDict::new(good)), Vec::<String>::new());
        for (from, to) in [
            ("noeviction", "allkeys-lru"),
            ("evicted_keys:0", "evicted_keys:3"),
            ("loading:0", "loading:1"),
            ("role:master", "role:slave"),
            ("loading:0\r\n", ""),
        ] {
            assert_eq!(problems_of(&InfoDict::new(&good.replace(from, to))).len(), 1, "{to}");
        }
    }
}
