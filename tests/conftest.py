"""Property tests draw the same examples every time, and no test depends on the machine's speed."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items):
    """The files that run the workflow come first: they take longest, and would end alone."""
    items.sort(key=lambda item: item.path.parent.name != "workflow")
