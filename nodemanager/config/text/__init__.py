"""The formats that a site is written in: INI with line numbers, credentials, Flux's TOML."""
