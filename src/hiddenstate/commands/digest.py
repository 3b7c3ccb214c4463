"""``hiddenstate digest`` and ``schema``: if scores are the same, and what a scale may say."""

import argparse

from hiddenstate.commands.printing import print_json


def digest(options: argparse.Namespace) -> None:
    """Print the SHA-256 of the scores in each file, for bit-for-bit comparison.

    --seal: flag | write seals of the provenance into files of version 0.3 and before, which have
        none
    files FILE: path+ | score files
    --json: flag | print JSON instead of lines
    """
    from hiddenstate.pipeline import scores

    for path in options.files if options.seal else []:
        scores.seal(path)
    found = {str(path): scores.digest(scores.read(path)[0]) for path in options.files}
    if options.json:
        print_json(found)
        return
    for path, digest in found.items():
        print(f"{digest}  {path}")


def schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a scale file.

    --levels DIR: path | scale files whose levels are printed, for src/hiddenstate/study/levels.json
    """
    from hiddenstate.study import config, levels

    print_json(levels.reference(options.levels) if options.levels else config.schema())
