"""Ways to sums of clipped gradients, one file each, behind the protocol of ``base``.

``clipping.ClippedSum`` chooses among them for a torch model; ``tiny`` trains small networks whole.
"""
