"""The lean decoder: a language model that runs from packed weights."""
