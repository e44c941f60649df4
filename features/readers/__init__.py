"""Files of each format, read as blocks of cells."""

from features.readers.bad_rows import EARLY_ROWS, BadRows, Quarantine, require_few, too_many
from features.readers.block import Block, Piece, blocks_of
from features.readers.delimited import Labels
from features.readers.opening import open_reader
