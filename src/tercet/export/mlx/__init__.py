"""MLX, Apple's framework: a directory that mlx-lm runs, codes as they are."""

from tercet.export.mlx.target import Mlx

TARGET = Mlx()

__all__ = ["TARGET", "Mlx"]
