//! The one connection of a process, and how a broken one is replaced.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::cluster::{ClusterClient, ClusterClientBuilder};
use ::redis::cluster_async::ClusterConnection;
use ::redis::cluster_routing::SingleNodeRoutingInfo;
use ::redis::io::tcp::TcpSettings;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    TlsCertificates, TlsMode, Value,
};

use super::error::{Speaker, breaks_connection};
use super::scripts::Loaded;
use super::url::{RedisUrl, Topology};

/// How often a command that a cluster's node refused, because it is not the node to ask, is sent again.
const REDIRECTS_MAX: u32 = 3;
/// After how many failures in a row the cluster client is built anew from the configured addresses. It repairs itself as
/// long as one node that it knows lives; this is for a cluster whose every address changed.
const CLUSTER_FAILURES_MAX: u32 = 5;

/// Where to connect.
enum Servers {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
    /// The clients are in [`Connecting`], for asking changes them.
    Sentinel,
}

/// What is held while connecting, so that callers share one attempt.
struct Connecting {
    sentinels: Vec<SentinelClient>,
    last_error: Option<RedisError>,
}

/// Gives the process's connection.
pub(super) struct Connector {
    servers: Servers,
    connect_timeout: Duration,
    response_timeout: Duration,
    live: RwLock<Option<Arc<Live>>>,
    attempts: AtomicU64,
    connecting: tokio::sync::Mutex<Connecting>,
}

impl Connector {
    /// Prepares to connect; sends nothing.
    pub(super) fn new(url: &RedisUrl, ca_pem: Option<Vec<u8>>) -> RedisResult<Self> {
        // Where another part of the process has installed a provider, that one stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificates = TlsCertificates { client_tls: None, root_cert: ca_pem };
        let (servers, sentinels) = match &url.topology {
            Topology::Single => {
                let (host, port) = url.nodes.first().ok_or_else(no_address)?;
                let info = connection_info(url, host, *port)?;
                let client = if url.tls { Client::build_with_tls(info, certificates)? } else { Client::open(info)? };
                (Servers::Single(Box::new(client)), Vec::new())
            }
            Topology::Cluster => (Servers::Cluster(Box::new(cluster_client(url, certificates)?)), Vec::new()),
            Topology::Sentinel(name) => (Servers::Sentinel, sentinel_clients(url, name, &certificates)?),
        };
        Ok(Self {
            servers,
            connect_timeout: url.connect_timeout,
            response_timeout: url.response_timeout,
            live: RwLock::new(None),
            attempts: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::new(Connecting { sentinels, last_error: None }),
        })
    }

