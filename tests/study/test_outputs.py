"""Files of a run are refused where they are another's, cut or edited."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from hiddenstate import cli
from hiddenstate.errors import InputError
from hiddenstate.pipeline import estimates, sealed
from hiddenstate.study import config, outputs

ROOT = Path(__file__).parents[2]
NAME = "encoding_loss"
ROW = {"quantity": "epsilon", "kind": "exact", "value": 1.0}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Two runs, of scales that differ in their seed: the paths and grids of the first."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "workflow/config/scales/smoke.yaml", tmp_path)
    for scale, seed in (("mine", 1), ("other", 2)):
        file, here = Path(f"{scale}.yaml"), Path("results", scale, NAME)
        file.write_text(f"extends: smoke\nonly: [{NAME}]\nseed: {seed}\n")
        _, grid, _ = config.section(file, NAME)
        named = config.grid_name(file, NAME, grid, seed)
        estimates.write(here / "estimates.csv", pd.DataFrame([ROW]), named)
        judge = ["claims", NAME, "--config", str(file), "--estimates", f"{here}/estimates.csv"]
        judge += ["--claims", str(ROOT / f"workflow/config/claims/{NAME}.yaml"), "--out", str(here)]
        assert cli.main(judge) in (0, None)
        collect = [
            "collect",
            f"{here}/claims.csv",
            "--config",
            str(file),
            "--out",
            str(here.parent),
        ]
        assert cli.main(collect) in (0, None)
        judged = sealed.digest_of(here.parent / "claims.csv")
        sealed.write_page(here.parent / "report.html", f"<p>{scale}</p>\n", judged)
        made_of = sealed.digest_of(here / "estimates.csv")
        for path in (Path("figures", scale, NAME, "figure1.png"), here / "tables/a.csv"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(scale)
            sealed.sign(path.parent, {path.name: made_of})
    paths = [p for top in ("figures", "results") for p in Path(top, "mine").rglob("*.*")]
    return paths, config.grid_names("mine.yaml")


def checked(run):
    outputs.check(*run, Path("figures/mine"), Path("results/mine"))


def test_the_files_of_a_run_are_its_own(run):
    assert len(run[0]) == 10
    checked(run)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("figures/SCALE/NAME/*", "figure1.png: was drawn from other estimates"),
        ("results/SCALE/NAME/tables/*", "a.csv: was drawn from other estimates"),
        ("results/SCALE/NAME/claims.*", "NAME/claims.csv: NAME.*: was judged on other estimates"),
        ("results/SCALE/claims.*", "mine/claims.csv: NAME.*: was judged on other estimates"),
        ("results/SCALE/claims.md", "claims.md: was made of other verdicts than those beside it"),
        ("results/SCALE/NAME/claims.md", "claims.md: was made of other verdicts"),
        ("results/SCALE/report.html", "report.html: was made of other verdicts"),
        ("results/SCALE/NAME/estimates.csv", "estimates.csv: grid: got 'NAME at other"),
    ],
)
def test_files_of_another_scale_are_refused(run, there, expected):
    """They were believed, where Snakemake had nothing to do."""
    pattern = there.replace("NAME", NAME)
    for path in Path().glob(pattern.replace("SCALE", "other")):
        shutil.copy(path, str(path).replace("/other/", "/mine/"))
    with pytest.raises(InputError, match=expected.replace("NAME", NAME)):
        checked(run)


@pytest.mark.parametrize("name", ["report.html", "claims.md", f"{NAME}/claims.md"])
def test_pages_that_were_cut_or_edited_are_refused(run, name):
    path = Path("results/mine", name)
    content = path.read_text("utf-8")
    for changed in ("", content[:-1], content[:-30], content[1:], f"{content}\n", f"x{content}"):
        path.write_text(changed, "utf-8")
        with pytest.raises(
            InputError, match=re.escape(f"{path}: is not the file that was written")
        ):
            checked(run)
    path.write_text(content, "utf-8")
    checked(run)


def test_verdicts_of_other_estimates_are_not_collected(run, capsys):
    """Of the same scale and seed, but of an earlier run: the grids are equal."""
    source = Path("results/mine", NAME, "estimates.csv")
    estimates.write(source, pd.DataFrame([ROW | {"value": 2.0}]), run[1][NAME])
    judged = source.with_name("claims.csv")
    collect = ["collect", str(judged), "--config", "mine.yaml", "--out", "collected"]
    assert cli.main(collect) == 2
    assert f"{judged}: {NAME}." in (err := capsys.readouterr().err)
    assert f"was judged on other estimates than {source}; remove the file" in err
    assert not Path("collected").exists()
    source.unlink()
    assert cli.main(collect) in (0, None)
