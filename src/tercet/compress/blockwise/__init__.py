"""Blockwise: what a layer stores, trained together for the layer's output."""
