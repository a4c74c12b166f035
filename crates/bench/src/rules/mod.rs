//! `hark bench rules`: checks the rules of the NIPs against any relay. Each rule has the sentence
//! of its NIP.

mod auth;
mod comparisons;
mod counts;
mod deletions;
mod events;
mod filters;
mod information;
mod kinds;
mod outcome;
mod rule;
mod subscriptions;
mod trial;
mod vanish;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use outcome::{RuleOutcome, RulesReport};
use rule::Rule;
use trial::RuleTrial;

use crate::args::RulesArgs;
use crate::probe::end::ProbeEnd;
use crate::probe::left::clean_up;
use crate::probe::run::ProbeRun;

/// All rules, in groups.
const GROUPS: [&[Rule]; 10] = [
    events::RULES,
    filters::RULES,
    subscriptions::RULES,
    kinds::RULES,
    deletions::RULES,
    information::RULES,
    auth::RULES,
    counts::RULES,
    vanish::RULES,
    comparisons::RULES,
];
/// The longest time of a rule, as a multiple of the wait for an answer.
const TIMEOUTS_OF_A_RULE: u32 = 12;
/// Time of a rule besides the waits for answers: pauses after the relay's rate was exceeded.
const PAUSES: Duration = Duration::from_mins(1);

pub(crate) fn run(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let mut rules: Vec<&'static Rule> = GROUPS.iter().copied().flatten().collect();
    rules.sort_by_key(|rule| rule.nip);
    let is_chosen = |rule: &&Rule| {
        let id = rule.id().to_lowercase();
        args.only.is_empty() || args.only.iter().any(|text| id.contains(&text.to_lowercase()))
    };
    rules.retain(is_chosen);
    if rules.is_empty() {
        bail!("no rule has this text in its name; --list shows the names");
    }
    let Some(url) = args.url.as_ref().filter(|_| !args.list) else {
        outcome::print_list(&rules, args.json, args.md)?;
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let run = args.probe.start(url, None).await?;
        anyhow::Ok(check_all(&run, &rules).await)
    })?;
    report.publish(args.json, args.md)
}

/// Checks the rules one after the other.
async fn check_all(run: &ProbeRun, rules: &[&'static Rule]) -> RulesReport {
    let (mut outcomes, mut left) = (Vec::new(), Vec::new());
    for rule in rules {
        let began = Instant::now();
        let name = format!("{}-{}", rule.nip, rule.name);
        let (end, frames) = match RuleTrial::start(run, &name).await {
            Ok(mut trial) => {
                let limit = run.timeout * TIMEOUTS_OF_A_RULE + PAUSES;
                let checked = tokio::time::timeout(limit, (rule.check)(&mut trial)).await;
                let too_long = || ProbeEnd::Undecided("the check has taken too long".into());
                left.append(&mut trial.left);
                (checked.unwrap_or_else(|_| Err(too_long())), trial.client.transcript())
            }
            Err(end) => (Err(end), Vec::new()),
        };
        outcomes.push(RuleOutcome { rule, end, frames, time: began.elapsed() });
    }
    let published = left.len();
    let remaining = clean_up(run, &left).await.ok();
    let (url, relay) = (run.url.text.clone(), run.info.software());
    RulesReport { url, relay, outcomes, published, remaining }
}
