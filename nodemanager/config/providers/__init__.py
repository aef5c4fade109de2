"""The requirements of each provider on the keys of a site."""
