"""The planted faults fit the code as it is, and their page names them."""

from collections import Counter

import faults
import pytest


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_in_one_place(fault):
    assert (faults.ROOT / fault.file).read_text().count(fault.right) == 1
    assert all((faults.ROOT / path).exists() for path in fault.tests.split())


def test_there_are_five_of_each_room_and_the_page_lists_them():
    assert Counter(fault.room for fault in faults.FAULTS) == dict.fromkeys(
        ("accounting", "auditing", "engine", "workflow", "papers"), 5
    )
    assert faults.table() in (faults.ROOT / "tests/README.md").read_text()
