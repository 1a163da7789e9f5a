"""Ten real questions, each a program that talks to a server: python -m examples.clicks."""
