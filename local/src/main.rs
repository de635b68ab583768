//! x
mod server;
fn main() {}
