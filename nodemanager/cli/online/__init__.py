"""The verb ``check --online``: what the site names is there and answers."""
