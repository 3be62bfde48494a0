"""Protocols that work on features: episodes, few-shot accuracy, nearest neighbours."""
