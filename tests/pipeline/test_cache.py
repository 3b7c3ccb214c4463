"""What a cached file stands for, and which cells are never cached."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenstate import cli, papers
from hiddenstate.errors import InputError
from hiddenstate.pipeline import cache, scores
from hiddenstate.study import config

ROOT = Path(__file__).parents[2]
SCALES = ROOT / "workflow/config/scales"
LAPTOP = config.read(SCALES / "laptop.yaml")
FRAME = pd.DataFrame({"world": ["in", "out"], "repeat": 0, "run": 0, "score": [1.0, 0.0]})


def job(family, kind, name=None):
    jobs = papers.load(family).jobs(getattr(LAPTOP, family))[kind]
    return jobs[name or next(iter(jobs))]


SIMULATED = job("shuffling", "simulate")
BOUND = job("shuffling", "bound")
SHORT = job("shuffling", "train")
LONG = max(
    papers.load("worst_case_init").jobs(LAPTOP.worst_case_init)["train"].values(),
    key=lambda job: job.cost,
)


def written(folder, job, seed=1, **origin):
    file = cache.path(folder, job)
    own = {"cell": job.identity, "seed": seed, "made_by": job.maker.written}
    if (code := cache.code_of(job)) is not None:
        own["code"] = code
    scores.write_table(file, FRAME, own | origin)
    return file


@pytest.mark.parametrize("job", [SIMULATED, BOUND, SHORT, LONG], ids=lambda job: job.work.kind)
def test_a_file_serves_for_its_own_job_alone(tmp_path, job):
    assert not cache.serves(cache.path(tmp_path, job), job, 1)
    assert cache.serves(written(tmp_path, job), job, 1)
    file = written(tmp_path, job, seed=2)
    assert not cache.fits(file, job, 1)
    if job.work.kind == "train":
        with pytest.raises(InputError, match=f"{file}: computed for seed 2; expected 1"):
            cache.serves(file, job, 1)
    else:
        assert not cache.serves(file, job, 1)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError, match=f"{file}: not a readable Parquet file"):
        cache.serves(file, job, 1)


FIGURE1A, FIGURE1C = (job("linear_heuristic", "bound", f"figure1{letter}") for letter in "ac")


def test_a_file_of_another_cell_or_kind_with_the_same_parameters_is_not_served(tmp_path):
    """Any of them was believed in the place of any other."""
    twins = SIMULATED, job("shuffling", "bound", SIMULATED.cell.name)
    for one, other in ((FIGURE1A, FIGURE1C), twins, twins[::-1]):
        assert one.identity == other.identity
        assert not one.maker.alone
        own = cache.path(tmp_path, one)
        cache.path(tmp_path, other).parent.mkdir(exist_ok=True)
        written(tmp_path, other).replace(own)
        assert not one.computed(own, 1)
        assert not cache.fits(own, one, 1)
        assert not cache.serves(own, one, 1)
        # It is no other scale's, so that `keep` may put the right one in its place.
        assert not cache.of_another(own, one, 1)
        written(tmp_path, one)
        assert cache.serves(own, one, 1)
    kind = "computed for kind of work bound; expected simulate"
    written(tmp_path, twins[1]).replace(own := cache.path(tmp_path, SIMULATED))
    with pytest.raises(InputError, match=f"{own}: {kind}"):
        SIMULATED.checked(own, 1)
    name = LONG.cell.name
    other = written(tmp_path, LONG, made_by={"kind of work": "train", "cell name": "other"})
    with pytest.raises(InputError, match=f"computed for cell name other; expected {name}"):
        cache.serves(other, LONG, 1)


def test_a_file_that_names_no_cell_is_served_where_one_alone_can_be_meant(tmp_path):
    for one in (SIMULATED, BOUND, FIGURE1A, SHORT, LONG, job("encoding_loss", "bound")):
        file = cache.path(tmp_path, one)
        scores.write_table(file, FRAME, {"cell": one.identity, "seed": 1})
        assert cache.serves(file, one, 1) == one.maker.alone
        assert one.maker.alone == (one not in (SIMULATED, BOUND, FIGURE1A))


@pytest.mark.parametrize("path", sorted(SCALES.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_training_shares_its_parameters(path):
    """Or cached files from before they named their cells would be trained again."""
    scale = config.read(path)
    for name in config.families(scale):
        every = papers.load(name).jobs(getattr(scale, name))
        shared = [
            cell
            for kind in ("start", "train")
            for cell, job in every[kind].items()
            if not job.maker.alone
        ]
        assert not shared, name


def test_other_code_is_served_for_long_trainings_alone(tmp_path):
    for job in (SIMULATED, BOUND):
        other = written(tmp_path, job, cell=job.identity | {"code": "other"})
        assert not cache.serves(other, job, 1)
    assert SHORT.cost < cache.SHORT < LONG.cost
    assert not cache.serves(written(tmp_path, SHORT, code="other"), SHORT, 1)
    assert cache.code_of(LONG) is None and "code" not in LONG.identity
    # As of one that was forecast to be short when it was made.
    assert cache.serves(written(tmp_path, LONG, code="other"), LONG, 1)
    # Files from before short trainings told their code.
    old = cache.path(tmp_path, SHORT)
    scores.write_table(old, FRAME, {"cell": SHORT.identity, "seed": 1})
    assert cache.serves(old, SHORT, 1)


@pytest.mark.parametrize("name", papers.names())
def test_every_run_computes_one_cell_of_each_kind_of_each_family(name):
    family, grid = papers.load(name), getattr(LAPTOP, name)
    every, live = family.jobs(grid), cache.live(family, grid)
    assert {kind for kind, _ in live} == {kind for kind in every if every[kind]}
    works = {id(every[kind][cell].work) for kind, cell in live}
    cheap = [w for w in family.works if min(j.cost for j in of(every, w)) <= cache.LIVE]
    assert {id(work) for work in cheap} <= works


def of(every, work):
    return [job for job in every[work.kind].values() if job.work is work]


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("worst_case_init", {"mnist_pre5_n100_C1_T100_lr4_eps10_1x100_repeat0"}),
        (
            "gradient_crafting",
            {f"housing_k1_fresh_eps{epsilon}_300_repeat0" for epsilon in (4, 24)},
        ),
    ],
)
def test_what_is_compared_with_cached_scores_is_computed(name, beside):
    live = cache.live(papers.load(name), getattr(LAPTOP, name))
    assert {("train", cell) for cell in beside} <= live


@pytest.mark.parametrize("name", papers.names())
def test_the_cache_leaves_one_cell_of_each_kind_to_compute(name):
    every = papers.load(name).jobs(getattr(LAPTOP, name))
    for kind in cache.SERVED:
        folder = ROOT / "results/cached" / name
        kept = [cache.path(folder, job).exists() for job in every[kind].values()]
        assert not kept or not all(kept), kind


def test_the_cache_is_below_its_size():
    files = (ROOT / "results/cached").rglob("*")
    assert sum(file.stat().st_size for file in files) < 40e6


def test_results_of_other_scales_and_seeds_stay_in_the_cache(tmp_path, capsys):
    """They were replaced by those of the scale's own seed, or removed."""
    family = papers.load("shuffling")
    every = family.jobs(LAPTOP.shuffling)["simulate"]
    live = {name for kind, name in cache.live(family, LAPTOP.shuffling) if kind == "simulate"}
    served = next(name for name in every if name not in live)
    results, cached = tmp_path / "results", tmp_path / "cached"
    others = [
        written(cached / "shuffling", every[name], LAPTOP.seed + 1, wall_seconds=9)
        for name in (served, *live)
    ]
    others.append(written(cached / "worst_case_init", LONG, LAPTOP.seed + 1, wall_seconds=9))
    place = results / "shuffling/scores"
    place.mkdir(parents=True)
    new = written(results / "new", every[served], LAPTOP.seed, wall_seconds=99)
    new.rename(place / f"{served}.parquet")
    before = {path: path.read_bytes() for path in others}
    keep = ["keep", "--config", str(ROOT / "workflow/config/scales/laptop.yaml"), "--json"]
    keep += ["--results", str(results), "--cached", str(cached), "--megabytes"]
    for megabytes in ("40", "0"):
        assert cli.main([*keep, megabytes]) in (0, None)
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["copied"], row["dropped"]) == (0, 0)
    assert {path: path.read_bytes() for path in others} == before
    keep[keep.index(str(results))] = str(tmp_path / "nowhere")
    assert cli.main([*keep, "40"]) == 2
    assert "--results: no folder" in capsys.readouterr().err


