//! One trial of a rule: a connection, keys, and the events that the trial publishes.

use std::collections::BTreeSet;

use hark_codec::crypto::KeyPair;
use serde_json::{Value, json};

use crate::probe::client::{OkAnswer, ProbeClient, StoredEvents, id_of};
use crate::probe::end::{ProbeEnd, ProbeResult, ensure};
use crate::probe::event::{EventPlan, ProbeEvent};
use crate::probe::left::LeftEvent;
use crate::probe::run::{ProbeRun, now};

/// One trial of a rule.
pub(crate) struct RuleTrial<'a> {
    pub(crate) run: &'a ProbeRun,
    pub(crate) client: ProbeClient,
    /// The author of most events.
    pub(crate) author: KeyPair,
    /// A second author.
    pub(crate) other: KeyPair,
    /// The value of the tag `t` of the trial's events.
    pub(crate) topic: String,
    /// The time of the trial's newest events, some minutes ago.
    pub(crate) time: u64,
    /// The events that were accepted.
    pub(crate) left: Vec<LeftEvent>,
}

impl<'a> RuleTrial<'a> {
    pub(crate) async fn start(run: &'a ProbeRun, name: &str) -> ProbeResult<Self> {
        let client = ProbeClient::open(run).await?;
        // If the relay admits only the owner's key, this key is the author, and otherwise a fresh
        // key.
        let author = match &run.member {
            Some(keys) => keys.clone(),
            None => run.keys("author")?,
        };
        Ok(Self {
            run,
            client,
            author,
            other: run.keys("other")?,
            topic: format!("hark-{}-{name}", run.name()),
            time: now() - 300,
            left: Vec::new(),
        })
    }

    /// Fresh keys of this trial.
    pub(crate) fn keys(&self, name: &str) -> ProbeResult<KeyPair> {
        Ok(self.run.keys(&format!("{} {name}", self.topic))?)
    }

    /// A second connection.
    pub(crate) async fn connect(&self) -> ProbeResult<ProbeClient> {
        ProbeClient::open(self.run).await
    }

    /// The plan of an event of this kind, `ago` seconds before the trial's time.
    pub(crate) fn plan(&self, kind: u64, ago: u64) -> EventPlan {
        EventPlan::new(kind, self.time - ago).tag(&["t", &self.topic])
    }

    /// A filter for the events of this trial, with further elements.
    pub(crate) fn filter(&self, mut elements: Value) -> Value {
        elements["#t"] = json!([self.topic]);
        elements
    }

    /// Signs an event, with the work that the relay requires.
    pub(crate) fn sign(&self, plan: EventPlan, keys: &KeyPair) -> ProbeEvent {
        plan.mine(keys, self.run.work_bits())
    }

    /// Publishes an event that the check needs, signed by the author.
    pub(crate) async fn store(&mut self, plan: EventPlan) -> ProbeResult<ProbeEvent> {
        let keys = self.author.clone();
        self.store_as(plan, &keys).await
    }

    /// Publishes an event that the check needs.
    pub(crate) async fn store_as(
        &mut self,
        plan: EventPlan,
        keys: &KeyPair,
    ) -> ProbeResult<ProbeEvent> {
        let event = self.sign(plan, keys);
        self.client.store(&event, keys).await?;
        self.remember(&event, keys);
        Ok(event)
    }

    /// Records an accepted event, which is deleted at the end.
    pub(crate) fn remember(&mut self, event: &ProbeEvent, keys: &KeyPair) {
        if !(20_000..30_000).contains(&event.kind) {
            self.left.push(LeftEvent { event: event.clone(), keys: keys.clone() });
        }
    }

    /// Publishes an event whose answer the check judges.
    pub(crate) async fn publish(
        &mut self,
        plan: EventPlan,
        keys: &KeyPair,
    ) -> ProbeResult<(ProbeEvent, OkAnswer)> {
        let event = self.sign(plan, keys);
        let answer = self.client.publish(&event.json()).await?;
        if answer.accepted {
            self.remember(&event, keys);
        }
        Ok((event, answer))
    }

