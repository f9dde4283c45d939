"""``python -m cohort`` is the command ``cohort``."""

from cohort.cli.main import main

if __name__ == "__main__":
    main()
