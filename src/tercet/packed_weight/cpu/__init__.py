"""Packed products in C++ on a CPU."""
