"""The explorer shows what the command line prints."""

import argparse
import importlib.util
import json
import math
import re
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer

import consoles
import numpy as np
import pages
import pytest

from hiddenstate.accounting import bounds
from hiddenstate.atlas import lower
from hiddenstate.cli import main
from hiddenstate.commands import setting_options
from hiddenstate.commands.options import add_options

EXPLORER = consoles.ROOT / "docs/explorer"
ROWS = {
    "standard": bounds.STANDARD,
    "last": bounds.HEURISTIC,
    "worst": "malicious data set",
    "forgetting": "forgetting regulariser",
}
"""What the page calls an epsilon, and its row of the command line."""

pytestmark = pytest.mark.skipif(pages.CHROMIUM is None, reason="needs Chromium")


def browsed(address):
    """The page of an address, which computes its first view before it is loaded."""
    options = ("--headless", "--no-sandbox", "--disable-gpu")
    done = subprocess.run(
        [pages.CHROMIUM, *options, "--dump-dom", address],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    return done.stdout


def trainings(number):
    """Random trainings: options of the command line, with as many deltas as the page is asked."""
    rng = np.random.default_rng(20261125)
    for i in range(number):
        records = int(10 ** rng.uniform(2.5, 6))
        batch = int(max(1, records * 10 ** rng.uniform(-3, -0.3)))
        each = math.ceil(records / batch)
        epochs = int(rng.integers(1, max(2, min(40, 8_000 // each))))
        steps = each * epochs
        noise = float(f"{math.exp(rng.uniform(math.log(0.8), math.log(8))):.3g}")
        options = {"noise-multiplier": noise, "records": records, "batch-size": batch}
        options |= {"epochs": epochs} if i % 2 else {"steps": steps}
        if i % 5 == 0:
            options["release-every"] = int(rng.choice([k for k in range(1, 60) if steps % k == 0]))
        deltas = [float(f"{10 ** rng.uniform(-8, -3):.3g}") for _ in range(1 + i % 3)]
        yield options, {"noise": noise, "rate": batch / records, "steps": steps}, deltas


def printed(options, delta, capsys):
    """Every row, with every digit; the counterexamples are those that the atlas prints."""
    words = [word for pair in options.items() for word in (f"--{pair[0]}", str(pair[1]))]
    parser = argparse.ArgumentParser()
    add_options(parser, "SAMPLER\nNOISE\nSETTING")
    setting = setting_options.read(parser.parse_args([*words, "--delta", repr(delta)]))
    main(["epsilon", *words, "--delta", repr(delta), "--json"])
    found = json.loads(capsys.readouterr().out)["epsilon"]
    lowers = bounds.found(setting, delta, lower.COUNTEREXAMPLES)
    return {name: row["epsilon"] for name, row in found.items()} | {
        one.bound.name: one.epsilon for one in lowers
    }


def compared(number, tmp_path, capsys):
    """What a browser computes of random trainings, held to what the commands print."""
    asked = [
        (options, mechanism | {"every": options.get("release-every", 0), "delta": delta})
        for options, mechanism, deltas in trainings(number)
        for delta in deltas
    ]
    page = tmp_path / "page.html"
    page.write_text(
        f"<script>{(EXPLORER / 'accounting.js').read_text()}</script><pre id=out></pre><script>"
        f"document.getElementById('out').textContent = JSON.stringify("
        f"{json.dumps([one for _, one in asked])}.map(accounting().found))</script>"
    )
    answers = json.loads(re.search(r'<pre id="out">(.*?)</pre>', browsed(page.as_uri()))[1])
    for (options, mechanism), answer in zip(asked, answers, strict=True):
        plain = {key: value for key, value in options.items() if key != "release-every"}
        table = printed(plain, mechanism["delta"], capsys)
        for name, row in ROWS.items():
            expected = pytest.approx(table[row], rel=1e-9, abs=1e-9)
            assert answer[name] == expected, (name, mechanism)
        if "release-every" in options:
            expected = printed(options, mechanism["delta"], capsys)[bounds.HEURISTIC]
            expected = pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert answer["released"] == expected, mechanism


@pytest.mark.whole
def test_the_browser_computes_what_the_commands_print(tmp_path, capsys):
    compared(3, tmp_path, capsys)


@pytest.mark.slow
def test_the_browser_computes_fifty_trainings_as_the_commands_print_them(tmp_path, capsys):
    compared(50, tmp_path, capsys)


@pytest.mark.whole
def test_the_page_shows_the_training_of_its_address(capsys):
    """By records and epochs, at two deltas, with released iterates."""
    training = {"noise-multiplier": 1.1, "records": 6000, "batch-size": 60, "epochs": 5}
    address = "noise=1.1&records=6000&batch=60&epochs=5&delta=1e-5,1e-6&every=10"
    shown = browsed(f"{(EXPLORER / 'index.html').as_uri()}#{address}")
    cells = [float(x) for x in re.findall(r'data-epsilon="([^"]+)"', shown)]
    released = training | {"release-every": 10}
    for column, delta in enumerate((1e-5, 1e-6)):
        table = printed(training, delta, capsys)
        linear = printed(released, delta, capsys)[bounds.HEURISTIC]
        rows = [table[ROWS[name]] for name in ("standard", "worst", "last", "forgetting")]
        expected = [*rows[:2], linear, *rows[2:]]
        assert cells[column::2] == pytest.approx(expected, rel=1e-8)
        words = " ".join(f"--{name} {value}" for name, value in released.items())
        assert f"hiddenstate epsilon {words} --delta {delta:g}".replace("e-0", "e-") in shown


class Answer(BaseHTTPRequestHandler):
    """Keeps what a page sends."""

    def do_POST(self):
        self.server.text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.mark.whole
def test_a_moved_slider_is_answered_by_the_worker(tmp_path, capsys):
    """Of two moves, the first of which takes seconds, the last alone is answered, from disk."""
    shutil.copytree(EXPLORER, tmp_path / "explorer")
    page = tmp_path / "explorer/index.html"
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        moves = f"""<script>
            new MutationObserver(() => fetch("http://127.0.0.1:{server.server_port}",
              {{ method: "POST", mode: "no-cors", body: document.getElementById("rows").innerHTML }}
            )).observe(document.getElementById("rows"), {{ childList: true }});
            [[0, 0.3], [400, 0.9]].forEach(([wait, noise]) => setTimeout(() => {{
              const field = document.getElementById("noise");
              field.value = noise;
              field.dispatchEvent(new Event("input"));
            }}, wait));
        </script></body>"""
        page.write_text(page.read_text().replace("</body>", moves))
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
        address = f"{page.as_uri()}#noise=3&rate=0.001&steps=20000"
        browser = subprocess.Popen(
            [pages.CHROMIUM, *options, f"--user-data-dir={tmp_path}/profile", address],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            server.timeout, server.text = 120, ""
            for _ in range(3):
                if 'data-epsilon="' not in server.text:
                    server.handle_request()
        finally:
            browser.terminate()
            browser.wait()
    shown = float(re.search(r'data-epsilon="([^"]+)"', server.text)[1])
    training = {"noise-multiplier": 0.9, "sampling-rate": 0.001, "steps": 20_000}
    assert shown == pytest.approx(printed(training, 1e-5, capsys)[bounds.STANDARD], rel=1e-8)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("noise=-1", "noise: got “-1”; expected"),
        ("records=100&batch=200", "batch: got “200”; expected"),
        ("rate=0.01&steps=100&every=7", "every: got “7”; expected 0 or a divisor of the 100 steps"),
        ("delta=2", "delta: got “2”; expected"),
    ],
)
def test_a_wrong_field_is_named(address, message):
    assert message in browsed(f"{(EXPLORER / 'index.html').as_uri()}#{address}")


@pytest.mark.whole
def test_the_audits_are_those_of_the_atlas(capsys):
    text = (EXPLORER / "audits.js").read_text()
    audits = json.loads(re.fullmatch(r"const AUDITS = (.*);\n", text)[1])
    spec = importlib.util.spec_from_file_location("audits", EXPLORER / "audits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(audits) == len(module.NOISES) * len(module.RATES) * len(module.STEPS)
    for audit in (audits[0], audits[len(audits) // 2]):
        found = module.largest(*audit[:3])
        assert found[:3] == audit[:3]
        np.testing.assert_allclose(found[3], audit[3], rtol=1e-6)


def test_the_first_view_is_small():
    assert sum(path.stat().st_size for path in EXPLORER.glob("*.[hj]*")) < 100_000