def test_short_trainings_of_other_code_are_named_and_not_kept(tmp_path, capsys):
    family = papers.load("shuffling")
    always = cache.live(family, LAPTOP.shuffling)
    every = family.jobs(LAPTOP.shuffling)["train"]
    short = [n for n, job in every.items() if cache.code_of(job) and ("train", n) not in always]
    results, cached = tmp_path / "results", tmp_path / "cached"
    for name, code in zip(short[:2], ("other", cache.code_of(every[short[1]])), strict=True):
        made = written(tmp_path, every[name], LAPTOP.seed, code=code, wall_seconds=9)
        place = results / "shuffling" / every[name].work.folder
        place.mkdir(parents=True, exist_ok=True)
        made.rename(place / f"{name}.parquet")
    keep = ["keep", "--config", str(ROOT / "workflow/config/scales/laptop.yaml"), "--json"]
    assert cli.main([*keep, "--results", str(results), "--cached", str(cached)]) in (0, None)
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert (row["copied"], row["outdated"]) == (1, 1)
    assert f"1 training of other code not kept, such as {place / short[0]}" in printed.err


def test_a_damaged_result_is_not_taken_into_the_cache(tmp_path, capsys):
    every = papers.load("shuffling").jobs(LAPTOP.shuffling)["simulate"]
    live = {name for _, name in cache.live(papers.load("shuffling"), LAPTOP.shuffling)}
    name = next(name for name in every if name not in live)
    place = tmp_path / "results/shuffling/scores"
    place.mkdir(parents=True)
    made = written(tmp_path / "new", every[name], LAPTOP.seed, wall_seconds=9)
    frame = pq.read_table(made)
    values = frame.to_pandas()
    values.iloc[0, -1] += 1
    table = pa.Table.from_pandas(values, frame.schema, preserve_index=False)
    pq.write_table(table, place / f"{name}.parquet")
    keep = ["keep", "--config", str(ROOT / "workflow/config/scales/laptop.yaml")]
    keep += ["--results", str(tmp_path / "results"), "--cached", str(tmp_path / "cached")]
    assert cli.main(keep) == 2
    assert name in capsys.readouterr().err
    assert not list((tmp_path / "cached").rglob("*.parquet"))


