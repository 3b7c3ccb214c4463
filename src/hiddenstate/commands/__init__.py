"""Commands of the library: each is a module with ``add_arguments`` and ``run``."""
