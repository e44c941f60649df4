"""`ctr train`: its options, the command, and what it says of the outcome."""

from ctr.cli.train.command import train
