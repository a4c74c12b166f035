//! Counts the instructions of the codec, the planner and the live index with valgrind's callgrind.
//! Counts do not depend on the load of the machine, so even a change of a few percent is visible.
//!
//!     cargo bench -p hark-bench --bench instructions
//!     cargo bench -p hark-bench --bench instructions -- --accept
//!
//! The first command compares the counts with `reference.txt` next to this file. It fails if a
//! count is more than 3 % above its reference. The second command makes its counts the new
//! reference, and the commit message must justify the change. Counts depend on the compiler and on
//! valgrind, so counts of other versions are not compared. The CPU that valgrind emulates has no
//! SHA-256 instructions, so hashes are computed in software here.

mod cases;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use mimalloc::MiMalloc;

use crate::cases::{Case, Work, cases};

/// The allocator that Hark is shipped with.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The allowed increase of a count over its reference, in percent.
const MORE_MAX: f64 = 3.0;
/// Two cases of a live match, and the maximum ratio of the second count to the first.
const LIVE: ([&str; 2], f64) =
    (["live match: 1,000 subscriptions", "live match: 100,000 subscriptions"], 2.0);
/// How often a case is run while it is counted.
const ROUNDS: u32 = 1_000;
/// How often a slow case is run. Slow cases take much longer under valgrind.
const LIST_ROUNDS: u32 = 50;

#[derive(Parser)]
struct Cli {
    /// Make the counts the new reference
    #[arg(long)]
    accept: bool,
    /// Run this case, for valgrind to count
    #[arg(long, hide = true)]
    case: Option<String>,
    /// The flag that cargo passes to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(name) = cli.case {
        let case = cases().into_iter().find(|case| case.name == name).context("no such case")?;
        let mut work = (case.prepare)()?;
        // The first run, in which buffers grow, is not counted.
        work();
        counted_rounds(&mut work, rounds(&name));
        return Ok(ExitCode::SUCCESS);
    }
    let with = compiler()?;
    let mut counts = Vec::new();
    for Case { name, .. } in cases() {
        counts.push((name.clone(), count(&name)?));
    }
    if cli.accept {
        std::fs::write(path(), reference(&with, &counts)).context("the reference")?;
        println!("{} holds these counts now:", path().display());
        for (name, now) in &counts {
            println!("{name:<42} {now:>9}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(path()).context("the reference; make it with --accept")?;
    let known = parse(&text)?;
    if known.with != with {
        println!(
            "NOT CHECKED: the reference was counted with {}, and this is {with}. Look at both \
             versions of a case, then run this with --accept",
            known.with
        );
        return Ok(ExitCode::SUCCESS);
    }
    compare(&known, &counts)
}

fn rounds(name: &str) -> u32 {
    if name.contains("500-tag") { LIST_ROUNDS } else { ROUNDS }
}

/// Runs the rounds. valgrind finds this function by its name and counts only the instructions that
/// run inside.
#[inline(never)]
fn counted_rounds(work: &mut Work, rounds: u32) {
    for _ in 0..rounds {
        work();
    }
}

/// Counts the instructions of one run of a case.
fn count(name: &str) -> anyhow::Result<u64> {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*counted_rounds*")
        .arg(std::env::current_exe()?)
        .args(["--case", name])
        .output()
        .context("valgrind could not be started; it comes in a package of that name")?;
    let stderr = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{name}: {stderr}");
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : "));
    let sum: u64 = collected.with_context(|| format!("{name}: {stderr}"))?.1.trim().parse()?;
    ensure!(sum > 0, "{name}: nothing was counted");
    Ok(sum / u64::from(rounds(name)))
}

/// Returns the versions and the architecture that the counts depend on.
fn compiler() -> anyhow::Result<String> {
    let version = |program: &str| -> anyhow::Result<String> {
        let run = Command::new(program).arg("--version").output().context(program.to_owned())?;
        Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
    };
    let target = std::env::consts::ARCH;
    Ok(format!("{} for {target}, {}", version("rustc")?, version("valgrind")?))
}

/// The reference counts, from a plain file in the repository.
struct Reference {
    with: String,
    counts: Vec<(String, u64)>,
}

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/reference.txt"))
}

fn reference(with: &str, counts: &[(String, u64)]) -> String {
    let mut out = String::from(
        "# Instructions of each case, by `cargo bench -p hark-bench --bench instructions -- --accept`\n",
    );
    // Writing to a String cannot fail.
    let _ = writeln!(out, "with {with}");
    for (name, count) in counts {
        let _ = writeln!(out, "{count:>9}  {name}");
    }
    out
}

fn parse(text: &str) -> anyhow::Result<Reference> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let with = lines.next().and_then(|line| line.strip_prefix("with "));
    let with = with.context("the reference does not say what it was counted with")?.to_owned();
    let count = |line: &str| {
        let (count, name) = line.trim().split_once("  ").context("a line without a count")?;
        Ok((name.to_owned(), count.parse()?))
    };
    Ok(Reference { with, counts: lines.map(count).collect::<anyhow::Result<_>>()? })
}

/// Prints the table. The exit code is a failure if a count, or the ratio of the live matches, is
/// above its bound.
fn compare(reference: &Reference, counts: &[(String, u64)]) -> anyhow::Result<ExitCode> {
    println!("{:<42} {:>9} {:>9} {:>8}", "instructions", "reference", "now", "change");
    let mut bad = Vec::new();
    for (name, now) in counts {
        let known = reference.counts.iter().find(|(known, _)| known == name);
        let Some((_, before)) = known else {
            bail!("{name} is not in the reference; use --accept")
        };
        let change = (*now as f64 / *before as f64 - 1.0) * 100.0;
        let word = if change > MORE_MAX {
            bad.push(name.as_str());
            "  TOO MANY"
        } else if change < -MORE_MAX {
            "  fewer: --accept makes it the reference"
        } else {
            ""
        };
        println!("{name:<42} {before:>9} {now:>9} {change:>+7.1}%{word}");
    }
    let of = |name: &str| counts.iter().find(|(known, _)| known == name).map(|(_, now)| *now);
    let ([few, many], most) = LIVE;
    let (few, many) = (of(few).context(few)?, of(many).context(many)?);
    let times = many as f64 / few as f64;
    println!("a match with 100,000 subscriptions takes {times:.2} times that with 1,000");
    if times > most {
        println!("more than {most}: the live index checks subscriptions that cannot match");
    }
    if !bad.is_empty() {
        println!(
            "more than {MORE_MAX} % above the reference: {}. If that is worth it, run\n    \
             cargo bench -p hark-bench --bench instructions -- --accept\nand say why in the commit",
            bad.join(", ")
        );
    }
    let well = bad.is_empty() && times <= most;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
