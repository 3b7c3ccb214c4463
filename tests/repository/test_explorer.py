"""The explorer shows what the command line prints."""

import importlib.util
import json
import re
import subprocess

import consoles
import numpy as np
import pages
import pytest

EXPLORER = consoles.ROOT / "docs/explorer"
NAMES = ("noise", "rate", "steps", "delta")


@pytest.fixture(scope="module")
def made():
    spec = importlib.util.spec_from_file_location("points", EXPLORER / "points.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept():
    text = (EXPLORER / "points.js").read_text()
    return json.loads(re.fullmatch(r"const POINTS = (.*);\n", text)[1])


def settings(kept, number):
    """Settings at the ends of the sliders and drawn between, each with its place in the list."""
    sizes = [len(kept["axes"][name]) for name in NAMES]
    rng = np.random.default_rng(20261125)
    drawn = [tuple(rng.integers(size) for size in sizes) for _ in range(number - 1)]
    for place in [tuple(size - 1 for size in sizes), *drawn]:
        values = [kept["axes"][name][i] for name, i in zip(NAMES, place, strict=True)]
        yield values, int(np.ravel_multi_index(place, sizes))


def compare(made, kept, number):
    for values, index in settings(kept, number):
        found = made.point(*values)
        np.testing.assert_allclose(kept["numbers"][index], found, rtol=1e-9, err_msg=str(values))


def test_the_points_are_those_of_the_package(made, kept):
    assert kept["axes"] == made.AXES and kept["columns"] == list(made.COLUMNS)
    compare(made, kept, 4)


@pytest.mark.slow
def test_fifty_points_are_those_of_the_package(made, kept):
    compare(made, kept, 50)


def test_the_numbers_are_in_their_order(kept):
    """All iterates show most, the last least; the worst case is below the standard epsilon."""
    for standard, last, every10, every100, worst in kept["numbers"]:
        assert last <= every100 * (1 + 1e-6) and every100 <= every10 * (1 + 1e-6)
        assert every10 <= standard * (1 + 1e-6) and worst <= standard * (1 + 1e-6)


@pytest.mark.whole
@pytest.mark.skipif(pages.CHROMIUM is None, reason="needs Chromium")
def test_the_page_shows_the_setting_of_its_address(kept):
    (values, index), *_ = settings(kept, 2)
    hash_ = "&".join(f"{name}={value}" for name, value in zip(NAMES, values, strict=True))
    done = subprocess.run(
        [pages.CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"file://{EXPLORER}/index.html#{hash_}&every=10"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    shown = [float(x) for x in re.findall(r'data-epsilon="([^"]+)"', done.stdout)]
    standard, last, every10, _, worst = kept["numbers"][index]
    assert shown == [standard, worst, every10, last]
    assert f"--steps {values[2]} " in done.stdout and "--release-every 10" in done.stdout


def test_the_first_view_is_small():
    assert sum(path.stat().st_size for path in EXPLORER.iterdir()) < 1_000_000
