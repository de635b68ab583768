use async_trait::async_trait;
use ledger_domain::ports::QueueDepth;
use ledger_domain::{MessageKey, Nonce, PayloadHash, Record, Scope, State, Subject, Timestamp};

use super::*;

/// What the queue answers to a call, for all its facts.
#[derive(Clone, Copy)]
enum Answer {
    Taken,
    Down,
    Lost,
    Refused,
}

/// Answers as scripted, then takes everything. Each send waits for a permit of the gate.
struct ScriptedQueue {
    script: Mutex<VecDeque<Answer>>,
    calls: Mutex<Vec<Vec<Fact>>>,
    gate: Semaphore,
    busy: Mutex<(usize, usize)>,
}

impl ScriptedQueue {
    fn new(script: &[Answer], permits: usize) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(script.iter().copied().collect()),
            calls: Mutex::default(),
            gate: Semaphore::new(permits),
            busy: Mutex::default(),
        })
    }

    fn calls(&self) -> Vec<Vec<Fact>> {
        self.calls.lock().unwrap().clone()
    }

    /// The most sends that were on their way together.
    fn most_busy(&self) -> usize {
        self.busy.lock().unwrap().1
    }
}

#[async_trait]
impl EventQueue for ScriptedQueue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        self.calls.lock().unwrap().push(facts.to_vec());
        {
            let mut busy = self.busy.lock().unwrap();
            busy.0 += 1;
            busy.1 = busy.1.max(busy.0);
        }
        self.gate.acquire().await.unwrap().forget();
        self.busy.lock().unwrap().0 -= 1;
        let answer = match self.script.lock().unwrap().pop_front().unwrap_or(Answer::Taken) {
            Answer::Taken => Ok(()),
            Answer::Down => Err(StoreError::did_not_happen("send", "down")),
            Answer::Lost => Err(StoreError::may_have_happened("send", "lost")),
            Answer::Refused => Err(StoreError::rejected("send", "no")),
        };
        vec![answer; facts.len()]
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        self.send(facts).await.into_iter().collect()
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        Err(StoreError::did_not_happen("depth", "not scripted"))
    }
}

fn fact(key: u64, retry_count: u32) -> Fact {
    let at = Timestamp::from_millis(1_790_000_000_000);
    let record = Record {
        registration_id: RegistrationId::from_bytes(key.to_be_bytes()),
        state: State::Registered,
        attempt: 1,
        nonce: Nonce::from_bytes([1; 8]),
        won_at: at,
        first_seen_at: at,
        last_seen_at: at.plus_seconds(u64::from(retry_count)),
        window_ends_at: at.plus_seconds(86_400),
        payload_hash: PayloadHash::from_bytes([7; 32]),
        retry_count,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    };
    let key = MessageKey::text(&format!("m{key}")).unwrap();
    Fact::of(Subject { scope: Scope::parse("t1:as4", None).unwrap(), key }, &record)
}

const MANY: usize = 1_000;
const SETTINGS: OutboxSettings = OutboxSettings { capacity: 1_000, batch_max: 100, sends_max: 4, linger_ms: 3_600_000 };

#[tokio::test]
async fn a_hot_keys_repeats_are_one_fact_with_the_last_count() {
    let queue = ScriptedQueue::new(&[], MANY);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
    for count in 1..=1_000 {
        outbox.offer(fact(1, count));
    }
    outbox.flush().await;
    assert_eq!(queue.calls(), vec![vec![fact(1, 1_000)]]);
    assert_eq!(outbox.stats(), OutboxStats { offered: 1_000, merged: 999, sent: 1, dropped: 0 });
}

#[tokio::test(start_paused = true)]
async fn without_a_flush_it_sends_after_the_linger() {
    let queue = ScriptedQueue::new(&[], MANY);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
    outbox.offer(fact(1, 1));
    tokio::time::sleep(Duration::from_millis(SETTINGS.linger_ms - 1)).await;
    assert!(queue.calls().is_empty());
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(queue.calls().len(), 1);
}

#[tokio::test]
async fn sends_are_bounded_in_size_and_number() {
    let queue = ScriptedQueue::new(&[], 0);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
    (0..950).for_each(|key| outbox.offer(fact(key, 1)));
    let watch = async {
        while queue.most_busy() < SETTINGS.sends_max {
            tokio::task::yield_now().await;
        }
        queue.gate.add_permits(MANY);
    };
    tokio::join!(outbox.flush(), watch);
    let sizes: Vec<usize> = queue.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [vec![100; 9], vec![50]].concat());
    assert_eq!(queue.most_busy(), SETTINGS.sends_max);
    assert_eq!(outbox.stats().sent, 950);
}

#[tokio::test]
async fn what_does_not_fit_is_dropped_and_counted() {
    let queue = ScriptedQueue::new(&[], MANY);
    let settings = OutboxSettings { capacity: 3, ..SETTINGS };
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, settings);
    (0..5).for_each(|key| outbox.offer(fact(key, 1)));
    outbox.offer(fact(0, 2));
    outbox.flush().await;
    assert_eq!(queue.calls(), vec![vec![fact(0, 2), fact(1, 1), fact(2, 1)]]);
    assert_eq!(outbox.stats(), OutboxStats { offered: 6, merged: 1, sent: 3, dropped: 2 });
}

#[tokio::test]
async fn a_failed_send_is_tried_once_more() {
    for failure in [Answer::Down, Answer::Lost] {
        let queue = ScriptedQueue::new(&[failure], MANY);
        let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
        outbox.offer(fact(1, 1));
        outbox.flush().await;
        assert_eq!(queue.calls(), vec![vec![fact(1, 1)]; 2]);
        assert_eq!(outbox.stats(), OutboxStats { offered: 1, merged: 0, sent: 1, dropped: 0 });
    }
}

#[tokio::test]
async fn a_fact_that_failed_twice_is_dropped_and_a_flush_ends_with_the_queue_down() {
    let queue = ScriptedQueue::new(&[Answer::Down; 8], MANY);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
    (0..3).for_each(|key| outbox.offer(fact(key, 1)));
    outbox.flush().await;
    assert_eq!(queue.calls().len(), 2);
    assert_eq!(outbox.stats(), OutboxStats { offered: 3, merged: 0, sent: 0, dropped: 3 });
}

#[tokio::test]
async fn a_refused_fact_is_not_tried_again() {
    let queue = ScriptedQueue::new(&[Answer::Refused], MANY);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, SETTINGS);
    outbox.offer(fact(1, 1));
    outbox.flush().await;
    assert_eq!(queue.calls().len(), 1);
    assert_eq!(outbox.stats().dropped, 1);
}

#[tokio::test]
async fn what_failed_merges_with_what_came_since() {
    let queue = ScriptedQueue::new(&[Answer::Lost], 0);
    let outbox = Outbox::start(Arc::clone(&queue) as Arc<dyn EventQueue>, OutboxSettings { sends_max: 1, ..SETTINGS });
    outbox.offer(fact(1, 1));
    let watch = async {
        while queue.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        outbox.offer(fact(1, 2));
        queue.gate.add_permits(MANY);
    };
    tokio::join!(outbox.flush(), watch);
    assert_eq!(queue.calls(), vec![vec![fact(1, 1)], vec![fact(1, 2)]]);
    assert_eq!(outbox.stats(), OutboxStats { offered: 2, merged: 1, sent: 1, dropped: 0 });
}
