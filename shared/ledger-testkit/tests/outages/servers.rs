//! The servers of a run, and what goes wrong with them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ledger_testkit::faulty::FaultRates;
use ledger_testkit::postgres_server::PostgresServer;
use ledger_testkit::redis_server::{RedisSentinel, RedisServer};
use ledger_testkit::tcp_proxy::{Mode, TcpProxy};
use tokio::task::block_in_place;

use crate::load::pause_ms;
use crate::process::Way;
use crate::world::World;

/// How long a primary is silent before Sentinels replace it, in milliseconds: longer than a machine with many runs on it holds
/// up a server that is well.
const DOWN_AFTER_MS: u64 = 1_500;
/// A split lasts at least so long, in milliseconds: longer than the new primary takes to be complete, were it let.
const SPLIT_MIN_MS: u64 = 6_000;
/// When the keeper has begun to fill a new primary and every process has heard of it, in milliseconds: its run, its pause, and
/// the age of what is believed.
const KEEPER_NOTICES_MS: i64 = 4_000;
/// Sentinels that could not agree try again within this time.
const FAIL_OVER_MAX: Duration = Duration::from_secs(60);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// `kill -9`, and a new one that is empty.
    RedisKilled,
    /// SIGSTOP for longer than any time-out, then SIGCONT.
    RedisFrozen,
    /// No memory left for any write.
    RedisFull,
    RedisFlushed,
    /// The primary dies, and one that holds nothing takes its place.
    FailOverToEmpty,
    /// The primary dies, and a replica that has lagged takes its place.
    FailOverToLagging,
    /// The primary dies, Sentinels promote its replica, and the dead one comes back with nothing in it.
    SentinelFailOver,
    /// A replica is promoted, and one process stays with the old primary for a while.
    SplitBrain,
    /// Every connection to Redis is reset, again and again.
    Resets,
    /// Each byte from and to Redis comes late.
    Slow,
    /// One process is cut off from Redis.
    BlackHoleOfOne,
    /// Every process is.
    BlackHoleOfAll,
    PostgresCrashed,
    PostgresDiskFull,
    QueueRefuses,
    /// What is sent may be lost or not, and nobody knows; so may the count of a repeat.
    QueueUnsure,
    /// Each second message comes again.
    QueueDuplicates,
    ControlPlaneDown,
}

/// What two outages at once must not both concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Redis,
    Network,
    Postgres,
    Queue,
    ControlPlane,
}

impl Outage {
    pub(crate) const ALL: [Self; 18] = [
        Self::RedisKilled,
        Self::RedisFrozen,
        Self::RedisFull,
        Self::RedisFlushed,
        Self::FailOverToEmpty,
        Self::FailOverToLagging,
        Self::SentinelFailOver,
        Self::SplitBrain,
        Self::Resets,
        Self::Slow,
        Self::BlackHoleOfOne,
        Self::BlackHoleOfAll,
        Self::PostgresCrashed,
        Self::PostgresDiskFull,
        Self::QueueRefuses,
        Self::QueueUnsure,
        Self::QueueDuplicates,
        Self::ControlPlaneDown,
    ];

    pub(crate) fn part(self) -> Part {
        match self {
            Self::RedisKilled
            | Self::RedisFrozen
            | Self::RedisFull
            | Self::RedisFlushed
            | Self::FailOverToEmpty
            | Self::FailOverToLagging
            | Self::SentinelFailOver
            | Self::SplitBrain => Part::Redis,
            Self::Resets | Self::Slow | Self::BlackHoleOfOne | Self::BlackHoleOfAll => Part::Network,
            Self::PostgresCrashed | Self::PostgresDiskFull => Part::Postgres,
            Self::QueueRefuses | Self::QueueUnsure | Self::QueueDuplicates => Part::Queue,
            Self::ControlPlaneDown => Part::ControlPlane,
        }
    }

    /// Whether both can happen in one run: they concern different parts, and no network is cut where no proxy can be.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        let is_beside = |one: Self, other: Self| one == Self::SentinelFailOver && other.part() == Part::Network;
        self.part() != other.part() && !is_beside(self, other) && !is_beside(other, self)
    }

    /// When every process has noticed what is lost, if not at its end, in milliseconds since it began.
    pub(crate) fn noticed_after_ms(self) -> i64 {
        if self == Self::SplitBrain { KEEPER_NOTICES_MS } else { i64::MAX }
    }

    /// Whether the hot tier loses nothing and decides throughout, so that no repeat is told NEW.
    pub(crate) fn leaves_redis_alone(self) -> bool {
        match self.part() {
            Part::Redis | Part::Network => false,
            Part::Postgres | Part::ControlPlane => true,
            // Where the queue may have taken a fact or not, the record stays PENDING and may lapse.
            Part::Queue => self == Self::QueueDuplicates,
        }
    }
}

