"""An op for the tests of cross-compiling: a product with everything that can go wrong."""
