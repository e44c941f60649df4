"""Lines of Vowpal Wabbit's text, and the hashes of their features, in plain Python."""

from __future__ import annotations

import xxhash


def parse(line: str, seed: int) -> tuple[str, str, list[tuple[int, float]]]:
    """Label, weight, and the hash and value of each feature that is not 0."""
    head, *parts = line.split("|")
    tokens = head.split()
    if tokens and not head[-1].isspace():
        tokens.pop()
    label, weight, *_ = (
        [token for token in tokens if not token.startswith("'")] + ["", "1"][len(tokens) :] + ["1"]
    )
    features = []
    for part in parts:
        first, *others = part.split() if part[:1].strip() else ["", *part.split()]
        space, _, scale = first.partition(":")
        of_space = xxhash.xxh64_intdigest(space.encode(), seed)
        for name, _, value in (token.partition(":") for token in others):
            number = float(value or 1) * float(scale or 1)
            if number:
                features.append((xxhash.xxh64_intdigest(name.encode(), of_space), number))
    return label, weight, features
