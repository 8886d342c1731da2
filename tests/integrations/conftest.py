"""The modules of runs import a framework, which takes seconds and may not be installed: they hold no doctests."""

collect_ignore_glob = ["*_runs.py"]
