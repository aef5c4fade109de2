"""A simulated cloud and a simulated Flux in virtual time: the second adapter of each port."""
