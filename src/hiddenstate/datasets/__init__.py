"""The data sets: those that the package carries, and those that are read from a folder."""
