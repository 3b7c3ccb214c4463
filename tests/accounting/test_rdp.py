"""The RDP accountant."""

import math

import numpy as np
import pytest

from hiddenstate.accounting import composition, rdp
from hiddenstate.errors import InputError


def test_without_subsampling_it_is_the_conversion_of_gaussian_rdp():
    sigma, steps, delta = 4.0, 16, 1e-5
    a = np.linspace(1.01, 200, 200_000)
    rho = steps * a / (2 * sigma**2)
    bound = rho + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    orders = list(a[::50])
    assert rdp.epsilon(sigma, 1.0, steps, delta, orders=orders) == pytest.approx(
        np.min(bound), rel=1e-4
    )


def test_what_the_papers_table_was_made_with():
    # A batch of 4,096 of 45,000 records, 2,468 steps: the printed 8.
    assert rdp.epsilon(3.0, 4096 / 45_000, 2468, 1e-5) == pytest.approx(7.978, abs=2e-3)


@pytest.mark.parametrize("setting", [(1.0, 0.01, 1000, 1e-5), (1.3, 0.05, 777, 1e-5)])
def test_looser_than_the_bracket(setting):
    assert composition.bracket(*setting).upper < rdp.epsilon(*setting)


def test_refusals():
    with pytest.raises(InputError, match=r"^orders: got \[1\]"):
        rdp.epsilon(1.0, 0.1, 10, 1e-5, orders=[1])
    with pytest.raises(InputError, match=r"^delta: got 2"):
        rdp.epsilon(1.0, 0.1, 10, 2)
    assert math.isfinite(rdp.epsilon(1.0, 0.1, 10, 1e-5))


def test_orders_that_do_not_converge_are_left_out_without_a_word(caplog):
    caplog.set_level("WARNING", "absl")
    assert rdp.epsilon(1.0, 0.1, 100, 1e-5) == pytest.approx(7.9039, abs=1e-3)
    assert not caplog.records
