//! The cold ledger's conformance suite over both implementations.
#![allow(clippy::expect_used, reason = "a test fails where its fixture does")]

mod postgres {
    use std::sync::Arc;

    use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
    use ledger_testkit::cold_ledger::Place;
    use ledger_testkit::postgres_server::PostgresServer;

    async fn place() -> Place {
        let url = PostgresServer::shared().database().await;
        // The suite's concurrency is judged by its results, not by how long a busy machine takes.
        let config = PostgresConfig { acquire_timeout_ms: 60_000, operation_timeout_ms: 60_000, ..Default::default() };
        let handle = || Arc::new(PostgresLedger::connect_lazy(&url, &config).expect("a URL"));
        Place { a: handle(), b: handle(), keep: Box::new(()) }
    }

    ledger_testkit::cold_ledger_conformance!(place);
}

mod sqlite {
    use std::sync::Arc;

    use ledger_stores::sqlite::SqliteLedger;
    use ledger_testkit::cold_ledger::Place;

    async fn place() -> Place {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("cold.sqlite");
        let a = Arc::new(SqliteLedger::open(&path).await.expect("a new file"));
        let b = Arc::new(SqliteLedger::open(&path).await.expect("the same file"));
        Place { a, b, keep: Box::new(dir) }
    }

    ledger_testkit::cold_ledger_conformance!(place);
}
