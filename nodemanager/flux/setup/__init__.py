"""What makes an instance elastic: a new one, an existing one, one inside another."""
