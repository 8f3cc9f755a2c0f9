//! Charts as SVG, by plotters. Text and axes have the colour of the page around them
//! (`currentColor`), so one picture serves light and dark.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// The width of every chart.
const WIDTH: u32 = 760;
/// The colour that stands for the page's own.
const TEXT: RGBColor = RGBColor(1, 2, 3);
/// Bars are cut at so many times the longest of our own.
const CUT: f64 = 2.0;
/// Bars of peers, and whatever is not an array.
const PEER: RGBColor = RGBColor(139, 146, 156);
/// Lines and groups, readable on light and dark, also for people who do not tell red from green.
const COLORS: [RGBColor; 8] = [
    RGBColor(47, 127, 214),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(150, 110, 60),
    RGBColor(139, 146, 156),
];

/// The median of a measurement, its least and greatest round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Value {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// A bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: Value,
    /// The value as text.
    pub(crate) shown: String,
    /// The index of its colour. None for a peer.
    pub(crate) color: Option<usize>,
}

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, Value)>,
}

/// An axis of values from 0 on, or of their logarithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    Linear,
    Logarithmic,
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws into a new SVG.
fn svg(height: u32, draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn) -> Result<String, String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    // The size is the page's business; the shape (viewBox) stays.
    let fixed = format!("width=\"{WIDTH}\" height=\"{height}\" ");
    Ok(text.replacen(&fixed, "", 1).replace("#010203", "currentColor"))
}

fn style(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&TEXT)
}

fn at(size: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    style(size).pos(Pos::new(horizontal, vertical))
}

/// Groups of bars with their headings. The bars stand one below the other, each with its name on the
/// left and its value on the right. A thin line shows the least and the greatest round. A bar of a
/// peer that is much longer than all of ours is cut, and has an arrow before its value.
pub(crate) fn bars(groups: &[(String, Vec<Bar>)]) -> Result<String, String> {
    const ROW: i32 = 26;
    const LEFT: i32 = 190;
    const RIGHT: i32 = 110;
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let highest = |bars: &mut dyn Iterator<Item = &Bar>| bars.map(|bar| bar.value.high).fold(f64::MIN_POSITIVE, f64::max);
    let own = highest(&mut all().filter(|bar| bar.color.is_some()));
    // One peer that is far away must not make all others invisible.
    let most = highest(&mut all()).min(if own > f64::MIN_POSITIVE { own * CUT } else { f64::MAX });
    let wide = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let place = |value: f64| LEFT + (wide * value.min(most) / most).round() as i32;
    let headings = groups.iter().filter(|(heading, _)| !heading.is_empty()).count();
    let rows = (all().count() + headings) as i32;
    svg((rows * ROW + 8) as u32, |area| {
        let mut top = 4;
        for (heading, bars) in groups {
            if !heading.is_empty() {
                area.draw(&Text::new(heading.clone(), (4, top + ROW / 2 + 3), at(15, HPos::Left, VPos::Center)))?;
                top += ROW;
            }
            let axis = vec![(LEFT, top - 2), (LEFT, top + bars.len() as i32 * ROW + 2)];
            area.draw(&PathElement::new(axis, TEXT.stroke_width(1)))?;
            for bar in bars {
                let middle = top + ROW / 2;
                let color = bar.color.map_or(PEER, |color| COLORS[color % COLORS.len()]);
                area.draw(&Text::new(bar.name.clone(), (LEFT - 8, middle), at(14, HPos::Right, VPos::Center)))?;
                let shape = [(LEFT, top + 4), (place(bar.value.median).max(LEFT + 1), top + ROW - 4)];
                area.draw(&Rectangle::new(shape, color.filled()))?;
                let spread = [(place(bar.value.low), middle), (place(bar.value.high), middle)];
                area.draw(&PathElement::new(spread.to_vec(), TEXT.stroke_width(1)))?;
                let end = place(bar.value.high.max(bar.value.median)) + 6;
                let shown = if bar.value.median > most { format!("→ {}", bar.shown) } else { bar.shown.clone() };
                area.draw(&Text::new(shown, (end, middle), at(13, HPos::Left, VPos::Center)))?;
                top += ROW;
            }
        }
        Ok(())
    })
}

/// An axis whose marks are given.
struct Marked {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Marked {
    fn format(value: &f64) -> String {
        format!("{value}")
    }
}

/// An axis of x: its name, and how a value is written.
#[derive(Clone, Copy)]
pub(crate) struct Across<'a> {
    pub(crate) name: &'a str,
    pub(crate) shown: &'a dyn Fn(f64) -> String,
}

