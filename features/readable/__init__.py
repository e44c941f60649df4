"""Readable features: the texts of a slot, how often they occur, and which features share a slot."""

from ctr.features.readable.collisions import CollisionCounter, Collisions, bits_for, share_colliding
from ctr.features.readable.dictionary import (
    DICTIONARY,
    Dictionary,
    dictionary_bytes,
    read_dictionary,
    read_dictionary_bytes,
)
from ctr.features.readable.naming import Naming, slots_of, window_names
