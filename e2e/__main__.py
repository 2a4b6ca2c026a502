"""`python -m e2e`."""

from e2e.cli import main

main()
