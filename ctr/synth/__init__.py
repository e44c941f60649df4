"""Click logs drawn from a known model."""

from ctr.synth.log import truth_logloss, write_click_log
