"""The adapter for OpenStack Nova."""
