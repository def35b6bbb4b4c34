//! The points of a series at which a forecast can be compared with what came.

use std::ops::Range;

use slackline_forecast::{Fitted, Frame, Series};

/// A series, and where it has gaps.
pub(crate) struct Points<'a> {
    pub(crate) series: &'a Series,
    pub(crate) frame: Frame,
    /// The gaps before each step, and before the end.
    gaps: Vec<usize>,
}

impl<'a> Points<'a> {
    /// The points of a series whose step is the frame's.
    pub(crate) fn new(series: &'a Series, frame: Frame) -> Self {
        assert_eq!(series.step_s(), frame.step_s, "the series has the frame's step");
        let mut count = 0;
        let mut gaps = vec![0];
        for value in series.values() {
            count += usize::from(value.is_none());
            gaps.push(count);
        }
        Self { series, frame, gaps }
    }

    /// The number of steps.
    pub(crate) fn len(&self) -> usize {
        self.series.values().len()
    }

    /// The points within a range of steps that have a whole window before them, and a whole horizon after, all of it within the range's
    /// end. What lies at the end or later is not looked at, so that nothing is fitted to what comes afterwards.
    pub(crate) fn within(&self, range: Range<usize>, window: usize) -> impl Iterator<Item = usize> {
        let horizon = self.frame.horizon;
        let end = (range.end + 1).saturating_sub(horizon);
        let is_whole = move |at: &usize| self.gaps[at + horizon] == self.gaps[at - window];
        (range.start.max(window)..end).filter(is_whole)
    }

    /// The demand of a stretch of steps without a gap.
    pub(crate) fn demand(&self, range: Range<usize>) -> Vec<f64> {
        self.series.values()[range].iter().map(|value| value.expect("a point's window has no gap")).collect()
    }

    /// The demand of the horizon after a point.
    pub(crate) fn target(&self, at: usize) -> f64 {
        self.series.sum(at, self.frame.horizon).expect("a point's horizon has no gap")
    }

    /// What a model forecasts at a point: from the steps before it alone.
    pub(crate) fn forecast(&self, model: &Fitted, at: usize) -> Option<f64> {
        let first = at.checked_sub(model.window())?;
        model.forecast(&self.series.values()[first..at], self.series.time(at))
    }

    /// The mean absolute error of a model over the points within a range that have a window of this length. None if there are no points.
    pub(crate) fn error(&self, model: &Fitted, range: Range<usize>, window: usize) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0usize);
        for at in self.within(range, window.max(model.window())) {
            // A model that does not say a number is charged with the whole demand.
            sum += (self.forecast(model, at).unwrap_or(0.0) - self.target(at)).abs();
            count += 1;
        }
        (count > 0).then(|| sum / count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_a_whole_window_and_a_whole_horizon() {
        let mut values: Vec<Option<f64>> = (0..12).map(|value| Some(f64::from(value))).collect();
        values[6] = None;
        let series = Series::new(0, 60, values);
        let points = Points::new(&series, Frame { step_s: 60, horizon: 2 });
        // Of steps 0 to 11, the gap at 6 leaves those whose window and horizon lie in 0..6 or in 7..12.
        assert_eq!(points.within(0..12, 3).collect::<Vec<_>>(), [3, 4, 10]);
        assert_eq!(points.within(0..11, 3).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(points.within(4..12, 3).collect::<Vec<_>>(), [4, 10]);
        assert_eq!(points.within(0..1, 0).count(), 0);
        assert_eq!(points.target(10), 21.0);
        assert_eq!(points.demand(7..9), [7.0, 8.0]);
    }
}
