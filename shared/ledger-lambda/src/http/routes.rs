//! What every router answers where it has no route.

use axum::Router;

use super::problem::{Kind, Problem};

/// The same routes, with problems for unknown routes and methods. `expected` lists the routes there are.
pub fn with_problems(routes: Router, expected: &'static str) -> Router {
    let expected = move || format!("expected {expected}");
    routes
        .method_not_allowed_fallback(move || async move { Problem::new(Kind::MethodNotAllowed, expected()) })
        .fallback(move || async move { Problem::new(Kind::UnknownRoute, expected()) })
}
