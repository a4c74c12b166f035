//! `hark count`: prints the number of matching events.

use std::process::ExitCode;

use crate::commands::query::QueryArgs;
use crate::location::ArchiveLocation;
use crate::{damage, print, question, when};

pub(crate) fn run(args: &QueryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let queries = question::read(location, &args.all_filters()?, when::now_s())?;
    let store = location.read()?;
    let count = question::count(&*store, &queries)?;
    let text = if args.json {
        serde_json::json!({ "count": count, "damaged": store.stats().damaged }).to_string()
    } else {
        count.to_string()
    };
    print::line(&text)?;
    Ok(damage::report(&*store, location, "They are not counted"))
}
