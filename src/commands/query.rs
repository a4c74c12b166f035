//! `hark query`: the events that match, newest first.

use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use crate::cli::QueryArgs;
use crate::place::Place;
use crate::question::{self, Answer};
use crate::when;

pub(crate) fn run(args: &QueryArgs, place: &Place) -> anyhow::Result<ExitCode> {
    let queries = question::read(place.network, &args.filters, when::now_s())?;
    let store = place.read()?;
    let mut answer = Answer::new(&*store, &queries)?.with_lines(place.network);
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    while let Some(found) = answer.next()? {
        out.write_all(&found.json)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
