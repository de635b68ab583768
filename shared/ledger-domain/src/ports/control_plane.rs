//! The control plane: small, consistent, conditional. So far it holds the scope policies.

use async_trait::async_trait;

use super::StoreError;
use crate::policy::{Policy, PolicySet};
use crate::scope::Scope;

/// The control plane.
///
/// # Contract
/// A read sees every write that was acknowledged before it began. A table or file that holds an entry nobody can read is
/// an error for the whole read: half of the policies is no policy.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// All scope policies.
    ///
    /// # Errors
    /// [`StoreError::Rejected`] naming the entry that is wrong; the other kinds where the store does not answer.
    async fn policies(&self) -> Result<PolicySet, StoreError>;
}

/// The policies as last read, for the hot path: no I/O.
pub trait PolicySource: Send + Sync {
    /// The policy of a scope, or `None` where none was ever read or the last read is older than its stated age.
    fn policy(&self, scope: &Scope) -> Option<Policy>;
}
