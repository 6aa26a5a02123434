"""The page in a headless Chromium: silent, as wide as the window, and readable, light and dark."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Browser, chromium
from tiers import at_night

import kvplan
from kvplan.cli.app import main
from kvplan.show import svg
from kvplan.show.chart import Axis, Chart, Line

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
PROFILE = """
schema = 1
name = "<script>alert(1)</script> and a name_without_any_place_to_break_it_whatsoever_however_narrow_the_window_may_be"
[gpu]
memory_tokens = 41_408
[timing]
d0 = "14.5 ms"
d1 = "0.25 us"
[[classes]]
name = "another_name_without_any_place_to_break_it_whatsoever_however_narrow_the_window_may_be<img src=x>"
input = 1155
decode = { 50 = 0.2, 200 = 0.5, 400 = 0.3 }
rate = 3.0
[[classes]]
name = "tools | `x` **y** &amp; 'z'"
input = 400
decode = 128
rate = 1.5
"""
# of every element with text of its own: the contrast of that text against what is behind it
CONTRASTS = """
(() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    throw new Error("nothing behind");
  };
  const found = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own) continue;
    const style = getComputedStyle(node);
    const text = parse(node instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [light(text), light(behind(node))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), node.tagName, node.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""
# of every text in a plot: how many pixels high its font is on the screen
SIZES = """
[...document.querySelectorAll('svg text, svg tspan')].filter((node) => node.textContent.trim()).map((node) => {
  const plot = node.ownerSVGElement;
  const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(node).fontSize) * scale;
})
"""
# texts of plots that leave their picture, and that run into another
OUTSIDE = """
[...document.querySelectorAll('figure > svg, body > svg, :root')].flatMap((svg) => {
  if (!(svg instanceof SVGElement)) return [];
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map((node) => [node, node.getBoundingClientRect()]);
  const out = texts.filter(
    ([, at]) => at.left < box.left - 1 || at.right > box.right + 1 || at.bottom > box.bottom + 1);
  const met = texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(() => [one, a]));
  return [...out, ...met].map(([node]) => node.textContent);
})
"""
# what can be scrolled sideways without anything that says so
HIDDEN = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"


PAGES = {
    "names": ["analyze", "IT", "--slo", "e2e-p90=30s"],
    "plan": ["plan", "IT", "--slo", "ttft-p95=4s", "--slo", "itl-p95=2s", "--gpu-hour", "3"],
    "policies": ["simulate", "IT", "--policy", "greedy,vllm,rate-limited", "--requests", "500"],
    "check": [
        "check",
        "IT",
        "llama-3.1-8b-rtx4090",
        "--require",
        "load.headroom > -1",
        "--accept",
        "workload",
    ],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")
    profile = folder / "profile.toml"
    profile.write_text(PROFILE)

    @cache
    def made(name: str) -> Path:
        command, path = PAGES.get(name, ["analyze", name]), folder / f"{name}.html"
        given = [str(profile) if word == "IT" else word for word in command]
        assert main([*given, "--format", "html", "-o", str(path)]) == 0
        return path

    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize(
    "name",
    ["names", "plan", "policies", "check", *at_night("tool-calls-h100", "agents-collapse", "prefill-decode")],
)
def test_a_page_is_silent_fits_and_can_be_read(
    name: str, browser: Browser, page: Callable[[str], Path]
) -> None:
    browser.complaints.clear()
    for width, dark, paper in ((1280, False, "rgb(255, 255, 255)"), (390, True, "rgb(16, 21, 28)")):
        browser.open(page(name), width=width, dark=dark)
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert browser.evaluate("innerWidth") == width
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.scripts.length") == 0
        contrasts = browser.evaluate(CONTRASTS)
        assert len(contrasts) > 15
        assert contrasts[0][0] >= 4.5, contrasts[:3]
        sizes = browser.evaluate(SIZES)
        assert (len(sizes) > 20) == (name != "check")
        assert min(sizes, default=10) >= 10
        assert browser.evaluate(OUTSIDE) == []
        assert browser.evaluate(HIDDEN) == 0
    assert browser.complaints == []


def test_plots_are_seen_and_have_names(browser: Browser, page: Callable[[str], Path]) -> None:
    browser.open(page("llama-3.1-8b-rtx4090"), width=1280)
    plots = browser.evaluate(
        "[...document.querySelectorAll('svg')].map(s => [s.getBoundingClientRect().width, s.ariaLabel])"
    )
    assert [width > 300 for width, label in plots if label] == [True] * 3
    verdict = kvplan.analyze(kvplan.load("llama-3.1-8b-rtx4090")).verdict
    assert f"Danger zone from {verdict.recovers_up_to_rps:.4g} to 3.925 requests/s:" in plots[0][1]
    widths = "[...document.querySelectorAll('svg svg path')].map(path => path.getBBox().width)"
    assert max(browser.evaluate(widths)) > 200
    styles = "[...document.querySelectorAll('svg path')].map(path => getComputedStyle(path).stroke)"
    assert "rgb(11, 87, 184)" in browser.evaluate(styles)  # the page's blue, by its variable


def test_nothing_is_cut_in_a_file_of_plots(browser: Browser, tmp_path: Path) -> None:
    """Names of any length and alphabet, in the fonts there are."""
    names = [
        "WWWWWW MMMMMM " * 8,
        "Llama-3.1-70B-Instruct on 4 H100",
        "用户代理和工具调用",
        "%@&" * 30,
        "i" * 99,
    ]
    at = np.array([0.0, 1.0])
    charts = [
        Chart(
            name, "", Axis(name, 0, 1), Axis(name, 0, 1e9), [Line(n, at, at) for n in names], (), (name, 1e8)
        )
        for name in names
    ]
    path = tmp_path / "a.svg"
    path.write_text(svg.file(charts), encoding="utf-8")
    browser.open(path, width=1280)
    assert browser.evaluate("document.querySelectorAll('text').length") > 60
    assert browser.evaluate(OUTSIDE) == []


HOSTILE = (
    "<script>alert(1)</script>",
    "</svg></style></title><img src=x onerror=alert(2)>",
    "<iframe src=http://127.0.0.1:9/></iframe>",
    "\" onmouseover=alert(3) x='",
    "' style='position:fixed;inset:0",
    "&lt;b&gt;&#60;script&#62;&amp;lt;",
    "<!-- ]]> <![CDATA[",
    "url(http://127.0.0.1:9/) javascript:alert(4)",
    "{{7*7}} ${7*7} $\\frac{1}{2}$ \\u003cb\\u003e",
    "[red]x[/red] | `a` **b** [l](http://127.0.0.1:9/)",
)
# elements and attributes that do something, and where a page can send one
ACTIVE = """
[...document.querySelectorAll('*')].flatMap((e) => [
  ...(/^(script|img|iframe|object|embed|link|base|form|input|b)$/i.test(e.tagName) ? [e.outerHTML.slice(0, 80)] : []),
  ...[...e.attributes].filter((a) => /^on/i.test(a.name) || /^(javascript|http):/i.test(a.value.trim())
    && !a.name.startsWith('xmlns')).map((a) => a.name + '=' + a.value),
])
"""
BELOW = "getComputedStyle(document.elementFromPoint(5, 5)).position"


@pytest.mark.usefixtures("brief")
def test_a_name_is_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    def page(name: str, names: Sequence[str]) -> Path:
        profile, path = tmp_path / f"{name}.toml", tmp_path / f"{name}.html"
        classes = (
            f"[[classes]]\nname = {json.dumps(n)}\ninput = {40 * i + 9}\ndecode = {9 + 5 * i}\nrate = 0.1\n"
            for i, n in enumerate(names)
        )
        head = "schema = 1\ngpu.memory_tokens = 41_408\ntiming = { d0 = 0.0145, d1 = 2.5e-7 }\n"
        profile.write_text(f"name = {json.dumps(names[0])}\n{head}{''.join(classes)}")
        assert main(["analyze", str(profile), "--format", "html", "-o", str(path)]) == 0
        return path

    browser.complaints.clear()
    browser.open(page("plain", [f"class {i}" for i in range(len(HOSTILE))]), width=1280)
    plain = browser.evaluate(ACTIVE)
    browser.open(page("hostile", HOSTILE), width=1280)
    assert browser.evaluate(ACTIVE) == plain
    assert browser.evaluate(BELOW) != "fixed"
    assert browser.complaints == []
    shown = browser.evaluate("document.body.innerText").replace("\u200b", "")
    assert [name for name in HOSTILE if name not in shown] == []


def test_the_browser_would_complain(browser: Browser, tmp_path: Path) -> None:
    """That it says nothing means something."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<p style='width: 2000px'>x<script>console.error('no')</script><img src='http://127.0.0.1:9/'>"
    )
    browser.complaints.clear()
    browser.open(page, width=390)
    assert browser.evaluate("document.documentElement.scrollWidth") > 390
    assert len(browser.complaints) >= 2
    browser.complaints.clear()