    /// Publishes a note at each of these ages in seconds.
    pub(crate) async fn notes(&mut self, ages: &[u64]) -> ProbeResult<Vec<ProbeEvent>> {
        let mut events = Vec::new();
        for (number, ago) in ages.iter().enumerate() {
            let plan = self.plan(1, *ago).content(format!("note {number}"));
            events.push(self.store(plan).await?);
        }
        Ok(events)
    }

    /// Requests the events of filters, as the author if the relay requires AUTH. A refusal by the
    /// relay's policy leaves the check undecided.
    pub(crate) async fn ask(&mut self, filters: &[Value]) -> ProbeResult<StoredEvents> {
        let answer = self.client.ask_as(&self.author, filters).await?;
        answer.end.require_eose()?;
        Ok(answer)
    }

    /// Subscribes on the trial's connection, as the author if the relay requires AUTH. A refusal by
    /// the relay's policy leaves the check undecided.
    pub(crate) async fn subscribe(
        &mut self,
        subscription: &str,
        filters: &[Value],
    ) -> ProbeResult<StoredEvents> {
        self.client.subscribe_as(&self.author, subscription, filters).await
    }

    /// Requests one filter's events, and compares their ids, in any order.
    pub(crate) async fn expect_set(
        &mut self,
        filter: Value,
        expected: &[&ProbeEvent],
    ) -> ProbeResult {
        self.expect_set_of(&[filter], expected).await
    }

    /// Requests the events of filters, and compares their ids, in any order.
    pub(crate) async fn expect_set_of(
        &mut self,
        filters: &[Value],
        expected: &[&ProbeEvent],
    ) -> ProbeResult {
        let answer = self.ask(filters).await?;
        let found: BTreeSet<String> = answer.ids().into_iter().collect();
        let expected: BTreeSet<String> = expected.iter().map(|event| event.id.clone()).collect();
        ensure(found == expected, || {
            let missing: Vec<_> = expected.difference(&found).cloned().collect();
            let extra: Vec<_> = found.difference(&expected).cloned().collect();
            format!("{} events, missing: {missing:?}, unexpected: {extra:?}", answer.events.len())
        })
    }

    /// Requests the filter's events, and compares their ids and their order.
    pub(crate) async fn expect_order(
        &mut self,
        filter: Value,
        expected: &[&ProbeEvent],
    ) -> ProbeResult {
        let found = self.ask(&[filter]).await?.ids();
        let expected: Vec<_> = expected.iter().map(|event| event.id.clone()).collect();
        ensure(found == expected, || format!("events {found:?} instead of {expected:?}"))
    }

    /// Fails if an event can be found by its id.
    pub(crate) async fn expect_absent(&mut self, id: &str) -> ProbeResult {
        let answer = self.ask(&[json!({"ids": [id]})]).await?;
        let is_found = answer.ids().iter().any(|found| found == id);
        ensure(!is_found, || format!("the event {id} is returned"))
    }

    /// Sends an event that the relay must not accept, as the author if the relay requires AUTH, and
    /// checks that the event is not stored.
    pub(crate) async fn expect_refused(&mut self, event: &Value) -> ProbeResult<OkAnswer> {
        let answer = self.client.publish_as(&self.author, event).await?;
        ensure(!answer.accepted, || "OK true for an invalid event".into())?;
        self.expect_absent(&id_of(event)).await?;
        Ok(answer)
    }

    /// `Unsupported` if the relay's information document has a list of NIPs without this NIP.
    pub(crate) fn require(&self, nip: u64) -> ProbeResult {
        self.require_any(&[nip])
    }

    /// `Unsupported` if the relay's information document has a list of NIPs without these NIPs.
    pub(crate) fn require_any(&self, nips: &[u64]) -> ProbeResult {
        if nips.iter().all(|nip| self.run.info.lists(*nip) == Some(false)) {
            let nips: Vec<_> = nips.iter().map(u64::to_string).collect();
            let why = format!("NIP-11 of the relay does not list {}", nips.join(" or "));
            return Err(ProbeEnd::Unsupported(why));
        }
        Ok(())
    }
}

/// The two events in the order of their ids.
pub(crate) fn by_id(one: ProbeEvent, two: ProbeEvent) -> (ProbeEvent, ProbeEvent) {
    if one.id < two.id { (one, two) } else { (two, one) }
}
