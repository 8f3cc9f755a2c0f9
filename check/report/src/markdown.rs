//! The report as Markdown with its pictures in files, for a copy in docs/.

use crate::book::{Book, Plate};
use crate::figure::shown;
use crate::gaps::GAPS;
use crate::page::warning;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The directory of the pictures, beside the document.
pub(crate) const PICTURES: &str = "pictures";
/// The document's name.
pub(crate) const NAME: &str = "evaluation.md";

/// A picture that stands alone follows the colours of the reader by itself.
const STYLE: &str = "<style>svg{color:#1c2127}@media(prefers-color-scheme:dark){svg{color:#e3e6ea}}</style>";

/// The document.
pub(crate) fn markdown(book: &Book) -> String {
    let mut out = String::from("# The evaluation\n\n");
    if let Some(warning) = warning(book.extent) {
        let _ = writeln!(out, "**{warning}**\n");
    }
    let _ = writeln!(out, "{}. Made by `cargo x report`.\n", book.machine.text());
    out.push_str("## Goals\n\n| goal | found | verdict |\n|---|---|---|\n");
    for goal in &book.goals {
        let _ = writeln!(out, "| {} | {} | {} |", cell(&goal.text), cell(&goal.found), goal.verdict.word());
    }
    for chapter in &book.chapters {
        let _ = write!(out, "\n## {}\n", chapter.title);
        for plate in &chapter.plates {
            self::plate(&mut out, plate);
        }
    }
    out.push_str("\n## What is not here\n\n");
    for title in &book.not_run {
        let _ = writeln!(out, "- {title}: not measured in this run.");
    }
    for (what, figures) in book.missing() {
        let _ = writeln!(out, "- {what} (left out in {figures} figures)");
    }
    for (what, why) in GAPS {
        let _ = writeln!(out, "- {what}: {why}.");
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn plate(out: &mut String, plate: &Plate) {
    let figure = &plate.figure;
    let _ = write!(out, "\n### {}\n\n", figure.title);
    if !plate.svg.is_empty() {
        let _ = writeln!(out, "![{}]({PICTURES}/{}.svg)\n", figure.title, figure.id);
    }
    let _ = writeln!(out, "*Measured:* {}\n", figure.measured);
    if !figure.seed.is_empty() {
        let _ = writeln!(out, "*What the seed found:* {}\n", figure.seed);
    }
    let _ = writeln!(out, "*What is found here:* {}\n", plate.findings.join(" "));
    let _ = writeln!(out, "*Why they differ:* {}\n", figure.differs);
    for (series, why) in &plate.absent {
        let _ = writeln!(out, "*Left out:* {series}: {why}\n");
    }
    if plate.rows.is_empty() {
        return;
    }
    out.push_str("| series | x | median | least | greatest | rounds |\n|---|--:|--:|--:|--:|--:|\n");
    for row in &plate.rows {
        let value = |value| shown(value, figure.unit);
        let (median, low, high) = (value(row.value.median), value(row.value.low), value(row.value.high));
        let _ = writeln!(out, "| {} | {} | {median} | {low} | {high} | {} |", cell(&row.series), cell(&row.x), row.rounds);
    }
}

/// Writes the document and its pictures into a directory.
pub(crate) fn write(book: &Book, directory: &Path) -> Result<(), String> {
    let pictures = directory.join(PICTURES);
    let told = |error: std::io::Error| format!("{}: {error}", pictures.display());
    stage::remove(&pictures).and_then(|()| fs::create_dir_all(&pictures)).map_err(told)?;
    for plate in book.chapters.iter().flat_map(|chapter| &chapter.plates).filter(|plate| !plate.svg.is_empty()) {
        let end = plate.svg.find('>').map_or(0, |at| at + 1);
        let picture = format!("{}{STYLE}{}", &plate.svg[..end], &plate.svg[end..]);
        fs::write(pictures.join(format!("{}.svg", plate.figure.id)), picture).map_err(told)?;
    }
    fs::write(directory.join(NAME), markdown(book)).map_err(told)
}
