"""Adapters of ``CloudPort``, one for each real provider. ``providers`` selects the one that the site names."""
