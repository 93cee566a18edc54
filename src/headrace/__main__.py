"""`python -m headrace`: the same front door without an installed script."""

from headrace.cli.main import main

main()
