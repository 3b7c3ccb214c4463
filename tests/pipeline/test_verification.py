import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hiddenstate.errors import InputError
from hiddenstate.pipeline import verification
from hiddenstate.streams import stream


def frame(in_scores, out_scores):
    world = ["in"] * len(in_scores) + ["out"] * len(out_scores)
    return pd.DataFrame({"world": world, "score": np.concatenate((in_scores, out_scores))})


def by_several(rng, runs, shifts):
    """Scores by an adversary for each of the shifts, of world "in"."""
    parts = {f"adversary {i}": frame(s + rng.normal(size=runs), rng.normal(size=runs))
             for i, s in enumerate(shifts)}  # fmt: skip
    return pd.concat([part.assign(adversary=name) for name, part in parts.items()])


def simulated(name, *, comparisons, shift=0.0, cached=100, new=20):
    """The verdicts' corrected p-values, the smaller of both worlds; the world "in" is shifted."""
    rng = stream(0, "verification", name)
    found = []
    for _ in range(comparisons):
        one = frame(rng.normal(size=cached), rng.normal(size=cached))
        other = frame(shift + rng.normal(size=new), rng.normal(size=new))
        found.append(verification.compare(one, other)["p_value"].min())
    return np.array(found)


@pytest.mark.whole
def test_honest_scores_are_refused_no_more_often_than_stated():
    # Judged at 10 % too, where a test a world at the full level (19 %) or one that never rejects
    # would show; each bound fails by chance at a rate of 1e-6.
    p = simulated("null", comparisons=1500)
    for level in (verification.LEVEL, 0.1):
        most = stats.binom.isf(1e-6, len(p), level)
        assert (p < level).sum() <= most
    # The level is not wasted: the exact test's steps leave 8 % of 10 %.
    assert (p < 0.1).sum() >= stats.binom.ppf(1e-6, len(p), 0.075)


def test_twenty_models_find_a_shift_of_two_standard_deviations():
    # Power 0.99; fewer than 80 of 100 would be found at a rate below 1e-12.
    p = simulated("shift", comparisons=100, shift=2.0)
    assert (p < verification.LEVEL).sum() >= 80


@pytest.mark.parametrize("which", [0, 3])
def test_one_adversary_s_deviation_is_found_among_four(which):
    """Pooled, a shift of 2 deviations in a quarter of one world's scores is mostly missed."""
    rng = stream(0, "verification", "several", which)
    found, pooled = 0, 0
    for _ in range(20):
        cached = by_several(rng, 100, [0.0] * 4)
        new = by_several(rng, 20, [2.0 * (i == which) for i in range(4)])
        verdicts = verification.compare(cached, new)
        assert len(verdicts) == 8 and set(verdicts["new"]) == {20}
        broken = verdicts[~verdicts["agree"]]
        found += list(broken["adversary"]) == [f"adversary {which}"]
        together = verification.compare(*(t.drop(columns="adversary") for t in (cached, new)))
        pooled += not together["agree"].all()
    assert found >= 15 and pooled <= 10


@pytest.mark.whole
def test_honest_scores_of_several_adversaries_are_refused_no_more_often_than_stated():
    rng = stream(0, "verification", "several", "null")
    least = []
    for _ in range(100):
        frames = (by_several(rng, runs, [0.0] * 3) for runs in (40, 20))
        least.append(verification.compare(*frames)["p_value"].min())
    # At 10 % for all six comparisons; a correction for two alone would give 27 %.
    assert stats.binom.ppf(1e-6, 100, 0.06) <= (np.array(least) < 0.1).sum()
    assert (np.array(least) < 0.1).sum() <= stats.binom.isf(1e-6, 100, 0.1)


def test_other_adversaries_than_the_cached_ones_are_refused():
    rng = stream(0, "verification", "other")
    three, four = (by_several(rng, 50, [0.0] * n) for n in (3, 4))
    with pytest.raises(InputError, match="adversary and world: got new scores of"):
        verification.compare(three, four)


