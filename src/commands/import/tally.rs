//! The outcomes of the lines, counted by reason, with the first line of each reason.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hark_archive::Outcome;
use hark_networks::Network;

use crate::commands::refusal::RefusalReason;
use crate::print;

/// The reasons, each with its name and an explanation for people.
const ALL: [(RefusalReason, &str, &str); 11] = [
    (RefusalReason::Malformed, "malformed", "not a record of this network"),
    (RefusalReason::BadId, "bad id", "its id is not the hash of the rest"),
    (RefusalReason::BadSignature, "bad signature", "not signed by its author"),
    (RefusalReason::TooLarge, "too large", "larger than the settings allow"),
    (RefusalReason::Ephemeral, "ephemeral", "of a kind that is never stored"),
    (RefusalReason::Expired, "expired", "its expiration has passed"),
    (RefusalReason::Duplicate, "duplicate", "already kept"),
    (RefusalReason::Superseded, "superseded", "a newer version is kept"),
    (RefusalReason::Deleted, "deleted", "its author asked for deletion"),
    (RefusalReason::Vanished, "vanished", "its author asked to vanish"),
    (RefusalReason::Banned, "banned", "`hark ban` refuses it"),
];

/// Counts of lines. Line numbers start at 0 here, and at 1 in output.
#[derive(Clone, Debug, Default)]
pub(super) struct ImportTally {
    /// Number of lines read, including empty lines.
    pub(super) lines: u64,
    /// Number of lines that are not empty.
    pub(super) records: u64,
    pub(super) stored: u64,
    refused: [RefusalCount; ALL.len()],
}

#[derive(Clone, Debug, Default)]
struct RefusalCount {
    count: u64,
    first: Option<FirstRefusal>,
}

#[derive(Clone, Debug)]
struct FirstRefusal {
    file: PathBuf,
    line: u64,
    words: String,
}

impl ImportTally {
    /// Counts a refusal. `words` are details and may be empty.
    pub(super) fn refuse(&mut self, reason: RefusalReason, line: u64, words: &str) {
        let count = &mut self.refused[reason as usize];
        count.count += 1;
        // The store reports its refusals later than the workers report theirs, so refusals are not
        // counted in the order of lines.
        if count.first.as_ref().is_none_or(|first| line < first.line) {
            let words = words.to_owned();
            count.first = Some(FirstRefusal { file: PathBuf::new(), line, words });
        }
    }

    /// Counts the store's outcome for a line.
    pub(super) fn outcome(&mut self, outcome: Outcome, line: u64) {
        match RefusalReason::of(outcome) {
            None => self.stored += 1,
            Some(reason) => self.refuse(reason, line, ""),
        }
    }

    /// Whether the input had lines, but no records.
    pub(super) fn is_foreign(&self) -> bool {
        let malformed = self.refused[RefusalReason::Malformed as usize].count;
        self.records > 0 && malformed == self.records
    }

    /// Adds the counts of the next lines.
    pub(super) fn append(&mut self, behind: Self) {
        for (count, more) in self.refused.iter_mut().zip(behind.refused) {
            count.count += more.count;
            if count.first.is_none() {
                let line = self.lines;
                count.first =
                    more.first.map(|first| FirstRefusal { line: first.line + line, ..first });
            }
        }
        self.lines += behind.lines;
        self.records += behind.records;
        self.stored += behind.stored;
    }

    /// Adds the counts of another whole file.
    pub(super) fn add_file(&mut self, file: &Path, of: Self) {
        for (count, more) in self.refused.iter_mut().zip(of.refused) {
            count.count += more.count;
            if count.first.is_none() {
                count.first = more.first.map(|first| FirstRefusal { file: file.into(), ..first });
            }
        }
        self.lines += of.lines;
        self.records += of.records;
        self.stored += of.stored;
    }

    /// The report for people.
    pub(super) fn to_text(&self, network: &dyn Network, spent: Duration, trusted: bool) -> String {
        let rate = self.records as f64 / spent.as_secs_f64().max(0.001);
        let how = if trusted { "read, ids and signatures NOT checked" } else { "read and checked" };
        let read = if self.is_foreign() { "line" } else { network.record() };
        let head = format!(
            "{} {how} in {:.1} s, {} a second",
            print::count(self.records, read),
            spent.as_secs_f64(),
            print::number(rate as u64)
        );
        let mut rows = vec![("stored", print::number(self.stored), String::new())];
        for (reason, name, words) in ALL {
            let count = &self.refused[reason as usize];
            if let Some(first) = &count.first {
                let words = if first.words.is_empty() { words } else { &first.words };
                let file = first.file.display();
                let rest = format!("{words}; first at {file}:{}", first.line + 1);
                rows.push((name, print::number(count.count), rest));
            }
        }
        format!("{head}\n{}", print::table(&rows))
    }

    /// Returns the report as a JSON object.
    pub(super) fn to_json(
        &self,
        network: &dyn Network,
        spent: Duration,
        trusted: bool,
        complete: bool,
    ) -> serde_json::Value {
        let mut refused = serde_json::Map::new();
        let mut first = serde_json::Map::new();
        for (reason, name, _) in ALL {
            let (count, name) = (&self.refused[reason as usize], name.replace(' ', "_"));
            if let Some(at) = &count.first {
                let (file, line) = (at.file.to_string_lossy(), at.line + 1);
                first.insert(
                    name.clone(),
                    serde_json::json!({ "file": file, "line": line, "words": at.words }),
                );
            }
            refused.insert(name, count.count.into());
        }
        serde_json::json!({
            "lines": self.lines,
            (network.records()): self.records,
            "stored": self.stored,
            "refused": refused,
            "first": first,
            "verified": !trusted,
            "complete": complete,
            "seconds": spent.as_secs_f64(),
        })
    }
}
