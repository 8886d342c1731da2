"""`adamcb`, or `python -m adamcb`: the command line, which a signal ends without a traceback from here on."""

from __future__ import annotations

from adamcb.lab.signals import end_on_the_spot


def main() -> int:
    """Run the command line and return the exit code."""
    end_on_the_spot()  # before the imports, which take seconds
    from adamcb.lab.commands import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
