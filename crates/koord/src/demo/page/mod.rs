//! The self-contained HTML pages of the demos: one builder, and the style that they share.

pub mod picture;
pub mod suite;

use std::fmt::{self, Write as _};

/// The style of all pages, for light and dark and for screens from 390 px on.
const STYLE: &str = include_str!("style.css");

/// Returns a text with the characters that mean something in HTML escaped.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A page, or a fragment of one. `write!` appends HTML unescaped; an element's content is appended by a
/// closure, so that every tag is closed.
#[derive(Debug, Default)]
pub(super) struct Page {
    html: String,
}

impl Page {
    /// Returns a whole document with a title, style rules in addition to the shared ones, and the headline
    /// and other content that `content` appends.
    pub(super) fn document(title: &str, style: &str, content: impl FnOnce(&mut Self)) -> String {
        let mut page = Self::default();
        write!(
            page,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{}</title><style>{STYLE}{style}</style></head><body>",
            escape(title)
        );
        page.element("main", content);
        writeln!(page, "</body></html>");
        page.html
    }

    /// Returns the HTML that `content` appends, for a place in another page.
    pub(super) fn fragment(content: impl FnOnce(&mut Self)) -> String {
        let mut page = Self::default();
        content(&mut page);
        page.html
    }

    /// Appends HTML: what `write!` calls.
    pub(super) fn write_fmt(&mut self, html: fmt::Arguments<'_>) {
        // Writing into a text does not fail.
        let _ = self.html.write_fmt(html);
    }

    /// Appends an element: its tag with attributes, such as `p class="soft"`, around the HTML that `content`
    /// appends.
    pub(super) fn element(&mut self, tag: &str, content: impl FnOnce(&mut Self)) {
        write!(self, "<{tag}>");
        content(self);
        write!(self, "</{}>", tag.split(' ').next().unwrap_or(tag));
    }

    /// Appends an element whose content is a text.
    pub(super) fn text(&mut self, tag: &str, text: &str) {
        self.element(tag, |page| page.append(text));
    }

    /// Appends a text.
    pub(super) fn append(&mut self, text: &str) {
        self.html.push_str(&escape(text));
    }

    /// Appends a panel.
    pub(super) fn panel(&mut self, content: impl FnOnce(&mut Self)) {
        self.element("div class=\"panel\"", content);
    }

    /// Appends a table, `tag` with its attributes, in a panel that scrolls sideways.
    pub(super) fn table(&mut self, tag: &str, content: impl FnOnce(&mut Self)) {
        self.element("div class=\"panel scroll\"", |page| {
            page.element(tag, content)
        });
    }

    /// Appends the row of a table: its tag with attributes, and cells that hold HTML.
    pub(super) fn row<C: fmt::Display>(
        &mut self,
        tag: &str,
        cell: &str,
        cells: impl IntoIterator<Item = C>,
    ) {
        self.element(tag, |page| {
            for content in cells {
                page.element(cell, |page| write!(page, "{content}"));
            }
        });
    }

    /// Appends an SVG picture of a size in its own units, stretched to the available width.
    pub(super) fn chart(
        &mut self,
        (width, height): (f64, f64),
        label: &str,
        content: impl FnOnce(&mut Self),
    ) {
        let label = escape(label);
        let tag = format!(
            "svg viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\""
        );
        self.element(&tag, content);
    }

    /// Appends the texts below a chart: at its left end, in the middle, and at its right end.
    pub(super) fn axis(&mut self, class: &str, texts: [&str; 3]) {
        self.element(&format!("div class=\"{class}\""), |page| {
            for text in texts {
                page.text("span", text);
            }
        });
    }

    /// Appends the key of a chart, `tag` with its attributes: the class of each color's dot with what it means, and
    /// then a text without a dot, unless that is empty.
    pub(super) fn key(&mut self, tag: &str, dots: &[(&str, &str)], text: &str) {
        self.element(tag, |page| {
            for (class, meaning) in dots {
                let meaning = escape(meaning);
                write!(page, "<span><i class=\"dot {class}\"></i>{meaning}</span>");
            }
            if !text.is_empty() {
                page.text("span", text);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_escapes_texts_and_closes_tags() {
        let page = Page::document("a & b", "i{color:red}", |page| {
            page.text("h1 class=\"x\"", "1 < 2");
            page.table("table", |page| {
                page.row("tr", "td class=\"l\"", ["<b>", "c"])
            });
        });
        assert!(page.contains("<title>a &amp; b</title><style>"), "{page}");
        assert!(page.contains("i{color:red}</style></head><body><main>"));
        assert!(page.contains("prefers-color-scheme:dark"));
        let body = page.split("<main>").nth(1).unwrap();
        assert_eq!(
            body,
            "<h1 class=\"x\">1 &lt; 2</h1><div class=\"panel scroll\"><table><tr><td class=\"l\"><b></td>\
             <td class=\"l\">c</td></tr></table></div></main></body></html>\n"
        );
    }

    #[test]
    fn chart_has_its_size_and_label() {
        let html = Page::fragment(|page| {
            page.chart((10.0, 2.5), "a \"b\"", |page| write!(page, "<path/>"));
            page.axis("axis", ["0", "", "<1"]);
            page.key("p", &[("hot", "hot > 1")], "more");
        });
        assert_eq!(
            html,
            "<svg viewBox=\"0 0 10 2.5\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"a &quot;b&quot;\"><path/></svg><div class=\"axis\"><span>0</span><span></span>\
             <span>&lt;1</span></div><p><span><i class=\"dot hot\"></i>hot &gt; 1</span><span>more</span></p>"
        );
    }
}