    /// The connection, made anew where there is none or it is broken. Concurrent callers share one attempt and its failure.
    pub(super) async fn get(&self) -> RedisResult<Arc<Live>> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let attempts_before = self.attempts.load(Ordering::Acquire);
        let mut connecting = self.connecting.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if self.attempts.load(Ordering::Acquire) != attempts_before
            && let Some(error) = &connecting.last_error
        {
            return Err(error.clone());
        }
        let outcome = self.connect(&mut connecting.sentinels).await;
        self.attempts.fetch_add(1, Ordering::Release);
        match outcome {
            Ok(live) => {
                connecting.last_error = None;
                let live = Arc::new(live);
                *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) => {
                connecting.last_error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// The connection, where there is one and it is not broken.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| !live.broken.load(Ordering::Acquire)).map(Arc::clone)
    }

    async fn connect(&self, sentinels: &mut [SentinelClient]) -> RedisResult<Live> {
        let broken = Arc::new(AtomicBool::new(false));
        let link = match &self.servers {
            Servers::Single(client) => Link::Single(self.open(client, &broken).await?),
            Servers::Cluster(client) => {
                // The client looks for the layout, then opens a connection to each node.
                let link = within(self.connect_timeout.saturating_mul(4), client.get_async_connection()).await?;
                Link::Cluster(link)
            }
            Servers::Sentinel => Link::Single(self.open_primary(sentinels, &broken).await?),
        };
        Ok(Live { link, broken, failures: AtomicU32::new(0), loaded: Loaded::default() })
    }

    async fn open(&self, client: &Client, broken: &Arc<AtomicBool>) -> RedisResult<MultiplexedConnection> {
        let flag = Arc::clone(broken);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            // A connection that closes while nothing is under way is replaced before it costs a caller an unknown outcome.
            .set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
                if push.kind == PushKind::Disconnection {
                    flag.store(true, Ordering::Release);
                }
                Ok(())
            });
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Asks one Sentinel after the other who is the primary, each for as long as a connection may take.
    async fn open_primary(
        &self,
        sentinels: &mut [SentinelClient],
        broken: &Arc<AtomicBool>,
    ) -> RedisResult<MultiplexedConnection> {
        let mut last_error = no_address();
        for sentinel in sentinels.iter_mut() {
            let asked = within(self.connect_timeout, sentinel.async_get_client()).await;
            let opened = match asked {
                Ok(client) => self.open(&client, broken).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok(connection) => return Ok(connection),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}

enum Link {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A connection that stood when it was last looked at.
pub(super) struct Live {
    link: Link,
    broken: Arc<AtomicBool>,
    failures: AtomicU32,
    loaded: Loaded,
}

impl Live {
    /// The scripts that pipelines on this connection have called.
    pub(super) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Who speaks the errors of this connection.
    pub(super) fn speaker(&self) -> Speaker {
        match self.link {
            Link::Single(_) => Speaker::Server,
            Link::Cluster(_) => Speaker::Cluster,
        }
    }

    /// Sends one command. It is sent again only where a cluster's node refused it for another.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let reply = match &self.link {
            // In a place of its own, a kilobyte: the calls around it would need more than an allocator keeps at hand.
            Link::Single(connection) => connection.clone().req_packed_command(cmd).await,
            Link::Cluster(connection) => Box::pin(send_in_cluster(connection.clone(), cmd)).await,
        };
        self.note(reply.and_then(Value::extract_error))
    }

    /// Sends commands at once, on a cluster all of one key. The replies stand in their order; the error is of all.
    pub(super) async fn send_all(&self, pipeline: &Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        let replies = match &self.link {
            Link::Single(connection) => connection.clone().send_packed_commands(pipeline, 0, pipeline.len()).await,
            Link::Cluster(connection) => connection.clone().req_packed_commands(pipeline, 0, pipeline.len()).await,
        };
        let replies = self.note(replies)?;
        Ok(replies.into_iter().map(|reply| self.note(reply.extract_error())).collect())
    }

    /// The cluster's connection, where this is one.
    pub(super) fn cluster(&self) -> Option<ClusterConnection> {
        match &self.link {
            Link::Single(_) => None,
            Link::Cluster(connection) => Some(connection.clone()),
        }
    }

    /// Marks the connection broken where `outcome` says so.
    pub(super) fn note<T>(&self, outcome: RedisResult<T>) -> RedisResult<T> {
        match (&outcome, &self.link) {
            (Err(error), _) if !breaks_connection(error) => {}
            (Err(_), Link::Single(_)) => self.broken.store(true, Ordering::Release),
            (Err(_), Link::Cluster(_)) => {
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= CLUSTER_FAILURES_MAX {
                    self.broken.store(true, Ordering::Release);
                }
            }
            (Ok(_), Link::Single(_)) => {}
            (Ok(_), Link::Cluster(_)) => {
                if self.failures.load(Ordering::Relaxed) != 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
            }
        }
        outcome
    }
}

/// The crate's own retries are off, for they also repeat commands whose reply was lost. What is repeated here was refused.
async fn send_in_cluster(mut connection: ClusterConnection, cmd: &Cmd) -> RedisResult<Value> {
    let mut reply = connection.req_packed_command(cmd).await.and_then(Value::extract_error);
    for _ in 0..REDIRECTS_MAX {
        let Err(error) = &reply else { break };
        let kind = error.kind();
        reply = if kind == ErrorKind::Server(ServerErrorKind::Ask) {
            let Some(node) = asked_node(error) else { break };
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.cmd("ASKING").add_command(cmd.clone());
            let replies = connection.route_pipeline(pipeline, 1, 1, node).await;
            replies.and_then(|mut replies| replies.pop().unwrap_or(Value::Nil).extract_error())
        } else if matches!(kind, ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::ReadOnly)) {
            // The client learns the layout anew before it sends anything else.
            connection.req_packed_command(cmd).await.and_then(Value::extract_error)
        } else {
            break;
        };
    }
    reply
}

fn asked_node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

async fn within<T>(limit: Duration, connecting: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::time::timeout(limit, connecting)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

fn no_address() -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "no address to connect to"))
}

fn address(url: &RedisUrl, host: &str, port: u16) -> ConnectionAddr {
    if url.tls {
        ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }
}

/// Small requests must not wait for one another.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn connection_info(url: &RedisUrl, host: &str, port: u16) -> RedisResult<ConnectionInfo> {
    let mut settings = RedisConnectionInfo::default().set_db(url.db).set_protocol(ProtocolVersion::RESP3);
    if let Some(username) = &url.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    let info = address(url, host, port).into_connection_info()?;
    Ok(info.set_tcp_settings(tcp_settings()).set_redis_settings(settings))
}

fn cluster_client(url: &RedisUrl, certificates: TlsCertificates) -> RedisResult<ClusterClient> {
    let nodes = url.nodes.iter().map(|(host, port)| connection_info(url, host, *port));
    let mut builder = ClusterClientBuilder::new(nodes.collect::<RedisResult<Vec<_>>>()?)
        .retries(0)
        .connection_timeout(url.connect_timeout)
        .response_timeout(url.response_timeout)
        .tcp_settings(tcp_settings());
    if url.tls {
        builder = builder.tls(TlsMode::Secure).certs(certificates);
    }
    builder.build()
}

fn sentinel_clients(url: &RedisUrl, name: &str, certificates: &TlsCertificates) -> RedisResult<Vec<SentinelClient>> {
    let client = |(host, port): &(String, u16)| {
        let mut builder = SentinelClientBuilder::new([address(url, host, *port)], name, SentinelServerType::Master)?
            .set_client_to_redis_db(url.db)
            .set_client_to_redis_protocol(ProtocolVersion::RESP3)
            .set_client_to_redis_tcp_settings(tcp_settings());
        if let Some(username) = &url.username {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = &url.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if url.tls {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates.clone());
        }
        builder.build()
    };
    url.nodes.iter().map(client).collect()
}
