//! Explains how a query is run: the choices of Hark, and PostgreSQL's plan for each statement. The
//! query is really run to get the plans.

use std::ops::ControlFlow;
use std::sync::Arc;

use hark_archive::Query;
use hark_archive::query::explain::{Explanation, SourcePlan};
use hark_archive::query::plan::describe;

use crate::count;
use crate::error::StatementError;
use crate::query_sessions::QuerySessions;
use crate::search::{Finders, Sessions as _};
use crate::session::TracedStatement;
use crate::state::PostgresState;

/// Maximum number of rows that are visited while a query is explained.
const ROWS_MAX: u64 = 20_000;

/// Explains a query.
pub(crate) fn explain(
    inner: &Arc<PostgresState>,
    query: &Query,
) -> Result<Explanation, StatementError> {
    let position = inner.current.now();
    let query = &Query { budget: query.budget.min(ROWS_MAX), ..query.clone() };
    let mut asked = inner.open_queries(query, position);
    asked.retain(|asked| !asked.query.is_void());
    let Some(query) = asked.first().map(|asked| asked.query.clone()) else {
        let plan = "nothing can match".into();
        return Ok(Explanation { plan, ..Explanation::default() });
    };
    let mut finder = Some(Finders::new(asked, inner.layout));
    let mut reading = QuerySessions::new(Arc::clone(inner), position);
    let (finder, trace) = reading.with(|session| {
        let Some(mut finder) = finder.take() else {
            return Err(StatementError::Away("the connection was lost; ask again".into()));
        };
        finder.fetch_all();
        session.traced(|session| {
            finder.slice(&inner.search, u64::MAX, session, &mut |_| ControlFlow::Continue(()))?;
            Ok(finder)
        })
    })?;
    let plan = finder.driver().map_or_else(String::new, |set| describe(set, &query));
    let source = |traced: &TracedStatement| match &traced.worker {
        Some(worker) => format!("{} on {worker}", traced.form.name()),
        None => traced.form.name().into(),
    };
    let steps = trace.iter().map(|traced| SourcePlan {
        source: source(traced),
        rows: traced.rows as u64,
        driver: plan.clone(),
        intersect: Vec::new(),
        residual: Vec::new(),
        estimate: traced.rows as u64,
    });
    let details = trace.iter().flat_map(|traced| {
        let text = format!("{}: {}", source(traced), traced.text);
        std::iter::once(text).chain(traced.plan.iter().map(|line| format!("    {line}")))
    });
    Ok(Explanation {
        plan: plan.clone(),
        steps: steps.collect(),
        estimate: finder.visited(),
        details: details.collect(),
    })
}

/// Explains how a query's matches are counted.
pub(crate) fn explain_count(
    inner: &Arc<PostgresState>,
    query: &Query,
) -> Result<Explanation, StatementError> {
    let unlimited = Query { after: None, limit: usize::MAX, ranked: false, ..query.clone() };
    if query.words.is_some() {
        return explain(inner, &unlimited);
    }
    let Some(details) = count::explain(inner, query)? else { return explain(inner, &unlimited) };
    let plan = if details.is_empty() { "nothing can match" } else { "one statement counts" };
    Ok(Explanation { plan: plan.into(), details, ..Explanation::default() })
}
