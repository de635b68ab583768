//! The ledger measured against the bare stores, in the same run: `cargo run --release -p ledger-bench -- hot|cold|failures|start`.
//!
//! A number alone says little on a machine that others use too. So what is printed are ratios of pairs that ran right after
//! each other, ours and the bare one, their median and their spread; the absolute numbers are for information. A mark is
//! what a median must reach; a run that misses one ends with status 1.

#![expect(
    clippy::expect_used,
    reason = "a measurement that cannot be made ends the run: a number would be worse than none"
)]

mod checks;
mod cold;
mod failures;
mod hot;
mod start;
mod table;
mod timing;

use std::process::ExitCode;

use mimalloc::MiMalloc;
use table::Table;

/// As the check function has it, for both sides.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const USAGE: &str = "ledger-bench hot [http]|cold|failures|start [BINARY]|checks N|requests N

  hot    checks against the bare commands on Redis: rates, latency, memory, and the HTTP router on a socket
         (`hot http`: the last alone)
  cold   facts into PostgreSQL against a bare unnest insert and COPY
  failures  checks while Redis is a black hole against the bare claim in PostgreSQL, and the refill of Redis against bare
         pipelined loads
  start  a release build of the check function (target/release/check, or BINARY): its size, and how soon it asks for work
  checks N  N first checks and N repeats in memory and nothing else, for an instruction counter
  requests N  the same as requests to the HTTP router";

/// As many threads as a function with one virtual CPU has: the rates then say what a check costs, not how many cores were
/// free. Redis has a process of its own.
fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut table = Table::default();
    match args.as_slice() {
        ["hot"] => hot::run(&mut table),
        ["hot", "http"] => hot::run_http(&mut table),
        ["cold"] => one_thread().block_on(cold::run(&mut table)),
        ["failures"] => one_thread().block_on(failures::run(&mut table)),
        ["start"] => start::run(&mut table, "target/release/check".as_ref()),
        ["start", binary] => start::run(&mut table, binary.as_ref()),
        ["checks", count] => {
            one_thread().block_on(checks::run(count.parse().expect("a number of checks")));
            return ExitCode::SUCCESS;
        }
        ["requests", count] => {
            one_thread().block_on(checks::run_requests(count.parse().expect("a number of requests")));
            return ExitCode::SUCCESS;
        }
        _ => {
            println!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    println!("\n{table}");
    if table.all_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
