//! The control plane in files: the embedded twin of DynamoDB. Policies are a TOML file that people write, the hot tier's state
//! a JSON file that processes write.

use std::io::ErrorKind;
use std::path::PathBuf;

use async_trait::async_trait;
use ledger_domain::ports::{ColdSession, ControlPlane, KeeperState, StoreError};
use ledger_domain::{PolicySet, Timestamp};
use toml::{Table, Value as Toml};

use crate::control_state::{OPEN_SESSION, READ_KEEPER, READ_SESSIONS, REMOVE_SESSION, RENEW_SESSION, SAVE_KEEPER};
use crate::policy_entry::{self, READ, Value};
use crate::state_file::StateFile;

/// The largest file that is read, in bytes: room for [`policy_entry::ENTRIES_MAX`] entries.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A file of policies, read anew with every call:
///
/// ```toml
/// [scope."t1:as4/in"]
/// windowDefaultSeconds = 86400
/// [tenant.t1]
/// confirmMiss = "always"
/// [family.as2]
/// requireRequestId = true
/// ```
///
/// Write it by renaming a finished file into place, so that nobody reads half of it.
#[derive(Debug, Clone)]
pub struct TomlControlPlane {
    path: PathBuf,
    may_be_missing: bool,
    state: Option<StateFile>,
}

impl TomlControlPlane {
    /// Policies in a file that must be there: a missing one is an error.
    #[must_use]
    pub fn required(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), may_be_missing: false, state: None }
    }

    /// Policies in a file that may be missing: then there is no entry, and the built-in defaults hold.
    #[must_use]
    pub fn optional(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), may_be_missing: true, state: None }
    }

    /// Also holds the hot tier's state, in a file of its own that is made when it is first written to, together with its folder.
    /// The processes of one machine may share it; to those of another it says nothing. Without it, whoever asks for that state
    /// is refused.
    #[must_use]
    pub fn with_state(self, path: impl Into<PathBuf>) -> Self {
        Self { state: Some(StateFile::at(path.into())), ..self }
    }

    fn state(&self, operation: &'static str) -> Result<&StateFile, StoreError> {
        self.state.as_ref().ok_or_else(|| StoreError::rejected(operation, "no file was named for the hot tier's state"))
    }

    /// The file's text; `None` where it is missing and may be.
    async fn read(&self) -> Result<Option<String>, StoreError> {
        let failed = |e: std::io::Error| StoreError::did_not_happen(READ, format!("{}: {e}", self.path.display()));
        let path = self.path.clone();
        let read = move || {
            let bytes = std::fs::metadata(&path)?.len();
            if bytes > FILE_BYTES_MAX {
                return Ok(Err(bytes));
            }
            std::fs::read_to_string(&path).map(Ok)
        };
        let joined = tokio::task::spawn_blocking(read).await.map_err(|e| StoreError::did_not_happen(READ, e))?;
        match joined {
            Ok(Ok(text)) => Ok(Some(text)),
            Ok(Err(bytes)) => {
                let problem = format!("{}: {bytes} bytes, expected at most {FILE_BYTES_MAX}", self.path.display());
                Err(StoreError::rejected(READ, problem))
            }
            Err(e) if e.kind() == ErrorKind::NotFound && self.may_be_missing => Ok(None),
            Err(e) if e.kind() == ErrorKind::InvalidData => {
                Err(StoreError::rejected(READ, format!("{}: not UTF-8", self.path.display())))
            }
            Err(e) => Err(failed(e)),
        }
    }
}

#[async_trait]
impl ControlPlane for TomlControlPlane {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        match self.read().await? {
            Some(text) => parse(&text),
            None => Ok(PolicySet::default()),
        }
    }

    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        self.state(READ_SESSIONS)?.sessions(limit).await
    }

    async fn open_cold_session(&self, session: &ColdSession) -> Result<(), StoreError> {
        self.state(OPEN_SESSION)?.open_session(session).await
    }

    async fn renew_cold_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError> {
        self.state(RENEW_SESSION)?.renew_session(read, expires_at).await
    }

    async fn remove_cold_session(&self, read: &ColdSession) -> Result<bool, StoreError> {
        self.state(REMOVE_SESSION)?.remove_session(read).await
    }

    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError> {
        self.state(READ_KEEPER)?.keeper().await
    }

    async fn save_keeper_state(&self, state: &KeeperState) -> Result<bool, StoreError> {
        self.state(SAVE_KEEPER)?.save_keeper(state).await
    }
}

fn parse(text: &str) -> Result<PolicySet, StoreError> {
    let file: Table = text.parse().map_err(|e: toml::de::Error| StoreError::rejected(READ, e))?;
    let mut policies = PolicySet::default();
    for (kind, entries) in file {
        let Toml::Table(entries) = entries else {
            return Err(StoreError::rejected(READ, format!("{kind}: expected a table of entries")));
        };
        if !["scope", "tenant", "family"].contains(&kind.as_str()) {
            return Err(StoreError::rejected(READ, format!("{kind}: expected scope, tenant or family")));
        }
        for (name, fields) in entries {
            let Toml::Table(fields) = fields else {
                return Err(StoreError::rejected(READ, format!("policy {kind} {name}: expected a table of fields")));
            };
            let fields = fields.into_iter().map(|(field, value)| (field, value_of(value)));
            policy_entry::set(&mut policies, &kind, &name, fields)?;
        }
    }
    Ok(policies)
}

fn value_of(value: Toml) -> Value {
    match value {
        Toml::Integer(number) => u64::try_from(number).map_or_else(|_| Value::Other(number.to_string()), Value::Number),
        Toml::Boolean(value) => Value::Bool(value),
        Toml::String(text) => Value::Text(text),
        Toml::Float(_) | Toml::Datetime(_) | Toml::Array(_) | Toml::Table(_) => {
            Value::Other(format!("a TOML {}", value.type_str()))
        }
    }
}
