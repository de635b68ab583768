//! Running an axum router on Lambda, one request at a time or several (`AWS_LAMBDA_MAX_CONCURRENCY`).

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use http::Request;
use lambda_http::{RequestExt, run_concurrent, service_fn};
use tower::ServiceExt;

use super::{Caller, Kind, Problem};
use crate::freshness::Freshness;

/// The largest response, in bytes. Lambda itself takes 6 MiB, our JSON in them as a string with its quotes escaped.
const RESPONSE_MAX_BYTES: usize = 5 * 1024 * 1024;

/// Runs `router` on the Lambda runtime until it ends. Before each request, `freshness` asks again for what is too old.
///
/// # Errors
/// Where the runtime API cannot be reached.
pub async fn run(router: Router, freshness: Freshness) -> Result<(), lambda_http::Error> {
    run_concurrent(service_fn(move |event: lambda_http::Request| {
        let (router, freshness) = (router.clone(), freshness.clone());
        async move { Ok::<_, Infallible>(answer(router, &freshness, event).await) }
    }))
    .await
}

async fn answer(
    router: Router,
    freshness: &Freshness,
    event: lambda_http::Request,
) -> http::Response<lambda_http::Body> {
    freshness.ensure().await;
    let caller = event.request_context_ref().and_then(Caller::of);
    let (mut parts, body) = event.into_parts();
    if let Some(caller) = caller {
        parts.extensions.insert(caller);
    }
    let request = Request::from_parts(parts, Body::from(body.as_ref().to_vec()));
    let Ok(response) = router.oneshot(request).await;
    let (parts, body) = response.into_parts();
    match to_bytes(body, RESPONSE_MAX_BYTES).await {
        Ok(bytes) => http::Response::from_parts(parts, lambda_body(bytes)),
        // In memory already, so nothing but its length is wrong with it.
        Err(_) => {
            let detail = format!("the answer is over {RESPONSE_MAX_BYTES} bytes: ask for less at once");
            let (parts, body) = Problem::new(Kind::AnswerTooLarge, detail).into_response().into_parts();
            let bytes = to_bytes(body, RESPONSE_MAX_BYTES).await.unwrap_or_default();
            http::Response::from_parts(parts, lambda_body(bytes))
        }
    }
}

fn lambda_body(bytes: Bytes) -> lambda_http::Body {
    match String::from_utf8(bytes.to_vec()) {
        Ok(text) => lambda_http::Body::Text(text),
        Err(error) => lambda_http::Body::Binary(error.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use axum::routing::get;

    use super::*;
    use crate::freshness::Remembered;

    struct Stale(Arc<AtomicBool>);

    #[async_trait]
    impl Remembered for Stale {
        async fn ensure(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn what_is_remembered_is_made_fresh_before_the_request_is_looked_at() {
        let fresh = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&fresh);
        let router = Router::new().route("/", get(move || async move { seen.load(Ordering::SeqCst).to_string() }));
        let freshness = Freshness::of(vec![Arc::new(Stale(fresh))]);
        let event = Request::get("/").body(lambda_http::Body::Empty).expect("valid");
        let response = answer(router, &freshness, event).await;
        assert_eq!(response.body().as_ref(), b"true");
    }

    #[tokio::test]
    async fn an_answer_that_lambda_would_not_pass_on_is_a_problem_and_no_empty_success() {
        let of = |length: usize| Router::new().route("/", get(move || async move { "x".repeat(length) }));
        let event = || Request::get("/").body(lambda_http::Body::Empty).expect("valid");
        let response = answer(of(RESPONSE_MAX_BYTES), &Freshness::of(Vec::new()), event()).await;
        assert_eq!((response.status().as_u16(), response.body().len()), (200, RESPONSE_MAX_BYTES));
        let response = answer(of(RESPONSE_MAX_BYTES + 1), &Freshness::of(Vec::new()), event()).await;
        assert_eq!(response.status(), 500);
        let body = String::from_utf8(response.body().to_vec()).expect("JSON");
        assert!(body.contains("urn:dedup-ledger:problem:answer-too-large"), "{body}");
    }
}
