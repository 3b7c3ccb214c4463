import re

from command_line import run


def test_a_plan_that_skips_what_is_missing_trains_nothing(capsys, tiny):
    for missing, kinds in (("train", {"start", "train", "bound"}), ("skip", {"bound"})):
        plan = ("plan", "--config", "tiny.yaml", "--results", "none", "--missing", missing)
        status, out, _ = run(capsys, *plan)
        assert status == 0
        assert set(re.findall(r"worst_case_init \| (\w+)", out)) == kinds | {"drawing"}
