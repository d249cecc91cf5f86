"""Where the program begins: the console script, and `python -m localspec`."""

import sys


def main() -> None:
    """The command line, also when Ctrl-C comes while it is still being imported."""
    try:
        from localspec import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
