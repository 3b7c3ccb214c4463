"""Measurements behind the claims of worst_case_init, from its estimates, a module a topic.

An audit has independent repeats, whose scatter gives the errors. Of one repeat alone the published
epsilon has no error, and the separation of its scores has that of the models.
"""

from hiddenstate.papers.worst_case_init.checks import (
    accuracy,
    arithmetic,
    audits,
    factors,
    last_layer,
    printed,
)

TOPICS = (factors, last_layer, printed, accuracy, audits, arithmetic)
