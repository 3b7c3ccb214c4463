"""Measurements behind the claims of gradient_crafting, from its estimates, a module a topic."""

from hiddenstate.papers.gradient_crafting.checks import housing, laws, networks, one_run

TOPICS = (housing, networks, laws, one_run)
