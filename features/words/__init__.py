"""From texts to hashed words: categories that are shaped or counted, lists, n-grams."""

from ctr.features.words.counts import known_values
from ctr.features.words.steps import elements, ngrams, shaped
from ctr.features.words.texts import texts_of_elements, texts_of_ngrams, texts_of_value
