"""Quantization-aware training: linears and embeddings that train as they will be served."""