def test_what_saves_most_seconds_for_its_bytes_is_kept(tmp_path, capsys):
    """Of what is cached and what was just computed; what has no room goes, but no training."""
    every = papers.load("shuffling").jobs(LAPTOP.shuffling)["simulate"]
    always = cache.live(papers.load("shuffling"), LAPTOP.shuffling)
    names = [name for name in every if ("simulate", name) not in always][:3]
    results, cached = tmp_path / "results", tmp_path / "cached"

    def made(folder, seconds, name):
        return written(folder, every[name], LAPTOP.seed, wall_seconds=seconds)

    training = written(cached / "worst_case_init", LONG, LAPTOP.seed, wall_seconds=1e-3)
    kept = [
        made(cached / "shuffling", seconds, name)
        for seconds, name in zip((1, 3), names[:2], strict=True)
    ]
    size = kept[0].stat().st_size
    place = results / "shuffling/scores"
    new = made(place, 2, names[2]).rename(place / f"{names[2]}.parquet")
    keep = ["keep", "--config", str(ROOT / "workflow/config/scales/laptop.yaml"), "--json"]
    keep += ["--results", str(results), "--cached", str(cached)]
    room = (2.5 * size + training.stat().st_size) / 1e6
    assert cli.main([*keep, "--megabytes", str(room)]) in (0, None)
    found = {path.name for path in cached.rglob("*.parquet")}
    assert found == {new.name, kept[1].name, training.name}
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["copied"], row["dropped"]) == (1, 1)
