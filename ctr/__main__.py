"""`python -m ctr`: the same as `ctr`."""

from ctr.cli.app import main

main()
