//! Histograms of numbers, such as sizes.

use hark_archive::meter::Counter;

/// A histogram of numbers.
#[derive(Debug)]
pub struct ValueHistogram {
    /// Upper bounds of the histogram's buckets, ascending.
    pub bounds: &'static [u64],
    /// A count for each bound, and a last count for numbers above all bounds.
    classes: Box<[Counter]>,
    sum: Counter,
}

impl ValueHistogram {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        let classes = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds, classes, sum: Counter::default() }
    }

    /// Adds a number to the histogram.
    pub fn note(&self, number: u64) {
        self.classes[self.bounds.partition_point(|bound| *bound < number)].add(1);
        self.sum.add(number);
    }

    /// Returns how many numbers were in each bucket.
    pub fn classes(&self) -> Vec<u64> {
        self.classes.iter().map(Counter::get).collect()
    }

    /// Returns the sum of all numbers.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_counted_in_the_first_class_that_holds_it() {
        let tally = ValueHistogram::new(&[0, 10, 20]);
        for number in [0, 1, 10, 11, 20, 21, 1_000] {
            tally.note(number);
        }
        assert_eq!((tally.classes(), tally.sum()), (vec![1, 2, 2, 2], 1_063));
    }
}
