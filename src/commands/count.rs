//! `hark count`: how many events match.

use std::process::ExitCode;

use crate::commands::query::QueryArgs;
use crate::place::Place;
use crate::{print, question, when};

pub(crate) fn run(args: &QueryArgs, place: &Place) -> anyhow::Result<ExitCode> {
    let queries = question::read(place.network, &args.filters, when::now_s())?;
    let count = question::count(&*place.read()?, &queries)?;
    let text = if args.json {
        serde_json::json!({ "count": count }).to_string()
    } else {
        count.to_string()
    };
    print::line(&text)?;
    Ok(ExitCode::SUCCESS)
}
