//! Looks at a finished report: every figure is there, none is empty, every link has a target.

use crate::book::Book;
use crate::figure::Kind;
use crate::markdown::{NAME, PICTURES};
use crate::record::Record;
use std::collections::BTreeSet;
use std::path::Path;

/// What is wrong with the records: figures that are none.
pub(crate) fn records(records: &[Record]) -> Vec<String> {
    let wrong = records.iter().filter(|record| record.sample.absent.is_none() && !record.sample.is_plausible());
    wrong.map(|record| format!("{}: {} {} has no figure", record.sample.figure, record.sample.series, record.sample.x)).collect()
}

/// What is wrong with the page.
pub(crate) fn page(book: &Book, html: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let targets: Vec<&str> = values(html, "id=\"");
    let unique: BTreeSet<&str> = targets.iter().copied().collect();
    if unique.len() != targets.len() {
        wrong.push("an id is given twice".to_owned());
    }
    for plate in book.chapters.iter().flat_map(|chapter| &chapter.plates) {
        let id = &plate.figure.id;
        let Some(at) = html.find(&format!("<figure id=\"{id}\"")) else {
            wrong.push(format!("{id}: the figure is not on the page"));
            continue;
        };
        let figure = &html[at..html[at..].find("</figure>").map_or(html.len(), |end| at + end)];
        // A figure whose every series is left out has nothing to show.
        if plate.rows.is_empty() {
            if plate.absent.is_empty() {
                wrong.push(format!("{id}: nothing was measured, and nothing says why"));
            }
            continue;
        }
        if !figure.contains("<svg") || !figure.contains("</svg>") {
            wrong.push(format!("{id}: the figure has no picture"));
        }
        let lined = matches!(plate.figure.kind, Kind::Bytes | Kind::Growth);
        for row in &plate.rows {
            let points = plate.rows.iter().filter(|other| other.series == row.series).count();
            if lined && points < 2 {
                wrong.push(format!("{id}: the line of {} has one point", row.series));
            }
            let name = crate::page::html(&row.series);
            if !figure.split("</svg>").next().is_some_and(|picture| picture.contains(&name)) {
                wrong.push(format!("{id}: {} is not in the picture", row.series));
            }
        }
    }
    for link in values(html, "href=\"") {
        match link.strip_prefix('#') {
            Some(target) if unique.contains(target) => {}
            _ => wrong.push(format!("the link {link} leads nowhere")),
        }
    }
    if let Some(outside) = values(html, "src=\"").first() {
        wrong.push(format!("{outside}: the page needs a file beside it"));
    }
    // The script has the word, too.
    let html = html.split("<script>").next().unwrap_or_default();
    if html.contains("NaN") || html.contains("data-value=\"inf") {
        wrong.push("a number on the page is none".to_owned());
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// What is wrong with the Markdown twin: pictures that are not there.
pub(crate) fn markdown(directory: &Path) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(directory.join(NAME)) else {
        return vec![format!("{NAME} is not there")];
    };
    let before = format!("]({PICTURES}/");
    let pictures = text.split(&before).skip(1).filter_map(|rest| rest.split(')').next());
    let missing = pictures.filter(|picture| !directory.join(PICTURES).join(picture).is_file());
    missing.map(|picture| format!("{NAME}: {PICTURES}/{picture} is not there")).collect()
}

/// What stands between each `before` and the next quotation mark.
fn values<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts;
    use crate::plan::Extent;
    use crate::record::Sample;
    use crate::{machine::Machine, page::page as written};

    /// A record for each series of each figure of a part, as if all had been measured.
    fn measured() -> Vec<Record> {
        let mut found = Vec::new();
        for figure in parts::all()[0].figures() {
            for series in ["posix", "raid5"] {
                let sample = Sample::new(&figure.id, series, "", vec![1.0, 2.0, 3.0]);
                let (versions, machine) = (Default::default(), Machine::default());
                found.push(Record { part: "thesis".into(), sample, versions, machine, finished: 1 });
            }
        }
        found
    }

    #[test]
    fn a_whole_page_passes_and_a_broken_one_does_not() {
        let book = |records: &[Record]| Book::new(Extent::Quick, &parts::all(), records, Vec::new()).unwrap();
        let records = measured();
        let whole = book(&records);
        let html = written(&whole);
        assert_eq!(page(&whole, &html), Vec::<String>::new());
        let check = |html: String, what: &str| {
            let wrong = page(&whole, &html);
            assert!(wrong.iter().any(|wrong| wrong.contains(what)), "{what} is not found: {wrong:?}");
        };
        check(html.replace("<figure id=\"f3-bandwidth\"", "<figure"), "not on the page");
        check(html.replace("<svg", "<gone"), "no picture");
        check(html.replace("href=\"#goals\"", "href=\"#none\""), "leads nowhere");
        check(html.replace("href=\"#goals\"", "href=\"https://example.org\""), "leads nowhere");
        check(html.replace("<body>", "<body><img src=\"a.png\">"), "beside it");
        let missing: Vec<Record> = records.into_iter().filter(|record| record.sample.figure != "f4-latency").collect();
        let incomplete = book(&missing);
        let wrong = page(&incomplete, &written(&incomplete));
        assert_eq!(wrong, ["f4-latency: nothing was measured, and nothing says why"]);
    }
}
