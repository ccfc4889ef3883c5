"""Suites, peers and the harness behind `cleave bench`. They ship with the repository, not the package."""
