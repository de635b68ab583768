//! The one connection of a process to a server, and how a broken one is replaced.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::io::tcp::TcpSettings;
use ::redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode, Value,
};

use futures::future::select_ok;

use super::error::breaks_connection;
use super::layout::Address;
use super::scripts::Loaded;
use super::url::RedisUrl;

/// Where to connect.
enum Servers {
    Single(Box<Client>),
    Sentinel(Box<Sentinels>),
}

/// Who knows the primary.
struct Sentinels {
    url: RedisUrl,
    name: String,
    certificates: TlsCertificates,
}

/// Gives the process's connection to one server.
pub(super) struct Connector {
    servers: Servers,
    connect_timeout: Duration,
    response_timeout: Duration,
    live: RwLock<Option<Arc<Live>>>,
    attempts: AtomicU64,
    /// Held while connecting, so that callers share one attempt, and its failure.
    connecting: tokio::sync::Mutex<Option<RedisError>>,
}

impl Connector {
    /// Prepares to connect to the server at `address`; sends nothing.
    pub(super) fn to(url: &RedisUrl, address: &Address, ca_pem: Option<Vec<u8>>) -> RedisResult<Self> {
        let certificates = certificates(ca_pem);
        let info = connection_info(url, &address.0, address.1)?;
        let client = if url.tls { Client::build_with_tls(info, certificates)? } else { Client::open(info)? };
        Ok(Self::new(url, Servers::Single(Box::new(client))))
    }

    /// Prepares to connect to the primary that the URL's Sentinels know as `name`; sends nothing.
    pub(super) fn to_primary(url: &RedisUrl, name: &str, ca_pem: Option<Vec<u8>>) -> RedisResult<Self> {
        let sentinels = Sentinels { url: url.clone(), name: name.to_owned(), certificates: certificates(ca_pem) };
        // A configuration that the client refuses shows now.
        sentinels.clients()?;
        Ok(Self::new(url, Servers::Sentinel(Box::new(sentinels))))
    }

    fn new(url: &RedisUrl, servers: Servers) -> Self {
        Self {
            servers,
            connect_timeout: url.connect_timeout,
            response_timeout: url.response_timeout,
            live: RwLock::new(None),
            attempts: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::new(None),
        }
    }

    /// The connection, made anew where there is none or it is broken. Without one nothing is sent.
    pub(super) async fn live(&self) -> RedisResult<Arc<Live>> {
        match self.current() {
            Some(live) => Ok(live),
            // Connecting is rare and its future large, so it has a place of its own.
            None => Box::pin(self.get()).await,
        }
    }

    /// Concurrent callers share one attempt and its failure.
    async fn get(&self) -> RedisResult<Arc<Live>> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let attempts_before = self.attempts.load(Ordering::Acquire);
        let mut last_error = self.connecting.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if self.attempts.load(Ordering::Acquire) != attempts_before
            && let Some(error) = last_error.as_ref()
        {
            return Err(error.clone());
        }
        let outcome = self.connect().await;
        self.attempts.fetch_add(1, Ordering::Release);
        match outcome {
            Ok(live) => {
                *last_error = None;
                let live = Arc::new(live);
                *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) => {
                *last_error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// The connection, where there is one and it is not broken.
    pub(super) fn current(&self) -> Option<Arc<Live>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| !live.broken.load(Ordering::Acquire)).map(Arc::clone)
    }

    async fn connect(&self) -> RedisResult<Live> {
        let broken = Arc::new(AtomicBool::new(false));
        let connection = match &self.servers {
            Servers::Single(client) => self.open(client, &broken).await?,
            Servers::Sentinel(sentinels) => {
                let primary = within(self.connect_timeout, sentinels.primary()).await?;
                self.open(&primary, &broken).await?
            }
        };
        Ok(Live { connection, broken, loaded: Loaded::default() })
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
}

impl Sentinels {
    /// Asks all at once; the first that names a server which says of itself that it is the primary is believed.
    async fn primary(&self) -> RedisResult<Client> {
        let ask = |mut sentinel: SentinelClient| Box::pin(async move { sentinel.async_get_client().await });
        let (primary, _) = select_ok(self.clients()?.into_iter().map(ask)).await?;
        Ok(primary)
    }

    /// New ones each time: they hold on to a connection whose answer did not come, and would wait for it again.
    fn clients(&self) -> RedisResult<Vec<SentinelClient>> {
        let Self { url, name, certificates } = self;
        let client = |(host, port): &Address| {
            let mut builder =
                SentinelClientBuilder::new([address(url, host, *port)], name, SentinelServerType::Master)?
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
}

/// A connection that stood when it was last looked at.
pub(super) struct Live {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
    loaded: Loaded,
}

impl Live {
    /// The scripts that pipelines on this connection have called.
    pub(super) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Sends one command.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let reply = self.connection.clone().req_packed_command(cmd).await;
        self.note(reply.and_then(Value::extract_error))
    }

    /// Sends commands at once. The replies stand in their order; the error is of all.
    pub(super) async fn send_all(&self, pipeline: &Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        let replies = self.connection.clone().send_packed_commands(pipeline, 0, pipeline.len()).await;
        let replies = self.note(replies)?;
        Ok(replies.into_iter().map(|reply| self.note(reply.extract_error())).collect())
    }

    /// The connection leads to who should not be asked: the next caller connects anew.
    pub(super) fn leave(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Marks the connection broken where `outcome` says so.
    fn note<T>(&self, outcome: RedisResult<T>) -> RedisResult<T> {
        if outcome.as_ref().is_err_and(breaks_connection) {
            self.leave();
        }
        outcome
    }
}

/// What comes of `connecting`, within a limit.
pub(super) async fn within<T>(limit: Duration, connecting: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::time::timeout(limit, connecting)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

/// There was nobody to ask.
pub(super) fn no_address() -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, "no address to connect to"))
}

fn certificates(ca_pem: Option<Vec<u8>>) -> TlsCertificates {
    // Where another part of the process has installed a provider, that one stands.
    drop(rustls::crypto::ring::default_provider().install_default());
    TlsCertificates { client_tls: None, root_cert: ca_pem }
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
