"""Power of the tests that claims name, and the runs that a wanted power needs. One run an arm and seed is one unit.

Exact where the outcome is a count (Fisher, sign), by integrals where it is a mean (t, two one-sided tests), and by
seeded draws for the signed-rank test, whose law under a shift has no closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from repro.stats.tests import EXACT_UP_TO, Alternative

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TARGET = 0.8
MOST_RUNS = 1000  # beyond, the answer is "more than that", which is as good as no
DRAWS = 10_000  # of the signed-rank test: 0.4 points of Monte Carlo error at 80 %
GRID = 4096  # points of the integral over the sample spread
_SLACK = 1 + 1e-9  # equal probabilities that differ by round-off are equal, as in Fisher's test by whole numbers


def smallest_n(power: Callable[[int], float], target: float = TARGET, start: int = 2) -> int | None:
    """The first number of runs, from `start` on, whose power is at least `target`; None beyond 1000.

    Every number is tried: the power of a test of counts rises in a saw-tooth.
    """
    return next((n for n in range(start, MOST_RUNS + 1) if power(n) >= target), None)


def _first_of_rising(power: Callable[[int], float], target: float, start: int = 2, most: int = MOST_RUNS) -> int | None:
    """The same by halving, for a power that only rises."""
    if power(most) < target:
        return None
    low, high = start - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= target else (middle, high)
    return high


def _fisher_p_values(n: int, alternative: Alternative) -> NDArray[np.float64]:
    """p value of each pair of counts (k, j) of `n` runs an arm, shape (n + 1, n + 1)."""
    import numpy as np

    ways = _log_ways(n)
    p_values = np.ones((n + 1, n + 1))
    for total in range(1, 2 * n):
        k = np.arange(max(0, total - n), min(n, total) + 1)
        logs = ways[k] + ways[total - k]
        law = np.exp(logs - logs.max())  # up to a factor
        if alternative == "two-sided":
            ordered = np.sort(law)
            tails = np.cumsum(ordered)[np.searchsorted(ordered, law * _SLACK, side="right") - 1]
        else:
            tails = np.cumsum(law) if alternative == "less" else np.cumsum(law[::-1])[::-1]
        p_values[k, total - k] = tails / law.sum()
    return p_values


def _log_ways(n: int) -> NDArray[np.float64]:
    """Logarithms of the binomial coefficients of n."""
    import numpy as np
    from scipy.special import gammaln

    counts = np.arange(n + 1)
    return np.asarray(gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1), dtype=np.float64)


def fisher_power(
    first: float, second: float, n: int, alpha: float = 0.05, alternative: Alternative = "two-sided"
) -> float:
    """Probability that Fisher's exact test of `n` runs an arm reaches `alpha` at true rates `first` and `second`."""
    import numpy as np
    from scipy.special import xlog1py, xlogy

    counts, ways = np.arange(n + 1), _log_ways(n)
    laws = [np.exp(ways + xlogy(counts, rate) + xlog1py(n - counts, -rate)) for rate in (first, second)]
    reached = _fisher_p_values(n, alternative) <= alpha * _SLACK
    return float(laws[0] @ reached @ laws[1])


def fisher_runs(
    first: float, second: float, alpha: float = 0.05, alternative: Alternative = "two-sided", target: float = TARGET
) -> int | None:
    """Runs an arm for `target` power of Fisher's test; None for equal rates, and beyond 1000."""
    if first == second:
        return None
    about = _arcsine_runs(first, second, alpha, alternative, target)
    if about > MOST_RUNS:
        return None
    start = max(2, int(0.6 * about))
    return smallest_n(lambda n: fisher_power(first, second, n, alpha, alternative), target, start)


