"""Guard: a circuit breaker for learning, on the loss and on the norm of the weights."""
