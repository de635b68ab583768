//! A control plane that all processes of a run share, and that can be down.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use ledger_domain::ports::{ColdSession, ControlPlane, KeeperState, StoreError};
use ledger_domain::{PolicySet, Timestamp};

use crate::lock;

#[derive(Debug, Default)]
struct Items {
    sessions: Vec<ColdSession>,
    keeper: Option<KeeperState>,
}

/// The control plane.
#[derive(Debug, Default)]
pub(crate) struct SharedControlPlane {
    items: Mutex<Items>,
    down: AtomicBool,
}

impl SharedControlPlane {
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// The sessions that stand, whether it is down or not.
    pub(crate) fn standing(&self) -> Vec<ColdSession> {
        lock(&self.items).sessions.clone()
    }

    fn up(&self, operation: &'static str) -> Result<std::sync::MutexGuard<'_, Items>, StoreError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen(operation, "the control plane is down"));
        }
        Ok(lock(&self.items))
    }
}

#[async_trait]
impl ControlPlane for SharedControlPlane {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        self.up("read policies").map(|_| PolicySet::default())
    }

    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        Ok(self.up("read cold sessions")?.sessions.iter().take(limit).copied().collect())
    }

    async fn open_cold_session(&self, session: &ColdSession) -> Result<(), StoreError> {
        let mut items = self.up("open a cold session")?;
        if !items.sessions.iter().any(|standing| standing.id == session.id) {
            items.sessions.push(*session);
        }
        Ok(())
    }

    async fn renew_cold_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError> {
        let mut items = self.up("renew a cold session")?;
        let standing = items.sessions.iter_mut().find(|standing| *standing == read);
        Ok(standing.map(|standing| standing.expires_at = expires_at).is_some())
    }

    async fn remove_cold_session(&self, read: &ColdSession) -> Result<bool, StoreError> {
        let mut items = self.up("remove a cold session")?;
        let before = items.sessions.len();
        items.sessions.retain(|standing| standing != read);
        Ok(items.sessions.len() < before)
    }

    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError> {
        Ok(self.up("read the keeper's state")?.keeper)
    }

    async fn save_keeper_state(&self, state: &KeeperState) -> Result<bool, StoreError> {
        let mut items = self.up("save the keeper's state")?;
        let stands = items.keeper.map_or(0, |standing| standing.version);
        let saved = state.version == stands + 1;
        if saved {
            items.keeper = Some(*state);
        }
        Ok(saved)
    }
}
