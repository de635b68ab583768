//! The hot tier's state in a JSON file, for the processes of one machine.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger_domain::Timestamp;
use ledger_domain::ports::{ColdSession, KeeperState, StoreError};
use serde_json::{Map, Value};

use crate::control_state::{
    EXPIRES_AT, Fields, OPEN_SESSION, READ_KEEPER, READ_SESSIONS, REMOVE_SESSION, RENEW_SESSION, SAVE_KEEPER,
    keeper_fields, read_keeper, read_session, reopened, version_before,
};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most sessions that are kept: each process has one at a time, and the keeper removes them.
const SESSIONS_MAX: usize = 10_000;
/// How often the lock is tried for, and the pause between, in milliseconds: 2 s together.
const LOCK_TRIES: u32 = 400;
const LOCK_PAUSE_MS: u64 = 5;

const SESSIONS: &str = "coldSessions";
const KEEPER: &str = "keeper";

/// A file that is replaced as a whole:
///
/// ```json
/// {"coldSessions": {"00112233aabbccdd": {"expiresAtMs": 1790000000000}}, "keeper": {"version": 1, ...}}
/// ```
///
/// Who writes holds a lock file beside it, which the kernel lets go when its process ends; who reads needs none.
#[derive(Debug, Clone)]
pub(crate) struct StateFile {
    path: PathBuf,
}

/// What the file holds.
#[derive(Debug, Default)]
struct State {
    sessions: Vec<ColdSession>,
    keeper: Option<KeeperState>,
}

impl StateFile {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) async fn sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        let mut sessions = self.look(READ_SESSIONS).await?.sessions;
        sessions.truncate(limit);
        Ok(sessions)
    }

    pub(crate) async fn open_session(&self, session: &ColdSession) -> Result<(), StoreError> {
        let session = *session;
        let open = move |state: &mut State| {
            if let Some(standing) = state.sessions.iter().find(|standing| standing.id == session.id) {
                return reopened(&session, standing).map(|()| false);
            }
            if state.sessions.len() >= SESSIONS_MAX {
                let problem = format!("{SESSIONS_MAX} cold sessions stand, which is the most");
                return Err(StoreError::did_not_happen(OPEN_SESSION, problem));
            }
            state.sessions.push(session);
            Ok(true)
        };
        self.change(OPEN_SESSION, open).await.map(drop)
    }

    pub(crate) async fn renew_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError> {
        let read = *read;
        let renew = move |state: &mut State| {
            let standing = state.sessions.iter_mut().find(|standing| **standing == read);
            Ok(standing.map(|standing| standing.expires_at = expires_at).is_some())
        };
        self.change(RENEW_SESSION, renew).await
    }

    pub(crate) async fn remove_session(&self, read: &ColdSession) -> Result<bool, StoreError> {
        let read = *read;
        let remove = move |state: &mut State| {
            let before = state.sessions.len();
            state.sessions.retain(|standing| *standing != read);
            Ok(state.sessions.len() < before)
        };
        self.change(REMOVE_SESSION, remove).await
    }

    pub(crate) async fn keeper(&self) -> Result<Option<KeeperState>, StoreError> {
        Ok(self.look(READ_KEEPER).await?.keeper)
    }

    pub(crate) async fn save_keeper(&self, state: &KeeperState) -> Result<bool, StoreError> {
        let (before, new) = (version_before(state)?, *state);
        let save = move |state: &mut State| {
            let fits = state.keeper.map(|keeper| keeper.version) == before;
            if fits {
                state.keeper = Some(new);
            }
            Ok(fits)
        };
        self.change(SAVE_KEEPER, save).await
    }

    async fn look(&self, operation: &'static str) -> Result<State, StoreError> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || read(&path, operation)).await;
        read.map_err(|e| StoreError::did_not_happen(operation, e))?
    }

    /// Reads, changes and writes under the lock. What `change` answers `false` to is not written.
    async fn change(
        &self,
        operation: &'static str,
        change: impl FnOnce(&mut State) -> Result<bool, StoreError> + Send + 'static,
    ) -> Result<bool, StoreError> {
        let path = self.path.clone();
        let work = move || {
            let failed = |e: std::io::Error| StoreError::did_not_happen(operation, format!("{}: {e}", path.display()));
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            fs::create_dir_all(folder).map_err(failed)?;
            let _lock = lock(&beside(&path, ".lock")).map_err(failed)?;
            let mut state = read(&path, operation)?;
            if !change(&mut state)? {
                return Ok(false);
            }
            // Under the lock nobody else writes this one; a process that died there left half of one at most.
            let new = beside(&path, ".new");
            let mut file = File::create(&new).map_err(failed)?;
            file.write_all(state.to_json().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            fs::rename(&new, &path).map_err(failed)?;
            // Everybody sees it now; only a crash of the machine could still take it back.
            let kept = File::open(folder).and_then(|folder| folder.sync_all());
            kept.map_err(|e| StoreError::may_have_happened(operation, format!("{}: {e}", folder.display())))?;
            Ok(true)
        };
        tokio::task::spawn_blocking(work).await.map_err(|e| StoreError::may_have_happened(operation, e))?
    }
}

