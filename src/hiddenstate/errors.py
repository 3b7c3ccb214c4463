"""The one error a user can cause."""


class InputError(ValueError):
    """Bad input: the message names the file or argument, the value and what was expected.

    The command line prints the message alone; anything else that is raised is a bug of ours and
    keeps its traceback.
    """
