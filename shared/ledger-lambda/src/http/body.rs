//! Collecting a request's body within its limits.

use axum::body::{Body, to_bytes};
use bytes::Bytes;

use super::fields::too_large;
use super::problem::Problem;

/// The largest body taken, in bytes (DESIGN section 9).
pub const BODY_MAX_BYTES: usize = 1024 * 1024;

/// The whole body.
///
/// # Errors
/// [`Problem`] 413 where it is larger than [`BODY_MAX_BYTES`]; it is not read further than that.
pub async fn collect(body: Body) -> Result<Bytes, Problem> {
    // One byte more than allowed tells too large from a connection that broke; nobody is left to read the latter's answer.
    to_bytes(body, BODY_MAX_BYTES).await.map_err(|_| too_large(BODY_MAX_BYTES))
}
