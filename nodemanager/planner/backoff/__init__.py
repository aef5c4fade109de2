"""What refused creates, failed boots and users' drains keep from being bought, and until when."""