/// The servers.
pub(crate) struct Servers {
    redis: Redis,
    /// Follows `redis` from the start, where a replica is to take over, through a proxy that can be cut.
    replica: Option<(RedisServer, TcpProxy)>,
    postgres: Postgres,
}

enum Redis {
    One(RedisServer),
    BehindSentinels(RedisSentinel),
}

enum Postgres {
    Shared,
    Own(Box<PostgresServer>),
}

impl Redis {
    fn address(&self) -> SocketAddr {
        match self {
            Self::One(server) => server.address(),
            Self::BehindSentinels(servers) => servers.primary_address(),
        }
    }
}

impl Servers {
    /// Starts what these outages need, and gives the database's URL.
    pub(crate) async fn start(outages: &[Outage]) -> (Self, String) {
        let redis = if outages.contains(&Outage::SentinelFailOver) {
            Redis::BehindSentinels(block_in_place(|| RedisSentinel::start_watchful(DOWN_AFTER_MS)))
        } else {
            Redis::One(block_in_place(RedisServer::start))
        };
        let replica = if outages.iter().any(|o| matches!(o, Outage::FailOverToLagging | Outage::SplitBrain)) {
            let link = TcpProxy::start(redis.address()).await;
            let replica = block_in_place(|| {
                let replica = RedisServer::start();
                replica.follow(link.address());
                replica
            });
            Some((replica, link))
        } else {
            None
        };
        let (postgres, url) = if outages.contains(&Outage::PostgresDiskFull) {
            let own = block_in_place(PostgresServer::start_with_small_disk);
            let url = own.small_database().await;
            (Postgres::Own(Box::new(own)), url)
        } else if outages.contains(&Outage::PostgresCrashed) {
            let own = block_in_place(PostgresServer::start_durable);
            let url = own.database().await;
            (Postgres::Own(Box::new(own)), url)
        } else {
            (Postgres::Shared, block_in_place(PostgresServer::shared).database().await)
        };
        (Self { redis, replica, postgres }, url)
    }

    /// Where the Redis listens that every process finds now.
    pub(crate) fn redis_address(&self) -> SocketAddr {
        self.redis.address()
    }

    pub(crate) fn way_to_redis(&self) -> Way {
        match &self.redis {
            Redis::One(server) => Way::Proxied(server.address()),
            Redis::BehindSentinels(servers) => Way::Sentinels(servers.url().to_owned()),
        }
    }

    fn one_redis(&mut self) -> &mut RedisServer {
        match &mut self.redis {
            Redis::One(server) => server,
            Redis::BehindSentinels(_) => panic!("several servers are behind Sentinels"),
        }
    }

    fn sentinels(&mut self) -> &mut RedisSentinel {
        match &mut self.redis {
            Redis::One(_) => panic!("no Sentinel watches this Redis"),
            Redis::BehindSentinels(servers) => servers,
        }
    }

    fn own_postgres(&mut self) -> &mut PostgresServer {
        match &mut self.postgres {
            Postgres::Own(server) => server,
            Postgres::Shared => panic!("the shared PostgreSQL must not go down"),
        }
    }
}

/// Sends every process but `but` to `target`.
fn retarget(world: &World, target: SocketAddr, but: Option<usize>) {
    for (number, process) in world.processes().enumerate() {
        if let Some(proxy) = process.proxy.as_ref().filter(|_| Some(number) != but) {
            proxy.set_target(target);
            proxy.reset();
        }
    }
}

/// The processes' proxies before Redis.
fn proxies(world: &World) -> impl Iterator<Item = &TcpProxy> {
    world.processes().filter_map(|process| process.proxy.as_ref())
}

fn set_modes(world: &World, mode: Mode) {
    proxies(world).for_each(|proxy| proxy.set_mode(mode));
}

