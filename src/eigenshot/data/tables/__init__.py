"""Pictures that are still encoded: shards, folders, arrays, selections."""
