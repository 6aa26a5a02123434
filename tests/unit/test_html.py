"""The page: nothing loaded or run, nothing injected, the figures of the JSON report, the same bytes each time."""

import re
from html.parser import HTMLParser

import numpy as np
from measured import brief_report
from shipped import report as shipped

from kvplan.model import Replica, RequestClass, ServingModel, Timing
from kvplan.report.assembly import Report
from kvplan.show import html
from kvplan.show.chart import Axis, Chart, Line
from kvplan.show.page import document
from kvplan.show.report import build
from kvplan.show.svg import DARK, LIGHT

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31mred\x1b[0m",
    "`a` | b | {{c}} ${d}",
    "</td></table></style><style>*{display:none}</style>",
    "&lt;b&gt; &amp;",
    "\u202egnp.exe",
    "]]> <!-- x --> <![CDATA[",
    "javascript:alert(1) https://example.org",
    "日本語の名前",
)
ALLOWED = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "nav", "section", "footer"),
    *("h1", "h2", "p", "div", "span", "strong", "b", "br", "a", "ol", "ul", "li", "pre"),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg"),
}


class Page(HTMLParser):
    """Elements, attributes, and the text of every cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1] += data
        self.text.append(data)


def hostile() -> Report:
    classes = tuple(RequestClass(name, 30 + i, (2 + i % 3,), (1.0,), 1.0) for i, name in enumerate(HOSTILE))
    model = ServingModel(classes, Timing(0.01), Replica(40_000))
    return brief_report(model, name=HOSTILE[0] + HOSTILE[4])


def chart() -> Chart:
    line = Line(HOSTILE[0], np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    axes = Axis(HOSTILE[4], 0.0, 1.0), Axis(HOSTILE[1], 0.0, 1.0)
    return Chart(HOSTILE[1], HOSTILE[4], *axes, [line, line._replace(style="dots")])


def test_names_cannot_inject_anything() -> None:
    text = html.render(build(hostile()))
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert sum(tag == "style" for tag, _ in page.tags) == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    shown = "".join(page.text)
    for name in HOSTILE:
        assert re.sub("[\x1b\u202e]", "\N{REPLACEMENT CHARACTER}", name) in shown


def test_sections_without_a_verdict_are_a_page() -> None:
    sections = build(shipped("llama-3.1-8b-rtx4090")).sections[:2]
    one, two = (Page(html.render(document(sections[:count]), [chart()])) for count in (1, 2))
    for page, headings in ((one, 1), (two, 3)):
        assert page.open == []
        assert sum(tag in ("h1", "h2") for tag, _ in page.tags) == headings
        assert sum(tag == "figure" for tag, _ in page.tags) == 1
    assert sections[0].title in one.text
    links = {str(a["href"])[1:] for tag, a in two.tags if tag == "a"}
    assert links == {a["id"] for tag, a in two.tags if tag == "section"} == {"part-1", "part-2"}


def test_headings_and_tables_have_their_roles() -> None:
    page = Page(html.render(build(shipped("llama-3.1-8b-rtx4090"))))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == 1
    assert ("html", {"lang": "en"}) in page.tags
    assert {attributes["scope"] for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    # what can be scrolled can be reached by keyboard and has a name
    regions = [a for tag, a in page.tags if tag == "div" and a.get("class") == "scroll"]
    assert len(regions) == tags.count("table") > 10
    assert all(a["tabindex"] == "0" and a["role"] == "group" and a["aria-label"] for a in regions)
    links = {str(a["href"])[1:] for tag, a in page.tags if tag == "a"}
    assert links == {a["id"] for tag, a in page.tags if tag == "section" and "id" in a}


def test_chosen_sections_only() -> None:
    text = html.render(build(shipped("llama-3.1-8b-rtx4090"), ["load"]))
    assert re.findall('<section id="([^"]*)"', text) == ["load"]


# ------------------------------------------------------------------------------------------------ colours


def luminance(colour: str) -> float:
    """Relative luminance of sRGB (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_stylesheet_has_both_palettes_and_uses_nothing_else() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", html.render(build(hostile())), flags=re.DOTALL)
    for palette in (LIGHT, DARK):
        assert all(f"--{role}: {colour};" in style for role, colour in palette.items())
    assert set(re.findall(r"#[0-9a-f]{6}\b", style)) == {*LIGHT.values(), *DARK.values()}
    assert set(re.findall(r"var\(--([a-z]+)\)", style)) <= set(LIGHT) == set(DARK)


def test_every_landmark_has_a_name_of_its_own_and_every_header_says_something() -> None:
    """As axe has it: landmark-unique and empty-table-header."""
    page = html.render(build(shipped("llama-3.1-8b-rtx4090")))
    landmarks = re.findall(r'<(?:nav|main|header|footer)\b[^>]*>|<[^>]* role="region"[^>]*>', page)
    assert len(landmarks) == len(set(landmarks)) == 4
    assert not re.search(r"<th\b[^>]*>\s*</th>", page)
