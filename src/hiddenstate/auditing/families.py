"""The former names of ``hiddenstate.auditing.hypotheses``."""

from hiddenstate.auditing.hypotheses import ApproxDP, GaussianDP, Tabulated, composed
from hiddenstate.auditing.hypotheses import Hypotheses as Family

__all__ = ["ApproxDP", "Family", "GaussianDP", "Tabulated", "composed"]
