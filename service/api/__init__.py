"""HTTP routes: parse, one call, reply."""
