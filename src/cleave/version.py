"""The version of Cleave: the package's metadata is made from it, and a source tree that is not installed has
none."""

VERSION = "0.1.0"
