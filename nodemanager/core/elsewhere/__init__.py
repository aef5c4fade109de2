"""Where jobs may run besides here, as values."""
