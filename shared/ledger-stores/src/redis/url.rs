//! Which Redis, and how to reach it: one URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

const SCHEMES: &str =
    "redis://, rediss://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://";
const PARAMETERS: &str = "connect_timeout_ms, response_timeout_ms and (with TLS) ca_file, each at most once";
const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// How long a new connection may take where the URL does not say, in milliseconds.
const CONNECT_TIMEOUT_MS: u64 = 80;
/// How long a reply may take where the URL does not say, in milliseconds.
const RESPONSE_TIMEOUT_MS: u64 = 80;
/// The longest time-out accepted, in milliseconds: a check must answer within seconds.
const TIMEOUT_MAX_MS: u64 = 60_000;
/// The most addresses accepted.
const NODES_MAX: usize = 64;

/// A URL that says something else than it should. It shows nothing of the URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hot tier URL, {part}: expected {expected}")]
pub struct RedisUrlError {
    /// Which part of the URL.
    pub part: &'static str,
    /// What would have been accepted.
    pub expected: String,
}

/// How the servers stand to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One server, or one address that leads to the primary.
    Single,
    /// Redis Cluster; the addresses are where to ask for its layout.
    Cluster,
    /// A primary that Sentinels know by this name; the addresses are theirs.
    Sentinel(String),
}

/// What a hot tier URL says:
///
/// ```text
/// redis://[USER[:PASSWORD]@]HOST[:PORT][/DB][?...]                       one server, port 6379
/// redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],HOST[:PORT][?...]        Redis Cluster, port 6379
/// redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../NAME[/DB][?...]     Sentinels, port 26379
/// ```
/// `rediss` in place of `redis` asks for TLS, also to Sentinels. User and password are those of the servers (not of the
/// Sentinels), percent-encoded; `:PASSWORD@` alone is the default user's. Parameters: `connect_timeout_ms` (80: a new
/// connection in one region takes a few milliseconds, with TLS tens), `response_timeout_ms` (80: a command takes about one
/// millisecond, and what waits longer is better decided by the cold ledger), each 1 to 60,000; `ca_file`, a PEM file of the
/// certificate authorities to trust in place of the public ones. Anything else is refused.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// How the servers stand to each other.
    pub topology: Topology,
    /// Whether connections use TLS.
    pub tls: bool,
    /// Host and port of each address, at least one.
    pub nodes: Vec<(String, u16)>,
    /// The user; `None` is the default user.
    pub username: Option<String>,
    /// The password; never shown.
    pub password: Option<String>,
    /// The database's number; 0 in a cluster.
    pub db: i64,
    /// How long a new connection to one server may take, authentication included. Sentinels are asked for as long, all at
    /// once, before it.
    pub connect_timeout: Duration,
    /// How long a reply may take.
    pub response_timeout: Duration,
    /// The certificate authorities to trust in place of the public ones, a PEM file.
    pub ca_file: Option<PathBuf>,
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topology, tls, nodes, username, password, db, connect_timeout, response_timeout, ca_file } = self;
        f.debug_struct("RedisUrl")
            .field("topology", topology)
            .field("tls", tls)
            .field("nodes", nodes)
            .field("username", username)
            .field("password", &password.as_ref().map(|_| "redacted"))
            .field("db", db)
            .field("connect_timeout", connect_timeout)
            .field("response_timeout", response_timeout)
            .field("ca_file", ca_file)
            .finish()
    }
}

