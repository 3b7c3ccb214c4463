"""Tables of the smoke scale's audits."""

import numpy as np
import pandas as pd

from hiddenstate.accounting import gaussian
from hiddenstate.papers.worst_case_init import FAMILY, cells
from hiddenstate.papers.worst_case_init import estimates as module
from hiddenstate.pipeline.estimates import select
from hiddenstate.rounding import shown


def test_every_audit_is_in_the_table_once_with_the_figures_that_show_it(smoke, estimates):
    grid, scores, _, _ = smoke
    table = FAMILY.tables["audits"].draw(estimates)
    audited = [cell for cell in cells.trained(grid) if cell.parameters.models > 1]
    assert len(table) == len(audited) == 8
    audits = table.set_index(["task", "epochs", "n", "C"])
    assert audits.index.is_unique
    row = audits.loc["digits", 2, 50, 1.0]
    assert row["figures"] == "1, 2, 3, 4"
    assert audits.loc["digits last layer", 2, 50, 1.0]["figures"] == "5, 7"
    (cell,) = [c for c in audited if c.name.startswith("digits_pre2_n50_C1_")]
    frame = scores[cell.name]
    assert row["accuracy in %"] == f"{100 * frame['accuracy'].mean():.1f}"
    each = [
        module._epsilons(
            "as published",
            *(part.loc[part["world"] == w, "score"].to_numpy()[None] for w in ("in", "out")),
            1e-5,
        )[0]
        for _, part in frame.groupby("repeat")
    ]
    assert row["as published"] == f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}"
    assert row["maximum"] == f"{max(each):.2f}"
    assert row["at most"] == shown(gaussian.mu(10.0, 1e-5), "upper", decimals=2)
    assert set(table["repeats"]) == {"2 of 2"}


def test_tables_of_accuracies_tell_the_cases_apart(smoke, estimates):
    scores = smoke[1]
    for name, epochs in (("table1", 0), ("accuracy", 2)):
        table = FAMILY.tables[name].draw(estimates)
        (cell,) = [
            n for n in scores if n.startswith(f"digits_pre{epochs}_n50_C1_T3_") and "_2x5" in n
        ]
        expected = f"{100 * scores[cell]['accuracy'].mean():.1f}"
        said = {"task": "digits", "n": 50, "C": "1", "models a repeat": 5, "repeats": 2}
        said["epsilon = 10"] = expected
        assert table.to_dict("records")[0] == said
        # Figure 4's, of the worst case, has a clipping norm of 10 beside that of 1.
        assert table["C"].tolist() == ["1", "10"][: 1 + (epochs > 0)]
    ours = estimates.replace({"task": {"digits": "mnist"}})
    assert "paper" not in FAMILY.tables["table1"].draw(ours)["epsilon = 10"].item()
    # The paper's accuracies are those of all records.
    paper = FAMILY.tables["table1"].draw(ours.assign(records=30_000))
    assert paper["epsilon = 10"].item().endswith("(paper: 95.9)")


def test_table_1_may_show_other_models_than_figure_1(estimates):
    row = {"figure": "table1", "task": "mnist", "case": "average", "records": 30_000, "epsilon": 2}
    rest = {"epochs": 0, "clipping_norm": 1, "steps": 100, "learning_rate": 4, "models": 1}
    row |= rest | {"planned": 1, "kind": "estimate", "delta": 1e-5}
    more = [
        row | {"quantity": "repeats", "method": "count", "value": 1},
        row | {"quantity": "accuracy", "method": "mean", "value": 0.9512},
    ]
    both = pd.concat([estimates, pd.DataFrame(more)])
    table = FAMILY.tables["table1"].draw(both)
    said = {"task": "mnist", "n": 30_000, "C": "1", "models a repeat": 1, "repeats": 1}
    assert table.to_dict("records") == [said | {"epsilon = 2": "95.1 (paper: 95.7)"}]
    # Of a case that it lacks they are Figure 1's.
    worst = FAMILY.tables["accuracy"].draw(both)
    pd.testing.assert_frame_equal(worst, FAMILY.tables["accuracy"].draw(estimates))


def test_accuracies_with_larger_clipping_norms_may_be_other_models_than_figure_4s(estimates):
    row = {"figure": "figure4_accuracies", "task": "mnist", "case": "worst", "records": 30_000}
    row |= {"epsilon": 2, "epochs": 5, "clipping_norm": 10, "steps": 100, "learning_rate": 4}
    row |= {"models": 1, "planned": 1, "kind": "estimate", "delta": 1e-5}
    more = [
        row | {"quantity": "repeats", "method": "count", "value": 1},
        row | {"quantity": "accuracy", "method": "mean", "value": 0.9312},
    ]
    table = FAMILY.tables["accuracy"].draw(pd.concat([estimates, pd.DataFrame(more)]))
    said = {"task": "mnist", "n": 30_000, "C": "10", "models a repeat": 1, "repeats": 1}
    said |= {"epsilon = 10": "", "epsilon = 2": "93.1 (paper: 93.1)"}
    assert table.to_dict("records")[1:] == [said]


def test_tables_say_how_many_repeats_there_are(lacking):
    """The average case lacks one of two repeats, the last layer's both."""
    table = FAMILY.tables["audits"].draw(lacking).set_index(["task", "epochs", "n", "C"])
    assert table.loc["digits", 0, 50, 1.0]["repeats"] == "1 of 2"
    # A single repeat has no standard deviation.
    assert "±" not in table.loc["digits", 0, 50, 1.0]["as published"]
    assert table.loc["digits", 2, 50, 1.0]["repeats"] == "2 of 2"
    none = table.loc["digits last layer", 2, 50, 1.0]
    assert none["repeats"] == "0 of 2" and none["as published"] == none["valid bound"] == ""
    assert FAMILY.tables["table1"].draw(lacking)["from"].item() == "1 of 2 repeats"
    assert "from" not in FAMILY.tables["accuracy"].draw(lacking)


def test_a_scale_of_which_no_audit_is_there_yet_has_tables(make):
    ideal = pd.DataFrame({"method": "as published", "value": [1.0, 2.0], "above": [0.1, 0.2]})
    found = FAMILY.estimates(make(), {}, {"ideal_eps10_models2": ideal})
    assert FAMILY.tables["audits"].draw(found)["repeats"].tolist() == ["0 of 1"]
    assert FAMILY.tables["table1"].draw(found).empty
    assert FAMILY.checks["valid"].measure(found) is None


def test_expected_audits_without_real_ones_have_a_table(estimates):
    rows = select(estimates, quantity="expected separation").dropna(axis="columns", how="all")
    assert "repeats" not in rows
    alone = FAMILY.tables["expected_audits"].draw(rows)
    assert len(alone) and "observed" not in alone
