//! `POST /v1/check/batch`: up to 100 checks, each on its own or, with `atomic`, all claimed or none.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use ledger_domain::check::{Check, Looked, TogetherAnswer};
use ledger_domain::{Invalid, Undecided};
use ledger_lambda::http::problem::json_response;
use ledger_lambda::http::{Caller, Problem, body};

use crate::App;
use crate::request;
use crate::response::{self, Results};

/// 200 with a verdict or a problem per item; a problem where the batch itself cannot be read.
pub(crate) async fn check_batch(State(app): State<Arc<App>>, caller: Caller, body: Body) -> Response {
    match check_all(&app, &caller, body).await {
        Ok(results) => json_response(StatusCode::OK, &results),
        Err(problem) => problem.into_response(),
    }
}

async fn check_all(app: &App, caller: &Caller, body: Body) -> Result<Results, Problem> {
    let bytes = body::collect(body).await?;
    let batch = request::batch(&bytes)?;
    let read = |item: &serde_json::value::RawValue| request::check(item.get().as_bytes(), app, caller);
    let items = batch.items.into_iter().map(read).collect::<Vec<_>>();
    if batch.atomic { together(app, items).await } else { Ok(each(app, items).await) }
}

async fn each(app: &App, items: Vec<Result<Check, Problem>>) -> Results {
    let checks: Vec<_> = items.iter().filter_map(|check| check.as_ref().ok().cloned()).collect();
    let mut answers = app.ledger.check(&checks).await.into_iter();
    let results = items.into_iter().map(|check| {
        let check = check?;
        let answer = answers.next().unwrap_or(Err(Undecided::Contended.into()));
        response::log(&check.subject.scope, answer.as_ref());
        answer.map_err(Problem::from)
    });
    Results::of(results)
}

/// Several levels of one message: all are NEW and claimed, or nothing is registered and each is looked at.
///
/// # Errors
/// [`Problem`] 400 where a check asks for no claim.
async fn together(app: &App, items: Vec<Result<Check, Problem>>) -> Result<Results, Problem> {
    let plain = items.iter().position(|item| item.as_ref().is_ok_and(|check| check.claim.is_none()));
    if let Some(at) = plain {
        let expected = "a claim, as each check of an atomic batch has";
        return Err(Invalid::new(format!("items[{at}].claim"), expected).into());
    }
    let checks: Vec<_> = items.iter().filter_map(|check| check.as_ref().ok().cloned()).collect();
    let TogetherAnswer { applied, items: answers } = if checks.len() == items.len() {
        app.ledger.check_together(&checks).await
    } else {
        TogetherAnswer { applied: false, items: app.ledger.look_together(&checks).await }
    };
    let mut answers = answers.into_iter();
    let results = items.into_iter().map(|check| {
        let check = check?;
        let answer = answers.next().unwrap_or(Err(Undecided::Contended.into()));
        match &answer {
            Ok(Looked::Verdict(verdict)) => response::log(&check.subject.scope, Ok(verdict)),
            Ok(Looked::Free) => {}
            Err(refusal) => response::log(&check.subject.scope, Err(refusal)),
        }
        answer.map_err(Problem::from)
    });
    Ok(Results::together(applied, results))
}
