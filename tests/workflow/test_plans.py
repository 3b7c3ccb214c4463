"""Plans of the larger scales, and configurations that stop a run before any job."""

import re

import pytest

from hiddenstate import papers
from hiddenstate.pipeline.family import Figure
from hiddenstate.study import config


def test_a_wrong_configuration_stops_before_any_job(tmp_path, checkout, snakemake):
    directory = checkout(tmp_path)
    status, output = snakemake(directory, "--cores", "1", "--config", "sclae=smoke")
    assert status != 0
    assert "config key 'sclae' is not known; expected one of scale, scores" in output
    assert "Traceback" not in output
    assert not (directory / "results").exists()
    assert not (directory / "logs").exists()


def test_a_wrong_number_stops_before_any_job_and_names_the_key(tmp_path, checkout, snakemake):
    directory = checkout(tmp_path)
    path = directory / "workflow/config/scales/smoke.yaml"
    path.write_text(
        re.sub(r"(curves:\n.*?sampling_rate: )0\.1", r"\g<1>1.5", path.read_text(), count=1)
    )
    status, output = snakemake(directory, "--cores", "1", "--config", "scale=smoke")
    assert status != 0
    assert "encoding_loss.curves.0.sampling_rate: got 1.5" in output
    assert "less than or equal to 1" in output
    assert not (directory / "results").exists()


OTHERS = ("mnist", "mnist-raw", "cifar10-jpeg", "paper", "paper-last-layer")


@pytest.mark.whole
@pytest.mark.parametrize("scale", ["laptop", *OTHERS])
def test_the_larger_scales_plan_every_figure(tmp_path, scale, checkout, snakemake, data_sets):
    """Of the laptop scale every family and every figure is a target too."""
    directory = checkout(tmp_path)
    grid = config.read(directory / f"workflow/config/scales/{scale}.yaml")
    targets = ["all"]
    if scale == "laptop":
        targets += ["figures", "tables", "claims", *papers.names()]
        for name in papers.names():
            shown = papers.load(name).shown(Figure, getattr(grid, name))
            targets += [f"{name}_{figure}" for figure in shown]
    status, output = snakemake(
        *(directory, *targets, "--dry-run", "--config", f"scale={scale}", "part_hours=0"),
        environment=data_sets(directory, scale),
    )
    assert status == 0, output[-3000:]
    for name in config.families(grid):
        family = papers.load(name)
        for figure, shown in family.figures.items():
            if shown.when(getattr(grid, name)):
                assert f"figures/{scale}/{name}/{figure}.pdf" in output


@pytest.mark.whole
def test_a_run_without_a_target_makes_the_report_page(tmp_path, checkout, snakemake):
    directory = checkout(tmp_path)
    status, output = snakemake(directory, "--dry-run", "--config", "scale=smoke")
    assert status == 0, output[-3000:]
    assert "results/smoke/report.html" in output