/// The axis of values: every mark, and its range.
fn upright(scale: Scale, values: impl Iterator<Item = Value> + Clone) -> Marked {
    let most = values.clone().map(|value| value.high).fold(f64::MIN_POSITIVE, f64::max);
    let least = values.map(|value| value.low).fold(f64::INFINITY, f64::min).min(most);
    match scale {
        Scale::Linear => {
            // 1, 2 or 5 times a power of ten, so that there are four to ten marks.
            let rough = most / 5.0;
            let power = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|part| part * power).find(|step| *step >= rough).unwrap_or(power);
            let count = (most / step).ceil().max(1.0);
            Marked { range: 0.0..count * step, marks: (0..=count as usize).map(|index| index as f64 * step).collect() }
        }
        Scale::Logarithmic => {
            let (low, high) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
            let marks = (low as i32..=high as i32).map(f64::from).collect();
            Marked { range: low..high, marks }
        }
    }
}

/// Lines with a mark at each point; x is logarithmic. The names stand on the right.
pub(crate) fn lines(lines: &[Line], across: Across<'_>, scale: Scale, shown: &dyn Fn(f64) -> String) -> Result<String, String> {
    let mut xs: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (first, last) = (xs.first().copied().unwrap_or(1.0).ln(), xs.last().copied().unwrap_or(2.0).ln());
    let around = ((last - first) * 0.04).max(0.1);
    let marks = Marked { range: first - around..last + around, marks: xs.iter().map(|x| x.ln()).collect() };
    let upright = upright(scale, lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value)));
    let place = |value: f64| if scale == Scale::Linear { value } else { value.log10() };
    let legend = 170;
    svg(330, |area| {
        let (plot, names) = area.split_horizontally(WIDTH as i32 - legend);
        let mut chart =
            ChartBuilder::on(&plot).margin(8).x_label_area_size(44).y_label_area_size(72).build_cartesian_2d(marks, upright)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .axis_style(TEXT)
            .label_style(style(12))
            .x_desc(across.name)
            .axis_desc_style(style(13))
            .x_label_formatter(&|x| (across.shown)(x.exp()))
            .y_label_formatter(&|y| shown(if scale == Scale::Linear { *y } else { 10f64.powf(*y) }))
            .draw()?;
        for (index, line) in lines.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let points = || line.points.iter().map(|(x, value)| (x.ln(), *value));
            let path: Vec<(f64, f64)> = points().map(|(x, value)| (x, place(value.median))).collect();
            chart.draw_series([PathElement::new(path.clone(), color.stroke_width(2))])?;
            chart.draw_series(path.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
            let spreads = points()
                .map(|(x, value)| PathElement::new(vec![(x, place(value.low)), (x, place(value.high))], color.stroke_width(1)));
            chart.draw_series(spreads)?;
            let top = 20 + 22 * index as i32;
            names.draw(&PathElement::new(vec![(0, top), (18, top)], color.stroke_width(3)))?;
            names.draw(&Text::new(line.name.clone(), (24, top), at(13, HPos::Left, VPos::Center)))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Value = Value { median: 2.0, low: 1.0, high: 4.0 };

    #[test]
    fn bars_have_names_values_and_the_pages_colour() {
        let bar = Bar { name: "raid5".into(), value: ONE, shown: "2.00 GB/s".into(), color: Some(0) };
        let text = bars(&[(String::new(), vec![bar])]).unwrap();
        assert!(text.starts_with("<svg") && text.contains("viewBox=\"0 0 760 34\""), "{text}");
        assert!(!text.contains("width=\"760\""), "{text}");
        assert!(text.contains("raid5") && text.contains("2.00 GB/s"), "{text}");
        assert!(text.contains("currentColor") && !text.contains("#010203") && !text.contains("#000000"), "{text}");
    }

    #[test]
    fn a_peer_that_is_far_away_is_cut() {
        let bar = |high, color| Bar {
            name: "n".into(),
            value: Value { median: high, low: high, high },
            shown: format!("{high}"),
            color,
        };
        let text = bars(&[(String::new(), vec![bar(1.0, Some(0)), bar(50.0, None), bar(2.0, None)])]).unwrap();
        assert!(text.contains("→ 50") && !text.contains("→ 2"), "{text}");
    }

    #[test]
    fn lines_have_a_mark_for_each_x() {
        let line = Line { name: "posix".into(), points: vec![(64.0, ONE), (4096.0, ONE)] };
        let across = Across { name: "bytes", shown: &|x| format!("<{x:.0}>") };
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let text = lines(std::slice::from_ref(&line), across, scale, &|y| format!("{y}")).unwrap();
            assert!(text.contains("&lt;64&gt;") && text.contains("&lt;4096&gt;") && text.contains("posix"), "{text}");
        }
    }

    #[test]
    fn marks_are_round_numbers() {
        let value = |high| Value { median: high, low: high / 100.0, high };
        let marked = upright(Scale::Linear, [value(4.7e9)].into_iter());
        assert_eq!(marked.marks, [0.0, 1e9, 2e9, 3e9, 4e9, 5e9]);
        let marked = upright(Scale::Logarithmic, [value(4.7e3)].into_iter());
        assert_eq!(marked.marks, [1.0, 2.0, 3.0, 4.0]);
    }
}
