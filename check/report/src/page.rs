//! The report as one page of HTML that needs nothing beside it: pictures, style and script are in it.

use crate::book::{Book, Chapter, Judged, Plate, Verdict, base_unit};
use crate::figure::{Better, shown};
use crate::gaps::GAPS;
use crate::plan::Extent;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Text as HTML; what stands between backticks is code.
pub(crate) fn html(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let mut parts = escaped.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (index, part) in parts.enumerate() {
        out.push_str(if index % 2 == 0 { "<code>" } else { "</code>" });
        out.push_str(part);
    }
    out
}

/// The whole page.
pub(crate) fn page(book: &Book) -> String {
    let mut out = String::new();
    let title = "cxlraid: the evaluation";
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n"
    );
    head(&mut out, book);
    contents(&mut out, book);
    goals(&mut out, &book.goals);
    for chapter in &book.chapters {
        self::chapter(&mut out, chapter);
    }
    missing(&mut out, book);
    let _ = write!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

/// What kind of run this was, as a sentence. None if its figures count.
pub(crate) fn warning(extent: Extent) -> Option<&'static str> {
    match extent {
        Extent::Quick => Some(
            "This is a quick run: sizes are tiny and each measurement was taken once. It shows that everything works; its times \
             mean nothing, nor do the goals below.",
        ),
        Extent::Usual => Some("This is a run of a few rounds. Figures to be published come from cargo x report --full."),
        Extent::Full => None,
    }
}

fn head(out: &mut String, book: &Book) {
    if let Some(warning) = warning(book.extent) {
        let _ = writeln!(out, "<p class=\"warning\">{warning}</p>");
    }
    let _ = writeln!(
        out,
        "<p>{}. All members, ordinary directories and loop devices lie on one tmpfs in memory. Compared systems run by turns; a \
         bar or point is the median of its rounds, the thin line its least and greatest round. Bars with an arrow before their value are cut.</p>",
        html(&book.machine.text())
    );
    let (least, most) = book.loads;
    if least.is_finite() {
        let _ = writeln!(
            out,
            "<p class=\"soft\">Load average while measuring: {least:.1} to {most:.1} on {} processors.</p>",
            book.machine.processors
        );
    }
    out.push_str("<details><summary>Versions</summary><ul>\n");
    for (name, version) in &book.versions {
        let _ = writeln!(out, "<li>{}: {}</li>", html(name), html(version));
    }
    out.push_str("</ul></details>\n");
    if !book.failed.is_empty() {
        out.push_str("<p class=\"warning\">Some measurements failed; their figures are incomplete:</p>\n<ul>\n");
        book.failed.iter().for_each(|failed| {
            let _ = writeln!(out, "<li class=\"short\">{}</li>", html(failed));
        });
        out.push_str("</ul>\n");
    }
}

fn contents(out: &mut String, book: &Book) {
    out.push_str("<nav><ul>\n<li><a href=\"#goals\">Goals</a></li>\n");
    for chapter in &book.chapters {
        let _ = writeln!(out, "<li><a href=\"#part-{}\">{}</a></li>", chapter.name, html(chapter.title));
    }
    out.push_str("<li><a href=\"#missing\">What is not here</a></li>\n</ul></nav>\n");
}

const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Short => "short",
        Verdict::Noise => "noise",
        Verdict::NotMeasured => "not",
    }
}

