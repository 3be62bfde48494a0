"""Pictures of what a run has learned."""
