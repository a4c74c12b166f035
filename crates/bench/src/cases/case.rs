//! The eight cases, and the questions that they ask.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

use crate::random::Random;
use crate::sample::EventSample;
use crate::shapes::{ParameterSampler, quoted};
use crate::text::hex;

/// Number of questions drawn for each area.
const QUESTIONS: usize = 256;
/// Number of authors and of hashtags to draw from. Those of low rank are drawn more often.
const AUTHORS: usize = 2_000;
const HASHTAGS: usize = 300;
/// Number of events of the first page.
const FIRST_PAGE: usize = 100;
const DAY_S: f64 = 86_400.0;

/// The part of the archive that a question covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionArea {
    /// All events of one author, or of one tag value. The questions alternate between the two.
    Narrow,
    /// All kinds and authors of some days.
    Wide,
}

/// The part of the answer that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerExtent {
    /// The newest 100 events.
    FirstPage,
    /// All events, page by page.
    Everything,
}

/// A question's area and the extent of its answer. The number of concurrent questions is not part
/// of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CaseForm {
    pub(super) area: QuestionArea,
    pub(super) extent: AnswerExtent,
}

/// One of the eight cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) form: CaseForm,
    /// Number of concurrent questions.
    pub(super) at_once: usize,
}

/// All forms, in the order of the tables.
pub(super) const FORMS: [CaseForm; 4] = [
    CaseForm { area: QuestionArea::Narrow, extent: AnswerExtent::FirstPage },
    CaseForm { area: QuestionArea::Narrow, extent: AnswerExtent::Everything },
    CaseForm { area: QuestionArea::Wide, extent: AnswerExtent::FirstPage },
    CaseForm { area: QuestionArea::Wide, extent: AnswerExtent::Everything },
];

/// The number of concurrent questions in the two cases of each form.
pub(super) const AT_ONCE: [usize; 2] = [1, 5];

impl CaseForm {
    pub(super) fn name(self) -> &'static str {
        match (self.area, self.extent) {
            (QuestionArea::Narrow, AnswerExtent::FirstPage) => "narrow, first page",
            (QuestionArea::Narrow, AnswerExtent::Everything) => "narrow, everything",
            (QuestionArea::Wide, AnswerExtent::FirstPage) => "wide, first page",
            (QuestionArea::Wide, AnswerExtent::Everything) => "wide, everything",
        }
    }

    /// Returns the index of this form in a list of all forms.
    pub(super) fn index(self) -> usize {
        FORMS.iter().position(|form| *form == self).unwrap_or_default()
    }
}

impl Case {
    /// Returns the eight cases.
    pub(super) fn all() -> Vec<Self> {
        let of = |form| AT_ONCE.map(|at_once| Self { form, at_once });
        FORMS.into_iter().flat_map(of).collect()
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {} at once", self.form.name(), self.at_once)
    }
}

/// A question without its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CaseQuestion {
    /// The fields of the filter, without `until` and `limit`: `"kinds":[1]`.
    pub(super) conditions: String,
    /// The time of the newest event that is requested, in seconds.
    pub(super) until: u64,
}

/// The questions of all forms. Every server gets the same questions.
pub(super) struct CaseQuestions {
    narrow: Vec<CaseQuestion>,
    wide: Vec<CaseQuestion>,
    /// Number of events of a page in the cases that read everything.
    page: usize,
}

impl CaseQuestions {
    /// Draws the questions from a sample. The same seed draws the same questions.
    pub(super) fn draw(
        sample: &EventSample,
        seed: u64,
        days: f64,
        page: usize,
    ) -> anyhow::Result<Self> {
        let ends = sample.times.first().zip(sample.times.last());
        let (&oldest, &newest) = ends.context("the file has no events to query")?;
        let mut draw = ParameterSampler::new(sample, seed);
        let mut narrow = Vec::with_capacity(QUESTIONS);
        for number in 0..QUESTIONS {
            let conditions = if number % 2 == 0 {
                draw.author(AUTHORS).map(|author| format!(r#""authors":["{}"]"#, hex(&author)))
            } else {
                draw.ranked(&sample.hashtags, HASHTAGS)
                    .map(|tag| format!(r##""#t":[{}]"##, quoted(&tag)))
            };
            narrow.extend(conditions.map(|conditions| CaseQuestion { conditions, until: newest }));
        }
        ensure!(narrow.len() == QUESTIONS, "there are too few events to draw questions from");
        let span = (days * DAY_S) as u64;
        let mut random = Random::new(seed);
        let latest = (newest - oldest).saturating_sub(span);
        let wide = (0..QUESTIONS).map(|_| {
            let since = oldest + random.below(latest as usize + 1) as u64;
            CaseQuestion { conditions: format!(r#""since":{since}"#), until: since + span }
        });
        Ok(Self { narrow, wide: wide.collect(), page })
    }

    pub(super) fn of(&self, area: QuestionArea) -> &[CaseQuestion] {
        match area {
            QuestionArea::Narrow => &self.narrow,
            QuestionArea::Wide => &self.wide,
        }
    }

    /// Returns the maximum number of events in a page.
    pub(super) fn page_of(&self, extent: AnswerExtent) -> usize {
        match extent {
            AnswerExtent::FirstPage => FIRST_PAGE,
            AnswerExtent::Everything => self.page,
        }
    }
}

impl CaseQuestion {
    /// Returns the filter of a page: at most `limit` events at or before `until`.
    pub(super) fn filter(&self, until: u64, limit: usize) -> String {
        let mut filter = format!("{{{}", self.conditions);
        // Writing to a string does not fail.
        let _ = write!(filter, r#","until":{until},"limit":{limit}}}"#);
        filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_eight_cases_and_their_names_differ() {
        let mut names: Vec<String> = Case::all().iter().map(Case::name).collect();
        assert_eq!(names[0], "narrow, first page, 1 at once");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
        assert_eq!(FORMS.map(CaseForm::index), [0, 1, 2, 3]);
    }

    #[test]
    fn a_filter_is_one_of_nip_01() {
        let question = CaseQuestion { conditions: r#""since":5"#.into(), until: 9 };
        let filter: serde_json::Value = serde_json::from_str(&question.filter(8, 100)).unwrap();
        assert_eq!(filter, serde_json::json!({ "since": 5, "until": 8, "limit": 100 }));
    }
}