impl RedisUrl {
    /// Reads a URL, strictly.
    ///
    /// # Errors
    /// [`RedisUrlError`] naming the part that is wrong and what was expected there.
    pub fn parse(url: &str) -> Result<Self, RedisUrlError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("scheme", SCHEMES))?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(rest, path)| (rest, Some(path)));
        let (user_info, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));

        let tls = scheme.starts_with("rediss");
        let (topology, db, default_port) = match scheme {
            "redis" | "rediss" => (Topology::Single, db(path)?, DEFAULT_PORT),
            "redis+cluster" | "rediss+cluster" => {
                if db(path)? != 0 {
                    return Err(wrong("database", "none, or 0: a cluster has no other"));
                }
                (Topology::Cluster, 0, DEFAULT_PORT)
            }
            "redis+sentinel" | "rediss+sentinel" => {
                let path = path.unwrap_or_default();
                let (name, number) = path.split_once('/').map_or((path, None), |(name, db)| (name, Some(db)));
                let name = decode("primary's name", name)?;
                if name.is_empty() {
                    return Err(wrong("primary's name", "/NAME after the Sentinels' addresses"));
                }
                (Topology::Sentinel(name), db(number)?, DEFAULT_SENTINEL_PORT)
            }
            _ => return Err(wrong("scheme", SCHEMES)),
        };
        let nodes = hosts.split(',').map(|host| node(host, default_port)).collect::<Result<Vec<_>, _>>()?;
        if nodes.len() > NODES_MAX || (topology == Topology::Single && nodes.len() > 1) {
            return Err(wrong("addresses", format!("one for a single server, else at most {NODES_MAX}")));
        }
        let (username, password) = credentials(user_info)?;
        let mut parsed = Self {
            topology,
            tls,
            nodes,
            username,
            password,
            db,
            connect_timeout: Duration::from_millis(CONNECT_TIMEOUT_MS),
            response_timeout: Duration::from_millis(RESPONSE_TIMEOUT_MS),
            ca_file: None,
        };
        parsed.read_parameters(query)?;
        Ok(parsed)
    }

    fn read_parameters(&mut self, query: Option<&str>) -> Result<(), RedisUrlError> {
        let mut seen = Vec::new();
        for parameter in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = parameter.split_once('=').ok_or_else(|| wrong("parameters", PARAMETERS))?;
            if seen.contains(&name) {
                return Err(wrong("parameters", PARAMETERS));
            }
            seen.push(name);
            match name {
                "connect_timeout_ms" => self.connect_timeout = timeout("connect_timeout_ms", value)?,
                "response_timeout_ms" => self.response_timeout = timeout("response_timeout_ms", value)?,
                "ca_file" if self.tls && !value.is_empty() => self.ca_file = Some(decode("ca_file", value)?.into()),
                _ => return Err(wrong("parameters", PARAMETERS)),
            }
        }
        Ok(())
    }
}

fn wrong(part: &'static str, expected: impl Into<String>) -> RedisUrlError {
    RedisUrlError { part, expected: expected.into() }
}

fn db(path: Option<&str>) -> Result<i64, RedisUrlError> {
    match path {
        None | Some("") => Ok(0),
        Some(number) => number
            .parse::<u16>()
            .ok()
            .filter(|_| number.bytes().all(|b| b.is_ascii_digit()))
            .map(i64::from)
            .ok_or_else(|| wrong("database", "/ and a number from 0 to 65535, or nothing")),
    }
}

fn timeout(part: &'static str, value: &str) -> Result<Duration, RedisUrlError> {
    value
        .parse::<u64>()
        .ok()
        .filter(|ms| (1..=TIMEOUT_MAX_MS).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| wrong(part, format!("1 to {TIMEOUT_MAX_MS}")))
}

/// `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`.
fn node(text: &str, default_port: u16) -> Result<(String, u16), RedisUrlError> {
    let expected = || wrong("addresses", "HOST or HOST:PORT, separated by commas; IPv6 in [ ]");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(expected)?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(expected)?) };
            host.parse::<std::net::Ipv6Addr>().map_err(|_| expected())?;
            (host, port)
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(is_host) {
        return Err(expected());
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(expected)?,
    };
    Ok((host.to_owned(), port))
}

