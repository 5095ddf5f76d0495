"""One model in several processes, one a device: what `tercet run --tensor-parallel` starts."""
