"""The workflow, run end to end at the smoke scale in a directory with a space in its name."""

import re
import shutil
from pathlib import Path

import pages
import pytest
from command_line import CLAIMS, SMOKE

from hiddenstate import cli, papers
from hiddenstate.pipeline import estimates
from hiddenstate.pipeline.family import Figure
from hiddenstate.study import claims, config, levels, verdicts

pytestmark = pytest.mark.whole


@pytest.fixture
def finished(smoke_run, tmp_path):
    """A copy of the smoke run."""
    return shutil.copytree(smoke_run, tmp_path / "smoke run", symlinks=True)


def test_everything_the_families_promise_is_there(finished):
    for name in papers.names():
        family = papers.load(name)
        for figure in family.figures:
            for suffix, magic in ((".pdf", b"%PDF"), (".png", b"\x89PNG")):
                content = (finished / f"figures/smoke/{name}/{figure}{suffix}").read_bytes()
                assert content.startswith(magic)
                assert len(content) > 5000
        for table in family.tables:
            for suffix in (".csv", ".md", ".tex"):
                assert (finished / f"results/smoke/{name}/tables/{table}{suffix}").stat().st_size
    found = verdicts.read(finished / "results/smoke/claims.csv")
    assert verdicts.families(found) == papers.names()


def test_a_finished_run_has_nothing_left_to_do(finished, snakemake):
    status, output = snakemake(finished, "all", "--cores", "1", "--config", "scale=smoke")
    assert status == 0
    assert "Nothing to be done" in output


USE_RDP = {"atlas", "linear_heuristic"}
"""Families with a simulation or a bound that uses the Rényi accountant."""


def test_a_corrected_accountant_makes_again_what_uses_it(finished, snakemake):
    path = finished / "src/hiddenstate/accounting/rdp.py"
    before = path.read_text()
    arguments = ("all", "--dry-run", "--cores", "1", "--config", "scale=smoke")
    try:
        path.write_text(f"{before}\n# A remark.\n")
        assert "Nothing to be done" in snakemake(finished, *arguments)[1]
        path.write_text(f"{before}\nOTHER = 1\n")
        status, output = snakemake(finished, *arguments)
    finally:
        path.write_text(before)
    assert status == 0, output[-3000:]
    planned = set(
        re.findall(r"^(\w+)_(?:simulate\d+|bound\d+|train|start) +\d+$", output, re.MULTILINE)
    )
    assert planned == USE_RDP
    assert not re.search(r"^\w+_(train|start) +\d+$", output, re.MULTILINE)


def test_the_report_holds_figures_tables_and_verdicts_offline(finished, snakemake):
    status, output = snakemake(
        finished, "all", "--report", "report.html", "--config", "scale=smoke"
    )
    assert status == 0, output[-3000:]
    page = (finished / "report.html").read_text()
    for name in papers.names():
        assert name in page
    for text in ("Figures", "Tables", "Claims", "figure2", "verdicts"):
        assert text in page
    # Nothing is fetched: no script, style or picture comes from an address.
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.https?://", page)


def test_the_page_of_claims_is_whole_and_offline(finished):
    page = finished / "results/smoke/report.html"
    assert pages.faults(page) == []
    text = page.read_text()
    found = verdicts.read(finished / "results/smoke/claims.csv")
    assert all(f'id="{name}"' in text for name in found["id"])
    assert text.count("<img") == sum(len(papers.load(name).figures) for name in papers.names())
    # Every number of the page is of cells that are there.
    assert "no cells" not in text


def read_estimates(directory, name):
    """A family's estimates of the finished run."""
    scale = directory / "workflow/config/scales/smoke.yaml"
    _, grid, seed = config.section(scale, name)
    path = directory / f"results/smoke/{name}/estimates.csv"
    return estimates.read(path, config.grid_name(scale, name, grid, seed))


def test_no_check_fails_where_runs_are_short(finished):
    """A check that raises an error at laptop scale would be found after an hour of computing."""
    found = verdicts.read(finished / "results/smoke/claims.csv")
    assert found[found["problem"] != ""][["id", "problem"]].values.tolist() == []