fn credentials(user_info: Option<&str>) -> Result<(Option<String>, Option<String>), RedisUrlError> {
    let Some(user_info) = user_info else { return Ok((None, None)) };
    let (user, password) = user_info.split_once(':').map_or((user_info, None), |(user, word)| (user, Some(word)));
    let username = if user.is_empty() { None } else { Some(decode("user", user)?) };
    let password = password.map(|password| decode("password", password)).transpose()?;
    if password.as_ref().is_none_or(String::is_empty) {
        return Err(wrong("password", "USER:PASSWORD@ or :PASSWORD@, percent-encoded"));
    }
    Ok((username, password))
}

/// Undoes percent-encoding.
fn decode(part: &'static str, text: &str) -> Result<String, RedisUrlError> {
    let expected = || wrong(part, "percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(expected);
            let (high, low) = (digit()?, digit()?);
            u8::try_from(high * 16 + low).map_err(|_| expected())?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> RedisUrl {
        RedisUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn reads_each_topology() {
        let single = parsed("redis://h");
        assert_eq!((single.topology, single.tls, single.db), (Topology::Single, false, 0));
        let tens = (Duration::from_millis(80), Duration::from_millis(80));
        assert_eq!((single.connect_timeout, single.response_timeout), tens);
        assert_eq!(single.nodes, [("h".to_owned(), 6379)]);
        assert_eq!(parsed("rediss://h:1/7").db, 7);
        let cluster = parsed("rediss+cluster://u:p@a:1,b,[::1]:3");
        assert_eq!((cluster.topology, cluster.tls), (Topology::Cluster, true));
        assert_eq!(cluster.nodes, [("a".into(), 1), ("b".into(), 6379), ("::1".into(), 3)]);
        let sentinel = parsed("redis+sentinel://a,b:2/the-primary/3");
        assert_eq!(sentinel.topology, Topology::Sentinel("the-primary".into()));
        assert_eq!((sentinel.nodes, sentinel.db), (vec![("a".into(), 26379), ("b".into(), 2)], 3));
    }

    #[test]
    fn reads_credentials_and_parameters_and_never_shows_the_password() {
        let url = parsed("rediss://us%40er:s%2fe%3Acret@h?connect_timeout_ms=7&response_timeout_ms=8&ca_file=/a%20b");
        assert_eq!(url.username.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_deref(), Some("s/e:cret"));
        assert_eq!((url.connect_timeout, url.response_timeout), (Duration::from_millis(7), Duration::from_millis(8)));
        assert_eq!(url.ca_file, Some(PathBuf::from("/a b")));
        assert!(!format!("{url:?}").contains("cret"));
        assert_eq!(parsed("redis://:pw@h").username, None);
    }

    #[test]
    fn refuses_anything_else_and_shows_nothing_of_it() {
        for (url, part) in [
            ("h:6379", "scheme"),
            ("http://h", "scheme"),
            ("redisx://h", "scheme"),
            ("redis+foo://h", "scheme"),
            ("redis://", "addresses"),
            ("redis://a,b", "addresses"),
            ("redis://h:0", "addresses"),
            ("redis://h:70000", "addresses"),
            ("redis://[::1", "addresses"),
            ("redis://h h", "addresses"),
            ("redis://h/x", "database"),
            ("redis://h/+1", "database"),
            ("redis://h/1/2", "database"),
            ("redis+cluster://h/1", "database"),
            ("redis+sentinel://h", "primary's name"),
            ("redis+sentinel://h/n/x", "database"),
            ("redis://user@h", "password"),
            ("redis://user:@h", "password"),
            ("redis://:secret%4@h", "password"),
            ("redis://:sec?ret@h", "addresses"),
            ("redis://h?secret=1", "parameters"),
            ("redis://h?connect_timeout_ms", "parameters"),
            ("redis://h?connect_timeout_ms=0", "connect_timeout_ms"),
            ("redis://h?connect_timeout_ms=1&connect_timeout_ms=2", "parameters"),
            ("redis://h?ca_file=/x", "parameters"),
        ] {
            let error = RedisUrl::parse(url).expect_err(url);
            assert_eq!(error.part, part, "{url}: {error}");
            assert!(!error.to_string().contains("sec"), "{error}");
        }
    }
}
