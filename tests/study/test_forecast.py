"""What a run would take, on a scale whose results and cache are partly there."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from hiddenstate import cli
from hiddenstate.pipeline import costs, scores
from hiddenstate.pipeline.cells import Workplace
from hiddenstate.pipeline.family import Expect
from hiddenstate.pipeline.parts import Parts
from hiddenstate.study import config, forecast
from hiddenstate.study.page import duration

SCALE = Path(__file__).parents[2] / "workflow/config/scales/smoke.yaml"
FAMILY = "worst_case_init"


@pytest.mark.whole
def test_jobs_are_counted_by_what_is_there_and_cost_what_their_works_say(tmp_path):
    family, grid, seed = config.section(SCALE, FAMILY)
    jobs = family.jobs(grid)
    results, cached = tmp_path / "results", tmp_path / "cached"
    whole = forecast.table(SCALE, results, cached).set_index(["family", "kind"])
    train = whole.loc[FAMILY, "train"]
    assert train["missing"] == train["jobs"] == len(jobs["train"])
    each = [job.cost for job in jobs["train"].values()]
    assert train["hours"] == pytest.approx(sum(each) / 3600)
    assert train["longest"] == pytest.approx(max(each) / 3600)
    # One cell is done, another is cached, and a cached one of another seed is neither.
    frame = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": np.arange(2.0)})
    done, kept, other = [*jobs["train"].values()][:3]
    for folder, job, root in (
        (results / FAMILY / "scores", done, seed),
        (cached / FAMILY, kept, seed),
        (cached / FAMILY, other, seed + 1),
    ):
        origin = scores.provenance(job.identity, seed=root, wall_seconds=1.0)
        scores.write_table(folder / f"{job.cell.name}.parquet", frame, origin)
    part = forecast.table(SCALE, results, cached).set_index(["family", "kind"])
    found = part.loc[FAMILY, "train"]
    assert (found["done"], found["cached"], found["missing"]) == (1, 1, train["missing"] - 2)
    rest = sum(each) - done.cost - kept.cost + costs.DRAWING["restore"]
    assert found["hours"] == pytest.approx(rest / 3600)
    # Told to train all, it looks at no cache.
    assert forecast.table(SCALE, results, None)["cached"].sum() == 0
    # Told to skip what is missing, it trains nothing, nor makes what that would start from.
    skipped = forecast.table(SCALE, results, cached, trains=False)
    skipped = skipped[skipped["family"] == FAMILY].set_index("kind")
    assert "start" not in skipped.index
    assert (skipped.loc["train", "jobs"], skipped.loc["train", "missing"]) == (2, 0)
    assert skipped.loc["train", "hours"] == pytest.approx(costs.DRAWING["restore"] / 3600)
    words = forecast.words(part.reset_index())
    assert f"In all {part['missing'].sum()} of {part['jobs'].sum()} jobs" in words
    # No run ends before its longest job, however many cores there are.
    total, longest = part["hours"].sum(), part["longest"].max()
    rows = part.reset_index()
    assert forecast.sums(rows, 1)["wall_hours"] == pytest.approx(total)
    assert forecast.sums(rows, 2)["wall_hours"] == pytest.approx(max(total / 2, longest))
    assert forecast.sums(rows, 10**6)["wall_hours"] == longest > total / 10**6
    many = forecast.words(part.reset_index(), 10**6)
    assert f"1000000 cores need at least {duration(3600 * longest)}." in many
    assert "; 1 core needs at least " in " ".join(words.split())
    summed = forecast.sums(part.reset_index(), 2)
    assert summed["cores"] == 2
    assert (summed["hours"], summed["jobs"]) == (part["hours"].sum(), part["jobs"].sum())
    # One job each: estimates, all figures of a family, and its claims with its tables.
    assert part.loc[FAMILY, "drawing"]["jobs"] == 3


def test_jobs_that_are_longer_than_a_part_are_named():
    columns = ["family", "kind", "jobs", "done", "cached", "missing", "hours", "longest"]
    rows = [("one", "train", 2, 0, 0, 2, 20.0, 17.2), ("one", "start", 1, 0, 0, 1, 8.5, 8.5),
            ("other", "train", 1, 0, 0, 1, 8.01, 8.01)]  # fmt: skip
    found = pd.DataFrame(rows, columns=columns).assign(memory=1, disk=0.0, models=0)
    said = "not divided: train of one (17.2 h), start of one (8.5 h). Initial"
    assert said in forecast.words(found, 2, 8)
    assert "not divided" not in forecast.words(found, 2, 18)
    assert "not divided" not in forecast.words(found, 2)


def test_the_plan_is_the_same_in_json(tmp_path, capsys):
    arguments = ["plan", "--config", str(SCALE), "--results", str(tmp_path), "--cores", "3"]
    assert cli.main(arguments) == 0
    words = capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["all"]["cores"] == 3
    assert f"In all {told['all']['missing']} of {told['all']['jobs']} jobs" in words
    assert sum(row["jobs"] for row in told["families"]) == told["all"]["jobs"]


def test_files_of_cells_that_a_scale_no_longer_has_are_told(tmp_path, capsys):
    family, grid, _ = config.section(SCALE, FAMILY)
    kept = [job for jobs in family.jobs(grid).values() for job in jobs.values()]
    for job in kept:
        (tmp_path / FAMILY / job.work.folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / FAMILY / job.work.folder / f"{job.cell.name}.parquet").touch()
    assert forecast.stray(SCALE, tmp_path) == []
    # A name of another folder is no cell of this one.
    start = next(iter(family.jobs(grid)["start"]))
    strays = [tmp_path / FAMILY / "bounds" / f"{name}.parquet" for name in ("gone", start)]
    for path in strays:
        path.touch()
    assert forecast.stray(SCALE, tmp_path) == sorted(strays)
    assert cli.main(["plan", "--config", str(SCALE), "--results", str(tmp_path)]) == 0
    assert f"may be deleted: 2, the first is {min(strays)}" in capsys.readouterr().out
    assert cli.main(["plan", "--config", str(SCALE), "--results", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stray"] == [str(path) for path in sorted(strays)]


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", ["gradient_crafting", "linear_heuristic", "shuffling", "worst_case_init"]
)
def test_a_part_for_each_model_that_a_training_takes_has_one(tmp_path, name, monkeypatch):
    # The trial of each record alone is most of the time of one model.
    monkeypatch.setattr("hiddenstate.dpsgd.given.Given.refuse_unlike", lambda *_: None)
    family, grid, seed = config.section(SCALE, name)
    every = [
        job
        for job in family.jobs(grid)["train"].values()
        if job.trainings > 2 and not isinstance(job.work, Expect)
    ]
    job = min(every, key=lambda job: job.cost)
    start = job.start and job.start.run(seed, Workplace())
    number = job.work.trainings(job.cell)
    for done, index in enumerate((0, number // 2, number - 1), 1):
        job.run(seed, Workplace(start=start, checkpoint=Parts(tmp_path, part=(index, number))))
        assert len(list(tmp_path.rglob("*.npz"))) == done


def test_long_trainings_are_divided_and_no_job_is_longer(tmp_path):
    family, grid, _ = config.section(SCALE, FAMILY)
    jobs = family.jobs(grid)["train"]
    longest = max(job.cost for job in jobs.values()) / 3600
    hours = longest / 3.5
    parts = forecast.parts(jobs, hours)
    assert max(parts.values()) == 4
    for name, number in parts.items():
        assert jobs[name].cost / (number - 1) > 3600 * hours
        models = jobs[name].work.trainings(jobs[name].cell)
        most = math.ceil(models / number) / models
        assert jobs[name].cost * most <= 3600 * hours or number == models
    assert forecast.parts(jobs, 0) == forecast.parts(jobs, longest) == {}
    # No part is less than a model.
    most = max(job.work.trainings(job.cell) for job in jobs.values())
    assert max(forecast.parts(jobs, 1e-9).values()) == most
    results = tmp_path / "results"
    whole, divided = (
        forecast.table(SCALE, results, None, part_hours=h).set_index(["family", "kind"])
        for h in (0, hours)
    )
    assert divided.loc[FAMILY, "train"]["hours"] == pytest.approx(
        whole.loc[FAMILY, "train"]["hours"]
    )
    assert whole.loc[FAMILY, "train"]["longest"] == pytest.approx(longest)
    # A model is not divided, nor is an expected audit.
    undivided = {name: isinstance(job.work, Expect) for name, job in jobs.items()}
    assert {name for name in parts if undivided[name]} == set()
    alone = max(job.cost / (undivided[n] or job.trainings) for n, job in jobs.items())
    assert divided.loc[FAMILY, "train"]["longest"] <= max(hours, alone / 3600)
    # One more job for each part: the job that gathers them stays.
    more = divided.loc[FAMILY, "train"]["jobs"] - whole.loc[FAMILY, "train"]["jobs"]
    assert more == sum(parts.values())


def test_cells_that_take_seconds_share_a_job():
    family, grid, _ = config.section(SCALE.with_name("laptop.yaml"), "encoding_loss")
    jobs = family.jobs(grid)["simulate"]
    for seconds in (0, 10, 25, 1e9):
        batches = forecast.batches(jobs, seconds)
        assert [cell for cells in batches for cell in cells] == [*jobs]
        for cells, after in zip(batches, [*batches[1:], []], strict=True):
            shared = forecast.cost([jobs[cell] for cell in cells])
            assert len(cells) == 1 or shared - costs.STARTING["simulate"] <= seconds
            # One more would be too much.
            more = [jobs[cell] for cell in (*cells, *after[:1])]
            assert not after or forecast.cost(more) - costs.STARTING["simulate"] > seconds
    assert [len(cells) for cells in forecast.batches(jobs, 0)] == [1] * len(jobs)
    assert forecast.batches(jobs, 1e9) == [[*jobs]]


def test_cells_of_two_works_share_no_job():
    # Their code differs, and only what changed is to be made again.
    family, grid, _ = config.section(SCALE, "gradient_crafting")
    jobs = family.jobs(grid)["bound"]
    for cells in forecast.batches(jobs, 1e9):
        assert len({id(jobs[cell].work) for cell in cells}) == 1


@pytest.mark.parametrize(
    ("name", "kind", "cell", "key", "value", "times"),
    [
        ("linear_heuristic", "simulate", "history", "history.runs", 5 * 10**6, 40),
        ("linear_heuristic", "simulate", "history", "history.steps", 10_000, 50),
        ("linear_heuristic", "bound", "history", "history.resolution", 0.001, 2),
        ("linear_heuristic", "simulate", "gradient_q0.1", "audits.steps", [*range(1, 51)], 4),
        ("linear_heuristic", "simulate", "bits_q0.1", "audits.steps", [*range(1, 51)], 5),
        ("linear_heuristic", "simulate", "analog_q0.1", "audits.steps", [10_000], 4),
        ("linear_heuristic", "bound", "audits_q0.1", "audits.resolution", 0.002, 2),
        ("linear_heuristic", "bound", "repeated_q0.1", "audits.steps", [*range(1, 51)], 7),
        ("linear_heuristic", "bound", "figure1a", "figure1.constant.most_steps", 100_000, 10),
        ("linear_heuristic", "bound", "figure1b", "figure1.calibrated.points", 400, 5),
        ("linear_heuristic", "bound", "figure1c", "figure1.fixed.points", 1000, 5),
        ("linear_heuristic", "bound", "schedules", "schedules.steps", [12], 10),
        ("linear_heuristic", "bound", "quadratic", "quadratic.points", 1001, 2),
        ("linear_heuristic", "bound", "optimisers", "optimisers.steps", [*range(30, 80)], 5),
        ("linear_heuristic", "bound", "figure5_eps1", "figure5.steps", [100_000], 3),
        ("gradient_crafting", "bound", "landscape_eps4", "single.steps", 200, 10),
        ("gradient_crafting", "bound", "hidden_q0.1", "hidden.sampled_steps", [10**7], 10),
        ("gradient_crafting", "bound", "ideal_k1_500", "ideal.audits", 20_000, 20),
        ("gradient_crafting", "bound", "onerun_idle_m3000_eps4", "one_run.audits", 2000, 5),
        ("gradient_crafting", "simulate", "landscape_eps4_B4", "single.runs", 4 * 10**6, 40),
        ("shuffling", "bound", "eps4_", "repeated_batches", 10**5, 5),
        ("cyclic_bounds", "bound", "formulas", "audit.passes", [1, 32], 5),
        ("cyclic_bounds", "bound", "formulas", "tightness.passes", [1, 10_000], 1.2),
        ("cyclic_bounds", "simulate", "line1", "audit.passes", [120], 4),
        ("cyclic_bounds", "simulate", "logistic", "audit.runs", 10**6, 20),
        ("encoding_loss", "simulate", "q0.1_T100_eps4_sound", "runs", 50_000, 7),
        ("encoding_loss", "bound", "q0.01_T1024", "epsilon_step", 0.02, 4),
        ("atlas", "bound", "released_q0.1", "runs", 100_000, 2),
        ("worst_case_init", "bound", "ideal_eps1_models100", "ideal_audits", 100_000, 30),
    ],
)
def test_costs_follow_the_numbers_of_the_scale(tmp_path, name, kind, cell, key, value, times):
    section = yaml.safe_load(SCALE.with_name("laptop.yaml").read_text())[name]
    place = section
    *path, last = key.split(".")
    for part in path:
        place = place[part]

    def longest():
        scale = tmp_path / "mine.yaml"
        scale.write_text(yaml.safe_dump({"seed": 1, name: section}))
        family, grid, _ = config.section(scale, name)
        jobs = family.jobs(grid)[kind].items()
        return max(job.work.cost(job.cell) for own, job in jobs if own.startswith(cell))

    before = longest()
    place[last] = value
    assert longest() > times * before
