"""Measurements behind the claims of gradient_crafting, from its estimates, a module a topic."""

from hiddenstate.papers.gradient_crafting.checks import housing, ideal, laws, networks, one_run

TOPICS = (housing, networks, laws, ideal, one_run)
