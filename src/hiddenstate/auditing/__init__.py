"""Lower bounds on the privacy loss from scores.

    >>> from hiddenstate.auditing import GaussianDP, lower_bound
    >>> lower_bound([3.1, 2.7, 4.0, 3.5], [0.2, -1.1, 0.4, 0.9], GaussianDP()).value
    0.371

The names below are taken from here, or from the modules that say how each bound is proved.
"""

from hiddenstate.auditing.audit import LowerBound, lower_bound
from hiddenstate.auditing.averaged import Averaged
from hiddenstate.auditing.curve import EmpiricalCurve, empirical_curve, worlds
from hiddenstate.auditing.hypotheses import ApproxDP, GaussianDP, Tabulated, composed
from hiddenstate.auditing.known_null import known_null_bound
from hiddenstate.auditing.one_run import (
    Guesses,
    guess,
    guess_beyond,
    one_run_bound,
    one_run_p_value,
)
from hiddenstate.auditing.rules import AsPublished, Bonferroni, Fixed, Split, UniformBand
from hiddenstate.auditing.sequential import SequentialAudit, Verdict
from hiddenstate.auditing.steps import StepAudit
from hiddenstate.auditing.whole_gaussian import (
    Imitation,
    flip_bound,
    one_canary_ceiling,
    planned_flips,
    planned_guesses,
    whole_gaussian_bound,
    whole_gaussian_p_value,
)

__all__ = [
    "ApproxDP",
    "AsPublished",
    "Averaged",
    "Bonferroni",
    "EmpiricalCurve",
    "Fixed",
    "GaussianDP",
    "Guesses",
    "Imitation",
    "LowerBound",
    "SequentialAudit",
    "Split",
    "StepAudit",
    "Tabulated",
    "UniformBand",
    "Verdict",
    "composed",
    "empirical_curve",
    "flip_bound",
    "guess",
    "guess_beyond",
    "known_null_bound",
    "lower_bound",
    "one_canary_ceiling",
    "one_run_bound",
    "one_run_p_value",
    "planned_flips",
    "planned_guesses",
    "whole_gaussian_bound",
    "whole_gaussian_p_value",
    "worlds",
]