def test_the_verdict_is_on_the_world_that_differs():
    one = frame(np.arange(50.0), np.arange(50.0))
    found = verification.compare(one, frame(np.arange(20) * 2.5, 100 + np.arange(20.0)))
    assert found.set_index("world")["agree"].to_dict() == {"in": True, "out": False}
    assert list(found["cached"]) == [50, 50]
    assert list(found["new"]) == [20, 20]
    assert found.set_index("world").loc["out", "distance"] == 1


def test_more_comparisons_need_more_scores():
    assert verification.can_disagree(5, 20) and not verification.can_disagree(5, 20, 60)
    rng = stream(0, "verification", "few")
    cached, new = by_several(rng, 5, [0.0] * 30), by_several(rng, 20, [0.0] * 30)
    with pytest.raises(InputError, match=r"at level 1\.66667e-05 can reject"):
        verification.compare(cached, new)


def test_scores_of_one_data_set_alone_are_compared():
    """As of models that are trained without a canary, for their accuracy."""
    one, other = (frame(np.arange(n), np.arange(n)) for n in (30, 20))
    alone = [scores[scores["world"] == "out"] for scores in (one, other)]
    (row,) = verification.compare(*alone).to_dict("records")
    assert row["world"] == "out" and row["agree"] and row["p_value"] <= 1
    moved = alone[1].assign(score=alone[1]["score"] + 100)
    assert not verification.compare(alone[0], moved)["agree"].any()
    with pytest.raises(InputError, match=r"got 3 new and 3 cached scores .* at level 0\.001"):
        verification.compare(alone[0][:3], alone[1][:3])


@pytest.mark.parametrize(("cached", "new"), [(1, 20), (3, 20), (4, 20), (20, 4), (6, 6), (8, 8)])
def test_too_few_scores_to_disagree_are_refused(cached, new):
    apart = stats.ks_2samp(np.arange(cached), 1000 + np.arange(new))
    able = apart.pvalue < verification.LEVEL / 2
    assert verification.can_disagree(cached, new) == able
    one, other = (frame(np.arange(n), np.arange(n)) for n in (cached, new))
    one = one.assign(repeat=np.tile([0, 1], len(one))[: len(one)] if cached > 1 else 0)
    repeats = one["repeat"].nunique()
    if able:
        assert verification.compare(one, other)["agree"].all()
        verification.refuse_few(one, -(-new // repeats))
    else:
        with pytest.raises(InputError, match=f"got {new} new and {cached} cached scores"):
            verification.compare(one, other)
        if new % repeats == 0:
            with pytest.raises(InputError, match=f"got {new} new and {cached} cached scores"):
                verification.refuse_few(one, new // repeats)


@pytest.mark.whole
def test_the_power_of_a_comparison_is_that_of_the_comparison_itself():
    """A shift of 0.4 deviations with 100 scores per world, at the level of the verdict."""
    rng = stream(0, "verification", "power")
    runs = 100
    found = 0
    for _ in range(runs):
        one, other = (frame(*rng.normal(shift, 1, (2, 100))) for shift in (0.4, 0.0))
        found += verification.compare(one, other)["p_value"].min() < 0.05
    power = verification.comparison_power(100, shift=0.4, level=0.05)
    assert power == pytest.approx(found / runs, abs=4 * (0.25 / runs + 0.25 / 300) ** 0.5)
    assert verification.comparison_power(100, shift=0.0, level=0.05) < 0.1


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        (lambda frame: frame, True),
        (lambda frame: frame.assign(score=frame["score"] * (1 + 1e-9)), True),
        (lambda frame: frame.assign(score=frame["score"] + 1e-3), False),
        (lambda frame: frame.assign(score=np.where(frame.index < 1, 9.0, frame["score"])), True),
        (lambda frame: frame.assign(score=np.where(frame.index < 3, 9.0, frame["score"])), False),
        (lambda frame: frame.assign(world=frame["world"][::-1].to_numpy()), False),
        (lambda frame: frame[:-1], False),
        (lambda frame: frame.rename(columns={"score": "other"}), False),
    ],
)
def test_a_result_computed_again_is_equal_but_for_rounding(change, agrees):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"world": ["in", "out"] * 1000, "score": rng.normal(size=2000)})
    frame.loc[5, "score"] = np.nan
    assert verification.equal(frame, change(frame))["agree"] == agrees
