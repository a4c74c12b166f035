//! The lines of exports and imports of the shelf `moderation`, and its filters.

use hark_archive::{Id, Query, Record};
use hark_codec::hex;
use hark_networks::nostr::names::InternetName;
use hark_networks::object::read;
use hark_networks::{
    FilterTextError, Filters, LabelValues, LineFault, LineFormat, LineReader, ReadOptions,
};

use super::records::{
    ENTRY_KIND, ModerationNetwork, NAME_KIND, NOTE_KIND, NS_PER_S, RecordLine, VALUE_KIND,
    encode_wire, entries, names, notes, values,
};
use super::subject::{Ruling, RulingSubject};

impl LineFormat for ModerationNetwork {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(record.wire());
    }

    fn reader(&self, options: &ReadOptions) -> Box<dyn LineReader> {
        Box::new(RulingLineReader { bytes_max: options.record_bytes_max, now_s: options.now_s })
    }
}

struct RulingLineReader {
    bytes_max: usize,
    now_s: u64,
}

impl LineReader for RulingLineReader {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        let line = line.trim_ascii();
        if line.len() > self.bytes_max {
            return Err(LineFault::TooLarge(format!("{} bytes", line.len())));
        }
        let malformed = |text: &str| LineFault::Malformed(text.into());
        let read: RecordLine = read(line).map_err(|error| malformed(&error.to_string()))?;
        if let RecordLine::Entry { ruling, subject, .. } = &read {
            let is_canonical = |parsed: RulingSubject| parsed.to_string() == *subject;
            if Ruling::from_name(ruling).is_none() || !subject.parse().is_ok_and(is_canonical) {
                return Err(malformed("the ruling or the subject has another form"));
            }
        }
        if let RecordLine::Name { key, name, .. } = &read {
            let is_canonical =
                |name: &String| name.parse().is_ok_and(|it: InternetName| it.to_string() == *name);
            if !hex::is_hex_64(key.as_bytes()) || !name.iter().all(is_canonical) {
                return Err(malformed("the key or the name has another form"));
            }
        }
        record.clear();
        let id = encode_wire(&read, line, record);
        let expires = Record::new(record).ok().and_then(|record| record.expires());
        if is_kept(&id) {
            Err(LineFault::Kept)
        } else if expires.is_some_and(|at| at <= self.now_s.saturating_mul(NS_PER_S)) {
            Err(LineFault::Expired)
        } else {
            Ok(())
        }
    }
}

/// A filter is `entries`, `values`, `names`, `log`, or `*` for all records.
impl Filters for ModerationNetwork {
    fn query(&self, text: &str, _: LabelValues<'_>) -> Result<Option<Query>, FilterTextError> {
        match text.trim() {
            "entries" => Ok(Some(entries())),
            "values" => Ok(Some(values())),
            "names" => Ok(Some(names())),
            "log" => Ok(Some(notes())),
            "*" | "{}" => Ok(Some(Query::default())),
            _ => Err(FilterTextError::new(
                "a filter of rulings is `entries`, `values`, `names`, `log` or `*`",
            )),
        }
    }

    fn text(&self, query: &Query) -> String {
        match query.kinds.as_deref() {
            Some([ENTRY_KIND]) => "entries",
            Some([NOTE_KIND]) => "log",
            Some([VALUE_KIND]) => "values",
            Some([NAME_KIND]) => "names",
            _ => "*",
        }
        .into()
    }

    fn example(&self) -> &'static str {
        "entries"
    }
}
