"""From tables to sources: resident, mapped, streamed."""