LEVELS = {
    "atlas": ["cell"],
    "cyclic_bounds": ["passes", "instance"],
    "encoding_loss": ["cell", "encoding"],
    "gradient_crafting": [
        *("part", "network", "every", "start", "adversary", "models", "epsilon", "clipping_norm"),
        *("batch_size", "beta", "sampling_rate", "canaries"),
    ],
    "worst_case_init": ["figure", "task", "case", "records", "clipping_norm", "repeat"],
}
"""Columns of estimates of whose values a scale may have any or none; of a family that is neither
here nor below, all that hold words."""

LESS = {
    "cyclic_bounds": ["passes != passes", "not (quantity == 'rho' and weak_convexity == 0)"],
    "estimators": [
        "cell != 'gaussian_mu1'",
        "x != 50",
        "x != 100",
        "quantity != 'power' or x < 100",
    ],
    "linear_heuristic": [
        "not cell.str.match('(audits|gradient|bits|analog)_') or x < 10",
        "not cell.str.match('figure5|schedules') or steps < 2 and x < 3",
        "cell != 'quadratic' or x in (0, 1)",
        "method != 'history regulariser' or x > 2",
        "not method.str.match('as published|lower bound') or attack.isna()",
    ],
}
"""Which rows a scale has that says less than another, as queries."""


def with_less(name, rows):
    """A family's estimates at scales that have less than these."""
    yield from (rows.query(query) for query in LESS.get(name, ()))
    words = () if name in LESS else rows.select_dtypes(["object", "string"])
    for column in LEVELS.get(name, words):
        for value in rows[column].dropna().unique():
            yield rows[rows[column] != value]
            yield rows[(rows[column] == value) | rows[column].isna()]


@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", papers.names())
def test_a_scale_of_the_user_s_own_is_judged_whatever_it_lacks(finished, name, most):
    """It may be as large as any, and has not the cells of every claim."""
    every = claims.read(finished / f"workflow/config/claims/{name}.yaml")
    rows = read_estimates(finished, name)
    scales = [rows, *with_less(name, rows)]
    # An odd step takes scales without a value, and scales with it alone.
    for less in scales[:: len(scales) // most | 1] if most else scales:
        found = claims.judge(every, less, levels.Level("paper", None))
        assert not found["measured"].str.contains(r"\bnan\b").any(), found["measured"].tolist()
        assert found[found["problem"] != ""][["id", "problem"]].values.tolist() == []


def trained_families():
    """Families that train anything at scale smoke."""
    scale = config.read(SMOKE)
    return [
        name for name in papers.names() if papers.load(name).jobs(getattr(scale, name))["train"]
    ]


@pytest.mark.parametrize("name", trained_families())
def test_without_trained_scores_all_that_is_shown_is_drawn_or_says_so(smoke_run, tmp_path, name):
    """With missing_scores=skip nine figures and a table ended their jobs with tracebacks."""
    family, grid, _ = config.section(SMOKE, name)
    trained, here = family.jobs(grid)["train"], tmp_path / name

    def left_out(folder, files):
        return [file for file in files if Path(folder).name == "scores" and file[:-8] in trained]

    shutil.copytree(smoke_run / "results/smoke" / name, here, ignore=left_out)
    asked, of = (name, "--config", SMOKE), ("--estimates", str(here / "estimates.csv"))
    claimed = ("--claims", str(CLAIMS / f"{name}.yaml"), "--tables", str(here / "tables"))
    for command in (
        ("estimate", *asked, "--results", str(here), "--missing", "skip", "--out", of[1]),
        ("figures", *asked, *of, "--out", str(tmp_path / "figures")),
        ("claims", *asked, *of, *claimed, "--out", str(here)),
    ):
        assert cli.main(command) in (0, None), command[0]
    shown = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert shown == set(family.shown(Figure, grid))
    assert (verdicts.read(here / "claims.csv")["problem"] == "").all()
