"""Run the command line as ``python -m lucidae_app``."""

from lucidae_app import main

if __name__ == "__main__":
    main()
