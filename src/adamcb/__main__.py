"""`python -m adamcb`: the command line."""

from adamcb.lab.commands.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
