"""The check of an accelerator: that it passes where all is right, and finds what is wrong."""

import json
import math

import pytest
import torch

from hiddenstate import cli
from hiddenstate.commands import comparing
from hiddenstate.dpsgd import strategies
from hiddenstate.dpsgd.clipping import ClippedSum
from hiddenstate.dpsgd.kernels.base import Blockwise

SMALL = {"digits_mlp": (64,)}
COMMAND = ["device-check", "--device", "cpu", "--network", "digits_mlp"]


@pytest.mark.whole
def test_a_processor_trains_what_it_does_itself(capsys):
    assert cli.main([*COMMAND, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["passed"] for row in rows)
    assert {row["check"].split(",")[0] for row in rows} == {
        "one model", "side by side", "audit", "audit in chunks", "audit again", "noise",
    }  # fmt: skip
    assert cli.main(COMMAND) == 0
    assert f"{len(rows)} of {len(rows)} checks passed" in capsys.readouterr().out


@pytest.mark.whole
@pytest.mark.parametrize("by", [2e-4, 1.0])
def test_sums_that_are_off_by_a_little_are_found(monkeypatch, capsys, by):
    right = ClippedSum.side_by_side
    monkeypatch.setattr(ClippedSum, "side_by_side", lambda *given: right(*given) * (1 + by))
    wrong = {row.check for row in comparing.rows("cpu", SMALL) if not row.passed}
    assert "side by side" in wrong and "one model" not in wrong
    assert cli.main(COMMAND) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.whole
def test_chance_of_the_device_is_found(monkeypatch):
    right = Blockwise.sums

    def noisy(*given):
        sums = right(*given)
        return sums + 5e-5 * torch.rand_like(sums) * sums.abs().max()

    monkeypatch.setattr(Blockwise, "sums", noisy)
    wrong = {row.check for row in comparing.rows("cpu", SMALL) if not row.passed}
    assert wrong == {"audit again, FullBatch", "audit again, Poisson"}


@pytest.mark.whole
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_noise_of_another_size_is_found(monkeypatch, factor):
    right = strategies._noise

    def noise(runs):
        draw = right(runs)
        return lambda drawn: draw(drawn).mul_(factor)

    monkeypatch.setattr(strategies, "_noise", noise)
    wrong = {row.check for row in comparing.rows("cpu", SMALL) if not row.passed}
    assert wrong == {"noise, FullBatch", "noise, Poisson"}


def test_numbers_that_are_not_finite_do_not_pass():
    assert comparing._off(torch.tensor([math.nan, 1.0]), torch.ones(2)) == math.inf


def test_a_device_or_network_that_is_not_there_is_named(capsys):
    assert cli.main([*COMMAND[:-1], "resnet"]) == 2
    assert "--network: got 'resnet'; expected some of digits_mlp" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert cli.main(["device-check", "--network", "digits_mlp"]) == 2
        assert "device: got 'cuda'; expected one that" in capsys.readouterr().err
