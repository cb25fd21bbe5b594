"""Memory that the processor cannot address: copies during other work, and fingerprints that show changes.

Only modules that a state or a target on a device needs are imported.
"""

GROUPED_BELOW_BYTES = 256 * 2**10
"""Smaller storages are transferred together. PCIe moves this in 5 µs, the cost of a request."""
# Odd numbers without a pattern, of the finalizers of MurmurHash3 and SplitMix64 and their kin. All are at least 2^63:
# so Triton takes each for an unsigned number.
MIXES = (
    (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53),
    (0xD1B54A32D192ED03, 0x94D049BB133111EB, 0x9FB21C651E98DF25, 0xAEF17502108EF2D9),
)
"""For each of the two sums: the seed, the step from one position to the next, and two factors."""
