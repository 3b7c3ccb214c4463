"""Upper and lower bounds on the privacy loss of DP-SGD, and exact trade-off functions.

Adjacency is add/remove unless a module says otherwise: world "in" is the data set with the canary,
world "out" the same data set without it. ``swapped``, ``sitting_out.swapped``, ``ordered``,
``batched`` and ``rdp.fixed_size_epsilon`` swap a record. The noise multiplier is the standard
deviation of the noise over the clipping norm, and the noise is added to the sum of clipped
gradients. ``cyclic`` follows its paper: neighbours swap a record, and the noise is added to the
displacement.
"""
