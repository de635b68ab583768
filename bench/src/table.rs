//! What a run found, row by row.

use std::fmt;

use crate::timing::{Pairs, Spread};

/// What a number must reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Under(f64),
    /// Nothing: for information.
    None,
}

impl Mark {
    fn is_met(self, number: f64) -> bool {
        match self {
            Self::AtLeast(mark) => number >= mark,
            Self::AtMost(mark) => number <= mark,
            Self::Under(mark) => number < mark,
            Self::None => true,
        }
    }

    fn verdict(self, number: f64) -> &'static str {
        match self {
            Self::None => "",
            Self::AtLeast(_) | Self::AtMost(_) | Self::Under(_) if self.is_met(number) => "met",
            Self::AtLeast(_) | Self::AtMost(_) | Self::Under(_) => "MISSED",
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(mark) => f.pad(&format!(">= {mark}")),
            Self::AtMost(mark) => f.pad(&format!("<= {mark}")),
            Self::Under(mark) => f.pad(&format!("< {mark}")),
            Self::None => f.pad("-"),
        }
    }
}

#[derive(Debug)]
struct Row {
    what: String,
    measured: Spread,
    mark: Mark,
    absolute: String,
}

/// The rows so far. Each is also printed as soon as it is there, for a run takes minutes.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    /// A row whose number is what `mark` is about; `absolute` says more.
    pub(crate) fn push(&mut self, what: impl Into<String>, measured: Spread, mark: Mark, absolute: String) {
        let row = Row { what: what.into(), measured, mark, absolute };
        println!("{row}");
        self.0.push(row);
    }

    /// A row of rates, in thousands a second.
    pub(crate) fn push_rates(&mut self, what: impl Into<String>, pairs: &Pairs, mark: Mark, unit: &str) {
        let (ours, bare) = (pairs.ours().median / 1_000.0, pairs.bare().median / 1_000.0);
        self.push(what, pairs.ratio(), mark, format!("{ours:.1} of {bare:.1} k {unit}/s"));
    }

    /// Whether every mark is met by its median.
    pub(crate) fn all_met(&self) -> bool {
        self.0.iter().all(|row| row.mark.is_met(row.measured.median))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, min, max } = self.measured;
        let (verdict, spread) = (self.mark.verdict(median), format!("{min:.2} to {max:.2}"));
        let (what, mark, absolute) = (&self.what, self.mark, &self.absolute);
        write!(f, "{what:<46} {median:>7.3}  {spread:<15} {mark:<8} {verdict:<6}  {absolute}")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, spread, mark) = ("ours to bare", "min to max", "mark");
        writeln!(f, "{what:<46} {:>7}  {spread:<15} {mark:<15}  medians", "median")?;
        self.0.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}
