import numpy as np
import pandas as pd
import pytest

from hiddenstate.errors import InputError
from hiddenstate.papers.gradient_crafting import FAMILY
from hiddenstate.pipeline.estimates import select


def test_every_part_is_there(estimates):
    parts = {"housing", "network", "norms", "single", "hidden", "ideal", "one run"}
    parts |= {"one run validity", "centred", "expected"}
    assert set(estimates["part"]) == parts


@pytest.mark.whole
def test_scores_that_are_missing_leave_the_others(grid, results):
    kept = {k: v for k, v in results["scores"].items() if not k.endswith("24_repeat1")}
    frame = FAMILY.estimates(grid, kept, results["bounds"])
    found = select(frame, part="housing", quantity="epsilon", method="valid")
    assert select(found, models=24)["repeat"].nunique() == 1
    assert set(found["start"]) == {"fresh", "shared", "reshuffled"}


def test_idle_epsilon_is_that_of_fewer_insertions(estimates):
    rows = select(estimates, part="housing", quantity="epsilon")
    idle = rows.groupby("every")["idle_epsilon"].first()
    assert idle[1] == pytest.approx(24, abs=1e-6) and 8 < idle[2] < 24


@pytest.mark.whole
def test_agreement_sees_scores_of_another_distribution(grid, results):
    def least(scores):
        rows = pd.DataFrame(FAMILY.estimates(grid, scores, results["bounds"]))
        return select(rows, quantity="p_value")["value"].min()

    assert least(results["scores"]) > 1e-3
    name = "housing_k1_fresh_eps24_20_repeat0"
    frame = results["scores"][name]
    moved = frame.assign(score=frame["score"] + 10 * frame["score"].abs().max())
    assert least(results["scores"] | {name: moved}) < 1e-6


def test_the_observed_curve_descends_from_one_to_nothing(estimates):
    rows = select(estimates, part="housing", quantity="fnr")
    for _, line in rows.groupby(["cell", "adversary"]):
        assert (np.diff(line["value"]) <= 1e-12).all() and line["value"].iloc[-1] == 0


def test_what_is_known_is_taken_off_the_same_models(estimates):
    rows = select(estimates, part="centred", quantity="mu")
    counts = rows.groupby(["repeat", "adversary", "reading"]).size()
    assert (counts == 1).all() and len(counts) == 2 * 3 * 2
    # Least gradients, fresh starts: without the known drift all that is left is noise.
    left = select(estimates, part="centred", quantity="noise over spread")
    left = select(left, adversary="simulated coordinate")["value"]
    assert left.between(0.7, 1.4).all()  # 76 scores: four errors of a deviation
    random = select(rows, adversary="random coordinate").groupby("reading")["value"].mean()
    assert random["known end point taken off"] > random["as published"]


def test_end_points_of_other_coordinates_are_refused(grid, results):
    name = "ends_housing_k1_fresh_eps24_24_repeat0"
    frame = results["bounds"][name]
    other = frame.assign(coordinate=frame["coordinate"] + 1)
    with pytest.raises(InputError, match="its coordinates are not those"):
        FAMILY.estimates(grid, results["scores"], results["bounds"] | {name: other})
