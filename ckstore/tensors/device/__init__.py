"""Memory of devices such as GPUs: copies that run during other work, and fingerprints that detect changes.

The modules that do this work are imported only for a state or a target on a device.
"""

GROUPED_BELOW_BYTES = 256 * 2**10
"""Storages below this size are transferred together. PCIe moves this many bytes in the 5 µs that a request costs."""
# These are odd numbers without a pattern, from the finalizers of MurmurHash3, SplitMix64 and similar hashes. All are at
# least 2^63, so that Triton treats each as an unsigned number.
MIXES = (
    (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53),
    (0xD1B54A32D192ED03, 0x94D049BB133111EB, 0x9FB21C651E98DF25, 0xAEF17502108EF2D9),
)
"""For each of the two sums: the seed, the step from one position to the next, and two factors."""