def _arcsine_runs(first: float, second: float, alpha: float, alternative: Alternative, target: float) -> float:
    """Cohen's (1988) approximation, some way below what the exact test needs: a place to start from."""
    from scipy.special import ndtri

    distance = 2 * abs(math.asin(math.sqrt(first)) - math.asin(math.sqrt(second)))
    tail = alpha / 2 if alternative == "two-sided" else alpha
    return 2 * float(ndtri(1 - tail) + ndtri(target)) ** 2 / distance**2


def _spread_ratios(degrees: int) -> NDArray[np.float64]:
    """Equally likely values of sample sd / true sd with `degrees` degrees of freedom, shape (4096,)."""
    import numpy as np
    from scipy.special import chdtri

    return np.asarray(np.sqrt(chdtri(degrees, (np.arange(GRID) + 0.5) / GRID) / degrees), dtype=np.float64)


def t_power(effect: float, n: int, alpha: float = 0.05, alternative: Alternative = "two-sided") -> float:
    """Power of the paired t test at a true mean difference of `effect` standard deviations of the differences.

    `less` looks for a negative effect. The normal law of the mean, integrated over the sample spread's chi-square
    law: the noncentral t law, without the range in which its series fails.
    """
    from scipy.special import ndtr, stdtrit

    shift, ratios = effect * math.sqrt(n), _spread_ratios(n - 1)
    critical = float(stdtrit(n - 1, 1 - (alpha / 2 if alternative == "two-sided" else alpha))) * ratios
    above, below = ndtr(shift - critical).mean(), ndtr(-shift - critical).mean()
    return float({"greater": above, "less": below, "two-sided": above + below}[alternative])


def t_runs(
    effect: float, alpha: float = 0.05, alternative: Alternative = "two-sided", target: float = TARGET
) -> int | None:
    """Pairs for `target` power of the paired t test; None beyond 1000."""
    return _first_of_rising(lambda n: t_power(effect, n, alpha, alternative), target)


def _signed_rank_law(n: int) -> NDArray[np.float64]:
    """P(rank sum = w) of n untied pairs under the null, w = 0 ... n (n + 1) / 2."""
    import numpy as np

    law = np.ones(1)
    for rank in range(1, n + 1):
        longer = np.zeros(len(law) + rank)
        longer[: len(law)] += law / 2
        longer[rank:] += law / 2
        law = longer
    return law


def _signed_rank_at_least(n: int, alpha: float) -> float:
    """Smallest rank sum whose upper tail is at most `alpha`; infinite where even the largest one does not reach it."""
    import numpy as np
    from scipy.special import ndtri

    if n > EXACT_UP_TO:  # as the test itself does
        return n * (n + 1) / 4 + float(ndtri(1 - alpha)) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    tails = np.cumsum(_signed_rank_law(n)[::-1])[::-1]
    reached = np.flatnonzero(tails <= alpha * _SLACK)
    return float(reached[0]) if len(reached) else math.inf


