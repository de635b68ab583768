//! What a function does in the half second that Lambda gives it at its end.

use ledger_stores::outbox::Outbox;
use std::sync::Arc;

/// Sends what the outbox still holds when Lambda ends the process. Lambda tells only processes that registered an extension,
/// which this does; await it before the runtime starts. Where it cannot register, facts about the last repeats may be lost
/// with the process, and a later fact of their record repairs that.
pub async fn flush_at_end(outbox: Arc<Outbox>) {
    // Registering panics where the runtime API refuses; a task of its own keeps that from ending the function.
    let registered = tokio::spawn(lambda_runtime::spawn_graceful_shutdown_handler(move || async move {
        outbox.flush().await;
    }));
    if registered.await.is_err() {
        tracing::warn!("not told of the end: facts about the last repeats may be lost with the process");
    }
}
