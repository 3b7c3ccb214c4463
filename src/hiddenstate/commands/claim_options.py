"""The claim that options state, for every command that tests or plans one."""

import argparse
from typing import TYPE_CHECKING

from hiddenstate.errors import InputError

if TYPE_CHECKING:
    from hiddenstate.auditing.claim import Claim

EXPECTED = (
    "claim: give one of --claim with --delta, --claim-mu, or --noise-multiplier with "
    "--sampling-rate and --steps"
)


def stated(options: argparse.Namespace) -> "Claim | None":
    """The claim that the options state, None if they state none; InputError for several."""
    mechanism = (options.noise_multiplier, options.sampling_rate, options.steps)
    given = [
        options.claim is not None,
        options.claim_mu is not None,
        any(value is not None for value in mechanism),
    ]
    if not any(given):
        return None
    from hiddenstate.auditing import claim
    from hiddenstate.auditing.hypotheses import ApproxDP

    if (delta := getattr(options, "delta", None)) is not None:
        ApproxDP(delta)  # which refuses what is no delta, also where no claim is of it
    if sum(given) > 1:
        raise InputError(EXPECTED)
    if given[0]:
        if options.delta is None:
            raise InputError("claim: --claim needs --delta, such as --delta 1e-5")
        make = claim.gaussian_with if options.curve == "gdp" else claim.approximate
        return make(options.claim, options.delta)
    if given[1]:
        return claim.gaussian_dp(options.claim_mu)
    if None in mechanism:
        raise InputError("claim: give all of --noise-multiplier, --sampling-rate and --steps")
    return claim.dpsgd(*mechanism)


def required(options: argparse.Namespace) -> "Claim":
    """The claim that the options state; InputError if they state none."""
    found = stated(options)
    if found is None:
        if getattr(options, "delta", None) is not None:
            raise InputError(
                f"claim: --delta alone claims nothing; {EXPECTED.removeprefix('claim: ')}"
            )
        raise InputError(EXPECTED)
    return found
