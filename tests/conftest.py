"""Property tests draw the same examples every time, and no test depends on the machine's speed."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
