//! What the servers say of themselves.

use ::redis::{Cmd, InfoDict, RedisResult};
use futures::future::join_all;
use ledger_domain::Timestamp;
use ledger_domain::ports::HotHealth;

use super::Servers;
use super::connect::{Live, no_address};
use super::marker::{parts, together, unserved_slots};

/// Asks every primary: which marker stands, and whether it is a primary, not loading, with `noeviction`. An eviction makes the
/// marker count for nothing, so that a tier filled again after it is complete again.
pub(super) async fn health(servers: &Servers) -> RedisResult<HotHealth> {
    let (parts, unserved) = parts(servers).await?;
    let mut problems = Vec::new();
    if unserved > 0 {
        problems.push(unserved_slots(unserved));
    }
    let mut marks = Vec::with_capacity(parts.len());
    let looks = join_all(parts.iter().map(|part| part.look())).await;
    for (part, look) in parts.iter().zip(looks) {
        let (info, mark) = look?;
        // It was the primary once; another address, or a Sentinel, may lead to who is now.
        if info.get::<String>("role").is_some_and(|role| role != "master") {
            part.live.leave();
        }
        marks.push(mark);
        let named = |problem| if part.name.is_empty() { problem } else { format!("{}: {problem}", part.name) };
        problems.extend(problems_of(&info).into_iter().map(named));
    }
    Ok(HotHealth { marker: together(&marks), problems })
}

/// The server's time; of a cluster, that of the first shard, by hash slot, that answers.
pub(super) async fn time(servers: &Servers) -> RedisResult<Timestamp> {
    let cluster = match servers {
        Servers::One(connector) => return time_of(&*connector.live().await?).await,
        Servers::Cluster(cluster) => cluster,
    };
    let mut outcome = Err(no_address());
    for shard in cluster.layout().await?.shards() {
        let asked = async { time_of(&*cluster.node(&shard.primary)?.live().await?).await };
        outcome = asked.await;
        if outcome.is_ok() {
            break;
        }
        cluster.suspect();
    }
    outcome
}

async fn time_of(live: &Live) -> RedisResult<Timestamp> {
    let cmd: Cmd = ::redis::cmd("TIME");
    let (seconds, micros): (i64, i64) = ::redis::from_redis_value(live.send(&cmd).await?)?;
    Ok(Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
}

fn problems_of(info: &InfoDict) -> Vec<String> {
    let expected = [("maxmemory_policy", "noeviction"), ("loading", "0"), ("role", "master")];
    let mut problems: Vec<String> = expected
        .into_iter()
        .filter_map(|(field, wanted)| match info.get::<String>(field) {
            Some(value) if value == wanted => None,
            Some(value) => Some(format!("{field} is {value}, expected {wanted}")),
            None => Some(format!("{field} is not said, expected {wanted}")),
        })
        .collect();
    // What a marker names; without these none can count.
    let named = ["run_id", "master_replid", "evicted_keys"].into_iter();
    problems
        .extend(named.filter(|field| info.get::<String>(field).is_none()).map(|field| format!("{field} is not said")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_speaks_against_completeness_is_named() {
        let good = "run_id:a\r\nmaster_replid:b\r\nevicted_keys:3\r\nmaxmemory_policy:noeviction\r\nloading:0\r\nrole:master\r\n";
        assert_eq!(problems_of(&InfoDict::new(good)), Vec::<String>::new());
        for (from, to) in [
            ("noeviction", "allkeys-lru"),
            ("loading:0", "loading:1"),
            ("role:master", "role:slave"),
            ("loading:0\r\n", ""),
            ("run_id:a\r\n", ""),
            ("master_replid:b\r\n", ""),
            ("evicted_keys:3\r\n", ""),
        ] {
            assert_eq!(problems_of(&InfoDict::new(&good.replace(from, to))).len(), 1, "{to}");
        }
    }
}
