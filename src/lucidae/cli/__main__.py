"""Run the command line as ``python -m lucidae.cli``."""

from lucidae.cli import main

if __name__ == "__main__":
    main()
