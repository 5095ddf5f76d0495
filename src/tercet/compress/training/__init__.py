"""Training: data, the loop, its state on disk and its journal; knows no particular loss."""
