//! Figures as SVG: lines over two axes, with a legend. Small enough to be written here rather than depended on.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The width of a figure, in pixels.
const WIDTH: f64 = 760.0;
/// The height of a figure, in pixels.
const HEIGHT: f64 = 440.0;
/// Room for the labels of axes, the title and the legend: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (78.0, 78.0, 24.0, 56.0);
/// From one line of the legend to the next, in pixels.
const LINE: f64 = 18.0;
/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Lines over two axes.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The file's name, without its extension.
    pub name: String,
    /// The title, in a line.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// The scale.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// The same, of what has no halves.
    Whole,
    /// By powers of ten.
    Log,
    /// Shares of a whole, so that each nine takes as much room as the one before: 90 %, 99 %, 99.9 %.
    Nines,
}

/// A line.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// True for a mark that is only there to compare with.
    pub is_reference: bool,
}

impl Axis {
    /// An axis.
    pub fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

impl Series {
    /// A line.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_reference: false }
    }

    /// A dashed line to compare with.
    pub fn reference(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, is_reference: true }
    }
}

/// Draws figures into a directory, which is made if need be. Returns the files.
pub fn draw_all(figures: &[Figure], directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let draw = |figure: &Figure| {
        let path = directory.join(format!("{}.svg", figure.name));
        fs::write(&path, figure.to_svg())?;
        Ok(path)
    };
    figures.iter().map(draw).collect()
}

impl Figure {
    /// The figure as an SVG document.
    pub fn to_svg(&self) -> String {
        let (left, mut top, right, bottom) = MARGIN;
        let legend = self.legend();
        // A legend of more lines pushes the figure down.
        top += legend.last().map_or(0.0, |(_, line)| line * LINE);
        let (x, y) = (self.ruler(|point| point.0, self.x.scale), self.ruler(|point| point.1, self.y.scale));
        let across = |value| left + x.place(value) * (WIDTH - left - right);
        let up = |value| HEIGHT - bottom - y.place(value) * (HEIGHT - top - bottom);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
             <text x=\"{left}\" y=\"28\" font-size=\"17\" font-weight=\"bold\">{}</text>\n",
            escape(&self.title)
        );

        // The grid first, so that lines are drawn over it.
        for tick in y.ticks() {
            let at = up(tick);
            let _ = writeln!(out, "<path d=\"M{left:.1} {at:.1}H{:.1}\" stroke=\"#e3e3e3\"/>", WIDTH - right);
            let label = y.label(tick);
            let _ =
                writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", left - 8.0, at + 4.5);
        }
        for tick in x.ticks() {
            let (at, floor) = (across(tick), HEIGHT - bottom);
            let _ = writeln!(out, "<path d=\"M{at:.1} {floor:.1}v5\" stroke=\"#444\"/>");
            let label = x.label(tick);
            let _ =
                writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", floor + 20.0);
        }

        // The labels of axes stand in the margins, which lines never enter: points are clamped to the axes.
        let _ = writeln!(out, "<path d=\"M{left} {:.1}H{:.1}\" stroke=\"#444\"/>", HEIGHT - bottom, WIDTH - right);
        let middle = (left + WIDTH - right) / 2.0;
        let x_label = escape(&self.x.label);
        let _ =
            writeln!(out, "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>", HEIGHT - 14.0);
        let (middle, y_label) = ((top + HEIGHT - bottom) / 2.0, escape(&self.y.label));
        let _ = writeln!(
            out,
            "<text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">{y_label}</text>"
        );

        // Each name stands beside a piece of its line, in the same colour and dashes.
        for ((order, series), (at, line)) in self.series.iter().enumerate().zip(legend) {
            let colour = if series.is_reference { "#777" } else { COLOURS[order % COLOURS.len()] };
            let dash = match order / COLOURS.len() {
                _ if series.is_reference => " stroke-dasharray=\"6 4\"",
                0 => "",
                // Colours come again, dotted.
                _ => " stroke-dasharray=\"2 3\"",
            };
            let stroke =
                format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}");
            let points = series.points.iter().map(|&(x, y)| format!("{:.1} {:.1}", across(x), up(y)));
            let path: Vec<String> = points.collect();
            // A path without points is not well formed; its name still says that there was nothing.
            if !path.is_empty() {
                let _ = writeln!(out, "<path d=\"M{}\" {stroke}/>", path.join("L"));
            }
            let down = 50.0 + line * LINE;
            let _ = writeln!(out, "<path d=\"M{at:.1} {down}h22\" {stroke}/>");
            let name = escape(&series.name);
            let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", at + 28.0, down + 4.5);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Where each name of the legend begins, and in which line, from 0.
    fn legend(&self) -> Vec<(f64, f64)> {
        let (left, _, right, _) = MARGIN;
        let (mut at, mut line) = (left, 0.0);
        let mut places = Vec::with_capacity(self.series.len());
        for series in &self.series {
            // About the width of the text: nothing here measures fonts.
            let width = 52.0 + 7.2 * series.name.chars().count() as f64;
            if at > left && at + width > WIDTH - right {
                (at, line) = (left, line + 1.0);
            }
            places.push((at, line));
            at += width;
        }
        places
    }

