"""Figures of gradient_crafting, a module a topic."""

from hiddenstate.papers.gradient_crafting.figures import housing, laws, networks, one_run

TOPICS = (housing, networks, laws, one_run)
