//! Plain checks in memory and nothing else, so that an instruction counter sees what a check costs: run it under
//! `valgrind --tool=callgrind` with two counts, and the difference is the price of the difference.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use check::{App, Asked};
use ledger_lambda::env::Tenants;
use tower::ServiceExt as _;

use crate::hot::{Load, Ours, body_of, in_memory, routes};

/// The longest answer to a check.
const ANSWER_MAX_BYTES: usize = 4 * 1_024;

/// `count` first sightings, then as many repeats of them, one at a time.
pub(crate) async fn run(count: u64) {
    let ours = Ours::in_memory(usize::try_from(count).expect("a number that fits") + 1);
    ours.check_each(Load::New, count).await;
    ours.check_each(Load::Seen, count).await;
}

/// The same checks as requests to the router.
pub(crate) async fn run_requests(count: u64) {
    let ledger = in_memory(usize::try_from(count).expect("a number that fits") + 1);
    let router = routes(App { ledger, tenants: Tenants::All, default_tenant: None, asked: Asked::default() });
    for expected in ["\"NEW\"", "\"SEEN\""] {
        for number in 0..count {
            ask(&router, number, expected).await;
        }
    }
}

async fn ask(router: &Router, number: u64, expected: &str) {
    let request = Request::post("/v1/check").body(Body::from(body_of(number))).expect("a request");
    let response = router.clone().oneshot(request).await.expect("a router that is infallible");
    let body = to_bytes(response.into_body(), ANSWER_MAX_BYTES).await.expect("an answer");
    let text = str::from_utf8(&body).expect("an answer in UTF-8");
    assert!(text.contains(expected), "{text}");
}
