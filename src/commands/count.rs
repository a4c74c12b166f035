//! `hark count`: how many events match.

use std::process::ExitCode;

use crate::commands::query::QueryArgs;
use crate::location::ArchiveLocation;
use crate::{print, question, when};

pub(crate) fn run(args: &QueryArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let queries = question::read(location, &args.filters, when::now_s())?;
    let count = question::count(&*location.read()?, &queries)?;
    let text = if args.json {
        serde_json::json!({ "count": count }).to_string()
    } else {
        count.to_string()
    };
    print::line(&text)?;
    Ok(ExitCode::SUCCESS)
}
