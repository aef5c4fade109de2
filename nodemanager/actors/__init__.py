"""Acting: Pykka actors that own threads and effects. They send messages, and none waits for an answer."""
