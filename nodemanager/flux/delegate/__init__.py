"""The ports of delegation on real instances, and what our instance needs for it."""
