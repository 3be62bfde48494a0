"""A paper's tables: their figures, the runs that fill them, and ours beside theirs."""