    /// The ruler of one coordinate of all points.
    fn ruler(&self, part: impl Fn(&(f64, f64)) -> f64, scale: Scale) -> Ruler {
        let values: Vec<f64> = self.series.iter().flat_map(|series| series.points.iter().map(&part)).collect();
        let positive = values.iter().copied().filter(|value| *value > 0.0);
        let least = positive.fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);

        match scale {
            Scale::Linear | Scale::Whole => {
                let least = if scale == Scale::Whole { 1.0 } else { 0.0 };
                let step = nice(most.max(1e-9) / 5.0).max(least);
                Ruler { scale, from: 0.0, to: (most.max(1e-9) / step).ceil() * step, step }
            }
            // A whole power of ten at either end, so that every tick has a round label.
            Scale::Log if least.is_finite() => {
                let (from, to) = (least.log10().floor(), most.log10().ceil());
                Ruler { scale, from, to: to.max(from + 1.0), step: 1.0 }
            }
            // Nothing above zero is to be drawn.
            Scale::Log => Ruler { scale, from: 0.0, to: 1.0, step: 1.0 },
            Scale::Nines => Ruler { scale, from: 0.0, to: NINES, step: 1.0 },
        }
    }
}

/// The number of nines that an axis of shares shows.
const NINES: f64 = 4.0;

/// Maps values to a part of an axis' length.
struct Ruler {
    /// The scale.
    scale: Scale,
    /// The beginning: a value, an exponent of ten, or a number of nines, by the scale.
    from: f64,
    /// The end, counted in the same way.
    to: f64,
    /// From one tick to the next, counted in the same way.
    step: f64,
}

impl Ruler {
    /// The place of a value, from 0 at the beginning to 1 at the end; a value beyond either is put there.
    fn place(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear | Scale::Whole => value,
            Scale::Log => value.max(1e-300).log10(),
            // The whole itself has no end of nines: it is drawn at the last.
            Scale::Nines => -(1.0 - value).max(1e-9).log10(),
        };
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// The values at its ticks.
    fn ticks(&self) -> Vec<f64> {
        let count = ((self.to - self.from) / self.step).round() as i32;
        let tick = |order: i32| {
            let at = self.from + f64::from(order) * self.step;
            match self.scale {
                Scale::Linear | Scale::Whole => at,
                Scale::Log => 10f64.powf(at),
                Scale::Nines => 1.0 - 10f64.powf(-at),
            }
        };
        (0..=count).map(tick).collect()
    }

    /// The text at a tick.
    fn label(&self, tick: f64) -> String {
        match self.scale {
            Scale::Nines => {
                let nines = (-(1.0 - tick).log10()).round() as usize;
                format!("{:.*} %", nines.saturating_sub(2), 100.0 * tick)
            }
            Scale::Linear if tick >= 10_000.0 => format!("{} k", trim(tick / 1_000.0)),
            _ => trim(tick),
        }
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is no less.
fn nice(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|nice| *nice >= step * 0.999).unwrap_or(step)
}

/// A number without zeros at its end.
fn trim(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text, for SVG.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_begin_and_end_at_round_figures() {
        let series = vec![Series::new("a < b", vec![(0.3, 0.0), (40.0, 731.0)])];
        let axis = |scale| Axis::new("n", scale);
        let figure =
            Figure { name: "f".into(), title: "t".into(), x: axis(Scale::Log), y: axis(Scale::Linear), series };
        let labels = |ruler: &Ruler| ruler.ticks().into_iter().map(|tick| ruler.label(tick)).collect::<Vec<_>>();
        assert_eq!(labels(&figure.ruler(|point| point.0, Scale::Log)), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(&figure.ruler(|point| point.1, Scale::Linear)), ["0", "200", "400", "600", "800"]);
        let stores = Figure { series: vec![Series::new("s", vec![(1.0, 7.0), (2.0, 9.0)])], ..figure.clone() };
        assert_eq!(labels(&stores.ruler(|point| point.0, Scale::Whole)), ["0", "1", "2"]);
        let nines = figure.ruler(|point| point.1, Scale::Nines);
        assert_eq!(labels(&nines), ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!((nines.place(0.99) - 0.5).abs() < 1e-9);
        let svg = figure.to_svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn long_legend_has_lines_within_the_figure_and_no_two_series_look_alike() {
        let series =
            (0..9).map(|at| Series::new(&format!("a-configuration-{at}"), vec![(1.0, 1.0), (2.0, 2.0)])).collect();
        let x = Axis::new("x", Scale::Linear);
        let figure = Figure { name: "f".into(), title: "t".into(), x, y: Axis::new("y", Scale::Linear), series };
        let legend = figure.legend();
        assert!(legend.iter().all(|(at, _)| at + 52.0 + 7.2 * 17.0 <= WIDTH) && legend[8].1 == 2.0, "{legend:?}");
        let svg = figure.to_svg();
        let strokes: Vec<&str> = svg
            .lines()
            .filter(|line| line.contains("h22"))
            .map(|line| line.split_once("stroke=").expect("a line of the legend").1)
            .collect();
        let mut different = strokes.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!((strokes.len(), different.len()), (9, 9));
    }

    #[test]
    fn nothing_to_draw_is_drawn_without_nonsense() {
        let series = vec![Series::reference("none", Vec::new())];
        let x = Axis::new("x", Scale::Log);
        let figure = Figure { name: "f".into(), title: "t".into(), x, y: Axis::new("y", Scale::Linear), series };
        let svg = figure.to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
