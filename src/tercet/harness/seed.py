"""Where the harness gets a seed that nobody gave: from the system, another one each time.

Tests put a generator of their own in its place.
"""

import random

source: random.Random = random.SystemRandom()


def draw_seed() -> int:
    """A fresh seed, in [0, 2^31)."""
    return source.randrange(2**31)
