"""Features in words: which text is behind a slot, how often it occurs, and which share a slot."""

from features.readable.collisions import CollisionCounter, Collisions, bits_for, share_colliding
from features.readable.dictionary import Dictionary
from features.readable.file import DICTIONARY, dictionary_bytes, read_dictionary, read_dictionary_bytes
from features.readable.naming import Naming
from features.readable.window_names import window_names
