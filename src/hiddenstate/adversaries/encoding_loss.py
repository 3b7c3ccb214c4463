"""A loss under which the last iterate of DP-SGD tells as much as all iterates together.

Each step decodes the parameter theta into a running sum (a whole multiple of ``spacing``) and a
residual v, the noisy canary contribution of the previous step. It then adds the log-likelihood
ratio of v to the running sum and removes v. The addition is spread over the expected sample of
``sampling_rate * records`` records, so that no single gradient is clipped.

The update subtracts the gradient, as in section 3.2 of the paper. Algorithm 1 prints what has to be
*added* to theta. The gradient here is its negative: with the printed sign the last iterate tells
nothing (``as_printed``).

Source: Annamalai, "It's Our Loss", sections 4.1 to 4.3, Algorithm 1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hiddenstate.accounting.arguments import check_mechanism
from hiddenstate.dpsgd import scalar
from hiddenstate.dpsgd.linear import log_likelihood_ratio
from hiddenstate.errors import check_count, expect, is_whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class EncodingLoss:
    """The loss for one mechanism and one way of writing numbers into the parameter.

    spacing: distance of neighbouring running sums; a residual beyond half of it is decoded wrongly.
    decimals: digits of the log-likelihood ratio that are kept. records: number of ordinary records.
    swapped: if the data set without the canary is the alternative, and the one with it the null
    hypothesis; the ratio that is kept is then the inverse. as_printed: if the gradient has the sign
    that Algorithm 1 prints, with which the last iterate tells nothing.
    """

    noise_multiplier: float
    sampling_rate: float
    spacing: float
    decimals: int
    records: int
    swapped: bool = False
    as_printed: bool = False

    def __post_init__(self) -> None:
        check_mechanism(self.noise_multiplier, self.sampling_rate, 1)
        expect(0 < self.spacing < math.inf, "spacing", self.spacing, "a number above 0")
        decimals = self.decimals
        fine = is_whole(decimals) and decimals in range(16)
        expect(fine, "decimals", decimals, "an integer from 0 to 15")
        check_count("records", self.records)

    @property
    def expected_sample(self) -> float:
        """Expected number of ordinary records in a step, the same with and without the canary."""
        return self.sampling_rate * self.records

    def ratio(self, shown: Array) -> Array:
        """Log-likelihood ratio of what steps show: the alternative's over the null hypothesis's."""
        ratio = log_likelihood_ratio(_doubles(shown), self.noise_multiplier, self.sampling_rate)
        return -ratio if self.swapped else ratio

    def increment(self, theta: Array) -> Array:
        """Change of theta in a step over the expected sample: encoded ratio minus residual."""
        theta = _doubles(theta)
        residual = theta - self.spacing * np.rint(theta / self.spacing)
        ratio = self.ratio(residual)
        scale = 10.0**self.decimals
        return self.spacing * np.rint(scale * ratio) - residual

    def gradient(self, x: float, theta: Array) -> Array:
        """Loss gradient of record x at each parameter: minus the increment of Algorithm 1."""
        spread = self.increment(theta) / self.expected_sample
        # The first iterate holds nothing to decode.
        # Departure encoding_loss.sign: Algorithm 1 returns what has to be added.
        returned = np.where(theta == 0, x, spread + x)
        return returned if self.as_printed else -returned

    def score(self, theta: Array) -> Array:
        """Decoded sum of log-likelihood ratios, from the last iterate alone (section 4.3)."""
        # No later step has encoded the last residual, so the score does.
        return (theta + self.increment(theta)) / (self.spacing * 10.0**self.decimals)

    def simulated(
        self,
        runs: int,
        steps: int,
        *,
        present: bool,
        seed: int,
        name: tuple[str | int, ...],
    ) -> tuple[Array, Array]:
        """Scores of simulated runs of DP-SGD, and of who sees all their iterates; shapes (runs,).

        name: of the random streams.
        """
        sigma = self.noise_multiplier
        draws = scalar.draw(
            range(runs),
            seed=seed,
            name=name,
            steps=steps,
            sampling_rate=self.sampling_rate,
            records=self.records,
            canary=present,
        )
        theta = scalar.last_iterate(self.gradient, draws, noise_multiplier=sigma)
        # What a step shows of the canary once the ordinary records are subtracted.
        shown = draws.canary - sigma * draws.noise
        return self.score(theta), self.ratio(shown).sum(axis=0)

    def collision_probability(self, steps: int) -> float:
        """Upper bound on the probability that a run with the canary decodes any step wrongly.

        The residual is B + sigma Z + (M/N - 1) I: the sampled canary, the noise, and what the
        random sample size M leaves of the previous increment I. Before the first collision
        |I| <= spacing * (10^decimals * |L(spacing / 2)| + 1), so the last two terms have at most
        the standard deviation used below; a union bound covers the steps. M is taken as normal,
        which for the 10^6 and more records of an expected sample changes no shown digit.
        """
        half = self.spacing / 2
        largest = abs(float(log_likelihood_ratio(half, self.noise_multiplier, self.sampling_rate)))
        carry = self.spacing * (10.0**self.decimals * largest + 1)
        carry *= math.sqrt((1 - self.sampling_rate) / self.expected_sample)
        deviation = math.hypot(self.noise_multiplier, carry)
        absent = 2 * ndtr(-half / deviation)
        sampled = ndtr(-(half - 1) / deviation) + ndtr(-(half + 1) / deviation)
        return min(
            1.0, steps * float((1 - self.sampling_rate) * absent + self.sampling_rate * sampled)
        )


def _doubles(values: Array) -> Array:
    """Numbers of any precision as doubles, whose ratios do not overflow; no complex ones."""
    return np.asarray(values).astype(float, casting="same_kind", copy=False)


def published(noise_multiplier: float, sampling_rate: float, records: int) -> EncodingLoss:
    """The paper's encoding: two decimals, spacing the closest power of ten above 3 sigma.

    Source: Algorithm 1 and the last paragraph of section 4.2.
    """
    check_mechanism(noise_multiplier, sampling_rate, 1)
    spacing = 10.0 ** math.ceil(math.log10(3 * noise_multiplier))
    return EncodingLoss(noise_multiplier, sampling_rate, spacing, 2, records)


def sound(noise_multiplier: float, sampling_rate: float) -> EncodingLoss:
    """An encoding that keeps the signal: spacing 2 (5 sigma + 1), four decimals, 10^14 records.

    Ours. Half the spacing leaves five standard deviations of noise beside the canary. Four decimals
    keep ratios as small as those at sampling rate 0.01, but they also enlarge the increment, of
    which a random sample of N records leaves a fraction 1/sqrt(N): hence the larger data set.
    """
    return EncodingLoss(noise_multiplier, sampling_rate, 2 * (5 * noise_multiplier + 1), 4, 10**14)
