"""The formats of a site: INI with line numbers, credentials, Flux's TOML."""