@lru_cache(maxsize=128)
def _rank_sums(effect: float, n: int, seed: int) -> NDArray[np.int32]:
    """Sums of the positive ranks of n normal differences with mean `effect`, one a draw."""
    import numpy as np

    draws = min(DRAWS, 1_000_000 // n)
    values = np.random.default_rng(seed).normal(effect, 1.0, (draws, n))
    order = np.abs(values).argsort(axis=1)
    positive = np.take_along_axis(values > 0, order, axis=1)  # by rising size, so the place is the rank
    return np.asarray(positive @ np.arange(1, n + 1, dtype=np.int32), dtype=np.int32)


def signed_rank_power(
    effect: float, n: int, alpha: float = 0.05, alternative: Alternative = "two-sided", seed: int = 0
) -> float:
    """Power of the signed-rank test for normal differences with mean `effect` standard deviations.

    From 10,000 draws of `seed` (fewer for hundreds of pairs): the same call gives the same figure.
    """
    up = _rank_sums(effect, n, seed)
    down = n * (n + 1) // 2 - up
    if alternative == "two-sided":
        least = _signed_rank_at_least(n, alpha / 2)
        return float(((up >= least) | (down >= least)).mean())
    return float(((up if alternative == "greater" else down) >= _signed_rank_at_least(n, alpha)).mean())


def signed_rank_runs(
    effect: float, alpha: float = 0.05, alternative: Alternative = "two-sided", target: float = TARGET
) -> int | None:
    """Pairs for `target` power of the signed-rank test; None beyond 1000. From few pairs on none can reach alpha."""
    guess = t_runs(effect, alpha, alternative, target)
    if guess is None:
        return None
    power = partial(signed_rank_power, effect, alpha=alpha, alternative=alternative)
    # Never far better than the t test; for normal differences it needs pi / 3 times as many, and a few for small n.
    start = max(2, guess - 1)
    if start <= EXACT_UP_TO:
        return smallest_n(power, target, start)
    return _first_of_rising(power, target, start, min(MOST_RUNS, guess + guess // 4))


def sign_power(share: float, n: int, alpha: float = 0.05) -> float:
    """Power of the one-sided sign test where each of `n` seeds lies on the claimed side with probability `share`."""
    from scipy.special import bdtr, bdtrc

    wanted = next((k for k in range(n + 1) if bdtr(n - k, n, 0.5) <= alpha * _SLACK), None)
    if wanted is None:
        return 0.0
    return 1.0 if wanted == 0 or share == 1 else float(bdtrc(wanted - 1, n, share))


def sign_runs(share: float, alpha: float = 0.05, target: float = TARGET) -> int | None:
    """Seeds for `target` power of the one-sided sign test; None beyond 1000 and for a share of one half or less."""
    return None if share <= 0.5 else smallest_n(lambda n: sign_power(share, n, alpha), target)


def tost_power(margin: float, sd: float, n: int, alpha: float = 0.05, true: float = 0.0) -> float:
    """Power of two one-sided t tests within +- `margin` of differences with mean `true` and standard deviation `sd`.

    Given the sample spread the mean must lie in an interval, which the normal law measures; the spread's own
    chi-square law is integrated over.
    """
    import numpy as np
    from scipy.special import ndtr, stdtrit

    if sd == 0:
        return float(abs(true) < margin and 0.5**n <= alpha)  # the tail that stands in for no spread
    error = sd / math.sqrt(n)
    reach = margin - stdtrit(n - 1, 1 - alpha) * error * _spread_ratios(n - 1)
    inside = ndtr((reach - true) / error) - ndtr((-reach - true) / error)
    return float(np.where(reach > 0, inside, 0.0).mean())


def tost_runs(margin: float, sd: float, alpha: float = 0.05, true: float = 0.0, target: float = TARGET) -> int | None:
    """Pairs for `target` power of the two one-sided tests; None beyond 1000, and where the truth is not inside."""
    if abs(true) >= margin:
        return None
    return _first_of_rising(lambda n: tost_power(margin, sd, n, alpha, true), target)


def tost_largest_sd(margin: float, n: int, alpha: float = 0.05, target: float = TARGET) -> float:
    """The largest standard deviation of differences at which `n` pairs still have `target` power, with no difference.

    It is proportional to the margin; found by halving.
    """
    low, high = 0.0, margin * math.sqrt(n)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tost_power(margin, middle, n, alpha) >= target else (low, middle)
    return low


def smallest_effect(power: Callable[[float], float], target: float = TARGET, most: float = 50.0) -> float | None:
    """The smallest effect at which `power(effect)`, rising, is at least `target`; None where not even `most` does."""
    if power(most) < target:
        return None
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= target else (middle, high)
    return high


def draws_to_see(share: float, target: float = TARGET) -> int:
    """Draws after which a bound that fails in a `share` of all draws is seen to fail, with `target` probability."""
    if not 0 < share < 1:
        raise ValueError("a share lies between 0 and 1")
    return math.ceil(math.log(1 - target) / math.log(1 - share))
