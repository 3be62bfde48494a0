"""Named data sets: their splits, where they come from, whether they are in order."""
