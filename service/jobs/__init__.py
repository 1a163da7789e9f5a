"""Background work: refits, rollbacks, unlearning, label timeouts, followers, inputs."""
