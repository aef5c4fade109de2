"""Pykka actors, which own the threads and the side effects. They send messages and never wait for an answer."""
