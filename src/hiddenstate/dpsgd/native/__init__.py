"""Native code for feed-forward networks on a CPU: sums of clipped per-sample gradients.

``network`` reads a model as ``layers``, ``source`` writes C that calls the headers of this folder
with those layers' sizes, ``compiling`` compiles it on first use, and ``kernel`` calls it.
"""
