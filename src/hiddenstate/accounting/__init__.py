"""Upper bounds on the privacy loss of DP-SGD, and exact trade-off functions.

Adjacency is add/remove throughout: world "in" is the data set with the canary, world "out" the
same data set without it. The noise multiplier is the standard deviation of the noise over the
clipping norm, and the noise is added to the sum of clipped gradients. ``cyclic`` alone follows its
paper instead: neighbours swap one record, and the noise is added to the displacement.
"""
