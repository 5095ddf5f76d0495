"""Shapes of published models, 135M to a trillion parameters, as data: one YAML file a model."""

from tercet.models.catalog.entry import CatalogEntry
from tercet.models.catalog.load import load, names, read
from tercet.models.catalog.parameters import parameters

__all__ = ["CatalogEntry", "load", "names", "parameters", "read"]
