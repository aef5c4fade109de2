"""The cloud: one real adapter of ``CloudPort`` for each provider. ``providers`` picks the site's."""
