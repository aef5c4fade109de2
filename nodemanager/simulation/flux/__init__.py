"""The simulated Flux instance: job manager, scheduler, brokers, and the port and watch over them."""
