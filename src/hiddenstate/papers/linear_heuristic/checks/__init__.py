"""Measurements behind the claims of linear_heuristic, from its estimates, a module a topic."""

from hiddenstate.papers.linear_heuristic.checks import (
    heuristic,
    regularisers,
    simulated,
    theorems,
    trained,
)

TOPICS = (heuristic, regularisers, simulated, trained, theorems)
