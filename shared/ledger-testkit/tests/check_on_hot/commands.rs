//! What a check costs, command by command, as Redis itself sees it (`MONITOR`). The cold ledger must not be asked at all.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use async_trait::async_trait;
use ledger_domain::check::Check;
use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{
    ActedCold, ClaimRow, Clock, ColdLedger, HistoryPage, HistoryQuery, HotTier, Persisted, Position, Registered,
    StoreError, Together,
};
use ledger_domain::{Fact, PayloadHash, Record, Subject, Tenant, Timestamp};
use ledger_testkit::clock::ManualClock;
use ledger_testkit::house::{House, check};
use ledger_testkit::redis_server::RedisServer;

use crate::{ask, is_new, open, repeats};

/// Reads what a server is sent.
struct Monitor<'a> {
    server: &'a RedisServer,
    lines: BufReader<TcpStream>,
    asked: u32,
}

impl<'a> Monitor<'a> {
    fn start(server: &'a RedisServer) -> Self {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.write_all(b"MONITOR\r\n").expect("sent");
        let mut monitor = Self { server, lines: BufReader::new(stream), asked: 0 };
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("Redis monitors in ASCII");
        line.trim_end().to_owned()
    }

    /// The commands on keys that clients have sent since the last call. What scripts call is left out.
    fn commands(&mut self) -> Vec<String> {
        self.asked += 1;
        let end = format!("end-{}", self.asked);
        let _: String = self.server.command(&["ECHO", &end]);
        let mut commands = Vec::new();
        loop {
            let line = self.line();
            let (client, command) = line.split_once("] ").expect("a client and its command");
            if command == format!("\"ECHO\" \"{end}\"") {
                return commands;
            }
            let name = command.split('"').nth(1).expect("a command's name");
            // How connections introduce themselves, and what is asked about the server.
            if !client.ends_with(" lua") && !["HELLO", "CLIENT", "TIME", "INFO"].contains(&name) {
                commands.push(name.to_owned());
            }
        }
    }

    /// How often the server has read from its clients so far.
    fn reads(&self) -> u64 {
        let info: String = self.server.command(&["INFO", "stats"]);
        let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:")).expect("a counter");
        reads.parse().expect("a number")
    }
}

struct Test {
    house: House,
    clock: Arc<ManualClock>,
}

/// A ledger whose scripts the server knows already.
async fn start(server: &RedisServer) -> Test {
    let hot: Arc<dyn HotTier> = open(server.url());
    let clock = Arc::new(ManualClock::new(hot.time().await.expect("the tier tells its time")));
    let house = House::new(hot, Some(Arc::new(NeverAsked)), Arc::clone(&clock) as Arc<dyn Clock>);
    let t = Test { house, clock };
    assert!(is_new(&ask(&t.house, short("warm")).await));
    assert_eq!(repeats(&ask(&t.house, short("warm")).await), Some(1));
    t.clock.advance(60_000);
    assert!(is_new(&ask(&t.house, short("warm")).await));
    t
}

/// With a window of a minute.
fn short(key: &str) -> Check {
    Check { ttl_seconds: Some(60), ..check("t:as4", key, 1) }
}

#[tokio::test]
async fn a_first_sighting_is_two_commands_and_a_repeat_two() {
    let server = RedisServer::start();
    let t = start(&server).await;
    let mut monitor = Monitor::start(&server);
    assert!(is_new(&ask(&t.house, check("t:as4", "k", 1)).await));
    assert_eq!(monitor.commands(), ["SET", "EVALSHA"]);
    for payload in [1, 2, 2] {
        assert!(repeats(&ask(&t.house, check("t:as4", "k", payload)).await).is_some());
        assert_eq!(monitor.commands(), ["SET", "EVALSHA"]);
    }
}

#[tokio::test]
async fn replacing_a_record_whose_window_is_over_is_three() {
    let server = RedisServer::start();
    let t = start(&server).await;
    assert!(is_new(&ask(&t.house, short("k")).await));
    // The clock ends the window; Redis, by its own time, still has the record.
    t.clock.advance(60_000);
    let mut monitor = Monitor::start(&server);
    assert!(is_new(&ask(&t.house, short("k")).await));
    assert_eq!(monitor.commands(), ["SET", "EVALSHA", "EVALSHA"]);
}

#[tokio::test]
async fn a_batch_of_100_is_200_commands_and_not_one_round_trip_after_another() {
    let server = RedisServer::start();
    let t = start(&server).await;
    let checks: Vec<Check> = (0..100).map(|n| check("t:as4", &n.to_string(), 1)).collect();
    for round in 0..2 {
        let mut monitor = Monitor::start(&server);
        let before = monitor.reads();
        let answers = t.house.ledger.check(&checks).await;
        let reads = monitor.reads() - before;
        match round {
            0 => assert!(answers.iter().all(is_new), "{answers:?}"),
            _ => assert!(answers.iter().all(|answer| repeats(answer) == Some(1)), "{answers:?}"),
        }
        let commands = monitor.commands();
        // In a pipeline the first call of a script is by its text.
        let (sets, scripts) = commands.split_at(100);
        assert!(sets.iter().all(|name| name == "SET"), "{commands:?}");
        assert!(scripts[0] == "EVAL" && scripts[1..].iter().all(|name| name == "EVALSHA"), "{commands:?}");
        assert_eq!(scripts.len(), 100);
        // A read takes up to 16 KiB of many commands; those of the counter's own connection are in.
        assert!(reads < 50, "{reads} reads of 200 commands");
    }
}

/// A cold ledger that fails the test where it is asked.
struct NeverAsked;

#[async_trait]
impl ColdLedger for NeverAsked {
    async fn register(&self, subject: &Subject, _: &Record, _: u64) -> Result<Registered, StoreError> {
        panic!("register {subject:?}")
    }

    async fn sight(&self, subject: &Subject, _: &Record, _: u64) -> Result<Option<Registered>, StoreError> {
        panic!("sight {subject:?}")
    }

    async fn register_together(&self, wanted: &[(Subject, Record)], _: u64) -> Result<Together, StoreError> {
        panic!("register_together {wanted:?}")
    }

    async fn act(&self, subject: &Subject, _: &ClaimId, act: &Act, _: Timestamp) -> Result<ActedCold, StoreError> {
        panic!("act {subject:?} {act:?}")
    }

    async fn standing(&self, subject: &Subject) -> Result<Option<Record>, StoreError> {
        panic!("standing {subject:?}")
    }

    async fn persist(&self, facts: &[Fact], _: Timestamp) -> Result<Persisted, StoreError> {
        panic!("persist {facts:?}")
    }

    async fn newest_live(&self, _: Timestamp, _: Option<Position>, _: usize) -> Result<Vec<ClaimRow>, StoreError> {
        panic!("newest_live")
    }

    async fn purge(&self, _: Timestamp, _: usize) -> Result<u64, StoreError> {
        panic!("purge")
    }

    async fn by_key(&self, subject: &Subject, _: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        panic!("by_key {subject:?}")
    }

    async fn by_hash(&self, _: &Tenant, payload: &PayloadHash, _: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        panic!("by_hash {payload}")
    }

    async fn note_drained(&self, _: Timestamp) -> Result<(), StoreError> {
        panic!("note_drained")
    }

    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError> {
        panic!("drained_until")
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        panic!("time")
    }
}
