"""How much does the last iterate of DP-SGD leak when the intermediate iterates stay hidden?

Cells become scores, scores become estimates, estimates become figures, tables and verdicts.

* ``accounting``   upper bounds on the privacy loss, and exact trade-off functions
* ``auditing``     lower bounds from scores
* ``dpsgd``        the mechanism itself, simulated or trained
* ``adversaries``  the canaries, losses and counterexamples of the papers
* ``papers``       one module a paper: its grid, its cells' work, its estimates and its figures
"""

__version__ = "0.4.0"
