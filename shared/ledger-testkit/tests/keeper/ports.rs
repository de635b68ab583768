//! The world as the keeper's ports. It asks no more of them than this.

use std::sync::Arc;

use async_trait::async_trait;
use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{
    ActedCold, Amend, Begin, Begun, ClaimRow, Clock, ClockUnknown, ColdLedger, ColdSession, ControlPlane, Count,
    EventQueue, Fill, Heal, HistoryPage, HistoryQuery, HotHealth, HotTier, KeeperState, Persisted, Position,
    QueueDepth, Registered, Release, Replace, Settle, StoreError, Together,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{Fact, FillPass, PayloadHash, PolicySet, Record, Slot, Subject, Tenant, Timestamp};

use crate::world::World;

/// One process's handle on the world.
#[derive(Clone)]
pub(crate) struct Ports {
    pub(crate) world: Arc<World>,
    /// How far its clock is off.
    pub(crate) skew_ms: i64,
    pub(crate) dead_is_known: bool,
    pub(crate) problems: Vec<String>,
}

#[async_trait]
impl Clock for Ports {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Ok(self.world.clock.now()?.plus_millis(self.skew_ms))
    }

    async fn pause(&self, millis: u64) {
        self.world.clock.pause(millis).await;
    }
}

#[async_trait]
impl HotTier for Ports {
    async fn begin(&self, _requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        unreachable!("the keeper registers nothing")
    }

    async fn settle(&self, _requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        unreachable!("the keeper settles nothing")
    }

    async fn count(&self, _requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        unreachable!("the keeper counts no sightings")
    }

    async fn replace(&self, _requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        unreachable!("the keeper replaces nothing")
    }

    async fn amend(&self, _requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        unreachable!("the keeper acts on no claim")
    }

    async fn release(&self, _requests: &[Release]) -> Vec<Result<(), StoreError>> {
        unreachable!("the keeper releases nothing")
    }

    async fn read(&self, _slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        unreachable!("the keeper reads no records")
    }

    async fn heal(&self, _requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        unreachable!("the keeper fills")
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        let filled = self
            .world
            .call("fill", |world| requests.iter().map(|Fill { slot, row }| world.fill(*slot, row)).collect::<Vec<_>>());
        match filled.await {
            Ok(filled) => filled.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); requests.len()],
        }
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        self.world.call("begin_fill", |world| world.begin_fill(pass)).await
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        self.world.call("end_fill", |world| world.end_fill(pass)).await
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.world.now())
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        let marker = self.world.call("health", World::marker).await?;
        Ok(HotHealth { marker, problems: self.problems.clone() })
    }
}

#[async_trait]
impl ColdLedger for Ports {
    async fn register(&self, _: &Subject, _: &Record, _: u64) -> Result<Registered, StoreError> {
        unreachable!("the keeper registers nothing")
    }

    async fn sight(&self, _: &Subject, _: &Record, _: u64) -> Result<Option<Registered>, StoreError> {
        unreachable!("the keeper counts no sightings")
    }

    async fn register_together(&self, _: &[(Subject, Record)], _: u64) -> Result<Together, StoreError> {
        unreachable!("the keeper registers nothing")
    }

    async fn act(&self, _: &Subject, _: &ClaimId, _: &Act, _: Timestamp) -> Result<ActedCold, StoreError> {
        unreachable!("the keeper acts on no claim")
    }

    async fn standing(&self, _: &Subject) -> Result<Option<Record>, StoreError> {
        unreachable!("the keeper reads rows in their order")
    }

    async fn persist(&self, _: &[Fact], _: Timestamp) -> Result<Persisted, StoreError> {
        unreachable!("the keeper persists nothing")
    }

    async fn newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError> {
        self.world.call("newest_live", |world| world.newest_live(now, after, limit)).await
    }

    async fn purge(&self, _ended_before: Timestamp, _limit: usize) -> Result<u64, StoreError> {
        self.world.call("purge", |_| 0).await
    }

    async fn by_key(&self, _: &Subject, _: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        unreachable!("the keeper searches nothing")
    }

    async fn by_hash(&self, _: &Tenant, _: &PayloadHash, _: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        unreachable!("the keeper searches nothing")
    }

    async fn note_drained(&self, _at: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.world.now())
    }
}

#[async_trait]
impl EventQueue for Ports {
    async fn send(&self, _: &[Fact]) -> Vec<Result<(), StoreError>> {
        unreachable!("the keeper sends nothing")
    }

    async fn send_together(&self, _: &[Fact]) -> Result<(), StoreError> {
        unreachable!("the keeper sends nothing")
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        let (waiting, dead, lag_ms) = self.world.call("depth", World::depth).await?;
        Ok(QueueDepth { waiting, dead: self.dead_is_known.then_some(dead), lag_ms })
    }
}

#[async_trait]
impl ControlPlane for Ports {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        unreachable!("the keeper needs no policy")
    }

    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        self.world.call("cold_sessions", |world| world.sessions(limit)).await
    }

    async fn open_cold_session(&self, _: &ColdSession) -> Result<(), StoreError> {
        unreachable!("the keeper holds no session")
    }

    async fn renew_cold_session(&self, _: &ColdSession, _: Timestamp) -> Result<bool, StoreError> {
        unreachable!("the keeper holds no session")
    }

    async fn remove_cold_session(&self, read: &ColdSession) -> Result<bool, StoreError> {
        self.world.call("remove_cold_session", |world| world.remove_session(read)).await
    }

    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError> {
        self.world.call("keeper_state", World::state).await
    }

    async fn save_keeper_state(&self, state: &KeeperState) -> Result<bool, StoreError> {
        self.world.call("save_keeper_state", |world| world.save(state)).await
    }
}
