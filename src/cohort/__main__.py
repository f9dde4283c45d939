"""``python -m cohort`` is the command ``cohort``."""

from cohort.cli.entry import command

if __name__ == "__main__":
    command()
