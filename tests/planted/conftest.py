"""Makes `planted` importable, here and in the processes that judge."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
