"""What the claims of linear_heuristic measure, from its estimates, a module a topic."""

from hiddenstate.papers.linear_heuristic.checks import (
    heuristic,
    regularisers,
    simulated,
    theorems,
    trained,
)

TOPICS = (heuristic, regularisers, simulated, trained, theorems)
