"""Click logs drawn from a known model."""

from ctr.synth.log import write_click_log