/// The path with more to its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The lock, once it is free.
fn lock(path: &Path) -> std::io::Result<File> {
    let file = File::create(path)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(LOCK_PAUSE_MS)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(std::io::Error::new(ErrorKind::WouldBlock, "another process holds its lock"))
}

/// A file that is missing holds nothing. One that cannot be read is an error for all that it holds.
fn read(path: &Path, operation: &'static str) -> Result<State, StoreError> {
    let failed = |e: std::io::Error| StoreError::did_not_happen(operation, format!("{}: {e}", path.display()));
    let refused = |problem: String| StoreError::rejected(operation, format!("{}: {problem}", path.display()));
    match fs::metadata(path) {
        Ok(found) if found.len() > FILE_BYTES_MAX => {
            Err(refused(format!("{} bytes, expected at most {FILE_BYTES_MAX}", found.len())))
        }
        Ok(_) => {
            let bytes = fs::read(path).map_err(failed)?;
            let file: Fields = serde_json::from_slice(&bytes).map_err(|e| refused(e.to_string()))?;
            State::of(file).map_err(|problem| match problem {
                StoreError::DidNotHappen { source, .. }
                | StoreError::MayHaveHappened { source, .. }
                | StoreError::Rejected { source, .. } => refused(source.to_string()),
            })
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(State::default()),
        Err(e) => Err(failed(e)),
    }
}

impl State {
    fn of(file: Fields) -> Result<Self, StoreError> {
        let refused = |problem: String| StoreError::rejected(READ_SESSIONS, problem);
        let mut state = Self::default();
        for (name, value) in file {
            let Value::Object(entries) = value else { return Err(refused(format!("{name}: expected an object"))) };
            match name.as_str() {
                KEEPER => state.keeper = Some(read_keeper(entries)?),
                SESSIONS => {
                    for (id, fields) in entries {
                        let Value::Object(fields) = fields else {
                            return Err(refused(format!("cold session {id:?}: expected an object")));
                        };
                        state.sessions.push(read_session(&id, fields)?);
                    }
                }
                _ => return Err(refused(format!("{name}: expected {SESSIONS} or {KEEPER}"))),
            }
        }
        Ok(state)
    }

    fn to_json(&self) -> String {
        let session = |session: &ColdSession| {
            let fields = Map::from_iter([(EXPIRES_AT.to_owned(), session.expires_at.as_millis().into())]);
            (session.id.to_string(), Value::Object(fields))
        };
        let mut file = Fields::new();
        file.insert(SESSIONS.to_owned(), Value::Object(self.sessions.iter().map(session).collect()));
        if let Some(keeper) = &self.keeper {
            file.insert(KEEPER.to_owned(), Value::Object(keeper_fields(keeper)));
        }
        Value::Object(file).to_string()
    }
}
