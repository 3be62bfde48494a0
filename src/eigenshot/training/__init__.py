"""The loop, its schedule, its checkpoints and what it reports."""