fn headings(out: &mut String, names: &[(&str, bool)]) {
    out.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for (name, is_number) in names {
        let class = if *is_number { " class=\"number\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}><button type=\"button\">{name}</button></th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
}

fn goals(out: &mut String, goals: &[Judged]) {
    let count = |verdict| goals.iter().filter(|goal| goal.verdict == verdict).count();
    let _ = writeln!(
        out,
        "<h2 id=\"goals\">Goals</h2>\n<p>Computed from the data: {} met, {} short, {} within noise, {} not measured.</p>",
        count(Verdict::Met),
        count(Verdict::Short),
        count(Verdict::Noise),
        count(Verdict::NotMeasured)
    );
    headings(out, &[("goal", false), ("found", false), ("verdict", false), ("from", false)]);
    for goal in goals {
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{}\">{}</a></td><td>{}</td><td class=\"{}\">{}</td><td class=\"soft\">{}</td></tr>",
            goal.figure,
            html(&goal.text),
            html(&goal.found),
            class(goal.verdict),
            goal.verdict.word(),
            html(&goal.source)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn chapter(out: &mut String, chapter: &Chapter) {
    let _ = writeln!(out, "<h2 id=\"part-{}\">{}</h2>", chapter.name, html(chapter.title));
    for plate in &chapter.plates {
        self::plate(out, plate);
    }
}

fn plate(out: &mut String, plate: &Plate) {
    let figure = &plate.figure;
    let _ = writeln!(out, "<figure id=\"{}\">\n<h3>{}</h3>", figure.id, html(&figure.title));
    let better = if figure.better == Better::Higher { "Higher is better." } else { "Lower is better." };
    if plate.svg.is_empty() {
        out.push_str("<p class=\"warning\">There is no picture: nothing was measured.</p>\n");
    } else {
        let picture = plate.svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", html(&figure.title)), 1);
        let _ = writeln!(out, "<div class=\"picture\">{picture}</div>\n<p class=\"soft\">{better}</p>");
    }
    out.push_str("<figcaption><dl>\n");
    let _ = writeln!(out, "<dt>Measured</dt><dd>{}</dd>", html(&figure.measured));
    if !figure.seed.is_empty() {
        let _ = writeln!(out, "<dt>What the seed found</dt><dd>{}</dd>", html(&figure.seed));
    }
    out.push_str("<dt>What is found here</dt>");
    plate.findings.iter().for_each(|finding| {
        let _ = write!(out, "<dd>{}</dd>", html(finding));
    });
    let _ = writeln!(out, "\n<dt>Why they differ</dt><dd>{}</dd>", html(&figure.differs));
    for (series, why) in &plate.absent {
        let _ = writeln!(out, "<dt>Left out</dt><dd class=\"not\">{}: {}</dd>", html(series), html(why));
    }
    out.push_str("</dl></figcaption>\n<details><summary>Numbers</summary>\n");
    headings(
        out,
        &[
            ("series", false),
            ("x", true),
            ("median", true),
            ("least", true),
            ("greatest", true),
            ("rounds", true),
            ("with", false),
        ],
    );
    for row in &plate.rows {
        let cell = |value: f64| format!("<td class=\"number\" data-value=\"{value}\">{}</td>", shown(value, figure.unit));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td>{}{}{}<td class=\"number\">{}</td><td><code>{}</code></td></tr>",
            html(&row.series),
            html(&row.x),
            cell(row.value.median),
            cell(row.value.low),
            cell(row.value.high),
            row.rounds,
            html(&row.parameters)
        );
    }
    let _ = writeln!(
        out,
        "</tbody></table></div>\n<p class=\"soft\">Base unit: {}.</p></details>\n</figure>",
        base_unit(figure.unit)
    );
}

fn missing(out: &mut String, book: &Book) {
    out.push_str("<h2 id=\"missing\">What is not here</h2>\n<ul>\n");
    for title in &book.not_run {
        let _ = writeln!(out, "<li>{}: not measured in this run.</li>", html(title));
    }
    for (what, figures) in book.missing() {
        let _ = writeln!(out, "<li class=\"not\">{} (left out in {figures} figures)</li>", html(&what));
    }
    for (what, why) in GAPS {
        let _ = writeln!(out, "<li>{}: {}</li>", html(what), html(why));
    }
    out.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_code_is_marked() {
        assert_eq!(html("a < b & `rw=\"read\"`"), "a &lt; b &amp; <code>rw=&quot;read&quot;</code>");
    }
}