impl World {
    /// Lets it happen for `length_ms`, and ends it.
    pub(crate) async fn suffer(self: &Arc<Self>, outage: Outage, length_ms: u64) {
        let lasts = pause_ms(length_ms);
        match outage {
            Outage::RedisKilled => {
                block_in_place(|| self.servers().one_redis().kill());
                lasts.await;
                self.replace_redis(block_in_place(RedisServer::start));
            }
            Outage::RedisFrozen => {
                self.servers().one_redis().freeze();
                lasts.await;
                self.servers().one_redis().thaw();
            }
            Outage::RedisFull => {
                self.redis_command(&["CONFIG", "SET", "maxmemory", "100kb"]);
                lasts.await;
                self.redis_command(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Outage::RedisFlushed => {
                self.redis_command(&["FLUSHALL"]);
                lasts.await;
            }
            Outage::FailOverToEmpty => {
                let empty = block_in_place(RedisServer::start);
                block_in_place(|| self.servers().one_redis().kill());
                pause_ms(length_ms / 4).await;
                self.replace_redis(empty);
                lasts.await;
            }
            Outage::FailOverToLagging => {
                let (replica, link) = self.servers().replica.take().expect("a replica");
                link.set_mode(Mode::BlackHole);
                pause_ms(length_ms / 2).await;
                block_in_place(|| self.servers().one_redis().kill());
                drop(link);
                pause_ms(length_ms / 4).await;
                let () = block_in_place(|| replica.command(&["REPLICAOF", "NO", "ONE"]));
                self.replace_redis(replica);
                lasts.await;
            }
            Outage::SentinelFailOver => {
                let before = self.redis_address();
                block_in_place(|| self.servers().sentinels().kill_primary());
                let is_over = || block_in_place(|| self.servers().sentinels().have_replaced(before));
                let give_up_at = self.at() + FAIL_OVER_MAX;
                while !is_over() {
                    assert!(self.at() < give_up_at, "the Sentinels promote no replica");
                    pause_ms(50).await;
                }
                block_in_place(|| self.servers().sentinels().restart_killed());
                lasts.await;
            }
            Outage::SplitBrain => {
                let (replica, link) = self.servers().replica.take().expect("a replica");
                drop(link);
                let () = block_in_place(|| replica.command(&["REPLICAOF", "NO", "ONE"]));
                retarget(self, replica.address(), Some(0));
                pause_ms(length_ms.max(SPLIT_MIN_MS)).await;
                self.replace_redis(replica);
            }
            Outage::Resets => {
                let over = AtomicBool::new(false);
                let resets = async {
                    while !over.load(Ordering::Relaxed) {
                        proxies(self).for_each(TcpProxy::reset);
                        pause_ms(20 + self.random.below(100)).await;
                    }
                };
                let end = async {
                    lasts.await;
                    over.store(true, Ordering::Relaxed);
                };
                futures::join!(resets, end);
            }
            Outage::Slow => {
                set_modes(self, Mode::Delay { by_ms: 150 + self.random.below(500) });
                lasts.await;
                set_modes(self, Mode::Pass);
            }
            Outage::BlackHoleOfOne => {
                let proxy = proxies(self).next().expect("a process behind a proxy");
                proxy.set_mode(Mode::BlackHole);
                lasts.await;
                proxy.set_mode(Mode::Pass);
            }
            Outage::BlackHoleOfAll => {
                set_modes(self, Mode::BlackHole);
                lasts.await;
                set_modes(self, Mode::Pass);
            }
            Outage::PostgresCrashed => {
                block_in_place(|| self.servers().own_postgres().crash());
                lasts.await;
                block_in_place(|| self.servers().own_postgres().start_again());
            }
            Outage::PostgresDiskFull => {
                block_in_place(|| self.servers().own_postgres().fill_disk());
                lasts.await;
                block_in_place(|| self.servers().own_postgres().free_disk());
            }
            Outage::QueueRefuses => self.queue_fails(FaultRates::DOWN, lasts).await,
            Outage::QueueUnsure => {
                let rates = FaultRates { did_not_happen: 100, request_lost: 200, reply_lost: 300 };
                self.queue_fails(rates, lasts).await;
            }
            Outage::QueueDuplicates => {
                self.queue.set_duplicates(true);
                lasts.await;
                self.queue.set_duplicates(false);
            }
            Outage::ControlPlaneDown => {
                self.control_plane.set_down(true);
                lasts.await;
                self.control_plane.set_down(false);
            }
        }
    }

    async fn queue_fails(&self, rates: FaultRates, lasts: impl Future<Output = ()>) {
        self.sending.set_rates(rates);
        self.queue.set_loses_repeats(true);
        lasts.await;
        self.sending.set_rates(FaultRates::NONE);
        self.queue.set_loses_repeats(false);
    }

    /// The Redis that every process finds from now on.
    fn replace_redis(&self, redis: RedisServer) {
        retarget(self, redis.address(), None);
        self.servers().redis = Redis::One(redis);
    }

    fn redis_command(&self, command: &[&str]) {
        let () = block_in_place(|| self.servers().one_redis().command(command));
    }
}
