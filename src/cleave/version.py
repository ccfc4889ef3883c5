"""The version of Cleave. The package's metadata is made from it; a source tree that is not installed has none."""

VERSION = "0.1.0"
