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
from kvplan.show import charts, svg
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
ASK = Path(__file__).with_name("page.js").read_text("utf-8")
PAGES = {
    "names": ["analyze", "IT", "--slo", "e2e-p90=30s"],
    "plan": ["plan", "IT", "--slo", "itl-p95=2s", "--gpu-hour", "3"],
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
    ["names", "check", *at_night("plan", "policies", "tool-calls-h100", "agents-collapse", "prefill-decode")],
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
        contrasts = browser.evaluate(f"{ASK} contrasts()")
        assert len(contrasts) > 15
        assert contrasts[0][0] >= 4.5, contrasts[:3]
        sizes = browser.evaluate(f"{ASK} sizes()")
        assert (len(sizes) > 20) == (name != "check")
        assert min(sizes, default=10) >= 10
        assert browser.evaluate(f"{ASK} outside()") == []
        assert browser.evaluate(f"{ASK} hidden()") == 0
    assert browser.complaints == []


@pytest.mark.nightly
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
    drawn = [
        Chart(
            name, "", Axis(name, 0, 1), Axis(name, 0, 1e9), [Line(n, at, at) for n in names], (), (name, 1e8)
        )
        for name in names
    ]
    path = tmp_path / "a.svg"
    path.write_text(svg.file(drawn), encoding="utf-8")
    browser.open(path, width=1280)
    assert browser.evaluate("document.querySelectorAll('text').length") > 60
    assert browser.evaluate(f"{ASK} outside()") == []


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
BELOW = "getComputedStyle(document.elementFromPoint(5, 5)).position"


@pytest.mark.usefixtures("brief")
def test_a_name_is_text_and_nothing_else(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "of_profile", lambda *_: ())  # no name is in them, and they take seconds

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
    plain = browser.evaluate(f"{ASK} active()")
    browser.open(page("hostile", HOSTILE), width=1280)
    assert browser.evaluate(f"{ASK} active()") == plain
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
