//! Migrations live outside this crate and are built into it: a new one must rebuild it.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations/postgres");
    println!("cargo::rerun-if-changed=../../migrations/sqlite");
}
