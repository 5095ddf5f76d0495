"""tercet sensitivity and tercet allocate: a format for each module within a budget."""
