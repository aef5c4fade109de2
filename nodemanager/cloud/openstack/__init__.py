"""OpenStack Nova."""
