"""The version of the package; here, so that it is known without an installation too."""

VERSION = "0.1.0"
